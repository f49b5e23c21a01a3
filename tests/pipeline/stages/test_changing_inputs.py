"""Raw shards that are written while a run reads them, and edits that hide behind old times."""

import gzip
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.core.errors import InputError
from pipeline.sources import files
from pipeline.stages import clean, pieces
from tests.forked import Ended

Prep = Callable[..., Ended]


def lines(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def parquet(texts: list[str]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": texts}), sink)
    return sink.getvalue()


FORMS: dict[str, Callable[[list[str]], bytes]] = {
    "a.jsonl": lines,
    "a.jsonl.gz": lambda texts: gzip.compress(lines(texts), mtime=0),
    "a.parquet": parquet,
}


@pytest.fixture
def texts(write_prose: Callable[..., str]) -> list[str]:
    return [write_prose(number) for number in range(40)]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "in.yaml"
    path.write_text(
        "name: small\ninputs:\n  - {name: web, path: raw}\n"
        "dedup: {preset: none}\npack: {max_sequence_length: 64, validation_share: 0}\n"
    )
    (tmp_path / "raw").mkdir()
    return path


def appended(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


def overwritten(path: Path, data: bytes) -> None:
    """Other bytes of the same size, in place."""
    with open(path, "r+b") as file:
        file.write(bytes(len(data)))


WRITES = (appended, overwritten)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", FORMS)
def test_written_after_the_last_record_was_read(
    config: Path, texts: list[str], name: str, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash is that of the bytes that were read, or there is none."""
    path, data = config.parent / "raw" / name, FORMS[name](texts)
    path.write_bytes(data)
    os.utime(path, (1, 1))
    reading = files.read_records

    def read(*arguments: Any) -> Iterator[Any]:
        yield from reading(*arguments)
        write(path, data)

    monkeypatch.setattr(clean.files, "read_records", read)
    with pytest.raises(InputError, match=f"{name}: changed while this run read it"):
        pipeline.run(config, config.parent / "run", 0)
    assert not (config.parent / "run" / "manifest.json").exists()
    monkeypatch.undo()
    path.write_bytes(data)
    pipeline.run(config, config.parent / "run", 0)


@pytest.mark.parametrize("write", WRITES)
def test_written_while_it_is_cut(
    config: Path, texts: list[str], write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, data = config.parent / "raw/a.jsonl", lines(texts)
    path.write_bytes(data)
    os.utime(path, (1, 1))
    cutting = pieces.cut_lines

    def cut(*arguments: Any) -> Iterator[Any]:
        yield from cutting(*arguments)
        write(path, data)

    monkeypatch.setattr(pieces, "cut_lines", cut)
    with pytest.raises(InputError, match=r"a\.jsonl: changed while this run read it"):
        pipeline.run(config, config.parent / "run", 0, overrides=("read.task_bytes=4096",))


def test_grown_since_it_was_listed(
    config: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config.parent / "raw/a.jsonl"
    path.write_bytes(lines(texts))
    opening = files.HashingReader.__init__

    def grown(self: Any, location: str) -> None:
        if path.stat().st_size == len(lines(texts)):
            appended(path, lines(["late"]))
        opening(self, location)

    monkeypatch.setattr(files.HashingReader, "__init__", grown)
    with pytest.raises(InputError, match=r"a\.jsonl: changed while this run read it"):
        pipeline.run(config, config.parent / "run", 0)


class TestHiddenEdits:
    """Equal size and an old modification time: the change of the inode tells."""

    @pytest.fixture
    def edited(
        self, config: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> tuple[Path, Callable[[], None]]:
        path = config.parent / "raw/a.jsonl"
        path.write_bytes(lines(texts))
        monkeypatch.setattr(files, "SETTLED_NS", 0)

        def edit() -> None:
            before = path.stat()
            path.write_bytes(lines([texts[1], texts[0], *texts[2:]]))
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            after = path.stat()
            assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)

        return config, edit

    def test_found_by_the_next_run(self, edited: Any, prep: Prep) -> None:
        config, edit = edited
        out = config.parent / "run"
        arguments = ("run", config, "--out", out, "--workers", 0)
        assert prep(*arguments).code == 0
        assert "clean: reused" in prep(*arguments).err
        edit()
        assert "run: changed input content" in prep("plan", config, "--out", out).out
        assert "clean: reused" not in prep(*arguments).err

    def test_verify_inputs_hashes_again(
        self, edited: Any, prep: Prep, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where a file system keeps no such time, --verify-inputs reads everything again."""
        config, edit = edited
        monkeypatch.setattr(files, "_stamp", lambda name: (Path(name).stat().st_size, "?"))
        out = config.parent / "run"
        arguments = ("run", config, "--out", out, "--workers", 0)
        assert prep(*arguments).code == 0
        edit()
        assert "clean: reused" in prep(*arguments).err
        assert "clean: reused" not in prep(*arguments, "--verify-inputs").err


def test_a_file_that_was_just_written_is_hashed_again(
    config: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writes within a tick of the clock leave equal times."""
    path, out = config.parent / "raw/a.jsonl", config.parent / "run"
    path.write_bytes(lines(texts))
    pipeline.run(config, out, 0)
    assert json.loads((out / "journal/inputs.json").read_bytes()) == {}
    monkeypatch.setattr(files, "SETTLED_NS", 0)
    pipeline.run(config, out, 0, verify_inputs=True)
    assert str(path) in json.loads((out / "journal/inputs.json").read_bytes())
