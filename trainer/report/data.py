"""The data sets of a run: which prepared runs it read, and what these record of sources, licences
and decisions.

run.json names data sets by hash. Where they are is given to `write_report`, and kept in
MODEL_DIR/data_sets.json for later pages; a directory that does not hold the data set of that hash,
or its masked successor, does not count.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core import storage
from pipeline.core.errors import InputError, IntegrityError, PrepError
from pipeline.core.ledger import Ledger, ledger_from_dict
from pipeline.hdf5.foreign.dataset import holds_shards, open_any
from pipeline.lineage.training import TrainingRecord, read_training
from pipeline.runs import layout
from pipeline.runs.generations import list_generations
from pipeline.runs.records import DocumentTable
from pipeline.runs.splits import TRAIN
from trainer.runs.record import read_json

_COLUMNS = ["source", "licence", "state", "split", "decision", "rule", "tokens"]
UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class SourceRead:
    """One source of a data set. `documents`, `tokens`: in the training split, copies counted;
    `licences`: tokens by licence of its documents, most first; the other counts: of documents
    that left before."""

    name: str
    documents: int
    tokens: int
    licences: tuple[tuple[str, int], ...]
    dropped: int
    duplicates: int
    quarantined: int


@dataclass(frozen=True)
class PrepRun:
    """A prep run. `decisions`: (decision, rule) with their documents."""

    directory: Path
    config: str
    manifest_hash: str
    sources: tuple[SourceRead, ...]
    decisions: tuple[tuple[str, str, int], ...]

    @property
    def tokens(self) -> int:
        """Of the stream of the training split."""
        return sum(source.tokens for source in self.sources)

    @property
    def licences(self) -> list[tuple[str, int]]:
        """Tokens by licence, most first."""
        total: Counter[str] = Counter()
        for source in self.sources:
            total.update(dict(source.licences))
        return total.most_common()


@dataclass
class _SplitCounts:
    """Of the training split: documents and tokens by source, tokens by source and licence."""

    documents: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    licences: dict[str, Counter[str]] = field(default_factory=dict)
    decisions: Counter[tuple[str, str]] = field(default_factory=Counter)


def read_prepared(run: Path, split: str) -> PrepRun:
    """Raises InputError for a directory that is no finished prep run, IntegrityError for damage."""
    manifest, ledger = (
        read_json(run / name, "finished prep run") for name in (layout.MANIFEST, layout.LEDGER)
    )
    try:
        books = ledger_from_dict(ledger)
        config, manifest_hash = str(manifest["config"]), str(manifest["seal"])
    except (KeyError, TypeError) as error:
        raise InputError(f"{run}: not the records of a prep run: {error!r}") from error
    counts = _counted(run, split)
    return PrepRun(
        run,
        config,
        manifest_hash,
        tuple(_sources(books, counts)),
        tuple((what, rule, n) for (what, rule), n in sorted(counts.decisions.items())),
    )


def _counted(run: Path, split: str) -> _SplitCounts:
    counts = _SplitCounts()
    for _, part in DocumentTable(run).parts(_COLUMNS):
        decided = part.filter(pc.not_equal(part["rule"], ""))
        for row in _grouped(decided, ["decision", "rule"]):
            counts.decisions[row["decision"], row["rule"]] += row["tokens_count"]
        mine = part.filter(pc.and_(pc.equal(part["split"], split), pc.equal(part["state"], "kept")))
        for row in _grouped(mine, ["source", "licence"]):
            source, licence = row["source"], row["licence"] or UNKNOWN
            counts.documents[source] += row["tokens_count"]
            counts.tokens[source] += row["tokens_sum"]
            counts.licences.setdefault(source, Counter())[licence] += row["tokens_sum"]
    return counts


def _grouped(table: pa.Table, keys: list[str]) -> Iterator[dict[str, Any]]:
    """Rows with the keys, `tokens_count` and `tokens_sum`."""
    plain = table.select([*keys, "tokens"])
    for place, key in enumerate(keys):
        plain = plain.set_column(place, key, pc.cast(plain[key], pa.string()))
    counted = plain.group_by(keys).aggregate([("tokens", "count"), ("tokens", "sum")])
    yield from counted.to_pylist()


def _sources(books: Ledger, counts: _SplitCounts) -> Iterator[SourceRead]:
    """Sources by tokens. A mixture repeats documents; its copies count, and licences in
    proportion."""
    for name in sorted(books.sources, key=lambda n: (-counts.tokens[n], n)):
        account, tokens, documents = (
            books.sources[name],
            counts.tokens[name],
            counts.documents[name],
        )
        copies = books.mixture.get(name)
        times = copies.stream_tokens / tokens if copies is not None and tokens else 1.0
        licences = counts.licences.get(name, Counter()).most_common()
        yield SourceRead(
            name=name,
            documents=copies.stream_documents if copies is not None else documents,
            tokens=copies.stream_tokens if copies is not None else tokens,
            licences=tuple((licence, round(n * times)) for licence, n in licences),
            dropped=sum(tally.documents for tally in account.dropped.values()),
            duplicates=account.duplicates.documents,
            quarantined=account.quarantined.documents,
        )


NAME = "data_sets.json"
_TELLING = (layout.MANIFEST, layout.LEDGER, layout.DOCUMENTS)


@dataclass(frozen=True, kw_only=True)
class ReadDataSet:
    """One data set of a run, `part` of its mixture. `directory`: of its shards; `run`: the prep
    run it is in, if any; `epochs`: how often its rows were read, on average; `takedowns`: that
    masked documents in it."""

    part: int
    directory: Path
    run: Path | None
    dataset_hash: str
    rows: int
    epochs: float
    takedowns: tuple[str, ...]


def locate_data_sets(
    model_dir: Path, places: Sequence[Path], samples: int
) -> tuple[ReadDataSet, ...]:
    """The data sets of a run that are in `places` (directories of prep runs or of shards;
    without them those of the last time), in the order of its record. Raises InputError when a
    given place holds no data set of the run."""
    training = read_training(model_dir)
    is_given = bool(places)
    by_part: dict[int, ReadDataSet] = {}
    if not is_given and (model_dir / NAME).is_file():
        try:
            listed = json.loads((model_dir / NAME).read_bytes())["directories"]
            places = [Path(str(place)) for place in listed]
        except (ValueError, KeyError, TypeError) as error:
            raise IntegrityError(f"{model_dir / NAME}: damaged: {error!r}; delete it") from error
    for place in (generation for given in places for generation in _list_generations(given)):
        try:
            data_set = _opened(training, place, samples)
        except PrepError:
            if is_given:
                raise
            continue
        by_part[data_set.part] = data_set
    data_sets = tuple(by_part[part] for part in sorted(by_part))
    if is_given:
        listed = [str(data_set.directory.resolve()) for data_set in data_sets]
        storage.write_json(model_dir / NAME, {"format": 1, "directories": listed})
    return data_sets


def _list_generations(place: Path) -> tuple[Path, ...]:
    """The directories of the generations of a prep run; any other directory alone."""
    return tuple(generation.directory for generation in list_generations(place))


def _opened(training: TrainingRecord, place: Path, samples: int) -> ReadDataSet:
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
    mixed, epochs = training.parts[part].part, samples / dataset.rows
    if mixed is not None:
        epoch = sum(p.part.per_epoch for p in training.parts if p.part is not None)
        epochs = samples / epoch * mixed.per_epoch / mixed.rows
    if training.parts[part].joined is not None:
        epochs = float(training.order(dataset).times_read(part, samples).mean())
    run = directory.parent.parent
    return ReadDataSet(
        part=part,
        directory=directory,
        run=run if all((run / name).exists() for name in _TELLING) else None,
        dataset_hash=dataset.dataset_hash,
        rows=dataset.rows,
        epochs=epochs,
        takedowns=dataset.takedowns,
    )


@dataclass(frozen=True, kw_only=True)
class ReportedDataSet:
    """A data set of run.json. `found`: where it is, if known; `prepared`: the prep run that made
    it, if known."""

    from_step: int
    dataset_hash: str
    rows: int | None
    rows_globally_shuffled: bool
    found: ReadDataSet | None
    prepared: PrepRun | None

    @property
    def run_argument(self) -> str:
        """The prep run, as an argument of `prep trace`."""
        run = self.found.run if self.found is not None else None
        return "RUN" if run is None else str(run)

    def tokens_read(self, source: SourceRead) -> float:
        """Tokens of a source in all readings: exact for whole epochs, expected for the rest."""
        return source.tokens * self.found.epochs if self.found is not None else 0.0


def find_data_sets(
    record: Mapping[str, Any], located: Sequence[ReadDataSet]
) -> tuple[ReportedDataSet, ...]:
    """The data sets of a record, in its order; raises as `read_prepared`. One that was masked
    has an entry for each of its hashes, the last with what is known of it."""
    by_part = {data_set.part: data_set for data_set in located}
    entries = record["datasets"]
    last = {entry.get("part", 0): index for index, entry in enumerate(entries)}
    reported = []
    for index, entry in enumerate(entries):
        part = entry.get("part", 0)
        here = by_part.get(part) if last[part] == index else None
        prepared = None
        if here is not None and here.run is not None:
            prepared = read_prepared(here.run, here.directory.name)
        reported.append(
            ReportedDataSet(
                from_step=entry["from_step"],
                dataset_hash=entry["dataset_hash"],
                rows=entry.get("rows"),
                rows_globally_shuffled=bool(entry.get("rows_globally_shuffled")),
                found=here,
                prepared=prepared,
            )
        )
    return tuple(reported)
