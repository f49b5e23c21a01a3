"""Directories of shards as training reads them, whoever wrote them: what their `data_params.json`
says, and what it does not say, taken from the files.

Directories of shards as training reads them, whoever wrote them: what their data_params.json does
not say is taken from the files.
"""

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.core.errors import InputError
from pipeline.core.hashes import hash_file
from pipeline.core.manifest import fingerprint_of
from pipeline.core.words import pluralise
from pipeline.hdf5.dataset import DatasetGroup, as_int32, open_groups, read_params
from pipeline.hdf5.foreign.examine import Groups
from pipeline.hdf5.foreign.rows import FileFinding
from pipeline.hdf5.format import (
    CORPUS,
    DATA_PARAMS,
    DATASET,
    SAMPLE,
    SAMPLE_FEATURES,
    SHARD_SUFFIX,
    VSL,
    VSL_FEATURES,
    ShardLayout,
)
from pipeline.hdf5.read import Rows, SampleDataset, open_dataset

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
                value = place.get(name) if isinstance(place, Mapping) else None
                if isinstance(value, int) and not isinstance(value, bool):
                    return value
        return None

    def groups(self) -> Groups:
        """Datasets and the features they are said to hold."""
        groups: list[tuple[str, tuple[str, ...]]] = []
        while (key := f"data_{len(groups)}_features") in self.value:
            groups.append((f"{DATASET}_{len(groups)}", _names(self.value[key])))
        return tuple(groups) or ((DATASET, _names(self.value.get("features"))),)

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


def read_foreign_params(directory: Path) -> tuple[ForeignParams, list[FileFinding]]:
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
    yield from _check_listed_files(params, rows)


def _check_listed_files(params: ForeignParams, rows: Mapping[str, int]) -> Iterator[FileFinding]:
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


UNKNOWN_ID = -1
"""`eos_id` of a data set that does not say how documents end."""

_OWN = {
    "files",
    "max_sequence_length",
    "vocab_size",
    "eos_id",
    "rows_globally_shuffled",
    "dataset_hash",
    "n_examples",
}


class ForeignDataset(SampleDataset):
    """Rows of Model Zoo's files, of `convert_dataset_to_HDF5` or of a corpus from `prep convert`.

    The length of rows is that of the files; of a corpus it is `corpus_length`, else what
    data_params.json says. `vocab_size` is the model's, or what data_params.json says if that is
    more; without a model it is that, or else the highest id and one, for which all rows are read.
    A row with an id outside it is refused when it is read. Channels are found by their names.
    `dataset_hash` is that of all bytes of all files, if none is recorded.

    Raises InputError for what cannot be trained on.
    """

    def __init__(
        self,
        directory: Path,
        params: Mapping[str, Any],
        corpus_length: int | None = None,
        vocab_size: int | None = None,
    ) -> None:
        declared = ForeignParams(directory, params)
        group = _only_group(directory, params)
        layout = _layout(directory, group)
        stated = declared.number("vocab_size")
        eos_id = declared.number("eos_id")
        length = _length(declared, group, corpus_length)
        super().__init__(
            directory,
            {
                **params,
                "format": layout.name,
                "files": [
                    {
                        "name": each.path.name,
                        "n_examples": each.rows,
                        "hash": each.hash or "",
                        "content_hash": "",
                    }
                    for each in group.files.files
                ],
                "n_examples": group.files.rows,
                "max_sequence_length": length,
                "vocab_size": max(vocab_size or 0, stated or 0),
                "eos_id": UNKNOWN_ID if eos_id is None else eos_id,
                "rows_globally_shuffled": params.get("rows_globally_shuffled") is True,
                "dataset_hash": params.get("dataset_hash") or _hash_group(group),
            },
        )
        self.files = group.files
        self._channels = [group.features.index(name) for name in layout.features]
        if not self.vocab_size:
            self.vocab_size = self._highest_id() + 1

    def read(self, rows_B: npt.NDArray[np.int64]) -> Rows:
        """See `SampleDataset`. Raises InputError for a token id outside the vocabulary."""
        if self.layout is CORPUS:
            rows = super().read(rows_B)
        else:
            rows = as_int32(self.files.read(rows_B)[:, self._channels], self.directory)
        ids = rows[:, ::2][:, :2]  # input ids and labels
        wrong = ((ids < 0) | (ids >= self.vocab_size)).any(axis=(1, 2))
        if wrong.any():
            self._refuse(int(rows_B[wrong][0]), ids[wrong][0])
        return rows

    def _refuse(self, row: int, ids: npt.NDArray[np.int32]) -> None:
        file, within = self.file_and_row(row)
        value = int(ids.min()) if ids.min() < 0 else int(ids.max())
        mend = (
            "for a label that does not count, set attention_mask to 0 and use any id of the "
            "vocabulary"
        )
        if value >= 0:
            mend = (
                f"set model.vocab_size of the params file to {value + 1:,} or more, or vocab_size "
                f"in {DATA_PARAMS} when there is no params file"
            )
        unit = "token" if self.layout is CORPUS else "row"
        raise InputError(
            f"{file}: {unit} {within}: id {value:,} is outside the vocabulary of "
            f"{self.vocab_size:,}; {mend}"
        )

    def _highest_id(self) -> int:
        highest = 0
        for _, _, block in self.files.blocks(1024):
            ids = block if self.layout is CORPUS else block[:, self._channels][:, ::2][:, :2]
            highest = max(highest, int(ids.max(initial=0)))
        return highest


