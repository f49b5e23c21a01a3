"""A PyTorch map-style data set over a directory of HDF5 shards, ours or of Model Zoo.

Reading follows Model Zoo's loaders: all `*.h5` files of the directory in name order are one array;
`data_params.json` beside them names the features. It needs no torch: anything with a length and
items is a map-style data set, and the arrays become tensors when a DataLoader collates them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from pipeline.core.errors import InputError
from pipeline.hdf5.format import DATA_PARAMS, DATASET, SAMPLE, SHARD_SUFFIX, VSL
from pipeline.hdf5.read import ExpectedFile, ShardFiles, windows
from pipeline.hdf5.shard_file import ShardFile

Sample = dict[str, npt.NDArray[Any]]
Labels = Literal["shifted", "hf"]
_UNCOUNTED = -100

_MOST_PARAMS_BYTES = 64 << 20


@dataclass(frozen=True)
class DatasetGroup:
    """One dataset of every file, and the features on its axis 1; a corpus has none."""

    files: ShardFiles
    features: tuple[str, ...]


class HDF5Dataset:
    """`ds[i]` -> {feature: (MSL,) int32}, `len(ds)` rows; batches through `ds.__getitems__`.

    `labels="shifted"`, as stored and as Model Zoo has it: `labels[j]` is the token that follows
    `input_ids[j]`, and `attention_mask` is the loss mask, 1 where that label counts. A model of
    transformers shifts labels itself and would be off by one without a word.

    `labels="hf"`, for `model(**batch)` of transformers, all int64: `labels[j]` is the token at j,
    -100 where it does not count (and at 0, which nothing before it predicts); `attention_mask` is 1
    for tokens and 0 for padding at the end. `shift_labels` are the labels of all MSL positions,
    -100 where masked: with them a model of transformers 4.57 or later has the loss of all labels;
    without them that of the last label of every row is lost. Rows of `vsl` are refused: their
    documents do not see each other, and a document's last label is no input.

    Takes `sample` and `vsl` directories, the data sets of `convert_dataset_to_HDF5` with several
    groups (features that are no integers keep their dtype), and a `corpus`, for which
    `max_sequence_length` is chosen here (by default what `data_params.json` says): row i is
    tokens[i * MSL : i * MSL + MSL + 1], ids without the last, labels without the first, mask ones;
    tokens after the last whole row are not read.

    Files with a recorded hash are compared with it when this process first reads them; chunks of
    others with their checksums, where they have any. Can be pickled, forked and sent to spawned
    workers; each process opens its files when it first reads them.

    Raises InputError for a directory that cannot be read so, IntegrityError for damage.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        max_sequence_length: int | None = None,
        labels: Labels = "shifted",
    ) -> None:
        if labels not in get_args(Labels):
            raise ValueError(f'labels: {labels!r}; expected "shifted" or "hf"')
        self.directory = Path(directory)
        self.labels = labels
        params = read_params(self.directory)
        self.groups = open_groups(self.directory, params)
        first = self.groups[0].files
        self.format = "sample"
        if not first.row_shape:
            self.format = "corpus"
            self.features: tuple[str, ...] = SAMPLE.features
            self.max_sequence_length = _corpus_length(self.directory, params, max_sequence_length)
            self._rows = max(0, first.rows - 1) // self.max_sequence_length
        else:
            self._open_rows(first, max_sequence_length)
        if labels == "hf":
            self._check_hf()
            self.features = (*SAMPLE.features, "shift_labels")

    def _open_rows(self, first: ShardFiles, length: int | None) -> None:
        self.features = tuple(name for group in self.groups for name in group.features)
        if self.features == VSL.features:
            self.format = "vsl"
        self.max_sequence_length = int(first.row_shape[-1])
        self._rows = first.rows
        if length not in (None, self.max_sequence_length):
            raise InputError(
                f"{self.directory}: its rows have {self.max_sequence_length} tokens, but {length} "
                "were asked for; only a corpus can be read with any length"
            )

    def _check_hf(self) -> None:
        if set(self.features) >= set(VSL.features):
            raise InputError(
                f'{self.directory}: labels="hf" cannot be used with rows of vsl: documents next to '
                "each other in a row do not attend to each other, and a document's last label is "
                "not an input; make rows of `sample` with `prep repack RUN --out DIR --format "
                "sample`"
            )
        if not set(self.features) >= set(SAMPLE.features):
            raise InputError(
                f'{self.directory}: labels="hf" needs {", ".join(SAMPLE.features)}; its features '
                f"are {', '.join(self.features)}"
            )

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: int) -> Sample:
        if not -self._rows <= index < self._rows:
            raise IndexError(f"row {index} of {self._rows:,}")
        return self.__getitems__([index % self._rows])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Several samples at once; a DataLoader calls this for every batch."""
        batch = self.read(indices)
        return [{name: values[i] for name, values in batch.items()} for i in range(len(indices))]

    def read(self, rows: Sequence[int] | npt.NDArray[np.int64]) -> Sample:
        """{feature: (B, MSL)} of rows in the order asked for, each in [0, len); dtypes as those of
        single samples."""
        batch = self._read(rows)
        return batch if self.labels == "shifted" else _for_transformers(batch)

    def _read(self, rows: Sequence[int] | npt.NDArray[np.int64]) -> Sample:
        rows_B = np.asarray(rows, np.int64)
        if len(rows_B) and (rows_B.min() < 0 or rows_B.max() >= self._rows):
            raise IndexError(f"rows {rows_B.min()} to {rows_B.max()} of {self._rows:,}")
        if self.format == "corpus":
            block = windows(self.groups[0].files, rows_B, self.max_sequence_length)
            return {name: block[:, channel] for channel, name in enumerate(SAMPLE.features)}
        batch: Sample = {}
        for group in self.groups:
            block = as_int32(group.files.read(rows_B), self.directory)
            batch |= {name: block[:, channel] for channel, name in enumerate(group.features)}
        return batch


def _for_transformers(batch: Sample) -> Sample:
    """(B, MSL) features as stored -> those that transformers expects, int64."""
    counts = batch["attention_mask"] != 0
    shifted = np.where(counts, batch["labels"].astype(np.int64), _UNCOUNTED)
    labels = np.full_like(shifted, _UNCOUNTED)
    labels[:, 1:] = shifted[:, :-1]
    position = np.arange(shifted.shape[1])
    last = np.where(counts, position + 1, 0).max(axis=1, initial=0, keepdims=True)
    return {
        "input_ids": batch["input_ids"].astype(np.int64),
        "attention_mask": (position <= last).astype(np.int64),
        "labels": labels,
        "shift_labels": shifted,
    }


def as_int32(block: npt.NDArray[Any], directory: Path) -> npt.NDArray[Any]:
    """Integers as int32, as Model Zoo's loaders do, but never wrapped around."""
    if block.dtype == np.int32 or block.dtype.kind not in "iu":
        return block
    narrow = block.astype(np.int32)
    if (narrow != block).any():
        raise InputError(f"{directory}: {block.dtype} values that do not fit into int32")
    return narrow


