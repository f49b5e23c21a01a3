"""Reading a path with the project's readers, and a web server to read from."""

import functools
import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pipeline.sources import files
from pipeline.sources.record import BadRecord, Record, RecordRules

Items = list[Record | BadRecord]


def read_all(path: object, kind: str | None = None, **rules: Any) -> Items:
    """Every record behind a path; what is hashed while reading is the whole file."""
    given = {"text_key": "text", "max_document_bytes": 1 << 20, "sources": None, **rules}
    found, _ = files.find("in", str(path), Path(), kind)
    items: Items = []
    for file in found:
        with closing(files.HashingReader(file.location)) as reader:
            items += files.read_records(file, reader, RecordRules(**given))
            assert reader.hash_rest() == files.hash_input(file.location)
    return items


@pytest.fixture(scope="session")
def read() -> Callable[..., Items]:
    """`read_all`."""
    return read_all


@pytest.fixture(scope="session")
def outcomes() -> Callable[..., list[str]]:
    """`read_all`, as the text of every good record and the reason of every bad one."""
    return lambda *a, **k: [
        i.text if isinstance(i, Record) else f"!{i.reason}" for i in read_all(*a, **k)
    ]


@dataclass
class Web:
    """A web server over a directory: its address, what was asked of it, and how it answers."""

    address: str
    requests: list[tuple[str, str]] = field(default_factory=list)
    cut_off: bool = False
    status: int = 0
    troubles: list[int] = field(default_factory=list)
    """For the next requests of a file: a status, or 0 to cut it off."""
    has_ranges: bool = False
    sent: int = 0
    """Bytes that were sent as ranges."""
    before: Callable[[str], None] = lambda path: None
    """Called with the path of every request of a file."""


class _Handler(http.server.SimpleHTTPRequestHandler):
    web: Web

    def log_message(self, *arguments: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self.web.requests.append((self.command, self.path))
        self.web.before(self.path)
        trouble = self.web.troubles.pop(0) if self.web.troubles else None
        if status := trouble or self.web.status:
            self.send_error(status)
        elif (self.web.cut_off or trouble == 0) and self.command == "GET":
            data = Path(self.translate_path(self.path)).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
        elif self.web.has_ranges and "Range" in self.headers:
            self.send_range(Path(self.translate_path(self.path)))
        else:
            super().do_GET()

    def send_range(self, path: Path) -> None:
        size = path.stat().st_size
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        start, stop = int(first), min(int(last) + 1, size)
        if start >= size:
            return self.send_error(416)
        with open(path, "rb") as file:
            file.seek(start)
            data = file.read(stop - start)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.web.sent += len(data)

    def do_HEAD(self) -> None:
        self.web.requests.append((self.command, self.path))
        if self.web.status:
            self.send_error(self.web.status)
        else:
            super().do_HEAD()


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that fails is asked again at once."""
    from pipeline.sources import store

    monkeypatch.setattr(store, "_WAITS", (0, 0, 0))


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    """Python's own web server over `tmp_path`; it answers range requests where a test says so."""
    handler = type("Handler", (_Handler,), {})
    bound = functools.partial(handler, directory=str(tmp_path))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), bound)
    server.handle_error = lambda *arguments: None  # type: ignore[method-assign]  # it hung up
    made = Web(f"http://127.0.0.1:{server.server_address[1]}")
    handler.web = made  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    server.shutdown()
    server.server_close()
