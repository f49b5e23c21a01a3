"""Inputs behind URLs: the same files, paths and bytes as on this machine, and no secret told."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline
from pipeline.config.prep import Config
from pipeline.core import zstd
from pipeline.core.errors import InputError, ResourceError
from pipeline.sources import files, store
from pipeline.sources.files import InputHashes
from pipeline.sources.remote import RemoteFile

SECRET = "hunter2"


def lines(*texts: str) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Some files in directories, one with a blank in its name, one hidden, one of no format."""
    root = tmp_path / "raw"
    made = {
        "a.jsonl": lines("a"), "sub/b c.jsonl.zst": zstd.compress(lines("b", "c")),
        "sub/deep/d.jsonl": lines("d"), ".hidden.jsonl": lines("no"), "notes.csv": b"x",
    }  # fmt: skip
    for name, data in made.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    table = pa.table({"text": [f"row {i}" for i in range(3000)]})
    pq.write_table(table, root / "sub/p.parquet", row_group_size=1000)
    with pa.ipc.new_stream(str(root / "s.arrow"), table.schema) as writer:
        writer.write_table(table)
    return root


@pytest.fixture
def memory(raw: Path) -> Iterator[str]:
    """The same files as memory://bucket/raw."""
    system = fsspec.filesystem("memory")
    for path in raw.rglob("*"):
        if path.is_file():
            system.pipe(f"/bucket/raw/{path.relative_to(raw)}", path.read_bytes())
    yield "memory://bucket/raw"
    system.rm("/bucket", recursive=True)


def listed(path: object) -> list[tuple[str, int]]:
    found, _ = files.find("in", str(path), Path())
    return [(f.path, f.size) for f in found]


PATTERNS = ["", "/", "/a.jsonl", "/sub", "/*.jsonl", "/**/*.jsonl*", "/sub/[bd]*", "/*/*/d.jsonl"]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("store", ["memory", "web", "file"])
def test_same_files_and_records(
    store: str, pattern: str, raw: Path, memory: str, web: Any, read: Callable[..., Any]
) -> None:
    address = {"memory": memory, "web": f"{web.address}/raw", "file": f"file://{raw}"}[store]
    assert listed(address + pattern) == listed(f"{raw}{pattern}")
    assert read(address + pattern) == read(f"{raw}{pattern}")


def test_a_list_of_urls(memory: str, raw: Path) -> None:
    names = ("sub/deep/*.jsonl", "a.jsonl")
    there, _ = files.find("in", [f"{memory}/{n}" for n in names], Path())
    here, _ = files.find("in", [f"{raw}/{n}" for n in names], Path())
    assert [f.path for f in there] == [f.path for f in here] == ["a.jsonl", "sub/deep/d.jsonl"]
    with pytest.raises(InputError, match="make an input of each"):
        files.find("in", [f"{memory}/a.jsonl", f"{raw}/a.jsonl"], Path())


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 900)), max_size=8))
def test_reading_back_and_forth(moves: list[tuple[bool, int]]) -> None:
    """Like a file, however the reader moves."""
    data = bytes(range(256)) * 3
    fsspec.filesystem("memory").pipe("/moves/a.jsonl", data)
    with closing(RemoteFile("memory://moves/a.jsonl")) as file:
        position = 0
        for is_seek, count in moves:
            if is_seek:
                file.seek(count)
                position = min(count, len(data))
            else:
                assert file.read(count) == data[position : position + count]
                position = min(len(data), position + count)
            assert file.tell() == position
        assert file.read() == data[position:]


def test_one_request_reads_a_file(raw: Path, web: Any, read: Callable[..., Any]) -> None:
    """Beside those that ask for its size; nothing needs range requests."""
    read(f"{web.address}/raw/a.jsonl")
    fetched = [path for method, path in web.requests if method == "GET"]
    assert len(fetched) == 2, "once to read, and once more for the check of this test"


def test_no_query_is_told(raw: Path, web: Any, tmp_path: Path) -> None:
    """Signatures of URLs stand in no message, key, path or published file."""
    url = f"{web.address}/raw/a.jsonl?signature={SECRET}"
    (found,), _ = files.find("in", url, Path())
    assert (found.path, found.shown) == ("a.jsonl", f"{web.address}/raw/a.jsonl")
    assert SECRET in found.location
    for trouble in ({"cut_off": True}, {"status": 403}, {"status": 404}, {"status": 500}):
        web.cut_off, web.status = False, 0
        vars(web).update(trouble)
        with pytest.raises((InputError, ResourceError)) as refused:
            files.hash_input(url)
        assert SECRET not in str(refused.value)
        assert "a.jsonl" in str(refused.value)
    web.cut_off, web.status = False, 0
    text = " ".join(f"word{i}" for i in range(80))
    (raw / "a.jsonl").write_bytes(lines(text, text[::-1]))
    config = Config.model_validate_json(
        json.dumps({
            "name": "r", "inputs": [{"name": "in", "path": url}],
            "pack": {"max_sequence_length": 64, "validation_share": 0.0},
        })
    )  # fmt: skip
    pipeline.run(config, tmp_path / "out", 0)
    told = [
        p
        for p in (tmp_path / "out").rglob("*")
        if p.is_file() and SECRET.encode() in p.read_bytes()
    ]
    assert told == []
    assert pipeline.run(config, tmp_path / "out", 0).reused


