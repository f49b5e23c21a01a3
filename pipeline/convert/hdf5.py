"""HDF5 data sets as sources: `sample`, `vsl` and `corpus`, ours, Model Zoo's or anybody's; packed
rows are turned back into the stream they were cut from.

`sample`: row k holds ids = stream[k*S : k*S + S] and labels one token further, so the stream is the
ids of all rows and then the last label. Where a row does not follow the one before (rows that were
shuffled, or packed by several processes), a document may be cut: that is a loss. `vsl`: every
segment is ids and one more label, which is EOS unless the document goes on elsewhere.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dedup.arrays import I64, Array
from pipeline.convert.flat import file_size
from pipeline.convert.reader import ForeignReader
from pipeline.convert.stream import (
    Mark,
    StreamBlock,
    StreamFacts,
    StreamVocabulary,
    check_ids,
    require,
)
from pipeline.core.errors import InputError
from pipeline.core.hashes import verify_file
from pipeline.core.words import pluralise
from pipeline.hdf5.format import DATA_PARAMS, SAMPLE_FEATURES, SHARD_SUFFIX, VSL_FEATURES

Flags = npt.NDArray[np.bool_]
NOTHING_PENDING = -1
DOCUMENT_ENDED = -2
"""Pending: a document ended without EOS, which is a loss if anything follows."""


@dataclass(frozen=True)
class Channels:
    """Where axis 1 of the rows holds what; -1 for a channel that is not there."""

    ids: int
    mask: int = -1
    labels: int = -1
    span: int = -1
    position: int = -1


@dataclass(frozen=True)
class UnpackedRows:
    """Tokens of a block of rows, the positions at which documents are cut, how many masked tokens
    they hold, and the last label, which comes next unless the next row begins with it."""

    tokens: Array
    cuts: I64
    masked: int
    pending: int


def unpack_samples(
    rows_NCS: Array,
    channels: Channels,
    where: str,
    *,
    eos_id: int,
    pad_id: int,
    pending: int,
    shuffled: bool,
) -> UnpackedRows:
    """Rows of `sample` as a stream.

    `pending` is the last label of the row before, if that was full; `shuffled`: rows are known to
    be shuffled, so that such a label belongs to some other row. Raises InputError when labels are
    not the next ids.
    """
    ids_NS = rows_NCS[:, channels.ids]
    count, length = ids_NS.shape
    if channels.labels < 0:
        return UnpackedRows(ids_NS.reshape(-1), np.zeros(0, np.int64), 0, NOTHING_PENDING)
    labels_NS = rows_NCS[:, channels.labels]
    mask_NS = rows_NCS[:, channels.mask] if channels.mask >= 0 else np.ones_like(ids_NS)
    counts = _without_last_token(ids_NS, mask_NS, labels_NS, pad_id)
    columns = np.arange(length)
    _check_shift(ids_NS, labels_NS, columns[1:] < counts[:, None], where)
    masked = int(((mask_NS == 0) & (columns < counts[:, None])).sum())

    tokens = np.concatenate([ids_NS, labels_NS[:, -1:]], axis=1)
    some = counts > 0
    last_label = np.where(some, labels_NS[np.arange(count), np.maximum(counts, 1) - 1], -1)
    tokens[np.arange(count), counts] = last_label
    full = counts == length
    follows = full & some
    follows[:-1] &= some[1:] & (ids_NS[1:, 0] == last_label[:-1])
    follows[-1] = False
    open_end = bool(full[-1])
    extra = some & ~full | (full & ~follows & (not shuffled))
    extra[-1] &= not open_end
    is_token = np.arange(length + 1) < (counts + extra)[:, None]
    flat = tokens[is_token]

    ends = np.cumsum(counts + extra)
    broken = some & ~follows
    broken[-1] &= not open_end
    cuts = ends[broken & (ends > 0)]
    followed = pending == NOTHING_PENDING or bool(counts[0] > 0 and ids_NS[0, 0] == pending)
    lead = np.array([] if followed or pending < 0 or shuffled else [pending], np.int64)
    flat = np.concatenate([lead, flat]).astype(ids_NS.dtype)
    cuts = cuts + len(lead)
    if not followed:
        cuts = np.concatenate([[len(lead)], cuts])
    cuts = np.unique(cuts)
    inside = cuts[(cuts == 0) | (flat[np.maximum(cuts, 1) - 1] != eos_id)]
    after = int(last_label[-1]) if open_end else NOTHING_PENDING
    if len(inside) and inside[-1] == len(flat):
        inside, after = inside[:-1], DOCUMENT_ENDED
    return UnpackedRows(flat, inside, masked, after)


def _without_last_token(ids_NS: Array, mask_NS: Array, labels_NS: Array, pad_id: int) -> I64:
    """Content of each row, but for the last token of a stream, which is a label and, in a padded
    row, the id before the padding as well."""
    counts = content_lengths(ids_NS, mask_NS, pad_id)
    inside = content_lengths(np.full_like(ids_NS, pad_id), mask_NS, pad_id)
    row = np.arange(len(ids_NS))
    at = np.minimum(inside, ids_NS.shape[1] - 1)
    repeated = ids_NS[row, at] == labels_NS[row, np.maximum(inside, 1) - 1]
    alone = (counts == inside + 1) & (inside > 0) & (labels_NS[row, at] == pad_id)
    return np.where(alone & repeated, inside, counts)


def content_lengths(ids_NS: Array, mask_NS: Array, pad_id: int) -> I64:
    """Columns of each row up to its padding: mask 0 and the pad id to the end of the row.

    >>> content_lengths(np.array([[5, 9, 9], [5, 6, 7]]), np.array([[1, 0, 0], [0, 0, 0]]), 9)
    array([1, 3])
    """
    content = (mask_NS != 0) | (ids_NS != pad_id)
    length = ids_NS.shape[1]
    trailing = np.argmax(content[:, ::-1], axis=1)
    lengths: I64 = np.where(content.any(axis=1), length - trailing, 0)
    return lengths


def _check_shift(ids_NS: Array, labels_NS: Array, inside: Flags, where: str) -> None:
    wrong = (ids_NS[:, 1:] != labels_NS[:, :-1]) & inside
    if wrong.any():
        row, column = (int(i) for i in np.argwhere(wrong)[0])
        raise InputError(
            f"{where}: row {row} of these, column {column}: the label is "
            f"{int(labels_NS[row, column])}, but the next id is {int(ids_NS[row, column + 1])}: "
            "these are not rows of a language model's stream; --to hdf5 copies them as they are"
        )


def unpack_vsl(rows_NCS: Array, channels: Channels, eos_id: int, where: str) -> UnpackedRows:
    """Rows of `vsl`, segment after segment. Raises InputError when labels are not the next ids."""
    ids, mask, labels, span, position = (rows_NCS[:, c] for c in vars(channels).values())
    content = (mask != 0) | (span != 0) | (position != 0)
    goes_on = content & (span != 0)
    if goes_on[:, -1].any() or (goes_on[:, :-1] & ~content[:, 1:]).any():
        raise InputError(f"{where}: attention_span counts more columns than its segment has")
    _check_shift(ids, labels, goes_on[:, :-1], where)
    flat, last = ids[content], ~goes_on[content]
    ends = np.flatnonzero(last) + 1
    closing = labels[content][last]
    tokens = np.insert(flat, ends, closing)
    cuts = ends + np.arange(1, len(ends) + 1)
    bare = cuts[closing != eos_id]
    masked = int((content & (mask == 0)).sum())
    return UnpackedRows(tokens, bare, masked, NOTHING_PENDING)


_LARGEST_PARAMS = 64 << 20
_BY_CHANNELS = {1: ("input_ids",), 3: SAMPLE_FEATURES, 5: VSL_FEATURES}
_IDS = ("input_ids", "attention_mask", "labels", "attention_span", "position_ids")


@dataclass(frozen=True)
class Hdf5Files:
    """HDF5 files in reading order, and what stands beside them."""

    paths: tuple[Path, ...]
    params: Mapping[str, Any]
    hashes: Mapping[str, str]
    """file name -> hash, where data_params.json records them."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the channels; empty for a corpus."""
        if len(self.shape) == 1:
            return ()
        names = self.params.get("features")
        if isinstance(names, list) and len(names) == self.shape[1]:
            return tuple(map(str, names))
        if self.shape[1] not in _BY_CHANNELS:
            raise InputError(
                f"{self.paths[0]}: {self.shape[1]} channels, and no {DATA_PARAMS} names them"
            )
        return _BY_CHANNELS[self.shape[1]]

    @property
    def layout(self) -> str:
        """`corpus`, `sample`, `vsl` or `rows` (other channels)."""
        layouts = {(): "corpus", SAMPLE_FEATURES: "sample", VSL_FEATURES: "vsl"}
        return layouts.get(self.features, "rows")

    @property
    def shuffled(self) -> bool:
        """Whether the rows are known to be in another order than their stream."""
        return self.params.get("rows_globally_shuffled") is True

    def number(self, key: str) -> int | None:
        """A number of data_params.json: at the top, or in a section of Model Zoo's."""
        sections = [self.params, *(v for v in self.params.values() if isinstance(v, dict))]
        numbers = [s[key] for s in sections if isinstance(s.get(key), int)]
        return numbers[0] if numbers else None

    def verify(self, path: Path) -> None:
        """Raises IntegrityError when a file has not the hash that data_params.json records."""
        if path.name in self.hashes:
            verify_file(path, self.hashes[path.name])


