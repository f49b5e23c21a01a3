"""Standard output and standard error for the time of a command: a reader that closes early does not
end it, nor do messages that nobody can take.
"""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pipeline.core.directories import NO_ROOM
from pipeline.core.errors import ResourceError

_FULL = {*NO_ROOM, errno.EIO}


class StopSignal(BaseException):
    """SIGINT or SIGTERM arrived; no KeyboardInterrupt, which typer turns into a return value."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number


class _Stream:
    """A text stream that goes nowhere once its reader has closed, or, with `may_fail`, once
    anything else has kept it from being written."""

    def __init__(self, stream: Any, may_fail: bool) -> None:
        self._stream = stream
        self._ends_quietly = OSError if may_fail else BrokenPipeError
        if "utf" not in (stream.encoding or "utf").lower():
            with suppress(AttributeError):  # no file
                stream.reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """As of a text stream."""
        with self._ending():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """As of a text stream."""
        with self._ending():
            self._stream.flush()

    def close_quietly(self) -> None:
        """What comes, and what waits to be written, goes nowhere."""
        with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())

    @contextmanager
    def _ending(self) -> Iterator[None]:
        try:
            yield
        except self._ends_quietly:
            self.close_quietly()


@contextmanager
def guarded_streams(name: str) -> Iterator[None]:
    """For the command of this name. Raises SystemExit with the code of ResourceError, after one
    line, where standard output cannot be written."""
    before = sys.stdout, sys.stderr
    out = _Stream(sys.stdout, may_fail=False) if sys.stdout is not None else None
    errors = _Stream(sys.stderr, may_fail=True) if sys.stderr is not None else None
    sys.stdout, sys.stderr = out, errors
    try:
        try:
            yield
        finally:
            if out is not None:
                out.flush()
    except OSError as error:
        if error.filename is not None or error.errno not in _FULL or out is None:
            raise
        print(f"{name}: standard output: {error.strerror}; not all was written", file=sys.stderr)
        out.close_quietly()
        raise SystemExit(ResourceError.exit_code) from None
    finally:
        sys.stdout, sys.stderr = before
