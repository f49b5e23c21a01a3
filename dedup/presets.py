"""Presets: what a shingle is, how signatures are made, and how they are cut into bands.

`slimpajama` has the bands of SlimPajama (datasketch's optimum for a threshold of 0.8);
`slimpajama_exact` also has its hash and its permutations, so that band keys are those of the
original scripts. `fineweb` has the bands of FineWeb, which find far more pairs below 0.9.
"""

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


@dataclass(frozen=True)
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
        Preset("slimpajama", "char", 13, bands=9, rows=13),
        Preset("slimpajama_exact", "char", 13, bands=9, rows=13, scheme="legacy", hash="sha1"),
        Preset("fineweb", "char", 13, bands=14, rows=8),
        Preset("strict", "char", 13, bands=20, rows=6),
    )
}


def resolve(preset: str | Preset) -> Preset:
    """The preset of that name; a Preset is returned as it is. ValueError for an unknown name.

    >>> resolve("strict").bands
    20
    >>> resolve("fineweeb")
    Traceback (most recent call last):
    ValueError: unknown preset 'fineweeb'; did you mean 'fineweb'?
    """
    if isinstance(preset, Preset):
        return preset
    check_choice("preset", preset, tuple(PRESETS))
    return PRESETS[preset]


def detection_probability(jaccard: float, bands: int, rows: int) -> float:
    """Probability that a pair of this Jaccard similarity shares a band: 1 - (1 - J^r)^b.

    >>> round(detection_probability(0.8, 9, 13), 3)
    0.399
    """
    return float(1 - (1 - jaccard**rows) ** bands)


def describe(preset: str | Preset) -> str:
    """One line: bands, and how probably a pair of a given Jaccard similarity is found.

    >>> describe("slimpajama")
    'slimpajama: char 13-grams, 9 bands x 13 rows: J=0.7 8.4%, 0.8 39.9%, 0.9 92.9%, 0.95 99.8%'
    """
    p = resolve(preset)
    found = ", ".join(
        f"{j:g} {100 * detection_probability(j, p.bands, p.rows):.1f}%" for j in JACCARDS
    )
    return f"{p.name}: {p.unit} {p.size}-grams, {p.bands} bands x {p.rows} rows: J={found}"
