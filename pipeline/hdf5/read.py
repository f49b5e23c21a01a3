"""Read a directory of `sample` HDF5 shards as one array of rows."""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from pipeline.core.errors import InputError, IntegrityError
from pipeline.core.storage import read_verified
from pipeline.hdf5.format import CHANNELS, DATA_PARAMS, DATASET

Rows = npt.NDArray[np.int32]


@dataclass(frozen=True)
class ShardInfo:
    """One file of the data set, as `data_params.json` records it."""

    name: str
    rows: int
    hash: str
    content_hash: str


class SampleDataset:
    """Rows of a split, addressed by their position over all shards in name order.

    Every shard's hash is checked against `data_params.json` the first time it is read.
    """

    def __init__(self, directory: Path, params: dict[str, Any]) -> None:
        self.directory = directory
        self.shards = tuple(
            ShardInfo(f["name"], f["n_examples"], f["hash"], f["content_hash"])
            for f in params["files"]
        )
        for shard in self.shards:
            if Path(shard.name).name != shard.name:
                raise ValueError(f"file name {shard.name!r} leaves the directory")
        self.rows = int(params["n_examples"])
        self.max_sequence_length = int(params["max_sequence_length"])
        self.vocab_size = int(params["vocab_size"])
        self.eos_id = int(params["eos_id"])
        self.rows_globally_shuffled = bool(params["rows_globally_shuffled"])
        self.dataset_hash = str(params["dataset_hash"])
        self.starts = np.cumsum([0, *(shard.rows for shard in self.shards)])
        self._open: dict[int, h5py.File] = {}

    def file_and_row(self, row: int) -> tuple[Path, int]:
        """The shard that holds a data-set row, and the row's index inside it."""
        if not 0 <= row < self.rows:
            raise InputError(f"{self.directory}: row {row} is outside 0..{self.rows - 1}")
        index = int(np.searchsorted(self.starts, row, side="right")) - 1
        return self.directory / self.shards[index].name, row - int(self.starts[index])

    def read(self, rows_B: npt.NDArray[np.int64]) -> Rows:
        """Rows in the order asked for; rows_B (B,) int64 -> (B, 3, MSL) int32."""
        out = np.empty((len(rows_B), CHANNELS, self.max_sequence_length), np.int32)
        shard_of = np.searchsorted(self.starts, rows_B, side="right") - 1
        for index in np.unique(shard_of):
            here = np.flatnonzero(shard_of == index)
            within = rows_B[here] - self.starts[index]
            unique, inverse = np.unique(within, return_inverse=True)
            out[here] = self._file(int(index))[DATASET][unique][inverse]
        return out

    def blocks(self, rows_per_block: int = 1024) -> Iterator[tuple[ShardInfo, int, Rows]]:
        """Every row once: (shard, first row inside it, rows (N, 3, MSL))."""
        for index, shard in enumerate(self.shards):
            data = self._file(index)[DATASET]
            for start in range(0, shard.rows, rows_per_block):
                yield shard, start, data[start : start + rows_per_block]

    def _file(self, index: int) -> h5py.File:
        if index not in self._open:
            shard = self.shards[index]
            path = self.directory / shard.name
            image = read_verified(path, shard.hash)
            file = h5py.File(io.BytesIO(image), "r")
            expected = (shard.rows, CHANNELS, self.max_sequence_length)
            found = checked_dataset(path, file).shape
            if found != expected:
                raise IntegrityError(f"{path}: {DATASET!r} has shape {found}, expected {expected}")
            if len(self._open) >= 4:
                self._open.pop(next(iter(self._open))).close()
            self._open[index] = file
        return self._open[index]


def checked_dataset(path: Path, file: h5py.File) -> h5py.Dataset:
    """The `data` set of a shard, before anything is read from it.

    Raises InputError for links to other objects or files, data kept in other files, another dtype
    or number of dimensions, and rows that were declared but never written.
    """
    link = file.get(DATASET, getlink=True)
    if link is None or not isinstance(link, h5py.HardLink):
        what = "no dataset" if link is None else f"a {type(link).__name__} instead of a dataset"
        raise InputError(f"{path}: {what} named {DATASET!r}")
    data = file[DATASET]
    if not isinstance(data, h5py.Dataset):
        raise InputError(f"{path}: {DATASET!r} is a {type(data).__name__}, expected a dataset")
    if data.external or data.is_virtual:
        raise InputError(f"{path}: {DATASET!r} keeps its data in other files, which is refused")
    if data.dtype != np.dtype("<i4") or data.ndim != 3 or data.shape[1] != CHANNELS:
        raise InputError(
            f"{path}: {DATASET!r} is {data.dtype} {data.shape}, expected int32 (N, {CHANNELS}, MSL)"
        )
    if data.shape[0] and data.id.get_storage_size() == 0:
        raise InputError(f"{path}: declares {data.shape[0]:,} rows but stores none of them")
    return data


def open_dataset(directory: Path) -> SampleDataset:
    """Open the split whose `data_params.json` stands in `directory`.

    Raises InputError when there is none or it is not ours; IntegrityError on damaged shards (on
    read).
    """
    path = directory / DATA_PARAMS
    try:
        params = json.loads(path.read_bytes())
        return SampleDataset(directory, params)
    except OSError as error:
        raise InputError(
            f"{path}: cannot read ({error.strerror}); expected a directory of .h5 shards "
            "made by `prep run`"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a data_params.json of this toolkit: {error!r}") from error
