"""Sketches: the grams of a text whose hash is below 2^64 / s, with their places.

A gram is k words in a row, or CHARACTERS letters of a script without spaces. FracMinHash (Irber et
al. 2022, bioRxiv 2022.01.11.475838): whether a gram is kept depends on it alone, so a sketch of s =
8 holds that of s = 512. A salted sketch publishes SipHash-2-4 of the hashes (Aumasson, Bernstein,
INDOCRYPT 2012) under a key from the salt: nobody without it can try phrases against the sketch.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dedup.arrays import U32, U64
from dedup.compiled import kernel
from dedup.text import Whole, join_texts
from pipeline.core.errors import InputError, escape_text
from pipeline.screening.evidence import make_table
from pipeline.screening.fingerprints.words import BASE, find_words, make_room, mix_bits

_0, _1, _2, _3 = (
    np.uint64(n)
    for n in (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
)
_LENGTH = np.uint64(8 << 56)
_LAST = np.uint64(0xFF)
_64 = np.uint64(64)
_13, _16, _17, _21, _32 = (np.uint64(n) for n in (13, 16, 17, 21, 32))


def make_key(salt: bytes) -> tuple[int, int]:
    """The key of a salt: the first 16 bytes of its sha256, two 64-bit numbers."""
    digest = hashlib.sha256(salt).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")


def salt_hashes(hashes: U64, salt: bytes) -> U64:
    """The values that a sketch with this salt publishes, in the order of the hashes."""
    low, high = make_key(salt)
    return _hash_all_with_key(hashes, np.uint64(low), np.uint64(high))


@kernel
def _turn(value: np.uint64, by: np.uint64) -> np.uint64:
    return (value << by) | (value >> (_64 - by))


@kernel
def _round(
    v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    v0, v2 = v0 + v1, v2 + v3
    v1, v3 = _turn(v1, _13) ^ v0, _turn(v3, _16) ^ v2
    v0 = _turn(v0, _32)
    v2, v0 = v2 + v1, v0 + v3
    v1, v3 = _turn(v1, _17) ^ v2, _turn(v3, _21) ^ v0
    return v0, v1, _turn(v2, _32), v3


@kernel
def hash_with_key(value: np.uint64, low: np.uint64, high: np.uint64) -> np.uint64:
    """SipHash-2-4 of the 8 bytes of `value` (little end first) under the key (low, high)."""
    v0, v1, v2, v3 = low ^ _0, high ^ _1, low ^ _2, high ^ _3
    for block in (value, _LENGTH):
        v3 ^= block
        for _ in range(2):
            v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= block
    v2 ^= _LAST
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


@kernel
def _hash_all_with_key(hashes: U64, low: np.uint64, high: np.uint64) -> U64:
    values = np.empty(len(hashes), np.uint64)
    for i in range(len(hashes)):
        values[i] = hash_with_key(hashes[i], low, high)
    return values


NORMALISATION = 1
"""Raised when words or hashes change: sketches of two normalisations share nothing."""
CHARACTERS = 15
LARGEST_K = CHARACTERS
EXCERPT_S, WHOLE_BOOK_S = 8, 512
MOST_WORDS = 1 << 28
"""Words of a text that a sketch from elsewhere may claim."""

SKETCHES = pa.schema([
    ("work_id", pa.string()), ("normalisation", pa.uint8()), ("k", pa.uint8()), ("s", pa.uint32()),
    ("salt", pa.binary()), ("words", pa.uint32()), ("hashes", pa.large_list(pa.uint64())),
    ("positions", pa.large_list(pa.uint32())),
])  # fmt: skip
"""Sketches as they are exchanged. The salt is null without one; it may be handed over apart."""

_BASE, _ZERO, _ONE = np.uint64(BASE), np.uint64(0), np.uint64(1)


@dataclass(frozen=True, eq=False, kw_only=True)
class Sketch:
    """A text's sketch. hashes (G,) uint64 and positions (G,) uint32, the first word of each gram,
    ascending; `words`: how many the text has."""

    k: int
    s: int
    words: int
    hashes: U64
    positions: U32
    salt: bytes = b""

    def __len__(self) -> int:
        return len(self.hashes)


def sketch_text(text: str, s: int = EXCERPT_S, k: int = 6, salt: bytes | None = None) -> Sketch:
    """The sketch of one text. Raises ValueError unless 1 <= k <= LARGEST_K and s >= 1."""
    words = find_words(join_texts([text])).hashes
    return sketch_words(words, s, k, salt)


def sketch_words(words: U64, s: int, k: int, salt: bytes | None = None) -> Sketch:
    """The sketch of a text with these words, `words.find_words`. Raises ValueError as
    `sketch_text`."""
    if not 1 <= k <= LARGEST_K or s < 1:
        raise ValueError(f"expected 1 <= k <= {LARGEST_K} and s >= 1, got k={k}, s={s}")
    hashes, positions = sample_grams(words, k, np.uint64(find_last_kept(s)))
    if salt:
        hashes = salt_hashes(hashes, salt)
    return Sketch(k=k, s=s, words=len(words), hashes=hashes, positions=positions, salt=salt or b"")


def find_last_kept(s: int) -> int:
    """The largest hash that a sketch of this s keeps.

    >>> hex(find_last_kept(8)), hex(find_last_kept(1))
    ('0x1fffffffffffffff', '0xffffffffffffffff')
    """
    return (1 << 64) // s - 1


def make_sketch_table(sketches: Mapping[str, Sketch]) -> pa.Table:
    """SKETCHES: one row per work id, in their order."""
    rows = [
        (name, NORMALISATION, one.k, one.s, one.salt or None, one.words, one.hashes, one.positions)
        for name, one in sketches.items()
    ]
    return make_table(rows, SKETCHES)


def read_sketches(table: pa.Table) -> dict[str, Sketch]:
    """The sketches of a table, by work id. Raises InputError naming the work whose sketch is of
    another normalisation, or cannot be one."""
    missing = [name for name in SKETCHES.names if name not in table.column_names]
    if missing:
        raise InputError(f"a table of sketches lacks the columns {', '.join(missing)}")
    sketches: dict[str, Sketch] = {}
    for number in range(len(table)):
        work_id, *row = (table[name][number] for name in SKETCHES.names)
        name = escape_text(str(work_id.as_py()))
        if work_id.as_py() in sketches:
            raise InputError(f"sketch of {name}: given twice; expected one for each work")
        sketches[work_id.as_py()] = _read_sketch(row, f"sketch of {name}")
    return sketches


def _read_sketch(row: list[pa.Scalar], name: str) -> Sketch:
    normalisation, k, s, salt, words = (scalar.as_py() for scalar in row[:5])
    if normalisation != NORMALISATION:
        raise InputError(
            f"{name}: has normalisation {normalisation}, expected {NORMALISATION}; "
            "make it again from the text with this version"
        )
    if not row[5].is_valid or not row[6].is_valid or not all((k, s, words is not None)):
        raise InputError(f"{name}: k, s, words, hashes and positions must be given")
    hashes, positions = (_read_numbers(scalar, name) for scalar in row[5:])
    sketch = Sketch(k=k, s=s, words=words, hashes=hashes, positions=positions, salt=salt or b"")
    problem = _find_problem(sketch)
    if problem:
        raise InputError(f"{name}: {problem}; ask its sender for it again")
    return sketch


def _read_numbers(scalar: pa.Scalar, name: str) -> Any:
    if scalar.values.null_count:
        raise InputError(f"{name}: hashes and positions may not be null")
    return scalar.values.to_numpy()


def _find_problem(sketch: Sketch) -> str:
    places = sketch.positions.astype(np.int64)
    if sketch.k > LARGEST_K:
        return f"k is {sketch.k}, expected at most {LARGEST_K}"
    if sketch.words > MOST_WORDS:
        return f"its text has {sketch.words} words, expected at most {MOST_WORDS}"
    if len(sketch.hashes) != len(places):
        return f"{len(sketch.hashes)} hashes but {len(places)} positions"
    if len(places) and (np.diff(places) <= 0).any():
        return "its positions are not in ascending order"
    if len(places) and places[-1] >= sketch.words:
        return f"a position is after its {sketch.words} words"
    return ""


@kernel
def sample_grams(words: U64, k: int, last: np.uint64) -> tuple[U64, U32]:
    """Hash and first word of every gram whose hash is `last` at most, in order."""
    room = len(words) // 4 + 64
    hashes, positions = np.empty(room, np.uint64), np.empty(room, np.uint32)
    state = make_state(k)
    filled, at = 0, 0
    while at < len(words):
        count = min(1024, len(words) - at)
        hashes, positions = make_room(hashes, filled, count), make_room(positions, filled, count)
        filled = roll(words, at, at + count, state, last, 0, hashes, positions, filled)
        at += count
    return hashes[:filled], positions[:filled]


@kernel
def make_state(k: int) -> U64:
    """What `roll` keeps: sum so far, words in a row, their kind, k, BASE^k, BASE^CHARACTERS."""
    state = np.zeros(6, np.uint64)
    state[3], state[4], state[5] = k, _ONE, _ONE
    for _ in range(k):
        state[4] *= _BASE
    for _ in range(CHARACTERS):
        state[5] *= _BASE
    return state


@kernel
def forget(state: U64) -> None:
    """A new text begins, for `roll` and for `words.append_words`."""
    state[0] = state[1] = state[2] = _ZERO


@kernel
def roll(
    words: U64,
    first: int,
    stop: int,
    state: U64,
    last: np.uint64,
    before: int,
    hashes: U64,
    positions: U32,
    count: int,
) -> int:
    """Append hash and place of the grams that end at words [first, stop) and are kept.

    The CHARACTERS words before `first` must be in `words` if the text has them; `before` is what
    is added to a place. hashes and positions must hold stop - first more. Returns the new `count`.
    """
    value, kind = state[0], state[2]
    run: Whole = np.int64(state[1])
    k = np.int64(state[3])
    size, top = (k, state[4]) if kind == _ZERO else (CHARACTERS, state[5])
    for at in range(first, stop):
        word = words[at]
        if word & _ONE != kind:
            kind, run, value = word & _ONE, 0, _ZERO
            size, top = (k, state[4]) if kind == _ZERO else (CHARACTERS, state[5])
        value = value * _BASE + word
        run += 1
        if run >= size:
            if run > size:
                value -= top * words[at - size]
            gram = mix_bits(value)
            if gram <= last:
                hashes[count], positions[count] = gram, before + at - size + 1
                count += 1
    state[0], state[1], state[2] = value, np.uint64(run), kind
    return count
