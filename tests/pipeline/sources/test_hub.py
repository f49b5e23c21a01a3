"""Data sets by name, against a small stand-in for the Hugging Face Hub: one data set of two splits
at one commit, served over HTTP to `datasets` and `huggingface_hub` themselves."""

import gzip
import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import InputError
from pipeline.sources.hub import parse_name

REPOSITORY = Path(__file__).resolve().parents[3]
COMMIT = "a" * 40
NAME = "someone/things"
FILES = {
    "README.md": b"---\nlicense: mit\n---\nThings.",
    "data/train-00000-of-00002.jsonl.gz": gzip.compress(b'{"text": "one"}\n', mtime=0),
    "data/train-00001-of-00002.jsonl.gz": gzip.compress(b'{"text": "two"}\n', mtime=0),
    "data/test-00000-of-00001.jsonl.gz": gzip.compress(b'{"text": "three"}\n', mtime=0),
}


def entry(path: str) -> dict[str, Any]:
    data = FILES[path]
    return {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}


class Hub(http.server.BaseHTTPRequestHandler):
    """The few questions that are asked."""

    def log_message(self, *arguments: object) -> None:
        """Nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        asked = urllib.parse.unquote(urllib.parse.urlparse(self.path).path)
        about = f"/api/datasets/{NAME}"
        if asked.startswith(f"/datasets/{NAME}/resolve/"):
            self.file(asked.split("/", 6)[6])
        elif asked.startswith(f"{about}/tree/"):
            below = asked.removeprefix(f"{about}/tree/").partition("/")[2]
            self.tree(below)
        elif asked.startswith(about):
            siblings = [{"rfilename": path} for path in FILES]
            self.answer({"id": NAME, "sha": COMMIT, "siblings": siblings, "tags": []})
        else:
            self.missing("RepoNotFound")

    def tree(self, below: str) -> None:
        if below not in ("", "data"):
            self.missing("EntryNotFound")
            return
        found = [entry(p) for p in FILES if os.path.dirname(p) == below]
        directory = {"type": "directory", "path": "data", "oid": "d" * 40, "size": 0}
        self.answer(found if below else [*found, directory])

    def file(self, path: str) -> None:
        if path not in FILES:
            self.missing("EntryNotFound")
            return
        data = FILES[path]
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}
        if span := self.headers["Range"]:
            first, last = span.removeprefix("bytes=").split("-")
            self.reply(206, data[int(first) : int(last) + 1], headers)
        else:
            self.reply(200, data, headers)

    def answer(self, value: object) -> None:
        self.reply(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def missing(self, code: str) -> None:
        self.reply(404, b"{}", {"X-Error-Code": code})

    def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


READ = """
import json, sys
from contextlib import closing
from pathlib import Path
from pipeline.core.errors import InputError
from pipeline.sources import files
from pipeline.sources.ranges import ByteRange
from pipeline.sources.record import RecordRules
answers = []
for name in sys.argv[1:]:
    try:
        found, _ = files.find("in", name, Path())
        texts, ranges = [], []
        for file in found:
            with closing(files.HashingReader(file.location)) as reader:
                rules = RecordRules(text_key="text", max_document_bytes=1000, sources=None)
                items = files.read_records(file, reader, rules)
                texts += [item.text for item in items]
            with closing(files.HashingReader(file.location, ByteRange(5, 25))) as reader:
                assert reader.can_seek
                reader.seek(5)
                ranges.append(reader.read(20).hex())
                reader.check_unchanged()
        answers.append([[f.path for f in found], texts, ranges])
    except InputError as error:
        answers.append(str(error))
print(json.dumps(answers))
"""


def ask(cache: Path, *names: str, **environment: str) -> list[Any]:
    """Read names in a process of its own, since the libraries take the endpoint at import."""
    done = subprocess.run(
        [sys.executable, "-c", READ, *names],
        env={**os.environ, "HF_HOME": str(cache), "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers: list[Any] = json.loads(done.stdout)
    return answers


def test_by_name(endpoint: str, tmp_path: Path) -> None:
    """The files of a split, with name and commit in their paths; `hf://` URLs work too, and ranges
    of what is behind them."""
    split, whole, revision, none, unknown, url = ask(
        tmp_path, f"hf:{NAME}:train", f"hf:{NAME}", f"hf:{NAME}@main:default:test",
        f"hf:{NAME}:dev", "hf:someone/nothing:train",
        f"hf://datasets/{NAME}@{COMMIT}/data/train-*.gz", HF_ENDPOINT=endpoint,
    )  # fmt: skip
    names = [f"data/train-0000{i}-of-00002.jsonl.gz" for i in range(2)]
    ranges = [FILES[name][5:25].hex() for name in names]
    assert split == [[f"{NAME}@{COMMIT}/{n}" for n in names], ["one", "two"], ranges]
    assert whole.startswith(f"hf:{NAME}: has the splits ")
    assert "train, test" in whole
    assert f"such as hf:{NAME}:train" in whole
    assert revision[1] == ["three"]
    assert "there is no dev" in none
    assert "cannot find it on the Hugging Face Hub" in unknown
    assert url == [[os.path.basename(n) for n in names], ["one", "two"], ranges]


def test_offline(tmp_path: Path) -> None:
    """One line that says what to do instead."""
    (told,) = ask(tmp_path, f"hf:{NAME}:train", HF_HUB_OFFLINE="1")
    assert told.startswith(f"hf:{NAME}:train: cannot find it on the Hugging Face Hub")
    assert "save_to_disk" in told
    assert "\n" not in told


@pytest.mark.parametrize("bad", ["hf:", "hf:a/b/c", "hf:a b", "hf:a:b:c:d", "hf:a@", "hf:a/b:"])
def test_names_that_are_none(bad: str) -> None:
    with pytest.raises(InputError, match="expected hf:NAME"):
        parse_name(bad)