def hdf5_files(inputs: list[Path]) -> Hdf5Files:
    """The files that directories and paths name: those of a directory in the order of their names,
    which is the order of Model Zoo's readers; subdirectories are not read. Raises InputError."""
    paths: list[Path] = []
    directories = {}
    for path in inputs:
        directory = path if path.is_dir() else path.parent
        directories[directory] = _params(directory)
        paths += sorted(path.glob(f"*{SHARD_SUFFIX}")) if path.is_dir() else [path]
    if not paths:
        raise InputError(f"{inputs[0]}: no {SHARD_SUFFIX} file in it")
    params = directories[paths[0].parent]
    files = params.get("files")
    hashes = {
        str(f["name"]): str(f["hash"])
        for f in (files if isinstance(files, list) and len(directories) == 1 else [])
        if isinstance(f, dict) and "name" in f and "hash" in f
    }
    _check_names(paths, hashes)
    with ForeignReader() as reader:
        shape, dtype = reader.shape(paths[0])
    return Hdf5Files(tuple(paths), params, hashes, shape, dtype)


def _check_names(paths: list[Path], hashes: Mapping[str, str]) -> None:
    missing = hashes.keys() - {path.name for path in paths}
    whole = len({path.parent for path in paths}) == 1 and len(paths) > 1
    if missing and whole:
        raise InputError(f"{paths[0].parent}: {min(missing)} is missing, which {DATA_PARAMS} lists")


