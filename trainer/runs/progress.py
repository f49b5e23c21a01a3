"""Numbers as people write and read them: amounts as options take them (111M, 1.3B, 1e19), rates and
times that remain. Nothing here may import torch: `train plan --help` imports it.
"""

import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass

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


Say = Callable[[str], None]


@dataclass
class Rate:
    """Samples per second over this process's steps."""

    samples: int = 0
    seconds: float = 0.0

    def add(self, samples: int, seconds: float) -> None:
        """Count one step."""
        self.samples += samples
        self.seconds += seconds

    @property
    def overall(self) -> float:
        """Samples per second so far."""
        return self.samples / self.seconds if self.seconds else 0.0

    def time_for(self, samples: int) -> str:
        """How long so many samples take at this rate.

        >>> Rate(samples=10, seconds=5.0).time_for(804)
        '0:06:42'
        """
        seconds = samples / self.overall if self.overall else 0
        return str(datetime.timedelta(seconds=round(seconds)))
