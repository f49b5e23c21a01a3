"""What the `data_params.json` of a foreign directory says, whoever wrote it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.storage import hash_file
from pipeline.core.words import pluralise
from pipeline.hdf5.findings import FileFinding
from pipeline.hdf5.foreign_file import Groups
from pipeline.hdf5.format import DATA_PARAMS, DATASET

MOST_BYTES = 64 << 20
_SECTIONS = ("post-process", "processing", "dataset", "setup", "h5_dataset_stats")


@dataclass(frozen=True)
class ForeignParams:
    """The file's content; empty where there is none."""

    directory: Path
    value: Mapping[str, Any]

    def number(self, *names: str) -> int | None:
        """The first of these keys that holds a whole number, at the top or in a section that Model
        Zoo's scripts write."""
        places = [self.value, *(self.value.get(section) for section in _SECTIONS)]
        for name in names:
            for place in places:
                found = place.get(name) if isinstance(place, Mapping) else None
                if isinstance(found, int) and not isinstance(found, bool):
                    return found
        return None

    def groups(self) -> Groups:
        """Datasets and the features they are said to hold."""
        found: list[tuple[str, tuple[str, ...]]] = []
        while (key := f"data_{len(found)}_features") in self.value:
            found.append((f"{DATASET}_{len(found)}", _names(self.value[key])))
        return tuple(found) or ((DATASET, _names(self.value.get("features"))),)

    def rows_are_in_order(self) -> bool:
        """Whether it says outright that rows were not shuffled."""
        if self.value.get("rows_globally_shuffled") is False:
            return True
        processing = self.value.get("processing")
        return isinstance(processing, Mapping) and processing.get("shuffle") is False


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return tuple(value)
    return ()


def read_params(directory: Path) -> tuple[ForeignParams, list[FileFinding]]:
    """The parameters, and what is wrong with the file itself."""
    path = directory / DATA_PARAMS
    try:
        if path.stat().st_size > MOST_BYTES:
            problem = f"{DATA_PARAMS} is larger than {MOST_BYTES:,} bytes"
        else:
            value = json.loads(path.read_bytes())
            if isinstance(value, dict):
                return ForeignParams(directory, value), []
            problem = f"{DATA_PARAMS} is not a JSON object"
    except FileNotFoundError:
        problem = f"{DATA_PARAMS} is missing"
    except (OSError, ValueError, RecursionError) as error:
        problem = f"{DATA_PARAMS} cannot be read: {error}"
    return ForeignParams(directory, {}), [FileFinding("", "params", problem)]


def disagreements(
    params: ForeignParams, rows: Mapping[str, int], sequence_length: int | None
) -> Iterator[FileFinding]:
    """Where the parameters and the files differ; `rows` are those of every file (tokens of a
    corpus), `sequence_length` is None for a corpus."""
    total = sum(rows.values())
    for name in ("n_examples", "num_sequences"):
        stated = params.number(name)
        if stated is not None and stated != total and sequence_length is not None:
            what = (
                f"{DATA_PARAMS}: {name} is {stated:,}, but the files hold {pluralise(total, 'row')}"
            )
            yield FileFinding("", "params", what)
    stated = params.number("max_sequence_length", "max_seq_length")
    if stated is not None and sequence_length not in (None, stated):
        what = (
            f"{DATA_PARAMS}: the sequence length is {stated}, but the files have {sequence_length}"
        )
        yield FileFinding("", "params", what)
    yield from _listed_files(params, rows)


def _listed_files(params: ForeignParams, rows: Mapping[str, int]) -> Iterator[FileFinding]:
    """`files` with rows and hashes, which our own parameters have."""
    listed = params.value.get("files")
    if not isinstance(listed, list):
        return
    entries = {
        f["name"]: f for f in listed if isinstance(f, dict) and isinstance(f.get("name"), str)
    }
    for name in sorted(entries.keys() - rows.keys()):
        yield FileFinding("", "params", f"{DATA_PARAMS} names {name!r}, which is not there")
    for name, count in rows.items():
        entry = entries.get(name)
        if entry is None:
            yield FileFinding(name, "params", f"{DATA_PARAMS} does not name it")
            continue
        stated = entry.get("n_examples")
        if stated is not None and stated != count:
            what = f"{DATA_PARAMS} says {stated} rows, but the file holds {count:,}"
            yield FileFinding(name, "params", what)
        digest = entry.get("hash")
        if isinstance(digest, str) and hash_file(params.directory / name) != digest:
            what = f"its bytes differ from those that {DATA_PARAMS} records"
            yield FileFinding(name, "unreadable", what)
