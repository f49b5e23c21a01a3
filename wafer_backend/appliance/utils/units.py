"""Sizes in bytes and their units."""

from typing import Literal

from pipeline.core.words import format_bytes

_EXPONENTS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


def bytes_to_human(size: float) -> str:
    """A size with its unit."""
    return format_bytes(size)


def convert_byte_unit(
    value: float,
    target_unit: str,
    src_unit: str = "B",
    precision: int | None = None,
) -> float:
    """A size in another unit: B, KB, MB, ... are powers of 1000, KiB, MiB, ... of 1024.

    Raises ValueError for an unknown unit.

    >>> convert_byte_unit(2, "B", src_unit="KiB"), convert_byte_unit(3_000_000, "MB")
    (2048, 3)
    """
    size = value * _factor(src_unit)
    factor = _factor(target_unit)
    converted = size // factor if size % factor == 0 else size / factor
    return converted if precision is None else round(converted, precision)


def _factor(unit: str) -> int:
    letters = unit.strip().lower().removesuffix("b")
    base: Literal[1000, 1024] = 1024 if letters.endswith("i") else 1000
    if letters.removesuffix("i") not in _EXPONENTS:
        raise ValueError(f"unknown unit {unit!r}; expected B, KB, KiB, MB, MiB, GB, ...")
    return int(base ** _EXPONENTS[letters.removesuffix("i")])