def _params(directory: Path) -> dict[str, Any]:
    path = directory / DATA_PARAMS
    if not path.exists():
        return {}
    if file_size(path) > _LARGEST_PARAMS:
        raise InputError(f"{path}: larger than {_LARGEST_PARAMS >> 20} MiB")
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    return value if isinstance(value, dict) else {}


class _Hdf5Source:
    def __init__(self, files: Hdf5Files, vocabulary: StreamVocabulary, unit: str) -> None:
        self.files = files
        named_files = tuple((str(path), file_size(path)) for path in files.paths)
        length = files.shape[2] if len(files.shape) == 3 else None
        items = files.number("n_examples") if unit == "rows" else None
        kind = f"HDF5 ({files.layout})"
        self.facts = StreamFacts(
            kind=kind,
            files=named_files,
            unit=unit,
            vocabulary=vocabulary,
            items=items,
            max_sequence_length=length,
        )

    def arrays(self, first: int, begin: int) -> Iterator[tuple[int, int, Array]]:
        """(file, index of its first item, array) from item `begin` of file `first` on."""
        expected = self.files.shape[1:]
        with ForeignReader() as reader:
            for number in range(first, len(self.files.paths)):
                path = self.files.paths[number]
                self.files.verify(path)
                shape, _ = reader.shape(path)
                if shape[1:] != expected or len(shape) != len(self.files.shape):
                    raise InputError(
                        f"{path}: 'data' has shape {shape}, its siblings (…, "
                        f"{', '.join(map(str, expected))}): files of different data sets"
                    )
                for start, block in reader.blocks(path, begin):
                    yield number, start, block
                begin = 0


