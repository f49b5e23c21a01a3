"""What near-duplicates are found by, in plain Python: presets, normalisation, shingles, hashes.

The slow functions here are the reference of every kernel. Nothing here imports numpy or numba, so
that a command can read the presets in no time.

`slimpajama` has the bands of SlimPajama (datasketch's optimum for a threshold of 0.8);
`slimpajama_exact` also has its hash and its permutations, so that band keys are those of the
original scripts. `fineweb` has the bands of FineWeb, which find far more pairs below 0.9.

Source of the normalisation, which SlimPajama's length filter and its shingles see: Model Zoo
`slimpajama/preprocessing/filter.py` and `dedup/to_hash.py` (release of 2023-06): `lower()`, delete
`string.punctuation` (the 32 ASCII marks), strip, collapse white space to one blank.
"""

import hashlib
import re
import string
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

Verify = Literal["none", "estimate", "exact"]
"""What makes a candidate pair a duplicate."""

SCHEMES = ("affine32", "affine64", "legacy", "fss")
HASHES = ("poly64", "sha1", "poly64_full", "sha1_full")
JACCARDS = (0.7, 0.8, 0.9, 0.95)
"""Where a preset states its detection probability."""


def check_choice(field: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise ValueError with the nearest choice when `value` is none of them."""
    if value in choices:
        return
    close = get_close_matches(value, choices, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(choices)}"
    raise ValueError(f"unknown {field} {value!r}; {hint}")


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One recipe; a wrong value raises ValueError."""

    name: str
    unit: Literal["char", "word"]
    """What a shingle counts: code points or words of the normalised text."""
    size: int
    """Units in a shingle."""
    bands: int
    rows: int
    """Signature cells of a band; bands x rows cells are used, none with 0 bands."""
    num_perm: int = 128
    """Signature cells."""
    scheme: str = "affine32"
    """datasketch's `affine32`, `affine64` or `legacy`, or `fss`, our FastSimilaritySketch."""
    hash: str = "poly64"
    """`poly64` or `sha1`: 32 bits of the shingle; with `_full`, 64 bits (affine64 only)."""
    seed: int = 1

    @property
    def signature_bytes(self) -> int:
        """Bytes of the signature of a document."""
        return self.num_perm * (8 if self.scheme == "affine64" else 4)

    def __post_init__(self) -> None:
        check_choice("unit", self.unit, ("char", "word"))
        check_choice("scheme", self.scheme, SCHEMES)
        check_choice("hash", self.hash, HASHES)
        for field in ("size", "rows", "num_perm"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} is {getattr(self, field)}; it must be positive")
        if self.bands < 0:
            raise ValueError(f"bands is {self.bands}; it must not be negative")
        if not 0 <= self.seed < 1 << 32:
            raise ValueError(f"seed is {self.seed}; it must be from 0 to 2^32 - 1")
        if self.bands * self.rows > self.num_perm:
            raise ValueError(
                f"{self.bands} bands x {self.rows} rows need {self.bands * self.rows} cells, the "
                f"signature has {self.num_perm}; raise num_perm or lower bands or rows"
            )
        if self.hash.endswith("_full") and self.scheme != "affine64":
            raise ValueError(
                f"hash {self.hash!r} has 64 bits and needs scheme 'affine64', not {self.scheme!r}"
            )
        if self.scheme == "fss" and self.hash != "poly64":
            raise ValueError(f"scheme 'fss' needs hash 'poly64', not {self.hash!r}")
        if self.scheme == "fss" and self.num_perm & (self.num_perm - 1):
            raise ValueError(f"num_perm is {self.num_perm}; scheme 'fss' needs a power of two")


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(name="slimpajama", unit="char", size=13, bands=9, rows=13),
        Preset(
            name="slimpajama_exact",
            unit="char",
            size=13,
            bands=9,
            rows=13,
            scheme="legacy",
            hash="sha1",
        ),
        Preset(name="fineweb", unit="char", size=13, bands=14, rows=8),
        Preset(name="strict", unit="char", size=13, bands=20, rows=6),
    )
}


def resolve_preset(preset: str | Preset) -> Preset:
    """The preset of that name; a Preset is returned as it is. ValueError for an unknown name.

    >>> resolve_preset("strict").bands
    20
    >>> resolve_preset("fineweeb")
    Traceback (most recent call last):
    ValueError: unknown preset 'fineweeb'; did you mean 'fineweb'?
    """
    if isinstance(preset, Preset):
        return preset
    check_choice("preset", preset, tuple(PRESETS))
    return PRESETS[preset]


