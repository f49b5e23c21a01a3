"""What a run says: its lines, their width, the pulse while nothing else is said, the log of a
start; and amounts as options take them (111M, 1e19). Nothing here may import torch."""

import contextlib
import datetime
import os
import re
import shlex
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipeline.core import storage
from pipeline.core.directories import make_directory
from pipeline.core.errors import ResourceError
from pipeline.core.mirror.paths import TEMP_MARK
from pipeline.core.words import format_duration

_SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([KMBTkmbt]?)\Z")


def parse_amount(text: str) -> float:
    """A positive number with an optional suffix K, M, B or T (10^3 to 10^12).

    >>> parse_amount("111M"), parse_amount("1.3B"), parse_amount("1e19")
    (111000000.0, 1300000000.0, 1e+19)

    Raises ValueError.
    """
    match = _NUMBER.match(text.strip().replace(",", ""))
    if not match or float(match[1]) <= 0:
        raise ValueError(f"{text!r}: expected a positive number such as 111M, 1.3B or 1e19")
    return float(match[1]) * _SUFFIXES[match[2].upper()]


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


PULSE_SECONDS = 10.0
_FIRST_TO_GO = ("LoopTimeRemaining", "GlobalRate", "Rate", "TimeRemaining", "Loss")

_current: "Pulse | None" = None


class Pulse:
    """Call it to say a line. While it is entered, a thread says what is being done whenever no
    line was said for `seconds`, until `rest_pulse`. `through`: says those lines, or itself."""

    def __init__(self, say: Callable[[str], None], seconds: float = PULSE_SECONDS) -> None:
        self.seconds = seconds
        self.activity = "starting"
        self.through: Callable[[str], None] = self
        self._say = say
        self._began = self._last = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def __call__(self, line: str) -> None:
        """Say a line."""
        self._last = time.monotonic()
        self._say(line)

    @property
    def silence(self) -> float:
        """Seconds since the last line."""
        return time.monotonic() - self._last

    def end(self) -> None:
        """Say nothing more."""
        self._ended.set()

    def __enter__(self) -> "Pulse":
        global _current
        _current = self
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        global _current
        _current = None
        self._ended.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._ended.wait(max(0.01, self.seconds - self.silence)):
            if self.silence >= self.seconds:
                passed = format_duration(time.monotonic() - self._began)
                self.through(f"… {self.activity}, {passed} since the start")


def doing(activity: str) -> None:
    """Note what this process is doing, for the next line of its pulse."""
    if _current is not None:
        _current.activity = activity


def rest_pulse() -> None:
    """End this process's pulse, if it has one: another process speaks for the run."""
    if _current is not None:
        _current.end()


def speak_through(say: Callable[[str], None]) -> None:
    """Let this process's pulse, if it has one, say its lines by `say`."""
    if _current is not None:
        _current.through = say


def is_due(ahead: float) -> bool:
    """Whether the pace asks for a line now, when the next chance comes in `ahead` seconds."""
    return _current is not None and _current.silence + ahead >= _current.seconds


def print_fitted_line(line: str) -> None:
    """Print a line to stdout at once, no wider than the terminal if that is one."""
    if sys.stdout.isatty():
        line = fit_line(line, shutil.get_terminal_size().columns)
    print(line, flush=True)


def fit_line(line: str, width: int) -> str:
    """A line for a terminal of so many columns: a line of figures loses some of them, text is
    broken between words, paths stay whole.

    >>> fit_line("| Train Device=CPU, Step=1, Loss=2.5, Rate=9.1 samples/sec, GlobalRate=9.1", 50)
    '| Train Device=CPU, Step=1, Loss=2.5, Rate=9.1/s'
    >>> fit_line("one line of text", 10)
    'one line\\n  of text'
    """
    if len(line) <= width or "\n" in line:
        return line
    if not line.startswith("| "):
        return textwrap.fill(
            line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    line = line.replace(" samples/sec", "/s")
    for name in _FIRST_TO_GO:
        if len(line) > width:
            line = ", ".join(word for word in line.split(", ") if not word.startswith(name))
    return line if len(line) <= width else line[: width - 1] + "…"


LATEST = "latest_run.log"


class RunLog:
    """Call it to say a line. Lines said before `open` reach the file then."""

    def __init__(self, console: Say) -> None:
        self._console = console
        self._waiting: list[str] = []
        self._path: Path | None = None
        self._lock = threading.RLock()  # the pulse of the run says lines of its own

    def __call__(self, line: str) -> None:
        """Say a line. Raises ResourceError when the file cannot be written."""
        with self._lock:
            self._console(line)
            self._write("INFO", line)

    def open(self, model_dir: Path) -> None:
        """Begin the file of this start; whoever calls holds the lock of `model_dir`."""
        logs = model_dir / "logs"
        make_directory(logs)
        stem = f"run_{datetime.datetime.now():%Y%m%d_%H%M%S}"  # an earlier start may have it
        path, starts = logs / f"{stem}.log", 1
        while path.exists():
            starts += 1
            path = logs / f"{stem}_{starts}.log"
        with self._lock:
            self._write("INFO", f"Command: {shlex.join(sys.argv)}")
            storage.append_log_line(path, "\n".join(self._waiting))
            self._path = path
        latest = model_dir / LATEST
        temporary = latest.with_name(f"{TEMP_MARK}{LATEST}-{os.getpid()}")
        try:
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(path.relative_to(model_dir))
            temporary.replace(latest)
        except OSError as error:
            self(f"{latest}: cannot be linked to {path}: {error.strerror}")

    def failed(self, message: str) -> None:
        """Note the error that ends the run, which the command prints; the disk may be full."""
        with contextlib.suppress(ResourceError):
            self._write("ERROR", message)

    def _write(self, level: str, line: str) -> None:
        now = datetime.datetime.now()
        stamped = f"{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03d} {level}:   {line}"
        if self._path is None:
            self._waiting.append(stamped)
        else:
            storage.append_log_line(self._path, stamped)
