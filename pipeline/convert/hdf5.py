"""HDF5 data sets as sources: `sample`, `vsl` and `corpus`, ours, Model Zoo's or anybody's."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dedup.arrays import Array
from pipeline.convert.indexed import file_size
from pipeline.convert.row_streams import (
    NOTHING_PENDING,
    Carry,
    Channels,
    UnpackedRows,
    unpack_samples,
    unpack_vsl,
)
from pipeline.convert.stream import (
    Mark,
    StreamBlock,
    StreamFacts,
    StreamVocabulary,
    check_ids,
    require,
)
from pipeline.core.errors import InputError
from pipeline.core.storage import verify_file
from pipeline.core.words import pluralise
from pipeline.hdf5.convert_reader import ForeignReader
from pipeline.hdf5.format import DATA_PARAMS, SAMPLE_FEATURES, SHARD_SUFFIX, VSL_FEATURES

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
        named = self.params.get("features")
        if isinstance(named, list) and len(named) == self.shape[1]:
            return tuple(map(str, named))
        if self.shape[1] not in _BY_CHANNELS:
            raise InputError(
                f"{self.paths[0]}: {self.shape[1]} channels, and no {DATA_PARAMS} names them"
            )
        return _BY_CHANNELS[self.shape[1]]

    @property
    def layout(self) -> str:
        """`corpus`, `sample`, `vsl` or `rows` (other channels)."""
        known = {(): "corpus", SAMPLE_FEATURES: "sample", VSL_FEATURES: "vsl"}
        return known.get(self.features, "rows")

    @property
    def shuffled(self) -> bool:
        """Whether the rows are known to be in another order than their stream."""
        return self.params.get("rows_globally_shuffled") is True

    def number(self, key: str) -> int | None:
        """A number of data_params.json: at the top, or in a section of Model Zoo's."""
        sections = [self.params, *(v for v in self.params.values() if isinstance(v, dict))]
        found = [s[key] for s in sections if isinstance(s.get(key), int)]
        return found[0] if found else None

    def verify(self, path: Path) -> None:
        """Raises IntegrityError when a file has not the hash that data_params.json records."""
        if path.name in self.hashes:
            verify_file(path, self.hashes[path.name])


def hdf5_files(inputs: list[Path]) -> Hdf5Files:
    """The files that directories and paths name: those of a directory in the order of their names,
    which is the order of Model Zoo's readers; subdirectories are not read. Raises InputError."""
    paths: list[Path] = []
    directories = {}
    for given in inputs:
        directory = given if given.is_dir() else given.parent
        directories[directory] = _params(directory)
        paths += sorted(given.glob(f"*{SHARD_SUFFIX}")) if given.is_dir() else [given]
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
        named = tuple((str(path), file_size(path)) for path in files.paths)
        length = files.shape[2] if len(files.shape) == 3 else None
        items = files.number("n_examples") if unit == "rows" else None
        kind = f"HDF5 ({files.layout})"
        self.facts = StreamFacts(kind, named, unit, vocabulary, items, length)

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
            found = self._unpack(rows, pending, where)
            ids = check_ids(found.tokens, self.facts.vocabulary, where)
            self._check(found, where)
            losses = {"masked_tokens": found.masked, "cut_documents": len(found.cuts)}
            yield StreamBlock(ids, (number, start, pending), found.cuts, losses)
            pending = found.pending
        if pending >= 0 and not self.files.shuffled:
            last = np.array([pending])
            ids = check_ids(last, self.facts.vocabulary, "the last label")
            yield StreamBlock(ids, (len(self.files.paths), 0, pending))

    def _unpack(self, rows: Array, pending: int, where: str) -> UnpackedRows:
        vocabulary = self.facts.vocabulary
        if self.channels.span >= 0 and self.channels.position >= 0:
            return unpack_vsl(rows, self.channels, vocabulary.eos_id, where)
        carry = Carry(pending, self.files.shuffled)
        return unpack_samples(rows, self.channels, (vocabulary.eos_id, self.pad_id), carry, where)

    def _check(self, found: UnpackedRows, where: str) -> None:
        if found.masked:
            require(
                self.lossy,
                f"{where}: {found.masked:,} tokens have loss mask 0 without being padding; only "
                "rows can carry a mask (--to hdf5, same sequence length)",
            )
        if len(found.cuts):
            why = (
                "the rows are shuffled" if self.files.shuffled else "rows do not follow each other"
            )
            require(
                self.lossy,
                f"{where}: {pluralise(len(found.cuts), 'document')} cut, because {why}; `prep "
                "convert RUN` reads a run directory, which has them whole",
            )
