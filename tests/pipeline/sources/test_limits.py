"""Bombs: each ends as one clear error, in bounded memory, whatever the format."""

import bz2
import gzip
import lzma
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core import zstd
from pipeline.core.errors import InputError
from pipeline.sources import streams

REPOSITORY = Path(__file__).resolve().parents[3]
LINE = b'{"text": "' + b"a" * 989 + b'"}\n'
PACK: dict[str, Callable[[bytes], bytes]] = {
    "jsonl": bytes, "jsonl.zst": zstd.compress, "jsonl.gz": gzip.compress,
    "jsonl.bz2": bz2.compress, "jsonl.xz": lzma.compress,
}  # fmt: skip


@pytest.mark.parametrize("suffix", PACK)
def test_largest_file(suffix: str, tmp_path: Path, read: Callable[..., Any]) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(PACK[suffix](LINE * 100))
    size = len(LINE) * 100
    assert len(read(path, max_file_bytes=size)) == 100
    with pytest.raises(InputError, match=r"a\.jsonl.*: unpacks to more than read\.max_file_bytes"):
        read(path, max_file_bytes=size - 1)


def test_ratio(tmp_path: Path, read: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a floor, below which no bomb harms; any file as large as it says stays under it."""
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstd.compress(LINE * 1000))
    assert len(read(path, max_ratio=250.0)) == 1000
    monkeypatch.setattr(streams, "RATIO_FLOOR", 1 << 16)
    with pytest.raises(
        InputError, match=r"over 250 times its \d+ bytes, more than read\.max_ratio"
    ):
        read(path, max_ratio=250.0)
    plain = tmp_path / "a.jsonl"
    plain.write_bytes(LINE * 1000)
    assert len(read(plain, max_ratio=1.0)) == 1000


def test_rows_count_by_their_text(
    tmp_path: Path, read: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dictionary makes a small file of much text, without any compression."""
    table = pa.table({"text": pa.array(["x" * 10_000] * 500).dictionary_encode()})
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    monkeypatch.setattr(streams, "RATIO_FLOOR", 1 << 16)
    for name in ("a.parquet", "a.arrow"):
        assert len(read(tmp_path / name)) == 500
        with pytest.raises(InputError, match=rf"{name}: unpacks to over 20 times"):
            read(tmp_path / name, max_ratio=20.0)
        with pytest.raises(InputError, match="max_file_bytes allows"):
            read(tmp_path / name, max_file_bytes=4_000_000)


BOMB = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from pipeline.config.prep import load_config
from pipeline.core.errors import InputError
from pipeline.sources import files
from pipeline.sources.record import make_rules
config = load_config(sys.argv[1]).config
(found,), _ = files.find("in", config.inputs[0].path, Path(sys.argv[1]).parent)
reader = files.HashingReader(found.location)
before = int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1])
try:
    for _ in files.read_records(found, reader, make_rules(config)[config.inputs[0].name]):
        pass
except InputError as error:
    print(error)
after = int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1])
print((after - before) // 1024)
"""


def explode(path: Path) -> tuple[str, int]:
    """(error, MiB of memory beyond the start) of reading a file with the limits of a config."""
    config = path.parent / "c.yaml"
    config.write_text(f"inputs:\n  - name: in\n    path: {path.name}\n")
    done = subprocess.run(
        [sys.executable, "-c", BOMB, str(config), str(REPOSITORY)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *message, memory = done.stdout.splitlines()
    return "\n".join(message), int(memory)


needs_linux = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="needs Linux's /proc"
)


@needs_linux
def test_stream_bomb(tmp_path: Path) -> None:
    """300 MB of lines from some kilobytes."""
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstd.compress(LINE * 3000) * 100)
    assert path.stat().st_size < 200_000
    error, memory = explode(path)
    assert "more than read.max_ratio allows" in error
    assert memory < 100


@needs_linux
def test_dictionary_bomb(tmp_path: Path) -> None:
    """1,000 rows of one text of 20 MB: batches are cut to what one value may need."""
    path = tmp_path / "a.parquet"
    codes = pa.array([0] * 1000, pa.int32())
    text = pa.DictionaryArray.from_arrays(codes, pa.array(["x" * 20_000_000]))
    pq.write_table(
        pa.table({"text": text}), path, compression="zstd",
        dictionary_pagesize_limit=1 << 30, data_page_size=1 << 20,
    )  # fmt: skip
    assert path.stat().st_size < 100_000
    error, memory = explode(path)
    assert "more than read.max_ratio allows" in error
    assert memory < 1500


@needs_linux
@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_page_and_a_batch_are_allocated_as_declared(name: str, tmp_path: Path) -> None:
    """Before any limit can look at what is in it: 100 MB from some kilobytes."""
    path = tmp_path / name
    table = pa.table({"text": ["x" * 100_000_000]})
    if name == "a.parquet":
        pq.write_table(table, path, compression="zstd", use_dictionary=False)
    else:
        with pa.ipc.new_file(
            str(path), table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
        ) as writer:
            writer.write_table(table)
    assert path.stat().st_size < 100_000
    assert explode(path)[1] > 95