class RowSource(_Hdf5Source):
    """Rows as they stand. A mark is (file, row)."""

    def __init__(self, files: Hdf5Files, vocabulary: StreamVocabulary) -> None:
        super().__init__(files, vocabulary, "rows")

    def blocks(self, mark: Mark | None) -> Iterator[StreamBlock]:
        """See `StreamSource`."""
        for number, start, block in self.arrays(*(mark or (0, 0))):
            if block.dtype != np.dtype("<i4"):
                path = self.files.paths[number]
                raise InputError(f"{path}: rows of {block.dtype}, expected int32")
            yield StreamBlock(block, (number, start))


class CorpusSource(_Hdf5Source):
    """The flat corpus. A mark is (file, token)."""

    def __init__(self, files: Hdf5Files, vocabulary: StreamVocabulary) -> None:
        super().__init__(files, vocabulary, "tokens")

    def blocks(self, mark: Mark | None) -> Iterator[StreamBlock]:
        """See `StreamSource`."""
        for number, start, block in self.arrays(*(mark or (0, 0))):
            where = f"{self.files.paths[number]}: tokens from {start}"
            yield StreamBlock(check_ids(block, self.facts.vocabulary, where), (number, start))


class UnpackedSource(_Hdf5Source):
    """The stream behind `sample` or `vsl` rows. A mark is (file, row, label that is pending)."""

    def __init__(self, files: Hdf5Files, vocabulary: StreamVocabulary, lossy: bool) -> None:
        super().__init__(files, vocabulary, "tokens")
        self.lossy = lossy
        features = files.features
        if "input_ids" not in features:
            raise InputError(f"{files.paths[0]}: no channel input_ids among {', '.join(features)}")
        pad = files.number("pad_id")
        self.pad_id = vocabulary.eos_id if pad is None else pad
        self.channels = Channels(
            *(features.index(name) if name in features else -1 for name in _IDS)
        )

    def blocks(self, mark: Mark | None) -> Iterator[StreamBlock]:
        """See `StreamSource`. Raises InputError for what a stream cannot hold, unless lossy."""
        first, begin, pending = mark or (0, 0, NOTHING_PENDING)
        for number, start, rows in self.arrays(first, begin):
            where = f"{self.files.paths[number]}: rows from {start}"
            unpacked = self._unpack(rows, pending, where)
            ids = check_ids(unpacked.tokens, self.facts.vocabulary, where)
            self._check(unpacked, where)
            losses = {"masked_tokens": unpacked.masked, "cut_documents": len(unpacked.cuts)}
            yield StreamBlock(ids, (number, start, pending), unpacked.cuts, losses)
            pending = unpacked.pending
        if pending >= 0 and not self.files.shuffled:
            last = np.array([pending])
            ids = check_ids(last, self.facts.vocabulary, "the last label")
            yield StreamBlock(ids, (len(self.files.paths), 0, pending))

    def _unpack(self, rows: Array, pending: int, where: str) -> UnpackedRows:
        vocabulary = self.facts.vocabulary
        if self.channels.span >= 0 and self.channels.position >= 0:
            return unpack_vsl(rows, self.channels, vocabulary.eos_id, where)
        return unpack_samples(
            rows,
            self.channels,
            where,
            eos_id=vocabulary.eos_id,
            pad_id=self.pad_id,
            pending=pending,
            shuffled=self.files.shuffled,
        )

    def _check(self, unpacked: UnpackedRows, where: str) -> None:
        if unpacked.masked:
            require(
                self.lossy,
                f"{where}: {unpacked.masked:,} tokens have loss mask 0 without being padding; only "
                "rows can carry a mask (--to hdf5, same sequence length)",
            )
        if len(unpacked.cuts):
            why = (
                "the rows are shuffled" if self.files.shuffled else "rows do not follow each other"
            )
            require(
                self.lossy,
                f"{where}: {pluralise(len(unpacked.cuts), 'document')} cut, because {why}; `prep "
                "convert RUN` reads a run directory, which has them whole",
            )
