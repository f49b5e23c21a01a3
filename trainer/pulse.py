"""A line at a steady pace: when a run has said nothing for ten seconds, what it is doing.

    with Pulse(say) as pulse:
        pulse.doing("reading the data")

There is one at most in a process; `doing` and `is_due` reach it from anywhere in a run.
"""

import datetime
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from types import TracebackType

SECONDS = 10.0
_FIRST_TO_GO = ("LoopTimeRemaining", "GlobalRate", "Rate", "TimeRemaining", "Loss")

_current: "Pulse | None" = None


class Pulse:
    """Call it to say a line. While it is entered, a thread says what is being done whenever no
    line was said for `seconds`, until `rest`. `through`: says those lines, by default itself."""

    def __init__(self, say: Callable[[str], None], seconds: float = SECONDS) -> None:
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

    def rest(self) -> None:
        """Say nothing more: others speak now."""
        self._ended.set()

    def __enter__(self) -> "Pulse":
        global _current
        _current = self
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        global _current
        _current = None
        self._ended.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._ended.wait(max(0.01, self.seconds - self.silence)):
            if self.silence >= self.seconds:
                passed = datetime.timedelta(seconds=round(time.monotonic() - self._began))
                self.through(f"… {self.activity}, {passed} since the start")


def doing(activity: str) -> None:
    """Note what this process is doing, for the next line of its pulse."""
    if _current is not None:
        _current.activity = activity


def rest() -> None:
    """End this process's pulse, if it has one: another process speaks for the run."""
    if _current is not None:
        _current.rest()


def speak_through(say: Callable[[str], None]) -> None:
    """Let this process's pulse, if it has one, say its lines by `say`."""
    if _current is not None:
        _current.through = say


def is_due(ahead: float) -> bool:
    """Whether the pace asks for a line now, when the next chance comes in `ahead` seconds."""
    return _current is not None and _current.silence + ahead >= _current.seconds


def print_line(line: str) -> None:
    """Print a line to stdout at once, no wider than the terminal if that is one."""
    if sys.stdout.isatty():
        line = fit(line, shutil.get_terminal_size().columns)
    print(line, flush=True)


def fit(line: str, width: int) -> str:
    """A line for a terminal of so many columns: a line of figures loses some of them, text is
    broken between words, paths stay whole.

    >>> fit("| Train Device=CPU, Step=1, Loss=2.5, Rate=9.1 samples/sec, GlobalRate=9.1", 50)
    '| Train Device=CPU, Step=1, Loss=2.5, Rate=9.1/s'
    >>> fit("one line of text", 10)
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
