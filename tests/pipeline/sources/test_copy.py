"""Chosen records copied in the format they stand in: read again, they are the same records."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core import zstd
from pipeline.core.errors import InputError
from pipeline.sources import files
from pipeline.sources.copy import copy_records, count_records
from pipeline.sources.record import BadRecord, Record, RecordRules

RULES = RecordRules(text_key="text", max_document_bytes=1 << 20, sources=None)


def of_lines(texts: list[str]) -> bytes:
    return b"\n \n".join(b'{"text":"%s", "other": 1}' % text.encode() for text in texts)


def of_warc(texts: list[str]) -> bytes:
    record = "WARC/1.0\r\nWARC-Type: {}\r\nContent-Length: {}\r\n\r\n{}\r\n\r\n"
    made = [record.format("conversion", len(text.encode()), text) for text in texts]
    return (record.format("warcinfo", 2, "ok") + "".join(made)).encode()


def of_parquet(texts: list[str]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table_of(texts), sink, row_group_size=3)
    return sink.getvalue().to_pybytes()


def of_arrow(new: Callable[..., Any]) -> Callable[[list[str]], bytes]:
    def write(texts: list[str]) -> bytes:
        sink = pa.BufferOutputStream()
        with new(sink, table_of([]).schema) as writer:
            writer.write_table(table_of(texts), max_chunksize=3)
        return sink.getvalue().to_pybytes()

    return write


def table_of(texts: list[str]) -> pa.Table:
    other = pa.array(range(len(texts)), pa.int64())
    return pa.table({"text": pa.array(texts, pa.string()), "other": other})


FORMATS: dict[str, Callable[[list[str]], bytes]] = {
    "a.jsonl": of_lines,
    "a.jsonl.zst": lambda texts: zstd.compress(of_lines(texts)),
    "a.jsonl.gz": lambda texts: gzip.compress(of_lines(texts)),
    "a.jsonl.bz2": lambda texts: bz2.compress(of_lines(texts)),
    "a.jsonl.xz": lambda texts: lzma.compress(of_lines(texts)),
    "a.wet.gz": lambda texts: gzip.compress(of_warc(texts)),
    "a.parquet": of_parquet,
    "file.arrow": of_arrow(pa.ipc.new_file),
    "stream.arrow": of_arrow(pa.ipc.new_stream),
}


def opened(path: Path) -> tuple[files.InputFile, files.HashingReader]:
    ((file,), _) = files.find("in", str(path), path.parent)
    return file, files.HashingReader(file.location)


def items_of(path: Path) -> list[Record | BadRecord]:
    file, reader = opened(path)
    with closing(reader):
        return list(files.read_records(file, reader, RULES))


def copy(path: Path, chosen: list[Record | BadRecord]) -> bytes:
    file, reader = opened(path)
    starts = np.array([item.place.byte_offset for item in chosen], np.int64)
    sizes = np.array([item.place.byte_length for item in chosen], np.int64)
    with closing(reader):
        return b"".join(copy_records(file, reader, starts, sizes))


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=25)
@given(
    texts=st.lists(st.text("abé ", max_size=9), max_size=12),
    stay=st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_what_stays_is_read_again(
    name: str, texts: list[str], stay: list[bool], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("copy") / name
    path.write_bytes(FORMATS[name](texts))
    items = items_of(path)
    assert [item.text for item in items if isinstance(item, Record)] == texts
    data = copy(path, [item for item, stays in zip(items, stay, strict=False) if stays])
    path.write_bytes(data)
    kept = [text for text, stays in zip(texts, stay, strict=False) if stays]
    assert [item.text for item in items_of(path) if isinstance(item, Record)] == kept
    assert count_records(path) == len(kept)


@pytest.mark.parametrize("name", ["a.parquet", "file.arrow"])
def test_rows_keep_their_columns(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(FORMATS[name]([f"text {i}" for i in range(20)]))
    path.write_bytes(copy(path, items_of(path)[::3]))
    table = pq.read_table(path) if name == "a.parquet" else pa.ipc.open_file(path).read_all()
    assert table["other"].to_pylist() == list(range(0, 20, 3))


def test_text_is_one_record(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ndocument")
    (item,) = items_of(path)
    assert copy(path, [item]) == b"one\ndocument"
    assert copy(path, []) == b""
    assert count_records(path) == 1


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl.zst"])
def test_damage_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(FORMATS[name](["text"] * 9))
    items = items_of(path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(InputError, match=name):
        copy(path, items)
