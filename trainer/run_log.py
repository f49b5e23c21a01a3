"""MODEL_DIR/logs/run_TIME.log: every line a run says, with its time; latest_run.log links to it.

The console shows the lines alone, or none of them with `--logging WARNING`.
"""

import contextlib
import datetime
import os
import shlex
import sys
import threading
from pathlib import Path

from pipeline.core import storage
from pipeline.core.errors import ResourceError
from trainer.progress import Say

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
        path = _fresh(model_dir / "logs")
        storage.make_directory(path.parent)
        with self._lock:
            self._write("INFO", f"Command: {shlex.join(sys.argv)}")
            storage.append(path, "\n".join(self._waiting))
            self._path = path
        try:
            _link(model_dir / LATEST, path.relative_to(model_dir))
        except OSError as error:
            self(f"{model_dir / LATEST}: cannot be linked to {path}: {error.strerror}")

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
            storage.append(self._path, stamped)


def _fresh(logs: Path) -> Path:
    """A name that no earlier start of this second has taken."""
    stem = f"run_{datetime.datetime.now():%Y%m%d_%H%M%S}"
    names = (stem, *(f"{stem}_{number}" for number in range(2, 1000)))
    return next(logs / f"{name}.log" for name in names if not (logs / f"{name}.log").exists())


def _link(link: Path, target: Path) -> None:
    """Point `link` at `target`, in one move."""
    temporary = link.with_name(f"{storage.TEMP_MARK}{link.name}-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)
