"""The index of a registry's works: sorted postings that can be memory-mapped, as Arrow tables.

The works lie end to end in one count of words; a posting is a gram's hash and the place of its
first word there. `works` has WORKS, with the parameters in its metadata; `postings` hashes and
positions; `filter` a blocked Bloom filter over the hashes; `excluded` the sampled grams that are in
no posting, because unrelated works or boilerplate (df 0) hold them; `texts` the works' words
(TEXTS), from which a dictionary can restore them. Saved, each is NAME.arrow and index.json names
their hashes.
"""

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dedup.arrays import I64, U32, U64
from dedup.compiled import kernel
from pipeline.core import storage
from pipeline.core.errors import InputError, IntegrityError
from pipeline.core.manifest import read_sealed, write_sealed
from pipeline.core.mirror.fetching import fetch
from pipeline.engine.verified import verify_once
from pipeline.screening.fingerprints.sketch import NORMALISATION, find_last_kept

_LEVEL = 9


def pack_words(words: U64) -> tuple[bytes, bytes]:
    """The vocabulary, uint64 hashes with the most frequent first; and the number of every word in
    it, uint16 or for more than 65,536 different ones uint32, by zstd. Little endian."""
    vocabulary, numbers, times = np.unique(words, return_inverse=True, return_counts=True)
    order = np.argsort(-times, kind="stable")
    rank = np.empty(len(order), _kind(len(order)))
    rank[order] = np.arange(len(order))
    packed = pa.Codec("zstd", _LEVEL).compress(rank[numbers].tobytes(), asbytes=True)
    return vocabulary[order].astype("<u8").tobytes(), packed