@pytest.mark.parametrize(
    ("status", "kind", "told"),
    [
        (404, InputError, "not found"), (403, InputError, "access denied"),
        (500, ResourceError, "does not answer"), (503, ResourceError, "run the same command again"),
    ],
)  # fmt: skip
def test_trouble(status: int, kind: type[Exception], told: str, raw: Path, web: Any) -> None:
    """A store in trouble is no damaged shard, which `on_bad_shard: skip` would leave out."""
    web.status = status
    for path in ("raw/a.jsonl", "raw/", "raw/*.jsonl"):
        with pytest.raises(kind, match=told):
            files.find("in", f"{web.address}/{path}", Path())


def test_cut_off_transfer(raw: Path, web: Any, read: Callable[..., Any]) -> None:
    web.cut_off = True
    with pytest.raises(ResourceError, match=r"a\.jsonl: .*run the same command again"):
        read(f"{web.address}/raw/a.jsonl")


@pytest.mark.parametrize("troubles", [[0], [503], [0, 503, 0]])
def test_a_store_in_trouble_is_asked_again(
    troubles: list[int], raw: Path, web: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And goes on where it broke off, with longer and longer waits."""
    waited: list[float] = []
    monkeypatch.setattr("pipeline.sources.store.time.sleep", waited.append)
    monkeypatch.setattr("pipeline.sources.store._WAITS", (1, 2, 4))
    data = random.Random(1).randbytes(3 << 20)
    (raw / "a.jsonl").write_bytes(data)
    web.troubles.extend(troubles)
    with closing(files.HashingReader(f"{web.address}/raw/a.jsonl")) as reader:
        assert reader.read() == data
    assert waited == [1, 2, 4][: len(troubles)]


def test_a_file_that_changes_between_two_attempts_is_refused(raw: Path, web: Any) -> None:
    (raw / "a.jsonl").write_bytes(bytes(1 << 20))
    file = RemoteFile(f"{web.address}/raw/a.jsonl")
    file._is_broken = True
    (raw / "a.jsonl").write_bytes(b"another" * 1000)
    with pytest.raises(InputError, match="changed while this run read it"):
        file.read()


def test_nobody_answers() -> None:
    with pytest.raises(ResourceError, match="does not answer"):
        files.find("in", "http://127.0.0.1:1/raw/", Path())


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (f"https://me:{SECRET}@host/a.jsonl", "the URL holds a user name or password"),
        (f"simplecache::https://host/a.jsonl?{SECRET}", "found nothing"),
        (f"zip://a.jsonl::https://host/a.zip?{SECRET}", "chained URLs are not supported"),
        ("nowhere://a.jsonl", r"cannot read such URLs.*wafermill\[remote\]"),
        ("memory://nothing/a.jsonl", "not found"),
        ("memory://nothing/", "not found"),
    ],
)
def test_urls_that_are_refused(url: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told) as refused:
        files.find("in", url, tmp_path)
    assert SECRET not in str(refused.value) or "::" in url


def test_a_change_behind_a_url_is_seen_by_its_size_alone(raw: Path, web: Any) -> None:
    """Of a file of this machine the time of its last write tells too."""
    url = f"{web.address}/raw/a.jsonl"
    (found,), _ = files.find("in", url, Path())
    for text, is_seen in (("z", False), ("zz", True)):
        (raw / "a.jsonl").write_bytes(lines(text))
        with closing(files.HashingReader(url)) as reader:
            if is_seen:
                with pytest.raises(InputError, match="changed while this run read it"):
                    reader.hash_rest(found.size)
            else:
                assert reader.hash_rest(found.size) == files.hash_input(url)


class TestHashes:
    """The cache of hashes knows a remote file by what its store says of it."""

    def hashes(self, out: Path, url: str) -> tuple[InputHashes, files.InputFile]:
        (found,), _ = files.find("in", url, Path())
        return InputHashes(out, (found,), False), found

    def test_unchanged_is_not_read_again(self, raw: Path, web: Any, tmp_path: Path) -> None:
        url = f"{web.address}/raw/a.jsonl?signature={SECRET}"
        hashes, found = self.hashes(tmp_path, url)
        digest = files.hash_input(url)
        hashes.remember([("in", "a.jsonl", digest)])
        noted = {"inputs": [["in", "a.jsonl", found.size, digest]]}
        web.requests.clear()
        assert self.hashes(tmp_path, url)[0].unchanged(noted)
        assert {method for method, _ in web.requests} == {"HEAD"}
        (raw / "a.jsonl").write_bytes(lines("z"))
        import os

        os.utime(raw / "a.jsonl", (1, 1))
        assert not self.hashes(tmp_path, url)[0].unchanged(noted)

    def test_without_any_version_it_is_read_again(
        self, raw: Path, web: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        url = f"{web.address}/raw/a.jsonl"
        monkeypatch.setattr(store, "_VERSIONS", ())
        hashes, found = self.hashes(tmp_path, url)
        digest = files.hash_input(url)
        hashes.remember([("in", "a.jsonl", digest)])
        noted = {"inputs": [["in", "a.jsonl", found.size, digest]]}
        assert self.hashes(tmp_path, url)[0].unchanged(noted)
        (raw / "a.jsonl").write_bytes(lines("z"))
        assert not self.hashes(tmp_path, url)[0].unchanged(noted)
        (raw / "a.jsonl").unlink()
        shutil.copy(raw / "sub/deep/d.jsonl", raw / "b.jsonl")
        assert not InputHashes(tmp_path, (found,), False).unchanged(noted)