def open_any(
    directory: Path, corpus_length: int | None = None, vocab_size: int | None = None
) -> SampleDataset:
    """Open a directory of shards: ours by its data_params.json, others as `ForeignDataset`.

    `corpus_length`: MSL of the rows of a corpus; `vocab_size`: the model's, which counts where a
    data set that is not ours says nothing or less. Raises InputError.
    """
    if not directory.is_dir():
        raise InputError(f"{directory}: no such directory; expected one with .h5 files")
    params = read_params(directory)
    if params.keys() >= _OWN:
        return open_dataset(directory, corpus_length)
    ours = "dataset_hash" in params and "vocab_size" in params
    return ForeignDataset(directory, params, corpus_length, None if ours else vocab_size)


def holds_shards(directory: Path) -> bool:
    """Whether there are .h5 files in the directory itself."""
    return next(directory.glob(f"*{SHARD_SUFFIX}"), None) is not None


def _only_group(directory: Path, params: Mapping[str, Any]) -> DatasetGroup:
    inverted = params.get("dataset")
    if isinstance(inverted, Mapping) and inverted.get("inverted_mask") is True:
        raise InputError(
            f"{directory / DATA_PARAMS}: dataset.inverted_mask is true, so a mask of 1 hides a "
            "token; training expects 1 where the label counts; write it with inverted_mask: false"
        )
    groups = open_groups(directory, dict(params))
    if len(groups) > 1:
        contents = "; ".join(f"{g.files.name}: {', '.join(g.features)}" for g in groups)
        raise InputError(
            f"{directory}: features in {len(groups)} datasets ({contents}); training reads one, "
            f"{DATASET!r}, with {', '.join(SAMPLE_FEATURES)} of one length"
        )
    return groups[0]


def _layout(directory: Path, group: DatasetGroup) -> ShardLayout:
    files = group.files
    if not files.row_shape and files.dtype.kind in "iu" and files.dtype.itemsize <= 4:
        return CORPUS
    if len(files.row_shape) != 2 or files.dtype.kind not in "iu":
        raise InputError(
            f"{files.files[0].path}: {files.name!r} is {files.dtype} (rows, "
            f"{', '.join(map(str, files.row_shape))}); training expects integers (rows, 3 or 5, "
            "MSL)"
        )
    for layout in (VSL, SAMPLE):
        if set(layout.features) <= set(group.features):
            return layout
    raise InputError(
        f"{directory}: its features are {', '.join(group.features)}; training needs "
        f"{', '.join(SAMPLE_FEATURES)}, for use_vsl also {', '.join(VSL_FEATURES[3:])}; if they "
        f"have other names, list them in order under `features` of {DATA_PARAMS}"
    )


def _length(declared: ForeignParams, group: DatasetGroup, corpus_length: int | None) -> int:
    if group.files.row_shape:
        return group.files.row_shape[-1]
    length = corpus_length or declared.number("max_sequence_length", "max_seq_length")
    if length is None or length < 1:
        raise InputError(
            f"{declared.directory}: a corpus of tokens without rows; set max_sequence_length in "
            f"its {DATA_PARAMS}, or name a params file, whose model.max_position_embeddings counts"
        )
    return length


def _hash_group(group: DatasetGroup) -> str:
    """What tells this data set from another one: names and bytes of its files."""
    names = [
        (each.path.name, _hash_once(each.path, *_state(each.path))) for each in group.files.files
    ]
    return fingerprint_of({"files": names})


def _state(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


@functools.lru_cache(maxsize=1 << 16)
def _hash_once(path: Path, *_state: int) -> str:
    """The hash of a file, read once by a process as long as the file stays as it is."""
    return hash_file(path)
