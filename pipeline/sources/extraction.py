"""The main text of HTML pages, by Resiliparse in a child process.

Pages come from anybody, and the extractor is native code: a page that crashes it, or that takes it
more than `CPU_SECONDS`, ends the child and not the run, and the next page gets a new one. The limit
is on CPU time, which does not depend on what else the machine does.
"""

import os
import struct
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

from pipeline.sources.record import RecordError

CPU_SECONDS = 30
MEMORY_BYTES = 4 << 30
_CHILD = Path(__file__).with_name("extraction_child.py")
_REPLY = struct.Struct("<BI")


class Extractor:
    """A child that extracts one page at a time."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def extract(self, html: str) -> str:
        """The main text; empty where there is none. Raises RecordError where the extractor failed,
        crashed or was too slow."""
        with self._lock:
            try:
                text = self._ask(html.encode("utf-8", "replace"))
            except (OSError, EOFError):
                self._end()
                raise RecordError("page_failed") from None
            except BaseException:  # what is in the pipes belongs to no later page
                self._end()
                raise
        if text is None:
            raise RecordError("page_failed")
        return text

    def _ask(self, page: bytes) -> str | None:
        child = self._child = self._child or self._start()
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(struct.pack("<I", len(page)) + page)
        child.stdin.flush()
        failed, length = _REPLY.unpack(_read(child, _REPLY.size))
        text = _read(child, length)
        return None if failed else text.decode("utf-8", "replace")

    def _start(self) -> "subprocess.Popen[bytes]":
        limits = str(CPU_SECONDS), str(MEMORY_BYTES)
        return subprocess.Popen(
            [sys.executable, "-P", str(_CHILD), *limits],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the run to handle
        )

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None


def _read(child: "subprocess.Popen[bytes]", count: int) -> bytes:
    assert child.stdout is not None
    data = child.stdout.read(count)
    if len(data) < count:
        raise EOFError
    return data


@cache
def _extractor(process: int) -> Extractor:
    """That of this process: a fork has one of its own."""
    return Extractor()


def extract_text(html: str) -> str:
    """The main text of a page. Raises as `Extractor.extract`."""
    return _extractor(os.getpid()).extract(html)
