"""`prep push`, by the Hub's own client against a server that speaks its protocol."""

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import ConfigError
from pipeline.disclosure import push

Prep = Callable[..., Any]
TO = "hf://datasets/me/corpus"


class Hub(ThreadingHTTPServer):
    """Repositories in memory: what was made, and the files of each commit."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.made: list[dict[str, Any]] = []
        self.commits: list[dict[str, bytes]] = []
        self.refuses = False


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.refuses or self.headers["Authorization"] != "Bearer hf_token":
            return self.answer({"error": "not yours"}, 403)
        if self.path == "/api/repos/create":
            self.server.made.append(json.loads(body))
            return self.answer({"url": self.there()})
        if self.path == "/api/datasets/me/corpus/preupload/main":
            wanted = json.loads(body)["files"]
            return self.answer(
                {"files": [{**f, "uploadMode": "regular", "shouldIgnore": False} for f in wanted]}
            )
        if self.path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        assert self.path == "/api/datasets/me/corpus/commit/main"
        files = {}
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        self.server.commits.append(files)
        return self.answer(
            {"commitUrl": f"{self.there()}/commit/{'0' * 40}", "commitOid": "0" * 40}
        )

    def there(self) -> str:
        return f"http://{self.headers['Host']}/datasets/me/corpus"

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


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def pushed(hub: Hub, *arguments: object) -> subprocess.CompletedProcess[str]:
    """In a process of its own, whose Hub is the server."""
    address = f"http://127.0.0.1:{hub.server_address[1]}"
    environment = {"HF_ENDPOINT": address, "HF_TOKEN": "hf_token", "HF_HUB_DISABLE_XET": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pipeline", "push", *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **environment},
    )  # fmt: skip


def test_the_data_set_goes_and_no_text(small_run: Any, hub: Hub) -> None:
    done = pushed(hub, small_run.directory, TO)
    assert done.returncode == 0, done.stderr
    assert hub.made == [{**hub.made[0], "name": "corpus", "organization": "me", "type": "dataset"}]
    (files,) = hub.commits
    assert list(files)[-1] == "README.md"
    assert files["README.md"].startswith(b"---\n")
    assert json.loads(files["croissant.json"])["@type"] == "sc:Dataset"
    for path in set(files) - {"README.md", "croissant.json"}:
        assert files[path] == (small_run.directory / path).read_bytes()
    tops = {path.split("/")[0] for path in files}
    assert {"hdf5", "documents.parquet", "tokenizer.json"} <= tops
    assert tops.isdisjoint({"documents", "drops", "quarantine", "tokens", "evidence.parquet"})
    described = {one["contentUrl"] for one in json.loads(files["croissant.json"])["distribution"]
                 if "contentUrl" in one}  # fmt: skip
    assert {path for path in files if path.endswith(".h5")} <= described


def test_of_a_clean_run_the_records_go(tmp_path: Path, write_prose: Any, prep: Prep) -> None:
    raw = tmp_path / "raw.jsonl"
    raw.write_text("".join(json.dumps({"text": write_prose(n)}) + "\n" for n in range(20)))
    assert prep("clean", raw, "--out", tmp_path / "run", "--workers", 0).code == 0
    listed = push.push_run(tmp_path / "run", push.PushOptions(to=TO), True, print)
    assert "cleaned/000000.jsonl.zst" in {upload.path for upload in listed}


def test_parts_go_on_and_the_card_is_last(
    small_run: Any, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads = [push.Upload(f"f{n}", Path("x"), 10) for n in range(7)]
    monkeypatch.setattr(push, "_COMMIT_BYTES", 30)
    assert [len(group) for group in push._in_commits(uploads)] == [3, 3, 1]
    monkeypatch.setattr(push, "_COMMIT_FILES", 2)
    assert [len(group) for group in push._in_commits(uploads)] == [2, 2, 2, 1]


def test_a_refusal_is_one_line(small_run: Any, hub: Hub) -> None:
    hub.refuses = True
    done = pushed(hub, small_run.directory, TO)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "403" in done.stderr
    assert "hf auth login" in done.stderr


def test_a_failure_without_words(small_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise TimeoutError

    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", fail)
    with pytest.raises(ConfigError, match="TimeoutError: no reason given; the same command"):
        push.push_run(small_run.directory, push.PushOptions(to=TO), False, print)


def test_a_dry_run_needs_no_network(small_run: Any, prep: Prep, hub: Hub) -> None:
    listed = json.loads(prep("push", small_run.directory, TO, "--dry-run", "--json").out)
    assert [file["path"] for file in listed][-1] == "README.md"
    assert hub.made == []
    shown = prep("push", small_run.directory, TO, "--dry-run").out
    assert f"{len(listed)} files" in shown
    assert f"would be uploaded to {TO}" in shown


@pytest.mark.parametrize("to", ["me/corpus", "hf://models/me/x", "hf://datasets/me", "hf:me/x"])
def test_names_that_are_none(small_run: Any, to: str) -> None:
    with pytest.raises(ConfigError, match="expected hf://datasets/OWNER/NAME"):
        push.push_run(small_run.directory, push.PushOptions(to=to), True, print)
