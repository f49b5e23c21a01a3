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


class _Handler(http.server.SimpleHTTPRequestHandler):
    web: Web

    def log_message(self, *arguments: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self.web.requests.append((self.command, self.path))
        trouble = self.web.troubles.pop(0) if self.web.troubles else None
        if status := trouble or self.web.status:
            self.send_error(status)
        elif (self.web.cut_off or trouble == 0) and self.command == "GET":
            data = Path(self.translate_path(self.path)).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
        else:
            super().do_GET()

    def do_HEAD(self) -> None:
        self.web.requests.append((self.command, self.path))
        if self.web.status:
            self.send_error(self.web.status)
        else:
            super().do_HEAD()


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that fails is asked again at once."""
    from pipeline.sources import remote

    monkeypatch.setattr(remote, "_WAITS", (0, 0, 0))


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    """Python's own web server over `tmp_path`; it answers no range requests."""
    handler = type("Handler", (_Handler,), {})
    bound = functools.partial(handler, directory=str(tmp_path))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), bound)
    made = Web(f"http://127.0.0.1:{server.server_address[1]}")
    handler.web = made  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    server.shutdown()
    server.server_close()
