"""Directories of HDF5 shards as one array along their first axis, each file opened when it is first
read: ours, by their `data_params.json`, as rows, which `check_split` holds to the contract of their
layout (`pipeline.hdf5.format`).
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dedup.arrays import Array
from pipeline.core.errors import InputError, IntegrityError
from pipeline.core.hashes import verify_file
from pipeline.core.mirror.fetching import fetch
from pipeline.hdf5.format import CORPUS, DATA_PARAMS, DATASET, LAYOUTS, SAMPLE, VSL, ShardLayout
from pipeline.hdf5.shard_file import ShardFile

_MOST_OPEN = 64
_BLOCK_TOKENS = 1 << 19


@dataclass(frozen=True)
class ExpectedFile:
    """What a file of the set holds; `hash` is None where nobody recorded one."""

    path: Path
    rows: int
    hash: str | None = None


class ShardFiles:
    """Rows of one dataset over all files, (rows, *row_shape) of `dtype`.

    A file with a hash is compared with it the first time this process reads the file, and again
    when it changed; chunks of other files are compared with their checksums whenever they are read.
    Raises IntegrityError for damage or another shape than expected. Can be pickled; every process
    opens its own files.
    """

    def __init__(
        self,
        files: Sequence[ExpectedFile],
        row_shape: tuple[int, ...],
        dtype: np.dtype[Any],
        name: str = DATASET,
    ) -> None:
        self.files, self.row_shape, self.dtype, self.name = tuple(files), row_shape, dtype, name
        self.starts = np.cumsum([0, *(file.rows for file in files)])
        self._open: dict[int, ShardFile] = {}
        self._sound: dict[int, tuple[int, int, int]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}, "_sound": {}}

    @property
    def rows(self) -> int:
        """Length of the first axis over all files."""
        return int(self.starts[-1])

    def file_and_row(self, row: int) -> tuple[int, int]:
        """Index of the file that holds row `row`, and the row inside it."""
        index = int(np.searchsorted(self.starts, row, side="right")) - 1
        return index, row - int(self.starts[index])

    def read(self, rows_B: npt.NDArray[np.int64]) -> Array:
        """Rows in the order asked for, (B, *row_shape)."""
        out = np.empty((len(rows_B), *self.row_shape), self.dtype.newbyteorder("="))
        order = np.argsort(rows_B, kind="stable")
        sorted_B = np.asarray(rows_B)[order]
        bounds = np.searchsorted(sorted_B, self.starts)
        for index in np.flatnonzero(np.diff(bounds)).tolist():
            here = slice(bounds[index], bounds[index + 1])
            self.open(index).take(sorted_B[here] - self.starts[index], out, order[here])
        return out

    def paths(self, starts_B: npt.NDArray[np.int64], length: int = 1) -> list[Path]:
        """The files that hold rows [start, start + length) for each start, each once, in order."""
        first_B = np.searchsorted(self.starts, starts_B, side="right") - 1
        last_B = np.searchsorted(self.starts, starts_B + length - 1, side="right") - 1
        spans = zip(first_B.tolist(), last_B.tolist(), strict=True)
        return [self.files[i].path for i in sorted({i for a, b in spans for i in range(a, b + 1)})]

    def span(self, start: int, stop: int) -> Array:
        """Rows [start, stop) over the borders of files."""
        out = np.empty((stop - start, *self.row_shape), self.dtype.newbyteorder("="))
        index, done = self.file_and_row(start)[0], start
        while done < stop:
            first, last = int(self.starts[index]), min(stop, int(self.starts[index + 1]))
            out[done - start : last - start] = self.open(index).read(done - first, last - first)
            done, index = last, index + 1
        return out

    def blocks(self, least: int = 1) -> Iterator[tuple[int, int, Array]]:
        """Every row once, as stored, at least so many at a time but at the end of a file: (index of
        the file, first row inside it, rows); read-only."""
        for index in range(len(self.files)):
            for first, values in self.open(index).blocks(least):
                yield index, first, values

    def open(self, index: int) -> ShardFile:
        """File number `index`, checked."""
        file = self._open.get(index)
        if file is None:
            file = self._open_checked(index)
            while len(self._open) >= _MOST_OPEN:
                self._open.pop(next(iter(self._open)), None)
            self._open[index] = file
        return file

    def _open_checked(self, index: int) -> ShardFile:
        expected = self.files[index]
        if expected.hash is not None and self._sound.get(index) != _state(expected.path):
            verify_file(fetch(expected.path), expected.hash)
            self._sound[index] = _state(expected.path)
        file = ShardFile(expected.path, self.name, trusted=expected.hash is not None)
        shape, expected_shape = file.shape, (expected.rows, *self.row_shape)
        if shape != expected_shape or file.dtype != self.dtype:
            raise IntegrityError(
                f"{expected.path}: {self.name!r} is {file.dtype} {shape}, "
                f"expected {self.dtype} {expected_shape}"
            )
        return file


def _state(path: Path) -> tuple[int, int, int]:
    """Changes when the file is replaced, written to or removed."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns


Rows = npt.NDArray[np.int32]


