"""An S3 server on an address of this machine: moto, behind faults that a test chooses.

    python tests/s3_server.py 127.0.0.1

It prints its port. A PUT of {"share": 0.1, "seed": 7} to /_faults makes so many requests fail:
answered with 503 before or after they were carried out, or not at all after it, cut short, slow,
or, for what was written in the last second, with 404. None fails more than four times in a row for
one key. With "outage": 300 every request after so many is refused. A GET of /_objects/BUCKET?PREFIX
gives what is stored, from the memory of the server, and a DELETE forgets it.
"""

import base64
import json
import logging
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import s3_backends
from werkzeug.serving import make_server

KINDS = ("refused", "lost", "unanswered", "slow", "cut", "late")
IN_A_ROW = 4
ACCOUNT, PARTITION = "123456789012", "aws"

Answer = tuple[str, list[tuple[str, str]], bytes]


class Faults:
    """A WSGI application in front of another one."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self.app = app
        self.random, self.share = random.Random(), 0.0
        self.left: int | None = None
        self.lock = threading.Lock()
        self.failed: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.written: dict[str, float] = {}

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/_faults":
            status, headers, body = self.set_up(environ)
        elif path.startswith("/_objects/"):
            status, headers, body = show_objects(environ, path.removeprefix("/_objects/"))
        else:
            status, headers, body = self.answer(environ, path, self.choose(environ, path))
        start(status, headers)
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]

    def set_up(self, environ: dict[str, Any]) -> Answer:
        with self.lock:
            if environ["REQUEST_METHOD"] == "PUT":
                size = int(environ["CONTENT_LENGTH"])
                chosen = json.loads(environ["wsgi.input"].read(size))
                self.share, self.random = chosen["share"], random.Random(chosen["seed"])
                self.left = chosen.get("outage")
                self.kinds.clear()
            return "200 OK", [], json.dumps(self.kinds).encode()

    def choose(self, environ: dict[str, Any], path: str) -> str:
        with self.lock:
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    self.kinds["refused"] += 1
                    return "refused"
            kind = self.random.choice(KINDS) if self.random.random() < self.share else ""
            method, is_object = environ["REQUEST_METHOD"], path.count("/") > 1
            fresh = time.monotonic() - self.written.get(path, 0) < 1
            may_be_late = method in ("GET", "HEAD") and is_object and fresh
            if (
                (kind == "cut" and not (method == "GET" and is_object))
                or (kind == "late" and not may_be_late)
                or self.failed[path] >= IN_A_ROW
            ):
                kind = ""
            self.failed[path] = self.failed[path] + 1 if kind else 0
            self.kinds[kind] += 1
            return kind

    def answer(self, environ: dict[str, Any], path: str, kind: str) -> Answer:
        if kind == "refused":
            return "503 Slow Down", [], b"<Error><Code>SlowDown</Code></Error>"
        if kind == "late":
            return "404 Not Found", [], b"<Error><Code>NoSuchKey</Code></Error>"
        if kind == "slow":
            time.sleep(0.3)
        status, headers, body = self.carry_out(environ)
        if environ["REQUEST_METHOD"] == "PUT":
            self.written[path] = time.monotonic()
        if kind == "lost":
            return "503 Slow Down", [], b"<Error><Code>SlowDown</Code></Error>"
        if kind == "unanswered":
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return status, headers, body[: len(body) // 2] if kind == "cut" else body

    def carry_out(self, environ: dict[str, Any]) -> Answer:
        noted: list[Any] = []
        body = b"".join(self.app(environ, lambda *said: noted.append(said)))
        return noted[0][0], list(noted[0][1]), body


def show_objects(environ: dict[str, Any], bucket: str) -> Answer:
    """What is below a prefix, by the rest of its key; or delete it."""
    keys, prefix = s3_backends[ACCOUNT][PARTITION].buckets[bucket].keys, environ["QUERY_STRING"]
    found = {name: keys[name] for name in list(keys) if name.startswith(prefix)}
    if environ["REQUEST_METHOD"] == "DELETE":
        for name in found:
            del keys[name]
    values = {name[len(prefix) :]: base64.b64encode(k.value).decode() for name, k in found.items()}
    return "200 OK", [], json.dumps(values).encode()


if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    application = Faults(DomainDispatcherApplication(create_backend_app))
    server = make_server(sys.argv[1], 0, application, threaded=True)
    print(server.server_port, flush=True)
    server.serve_forever()
