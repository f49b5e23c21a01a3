"""What a user reads while a run goes on: rates, times that remain, sizes."""

import datetime
from collections.abc import Callable
from dataclasses import dataclass

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