def read_params(directory: Path) -> dict[str, Any]:
    """`data_params.json`, or nothing where there is none."""
    path = directory / DATA_PARAMS
    try:
        if not path.exists():
            return {}
        if path.stat().st_size > _MOST_PARAMS_BYTES:
            raise InputError(f"{path}: larger than {_MOST_PARAMS_BYTES:,} bytes")
        params = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(params, dict):
        raise InputError(f"{path}: expected an object")
    return params


def open_groups(directory: Path, params: dict[str, Any]) -> tuple[DatasetGroup, ...]:
    """`data` with its features, or `data_0`, `data_1`, ... of a converted data set."""
    if "data_0_features" not in params:
        files = _open_files(directory, DATASET, _read_recorded(params))
        return (DatasetGroup(files, _features(directory, files, params.get("features"))),)
    groups: list[DatasetGroup] = []
    while (key := f"data_{len(groups)}_features") in params:
        files = _open_files(directory, f"{DATASET}_{len(groups)}", _read_recorded(params))
        groups.append(DatasetGroup(files, _features(directory, files, params[key])))
    if len({group.files.rows for group in groups}) > 1:
        raise InputError(f"{directory}: its groups of features differ in their number of rows")
    return tuple(groups)


def _features(directory: Path, files: ShardFiles, names: object) -> tuple[str, ...]:
    if not files.row_shape:
        return ()
    channels = files.row_shape[0]
    if not names:
        names = next((x.features for x in (SAMPLE, VSL) if x.channels == channels), ())
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{directory / DATA_PARAMS}: features: expected a list of names")
    if len(names) != channels:
        raise InputError(
            f"{directory}: rows hold {channels} features, but {len(names)} are named "
            f"({files.name!r} is {files.dtype} (rows, {', '.join(map(str, files.row_shape))})); "
            f"name them under `features` of {DATA_PARAMS}"
        )
    return tuple(names)


def _read_recorded(params: dict[str, Any]) -> dict[str, tuple[int, str]]:
    """Rows and hash of each file, where `data_params.json` has them, as ours does."""
    try:
        return {f["name"]: (int(f["n_examples"]), str(f["hash"])) for f in params.get("files", ())}
    except (TypeError, KeyError, ValueError):
        return {}


def _open_files(directory: Path, name: str, recorded: dict[str, tuple[int, str]]) -> ShardFiles:
    """All files of the directory, as one array. Raises InputError when they do not fit together."""
    paths = sorted(directory.glob(f"*{SHARD_SUFFIX}"))
    if not paths:
        below = sorted({path.parent for path in directory.glob(f"*/*{SHARD_SUFFIX}")})
        hint = f"; {below[0]} has some: name that directory" if below else ""
        raise InputError(f"{directory}: no *{SHARD_SUFFIX} files in it{hint}")
    lost = sorted(recorded.keys() - {path.name for path in paths})
    if lost:
        raise InputError(f"{directory / lost[0]}: missing, although {DATA_PARAMS} names it")
    first = ShardFile(paths[0], name)
    expected = []
    for path in paths:
        rows, digest = recorded.get(path.name, (None, None))
        if rows is None:
            file = ShardFile(path, name)
            if (file.shape[1:], file.dtype) != (first.shape[1:], first.dtype):
                raise InputError(
                    f"{path}: {name!r} is {file.dtype} {file.shape}, but {first.path.name} holds "
                    f"{first.dtype} {first.shape}; all files of a directory must agree"
                )
            rows = file.rows
        expected.append(ExpectedFile(path, rows, digest))
    return ShardFiles(expected, first.shape[1:], first.dtype, name)


def _corpus_length(directory: Path, params: dict[str, Any], requested: int | None) -> int:
    length = requested if requested is not None else params.get("max_sequence_length")
    if not isinstance(length, int) or length < 1:
        raise InputError(
            f"{directory}: a corpus of tokens without rows; choose max_sequence_length (1 or more)"
        )
    return length