def detection_probability(jaccard: float, bands: int, rows: int) -> float:
    """Probability that a pair of this similarity shares a band: 1 - (1 - jaccard^rows)^bands.

    >>> round(detection_probability(0.8, 9, 13), 3)
    0.399
    """
    return float(1 - (1 - jaccard**rows) ** bands)


def describe(preset: str | Preset) -> str:
    """One line: the bands of a `preset`, and how probably it finds a pair of a given Jaccard
    similarity. Raises ValueError for an unknown one.

    >>> describe("slimpajama")
    'slimpajama: char 13-grams, 9 bands x 13 rows: J=0.7 8.4%, 0.8 39.9%, 0.9 92.9%, 0.95 99.8%'
    """
    p = resolve_preset(preset)
    points = ", ".join(
        f"{j:g} {100 * detection_probability(j, p.bands, p.rows):.1f}%" for j in JACCARDS
    )
    return f"{p.name}: {p.unit} {p.size}-grams, {p.bands} bands x {p.rows} rows: J={points}"


_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SPACES = re.compile(r"\s+")


def normalize(text: str) -> str:
    """Lower-case, drop ASCII punctuation, collapse white space.

    >>> normalize("  Hello,\\n\\tWorld! ")
    'hello world'
    """
    return _SPACES.sub(" ", text.lower().translate(_PUNCTUATION).strip())


def is_short(text: str, min_length: int) -> bool:
    """SlimPajama's low-length rule: fewer than `min_length` characters after `normalize`.

    What the beginning of a text leaves, the whole text leaves at least, so a long one is not read
    to its end.

    >>> is_short("a" * 199, 200), is_short("a" * 200, 200)
    (True, False)
    """
    beginning = text[: 4 * min_length]
    return len(normalize(beginning)) < min_length and len(normalize(text)) < min_length


BASE = 0x9E3779B97F4A7C15
"""Base of the polynomial hash: 2^64 / golden ratio, odd."""

_MASK = (1 << 64) - 1


def shingles(text: str, preset: str | Preset = "slimpajama") -> list[bytes]:
    """Every shingle of the normalised text in order of occurrence, as UTF-8.

    Character shingles are code points, word shingles are words joined by one blank. Empty when the
    text is shorter than one shingle. ValueError for an unknown preset.

    >>> shingles("Hello, big world")
    [b'hello big wor', b'ello big worl', b'llo big world']
    """
    recipe = resolve_preset(preset)
    normal = normalize(text)
    if recipe.unit == "char":
        units, glue = list(normal), ""
    else:
        units, glue = normal.split(), " "
    return [
        glue.join(units[i : i + recipe.size]).encode() for i in range(len(units) - recipe.size + 1)
    ]


def fmix64_integer(value: int) -> int:
    """The 64-bit finaliser of MurmurHash3, a bijection on [0, 2^64)."""
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33


def evaluate_polynomial(shingle: bytes) -> int:
    """Polynomial in `BASE` over the code points + 1, first code point highest, modulo 2^64."""
    value = 0
    for character in shingle.decode():
        value = (value * BASE + ord(character) + 1) & _MASK
    return value


def shingle_hash(shingle: bytes, hash: str = "poly64") -> int:
    """The base hash of one shingle, as given to datasketch's `hashfunc`.

    `poly64`: the upper 32 bits of fmix64(polynomial); `poly64_full`: all 64. `sha1`, `sha1_full`:
    the first 4 or 8 bytes of SHA-1, little-endian (datasketch's sha1_hash32, sha1_hash64).
    ValueError for an unknown hash.

    >>> shingle_hash(b"hello big wor"), shingle_hash(b"hello big wor", "sha1")
    (3357552342, 2942499782)
    """
    check_choice("hash", hash, HASHES)
    if hash in ("sha1", "sha1_full"):
        digest = hashlib.sha1(shingle, usedforsecurity=False).digest()
        return int.from_bytes(digest[: 4 if hash == "sha1" else 8], "little")
    mixed = fmix64_integer(evaluate_polynomial(shingle))
    return mixed if hash == "poly64_full" else mixed >> 32