def unpack_words(vocabulary: bytes, numbers: bytes, count: int) -> U64:
    """The `count` words that `pack_words` packed. Raises ValueError when they are damaged."""
    kind = np.dtype(_kind(len(vocabulary) // 8))
    try:
        unpacked = pa.Codec("zstd").decompress(numbers, count * kind.itemsize)
        words = np.frombuffer(vocabulary, "<u8")[np.frombuffer(unpacked, kind)]
    except (OSError, IndexError) as error:
        raise ValueError(f"stored words are damaged: {error}") from error
    return np.asarray(words, np.uint64)


def _kind(distinct: int) -> str:
    return "<u2" if distinct <= 1 << 16 else "<u4"


@kernel
def find_first(hashes: U64, key: np.uint64) -> int:
    """The first place in ascending hashes that is not below the key."""
    low, high = 0, len(hashes)
    while low < high:
        middle = (low + high) // 2
        if hashes[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def choose_bits(key: np.uint64) -> np.uint64:
    """Three bits of a word of the filter; the word is chosen by bits above 20."""
    one, low = np.uint64(1), np.uint64(63)
    bits = (one << (key & low)) | (one << ((key >> np.uint64(6)) & low))
    return bits | (one << ((key >> np.uint64(12)) & low))


@kernel
def build_filter(hashes: U64, size: int) -> U64:
    """A blocked Bloom filter over the hashes, (size,) uint64; size is a power of two."""
    filled = np.zeros(size, np.uint64)
    room = np.uint64(size - 1)
    for key in hashes:
        filled[(key >> np.uint64(20)) & room] |= choose_bits(key)
    return filled


FORMAT = 1
INDEX = "index.json"
TABLES = ("works", "postings", "filter", "excluded", "texts")
_PARAMETERS = b"fingerprints"

WORKS = pa.schema([
    ("work_id", pa.string()), ("tier", pa.string()), ("s", pa.uint32()), ("words", pa.uint32()),
    ("start", pa.uint64()), ("postings", pa.uint32()), ("is_stored", pa.bool_()),
    ("key_low", pa.uint64()), ("key_high", pa.uint64()),
])  # fmt: skip
"""start: of its words among those of all works. postings: distinct sampled grams. is_stored: its
words are in `texts`. key_low, key_high: of a salted sketch, null without a salt."""
TEXTS = pa.schema([("vocabulary", pa.large_binary()), ("numbers", pa.large_binary())])
"""As `pack_words` makes them."""


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """What an index was made with, and what was measured while it was made.

    k: words in a gram. m, m_sketch: distinct sampled grams in one band that make a candidate, of a
    work with stored words and of one known by its sketch. dense: distinct grams that a verified
    passage has at least. pairs: pairs of a piece and an unrelated work that were compared; chance:
    share of them with a gram in common, where `pairs_hit` were enough to tell, else as published
    for this k. expected: documents among a million that are candidates by coincidence.
    """

    k: int
    m: int
    m_sketch: int
    dense: int
    pairs: int = 0
    pairs_hit: int = 0
    chance: float = 0.0
    expected: float = 0.0
    normalisation: int = NORMALISATION


class Postings(NamedTuple):
    """What kernels look up. hashes (P,) uint64 ascending, positions (P,), filter (2^f,) uint64,
    keys (S, 2) uint64: of salted sketches; has_plain: whether there are others."""

    hashes: U64
    positions: U32 | U64
    filter: U64
    keys: U64
    has_plain: bool


@dataclass(frozen=True, eq=False)
class FingerprintIndex:
    """A compiled registry: see the head of this file for the tables."""

    parameters: Parameters
    tables: dict[str, pa.Table]

    @property
    def works(self) -> pa.Table:
        """WORKS."""
        return self.tables["works"]

    @cached_property
    def starts(self) -> I64:
        """Where each work begins, and where the last one ends: (W + 1,)."""
        words = self._read_numbers("works", "words").astype(np.int64)
        return np.concatenate([[0], np.cumsum(words)]).astype(np.int64)

    @cached_property
    def last(self) -> np.uint64:
        """The largest hash that a sketch of some work keeps."""
        every = self._read_numbers("works", "s")
        return np.uint64(find_last_kept(int(every.min())) if len(every) else 0)

    @cached_property
    def needed(self) -> I64:
        """Distinct sampled grams in a band that each work needs to be a candidate, (W,)."""
        needed = np.where(self.is_stored, self.parameters.m, self.parameters.m_sketch)
        return needed.astype(np.int64)

    @cached_property
    def is_stored(self) -> Any:
        """Which works can be verified, (W,) bool."""
        return self.works["is_stored"].to_numpy()

    @cached_property
    def postings(self) -> Postings:
        """The arrays for kernels."""
        low, high = self.works["key_low"], self.works["key_high"]
        keys = set(zip(low.to_pylist(), high.to_pylist(), strict=True))
        salted = sorted(pair for pair in keys if pair[0] is not None)
        array = np.array(salted, np.uint64).reshape(-1, 2)
        return Postings(
            self._read_numbers("postings", "hash"),
            self._read_numbers("postings", "position"),
            self._read_numbers("filter", "bits"),
            array,
            (None, None) in keys,
        )

    @cached_property
    def boilerplate(self) -> U64:
        """Grams that never count, ascending."""
        every = self._read_numbers("excluded", "hash")
        return np.ascontiguousarray(every[self._read_numbers("excluded", "df") == 0])

    def read_words(self, work: int) -> U64:
        """The stored words of one work. Raises IntegrityError when they are damaged."""
        row = self.tables["texts"].slice(work, 1).to_pylist()[0]
        try:
            count = self.works["words"][work].as_py()
            return unpack_words(row["vocabulary"], row["numbers"], count)
        except ValueError as error:
            raise IntegrityError(
                f"index: work {self.works['work_id'][work]}: {error}; build the index again"
            ) from error

    def _read_numbers(self, table: str, column: str) -> Any:
        numbers = self.tables[table][column]
        if numbers.num_chunks == 1:
            return numbers.chunk(0).to_numpy()
        array = numbers.combine_chunks().to_numpy(zero_copy_only=False)
        array.flags.writeable = False
        return array

    def save(self, directory: Path) -> None:
        """Publish the tables and, last, index.json."""
        files = {}
        for name in TABLES:
            published = storage.publish(directory / f"{name}.arrow", [write_ipc(self.tables[name])])
            files[name] = published.hash
        value: dict[str, Any] = {"format": FORMAT, "files": files, **asdict(self.parameters)}
        write_sealed(directory / INDEX, value)

    @classmethod
    def load(cls, directory: Path) -> "FingerprintIndex":
        """A saved index, memory-mapped; its files are hashed once per process.

        Raises InputError when there is none, IntegrityError when it is damaged or of another
        format or normalisation.
        """
        path = Path(directory) / INDEX
        if not path.exists():
            raise InputError(f"{directory}: no index of fingerprints here; build one first")
        value = read_sealed(path)
        if value.get("format") != FORMAT or not isinstance(value.get("files"), dict):
            raise IntegrityError(f"{path}: has format {value.get('format')}, expected {FORMAT}")
        tables = {}
        for name in TABLES:
            file = fetch(Path(directory) / f"{name}.arrow")
            verify_once(file, str(value["files"].get(name)))
            tables[name] = pa.ipc.open_file(pa.memory_map(str(file))).read_all()
        return cls.of_tables(tables)

    @classmethod
    def of_tables(cls, tables: dict[str, pa.Table]) -> "FingerprintIndex":
        """An index from its tables, wherever they were published. Raises IntegrityError when they
        are not those of an index, or of another normalisation."""
        try:
            text = tables["works"].schema.metadata[_PARAMETERS]
            parameters = Parameters(**json.loads(text))
        except (KeyError, TypeError, ValueError) as error:
            raise IntegrityError(f"index: no parameters in `works` ({error!r})") from error
        if parameters.normalisation != NORMALISATION:
            raise IntegrityError(
                f"index: has normalisation {parameters.normalisation}, expected {NORMALISATION}; "
                "build it again"
            )
        return cls(parameters, {name: tables[name] for name in TABLES})


def add_parameters(works: pa.Table, parameters: Parameters) -> pa.Table:
    """The table WORKS with the parameters in its metadata."""
    text = storage.canonical_json(asdict(parameters))
    return works.replace_schema_metadata({_PARAMETERS: text})


def write_ipc(table: pa.Table) -> memoryview:
    """The bytes of an Arrow file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return memoryview(sink.getvalue())
