"""Numbers as an option takes them: 111M, 1.3B, 1e19."""

import re

_SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([KMBTkmbt]?)\Z")


def parse_amount(text: str) -> float:
    """A positive number with an optional suffix K, M, B or T (10^3 to 10^12).

    >>> parse_amount("111M"), parse_amount("1.3B"), parse_amount("1e19")
    (111000000.0, 1300000000.0, 1e+19)

    Raises ValueError.
    """
    found = _NUMBER.match(text.strip().replace(",", ""))
    if not found or float(found[1]) <= 0:
        raise ValueError(f"{text!r}: expected a positive number such as 111M, 1.3B or 1e19")
    return float(found[1]) * _SUFFIXES[found[2].upper()]
