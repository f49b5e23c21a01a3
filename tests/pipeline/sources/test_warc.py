"""WET files, checked against warcio: the same records, places that tile the file, no end but an
error for a broken one."""

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from warcio.archiveiterator import ArchiveIterator
from warcio.warcwriter import WARCWriter

from pipeline.core.errors import InputError
from pipeline.sources.record import BadRecord, Record, RecordRules
from pipeline.sources.warc import read_warc

RULES = RecordRules(text_key="text", max_document_bytes=1 << 20, sources=None)


def archive(*records: tuple[str, bytes], zipped: bool = False) -> bytes:
    """Records of (type, payload), written by warcio."""
    sink = io.BytesIO()
    writer = WARCWriter(sink, gzip=zipped)
    for number, (kind, payload) in enumerate(records):
        writer.write_record(
            writer.create_warc_record(
                f"http://host/{number}", kind, payload=io.BytesIO(payload),
                warc_content_type="text/plain", length=len(payload),
                warc_headers_dict={"WARC-Date": f"2024-01-0{number % 9 + 1}T00:00:00Z"},
            )
        )  # fmt: skip
    return sink.getvalue()


def parse(data: bytes, block: int = 1 << 20, rules: RecordRules = RULES) -> list[Any]:
    pieces = iter([data[i : i + block] for i in range(0, len(data), block)])
    return list(read_warc("a.wet", pieces, rules))


payloads = st.lists(
    st.tuples(
        st.sampled_from(["conversion", "conversion", "metadata", "warcinfo"]),
        st.binary(max_size=60) | st.sampled_from([b"\r\n\r\nWARC/1.0\r\n", b"\n\n", b"", b"  "]),
    ),
    max_size=6,
)


@given(payloads, st.integers(1, 200))
def test_equals_warcio(records: list[tuple[str, bytes]], block: int) -> None:
    data = archive(*records)
    expected = []
    for found in ArchiveIterator(io.BytesIO(data), no_record_parse=True):
        body = found.content_stream().read()
        if found.rec_type == "conversion":
            expected.append((found.rec_headers, body))
    items = parse(data, block)
    assert [i.place.ordinal for i in items] == list(range(len(expected)))
    for item, (headers, body) in zip(items, expected, strict=True):
        start, size = item.place.byte_offset, item.place.byte_length
        assert data[start : start + size].startswith(b"WARC/1.0\r\n")
        assert data[start : start + size].endswith(body)
        assert data[:start].count(b"\n") + 1 == item.place.line
        if isinstance(item, BadRecord):
            assert item.reason == "not_utf8"
            continue
        assert item.text == body.decode()
        assert json.loads(item.meta) == {
            "url": headers.get_header("WARC-Target-URI"),
            "date": headers.get_header("WARC-Date"),
            "record_id": headers.get_header("WARC-Record-ID"),
        }


def test_every_cut_is_found() -> None:
    """In a record; between two of them nothing is missing."""
    data = archive(("conversion", b"some text"), ("conversion", b"more of it"))
    second = data.index(b"WARC/1.0", 20)
    between = range(len(data[:second].rstrip()), second + 1)
    for size in range(1, len(data.rstrip())):
        if size in between:
            assert len(parse(data[:size])) == 1
        else:
            with pytest.raises(InputError, match=r"^a\.wet: "):
                parse(data[:size])


def parse_or_none(data: bytes) -> list[Any]:
    try:
        return parse(data)
    except InputError:
        return []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ((b"WARC/1.0", b"HTTP/1.1"), "byte 0: expected a record that begins with WARC/1.0"),
        ((b"Content-Length: 4", b"Content-Length: -4"), "Content-Length '-4'"),
        ((b"Content-Length: 4", b"Content-Length: 2"), "expected a record that begins with WARC"),
        ((b"Content-Length: 4", b"Content-Length: 999"), "cut off in the middle"),
        ((b"Content-Length: 4", b"Content-Length: 9" + b"9" * 30), "expected a number of bytes"),
        ((b"Content-Length", b"X" * 70_000), "line of over 65,536 bytes"),
        ((b"WARC-Type: conversion\r\n", b"WARC-Type conversion\r\n"), "expected header lines"),
        ((b"\r\nContent-Length", b"\r\nA: b" * 2000 + b"\r\nContent-Length"), "1000 header lines"),
    ],
)
def test_broken_framing(change: tuple[bytes, bytes], told: str) -> None:
    data = archive(("conversion", b"text"), ("conversion", b"text"))
    assert change[0] in data
    with pytest.raises(InputError, match=told) as refused:
        parse(data.replace(*change))
    assert "\n" not in str(refused.value)


@given(st.binary(max_size=80))
def test_any_bytes_end_somewhere(data: bytes) -> None:
    parse_or_none(data)
    parse_or_none(b"WARC/1.0\r\n" + data)


def test_too_large_is_skipped_over() -> None:
    rules = RecordRules(text_key="text", max_document_bytes=64, sources=None)
    data = archive(("conversion", b"x" * 5000), ("conversion", b"fine"))
    large, fine = parse(data, 100, rules)
    assert (large.reason, fine.text) == ("too_large", "fine")


def test_responses_hold_no_text(tmp_path: Path, outcomes: Callable[..., Any]) -> None:
    """A file of pages is refused; responses beside extracted text are not its documents."""
    path = tmp_path / "a.warc.gz"
    html = b"<html><body>hello</body></html>"
    path.write_bytes(archive(("resource", html), ("resource", html), zipped=True))
    with pytest.raises(InputError, match="2 responses and no extracted text; give the WET files"):
        outcomes(path)
    path.write_bytes(archive(("resource", html), ("conversion", b"hello"), zipped=True))
    assert outcomes(path) == ["hello"]


def test_one_member_for_all_records(tmp_path: Path, outcomes: Callable[..., Any]) -> None:
    """Compressed as a whole, which some tools refuse."""
    path = tmp_path / "CC-MAIN-1.warc.wet.gz"
    path.write_bytes(gzip.compress(archive(("conversion", b"one"), ("conversion", b"two"))))
    assert outcomes(path) == ["one", "two"]


def test_lone_line_feeds_and_folded_headers() -> None:
    data = (
        b"WARC/1.1\nWARC-Type: conversion\nWARC-Target-URI: http://a\n /b\nContent-Length: 2\n\nhi"
    )
    (item,) = parse(data)
    assert isinstance(item, Record)
    assert (item.text, json.loads(item.meta)) == ("hi", {"url": "http://a /b"})
