"""A server that speaks as much of the Hugging Face Hub's protocol as its client needs to upload."""

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_token"


class Hub(ThreadingHTTPServer):
    """Repositories in memory: what was made, and the files of each commit."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.made: list[dict[str, Any]] = []
        self.commits: list[dict[str, bytes]] = []
        self.refuses = False

    def push(self, program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        """`push` of `pipeline` or `trainer` in a process of its own, whose Hub this is."""
        address = f"http://127.0.0.1:{self.server_address[1]}"
        own = {"HF_ENDPOINT": address, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
        return subprocess.run(
            [sys.executable, "-m", program, "push", *map(str, arguments)],
            capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **own},
        )  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.refuses or self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self.answer({"error": "not yours"}, 403)
        if self.path == "/api/repos/create":
            self.server.made.append(json.loads(body))
            return self.answer({"url": self.page()})
        if self.path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        made = self.server.made[-1]
        place = f"/api/{made.get('type', 'model')}s/{made['organization']}/{made['name']}"
        if self.path == f"{place}/preupload/main":
            mode = {"uploadMode": "regular", "shouldIgnore": False}
            wanted = json.loads(body)["files"]
            return self.answer({"files": [{**file, **mode} for file in wanted]})
        assert self.path == f"{place}/commit/main"
        files = {}
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        self.server.commits.append(files)
        commit = "0" * 40
        return self.answer({"commitUrl": f"{self.page()}/commit/{commit}", "commitOid": commit})

    def page(self) -> str:
        """Of the last repository; a model's has no word for what it is."""
        made = self.server.made[-1]
        kind = "datasets/" if made.get("type") == "dataset" else ""
        return f"http://{self.headers['Host']}/{kind}{made['organization']}/{made['name']}"

    def do_GET(self) -> None:
        self.answer({"error": "not found"}, 404)

    def answer(self, value: Any, code: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None: ...


@contextmanager
def serve_hub() -> Iterator[Hub]:
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
