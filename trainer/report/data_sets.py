"""Which prepared runs a training run read, and what these tell of its data.

run.json names data sets by hash. Where they stand is told to `write_report`, and kept in
MODEL_DIR/data_sets.json, so that a page made later finds them again; a directory that does not hold
the data set of that hash, or its masked successor, does not count.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline import layout
from pipeline.core import storage
from pipeline.core.errors import InputError, IntegrityError, PrepError
from pipeline.hdf5.foreign_dataset import holds_shards, open_any
from pipeline.hdf5.read import SampleDataset
from pipeline.provenance.training import TrainingRecord, read_training
from pipeline.splits import TRAIN

NAME = "data_sets.json"
_TELLING = (layout.MANIFEST, layout.LEDGER, layout.DOCUMENTS)


@dataclass(frozen=True)
class ReadDataSet:
    """One data set of a run, `part` of its mixture.

    `directory`: of its shards; `run`: the prep run it stands in, None where it stands alone;
    `epochs`: how often its rows were read, on average; `takedowns`: that masked documents in it.
    """

    part: int
    directory: Path
    run: Path | None
    dataset_hash: str
    rows: int
    epochs: float
    takedowns: tuple[str, ...]


def find(model_dir: Path, places: Sequence[Path], samples: int) -> tuple[ReadDataSet, ...]:
    """The data sets of a run of so many samples, in the order of its record, as far as they stand
    in `places`: directories of prep runs or of shards.

    Without places, those of the last time are looked at, and what is not there any more is left
    out. Raises InputError when a given place holds no data set of the run.
    """
    training = read_training(model_dir)
    given = bool(places)
    found: dict[int, ReadDataSet] = {}
    for place in places or _remembered(model_dir):
        try:
            data_set = _opened(training, place, samples)
        except PrepError:
            if given:
                raise
            continue
        found[data_set.part] = data_set
    known = tuple(found[part] for part in sorted(found))
    if given:
        listed = [str(data_set.directory.resolve()) for data_set in known]
        storage.write_json(model_dir / NAME, {"format": 1, "directories": listed})
    return known


def _remembered(model_dir: Path) -> list[Path]:
    try:
        listed = json.loads((model_dir / NAME).read_bytes())["directories"]
        return [Path(str(place)) for place in listed]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{model_dir / NAME}: damaged: {error!r}; delete it") from error


def _opened(training: TrainingRecord, place: Path, samples: int) -> ReadDataSet:
    """The data set of a place."""
    directory = place if holds_shards(place) else place / "hdf5" / TRAIN
    if not holds_shards(directory):
        raise InputError(
            f"{place}: neither a prep run with hdf5/{TRAIN} nor a directory of .h5 files"
        )
    dataset = open_any(directory, training.max_sequence_length)
    part = training.part_of(dataset)
    if part is None:
        hashes = ", ".join(name for p in training.parts for _, name in p.versions)
        raise InputError(
            f"{directory} holds data set {dataset.dataset_hash}; {training.model_dir} was trained "
            f"on {hashes}"
        )
    return ReadDataSet(
        part,
        directory,
        _run_of(directory),
        dataset.dataset_hash,
        dataset.rows,
        _epochs(training, dataset, part, samples),
        dataset.takedowns,
    )


def _run_of(directory: Path) -> Path | None:
    """The prep run that a split stands in, when it tells of its documents."""
    run = directory.parent.parent
    return run if all((run / name).is_file() for name in _TELLING) else None


def _epochs(training: TrainingRecord, dataset: SampleDataset, part: int, samples: int) -> float:
    """Readings per row."""
    mixed = training.parts[part].part
    if mixed is None:
        return samples / dataset.rows
    epoch = sum(p.part.per_epoch for p in training.parts if p.part is not None)
    return samples / epoch * mixed.per_epoch / mixed.rows