@dataclass(frozen=True)
class ShardInfo:
    """One file of the data set, as `data_params.json` records it; a corpus counts tokens."""

    name: str
    rows: int
    hash: str
    content_hash: str


class SampleDataset:
    """Rows of a split, addressed by their position over all shards in name order.

    A row is (3, MSL) int32, of `vsl` (5, MSL). A `corpus` is cut into windows of `sample` by
    `corpus_length`, or the MSL of its parameters; other formats take no notice of it. Every shard's
    hash is checked against `data_params.json` the first time it is read. Can be pickled. `params`
    is all of `data_params.json`.

    `ancestors`: hashes of the data sets that this one was before documents were masked in it by
    `takedowns`, oldest first; rows and their order are those of all of them.
    """

    def __init__(
        self, directory: Path, params: dict[str, Any], corpus_length: int | None = None
    ) -> None:
        self.directory = directory
        self.params = params
        self.layout: ShardLayout = LAYOUTS[params.get("format", SAMPLE.name)]
        self.shards = tuple(
            ShardInfo(f["name"], f["n_examples"], f["hash"], f["content_hash"])
            for f in params["files"]
        )
        for shard in self.shards:
            if Path(shard.name).name != shard.name:
                raise ValueError(f"file name {shard.name!r} leaves the directory")
        self.max_sequence_length = int(params["max_sequence_length"])
        if self.layout is CORPUS and corpus_length is not None:
            self.max_sequence_length = corpus_length
        self.vocab_size = int(params["vocab_size"])
        self.eos_id = int(params["eos_id"])
        self.bos_id: int | None = params.get("bos_id")
        self.rows_globally_shuffled = bool(params["rows_globally_shuffled"])
        self.dataset_hash = str(params["dataset_hash"])
        self.ancestors = tuple(str(parent) for parent in params.get("ancestors", ()))
        self.takedowns = tuple(str(name) for name in params.get("takedowns", ()))
        is_corpus = self.layout is CORPUS
        self.files = ShardFiles(
            [ExpectedFile(directory / shard.name, shard.rows, shard.hash) for shard in self.shards],
            () if is_corpus else (self.layout.channels, self.max_sequence_length),
            np.dtype(self.layout.dtypes[-1 if self.vocab_size > 1 << 16 else 0]),
        )
        self.starts = self.files.starts
        self.rows = int(params["n_examples"])
        if self.layout is CORPUS:
            self.rows = max(0, self.files.rows - 1) // self.max_sequence_length

    def file_and_row(self, row: int) -> tuple[Path, int]:
        """The shard that holds a data-set row, and the row's index inside it; of a corpus, the
        shard and place of the row's first token."""
        if not 0 <= row < self.rows:
            raise InputError(f"{self.directory}: row {row} is outside 0..{self.rows - 1}")
        place = row * self.max_sequence_length if self.layout is CORPUS else row
        index, within = self.files.file_and_row(place)
        return self.files.files[index].path, within

    def paths(self, rows_B: npt.NDArray[np.int64]) -> list[Path]:
        """The shards that `read` opens for these rows."""
        if self.layout is not CORPUS:
            return self.files.paths(rows_B)
        length = self.max_sequence_length
        return self.files.paths(rows_B * length, length + 1)

    def read(self, rows_B: npt.NDArray[np.int64]) -> Rows:
        """Rows in the order asked for; rows_B (B,) int64 -> (B, 3 or 5, MSL) int32."""
        if self.layout is CORPUS:
            return windows(self.files, rows_B, self.max_sequence_length)
        return self.files.read(rows_B)

    def blocks(self, least: int = 1) -> Iterator[tuple[ShardInfo, int, npt.NDArray[Any]]]:
        """All that is stored, once and as stored: (shard, first row inside it, rows).

        Rows (n, 3 or 5, MSL) int32; of a corpus tokens (n,) uint16 or uint32. n >= least but at the
        end of a shard. Read-only.
        """
        for index, first, values in self.files.blocks(least):
            yield self.shards[index], first, values


def windows(files: ShardFiles, rows_B: npt.NDArray[np.int64], length: int) -> Rows:
    """Rows of a corpus as `sample` rows, (B, 3, length) int32; every mask is 1."""
    out = np.empty((len(rows_B), SAMPLE.channels, length), np.int32)
    out[:, 1] = 1
    for place in np.argsort(rows_B).tolist():  # windows of one chunk follow: it is decoded once
        start = int(rows_B[place]) * length
        tokens = files.span(start, start + length + 1)
        out[place, 0], out[place, 2] = tokens[:-1], tokens[1:]
    return out


def open_dataset(directory: Path, corpus_length: int | None = None) -> SampleDataset:
    """Open the split whose `data_params.json` stands in `directory`; `corpus_length` is the MSL of
    its rows if it is a corpus.

    Raises InputError when there is none or it is not ours; IntegrityError on damaged shards (on
    read).
    """
    path = directory / DATA_PARAMS
    try:
        params = json.loads(path.read_bytes())
        return SampleDataset(directory, params, corpus_length)
    except OSError as error:
        raise InputError(
            f"{path}: cannot read ({error.strerror}); expected a directory of .h5 shards "
            "made by `prep run`"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a data_params.json of this toolkit: {error!r}") from error


@dataclass(frozen=True, kw_only=True)
class SplitContents:
    """What a full read of a split found.

    `eos_labels`: labels that are an EOS and count; `bos_inputs`: inputs that are a BOS and count,
    where there is one. A corpus has neither rows nor a mask: its `tokens` and, as these two, the
    EOS and BOS among them count.
    """

    rows: int = 0
    mask_sum: int = 0
    eos_labels: int
    padded_rows: int = 0
    tokens: int = 0
    bos_inputs: int = 0


def check_split(dataset: SampleDataset) -> SplitContents:
    """Read all of a split.

    Raises IntegrityError for ids outside the vocabulary, labels that are not the next input of
    their document or stream, a mask that is not ones then zeros, pads that are not EOS, spans and
    positions of `vsl` that do not count down and up inside segments, and more than one padded row
    of `sample`. Where takedowns masked documents, zeros may stand anywhere in the mask; whether
    they stand where they should is for `pipeline.takedown.check`.
    """
    if dataset.layout is CORPUS:
        return _check_corpus(dataset)
    rows = mask_sum = eos_labels = padded = bos = 0
    for shard, start, block in dataset.blocks(max(1, _BLOCK_TOKENS // dataset.max_sequence_length)):
        where = f"{dataset.directory / shard.name}: rows from {start}"
        _check_rows(block, dataset, where)
        if dataset.layout is VSL:
            _check_segments(block, where)
        mask = block[:, 1]
        rows += len(block)
        mask_sum += int(mask.sum())
        eos_labels += int(((block[:, 2] == dataset.eos_id) & (mask == 1)).sum())
        bos += (
            0 if dataset.bos_id is None else int((block[:, 0][mask == 1] == dataset.bos_id).sum())
        )
        padded += 0 if dataset.takedowns else int((mask[:, -1] == 0).sum())
    if rows != dataset.rows or (dataset.layout is SAMPLE and padded > 1):
        raise IntegrityError(
            f"{dataset.directory}: {rows} rows ({dataset.rows} declared), {padded} padded"
        )
    return SplitContents(
        rows=rows, mask_sum=mask_sum, eos_labels=eos_labels, padded_rows=padded, bos_inputs=bos
    )


def _check_corpus(dataset: SampleDataset) -> SplitContents:
    tokens = eos = bos = 0
    for shard, start, block in dataset.blocks(_BLOCK_TOKENS):
        if block.max() >= dataset.vocab_size:
            raise IntegrityError(
                f"{dataset.directory / shard.name}: tokens from {start}: "
                f"a token id outside [0, {dataset.vocab_size})"
            )
        tokens += len(block)
        eos += int((block == dataset.eos_id).sum())
        bos += 0 if dataset.bos_id is None else int((block == dataset.bos_id).sum())
    return SplitContents(eos_labels=eos, tokens=tokens, bos_inputs=bos)


def _check_rows(block: Rows, dataset: SampleDataset, where: str) -> None:
    ids, mask, labels = block[:, 0], block[:, 1], block[:, 2]
    if block.min() < 0 or max(ids.max(), labels.max()) >= dataset.vocab_size:
        raise IntegrityError(f"{where}: a token id outside [0, {dataset.vocab_size})")
    in_order = bool(dataset.takedowns) or not (np.diff(mask, axis=1) > 0).any()
    if not np.isin(mask, (0, 1)).all() or not in_order:
        raise IntegrityError(f"{where}: the loss mask is not ones followed by zeros")
    shifted = (ids[:, 1:] == labels[:, :-1]) | (mask[:, 1:] == 0)
    if dataset.layout is VSL:
        shifted |= block[:, 4, 1:] == 0
    if not shifted.all():
        raise IntegrityError(f"{where}: labels are not the next input ids")
    pads = mask == 0
    if (labels[pads] != dataset.eos_id).any() or (ids[pads] != dataset.eos_id).any():
        raise IntegrityError(f"{where}: padding that is not the EOS id")


def _check_segments(block: Rows, where: str) -> None:
    """Positions count up from 0 and spans down to 0 in every segment; pads have neither."""
    real = block[:, 1] == 1
    span, position = block[:, 3], block[:, 4]
    if span[~real].any() or position[~real].any():
        raise IntegrityError(f"{where}: padding with an attention span or a position")
    first = real & (position == 0)
    last = real.copy()
    last[:, :-1] &= first[:, 1:] | ~real[:, 1:]
    goes_on = real[:, 1:] & ~first[:, 1:]
    up = (np.diff(position, axis=1) == 1) | ~goes_on
    down = (np.diff(span, axis=1) == -1) | ~goes_on
    if (position[:, 0][real[:, 0]] != 0).any() or not up.all():
        raise IntegrityError(f"{where}: position ids do not count up from 0 in every segment")
    if span[last].any() or not down.all():
        raise IntegrityError(f"{where}: attention spans do not count down to 0 in every segment")
