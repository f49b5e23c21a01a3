"""The same documents in every format there is are the same records."""

import bz2
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from warcio.warcwriter import WARCWriter

from pipeline.core import zstd
from pipeline.core.errors import InputError
from pipeline.sources import files
from pipeline.sources.formats import FORMATS, describe_suffixes
from pipeline.sources.record import BadRecord, Record
from pipeline.sources.streams import decompress_blocks, sniff

TEXTS = ["plain", "two\nlines", "é 東京 😀", "x" * 3000]
META = {"pile_set_name": "Web", "license": "cc0"}
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".zst": zstd.compress,
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


def jsonl(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"text": t, "meta": META}).encode() + b"\n" for t in texts)


def table(texts: list[str]) -> pa.Table:
    return pa.table({"text": texts, "meta": [META] * len(texts)})


def wet(texts: list[str]) -> bytes:
    sink = io.BytesIO()
    writer = WARCWriter(sink, gzip=False)
    writer.write_record(writer.create_warcinfo_record("x", {"software": "test"}))
    for number, text in enumerate(texts):
        record = writer.create_warc_record(
            f"http://host/{number}", "conversion", payload=io.BytesIO(text.encode()),
            warc_content_type="text/plain",
        )  # fmt: skip
        writer.write_record(record)
    return sink.getvalue()


def write(path: Path, texts: list[str]) -> None:
    """The texts in the format that the name says."""
    suffix = next(s for s in FORMATS if path.name.endswith(s))
    kind = FORMATS[suffix].records.name
    packed = next((c for end, c in COMPRESSORS.items() if end and suffix.endswith(end)), bytes)
    if kind == "jsonl":
        path.write_bytes(packed(jsonl(texts)))
    elif kind == "warc":
        path.write_bytes(packed(wet(texts)))
    elif kind == "text":
        path.write_bytes(packed(texts[0].encode()))
    elif suffix == ".parquet":
        pq.write_table(table(texts), path)
    elif suffix == ".feather":
        feather.write_feather(table(texts), str(path))
    else:
        with pa.ipc.new_file(str(path), table(texts).schema) as writer:
            writer.write_table(table(texts))


@pytest.mark.parametrize("suffix", sorted(FORMATS))
def test_every_suffix(suffix: str, tmp_path: Path, read: Callable[..., Any]) -> None:
    path = tmp_path / f"part-0{suffix}"
    texts = TEXTS[1:2] if FORMATS[suffix].records.name == "text" else TEXTS
    write(path, texts)
    items = read(path)
    assert [item.text for item in items] == texts
    assert [item.place.ordinal for item in items] == list(range(len(texts)))
    if FORMATS[suffix].records.name in ("jsonl", "parquet", "arrow"):
        assert {(item.source, item.licence) for item in items} == {("Web", "cc0")}
        assert all(json.loads(item.meta) == META for item in items)
    path.write_bytes(b"")
    if FORMATS[suffix].records.name != "parquet":
        empty = [""] if FORMATS[suffix].records.name == "text" else []
        assert [item.text for item in read(path)] == empty


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".parquet", ".txt"])
def test_an_ending_in_capitals(suffix: str, tmp_path: Path, read: Callable[..., Any]) -> None:
    """Files named as on other systems are found in a directory, and read."""
    capital = tmp_path / f"CAPITAL{suffix.upper()}"
    write(tmp_path / f"small{suffix}", TEXTS[1:2])
    (tmp_path / f"small{suffix}").rename(capital)
    assert [item.text for item in read(capital)] == TEXTS[1:2]
    found, passed_over = files.find("a", str(tmp_path), tmp_path)
    assert [Path(file.path).name for file in found] == [capital.name] and not passed_over


def test_the_message_names_every_suffix() -> None:
    for suffix in FORMATS:
        base = suffix if suffix.count(".") == 1 else suffix.rpartition(".")[0]
        assert base in describe_suffixes()


@pytest.mark.parametrize("ending", [".bz2", ".xz"])
class TestCompression:
    """bz2 and xz; test_readers.py has zst and gz."""

    def unpack(self, data: bytes, ending: str) -> bytes:
        return b"".join(decompress_blocks(Path("shard"), io.BytesIO(data), ending[1:]))

    @given(parts=st.lists(st.binary(max_size=40), min_size=1, max_size=4))
    def test_streams_one_after_the_other(self, ending: str, parts: list[bytes]) -> None:
        packed = b"".join(COMPRESSORS[ending](part) for part in parts)
        assert self.unpack(packed, ending) == b"".join(parts)

    def test_more_than_one_block(self, ending: str) -> None:
        data = b"".join(b"%d some text\n" % i for i in range(120_000))
        packed = COMPRESSORS[ending](data)
        assert self.unpack(packed + packed, ending) == data + data

    def test_every_cut_and_every_flip_is_found(self, ending: str) -> None:
        data = b'{"text": "one"}\n{"text": "two"}\n' * 3
        packed = COMPRESSORS[ending](data)
        for size in range(1, len(packed)):
            with pytest.raises(InputError, match="shard: "):
                self.unpack(packed[:size], ending)
            bad = bytearray(packed)
            bad[size] ^= 16
            try:
                same = self.unpack(bytes(bad), ending) == data
            except InputError:
                continue
            assert same, f"byte {size} changed the text and nobody noticed"

    def test_garbage_behind_the_end(self, ending: str) -> None:
        with pytest.raises(InputError):
            self.unpack(COMPRESSORS[ending](b"text\n") + b"garbage", ending)

    def test_wrong_name(self, ending: str) -> None:
        with pytest.raises(InputError, match=rf"bytes are {ending[1:]}.*\.jsonl\{ending}"):
            list(decompress_blocks(Path("shard"), io.BytesIO(COMPRESSORS[ending](b"x")), "gz"))


def test_zero_bytes_after_an_xz_stream() -> None:
    """The format allows them in fours."""
    packed = lzma.compress(b"one\n") + bytes(8) + lzma.compress(b"two\n") + bytes(4)
    assert b"".join(decompress_blocks(Path("shard"), io.BytesIO(packed), "xz")) == b"one\ntwo\n"


@pytest.mark.parametrize(("exponent", "is_read"), [(17, True), (18, False)])
def test_zstd_window_above_the_limit(exponent: int, is_read: bool) -> None:
    """A frame whose header asks for 2 ** (10 + exponent) bytes, with one raw block of 5."""
    frame = b"\x28\xb5\x2f\xfd" + bytes([0, exponent << 3, 5 << 3 | 1, 0, 0]) + b"text\n"
    unpacked = decompress_blocks(Path("shard"), io.BytesIO(frame), "zst")
    if is_read:
        assert b"".join(unpacked) == b"text\n"
    else:
        with pytest.raises(InputError):
            list(unpacked)


def test_xz_dictionary_above_the_limit() -> None:
    """A header that asks for 1.5 GiB is refused, not served."""
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1536 << 20, "mode": lzma.MODE_FAST,
                "mf": lzma.MF_HC3, "nice_len": 16, "depth": 1}]  # fmt: skip
    small = lzma.compress(b"text\n", filters=[{**filters[0], "dict_size": 4096}])
    with pytest.raises(InputError, match="window limit is 128 MiB"):
        list(decompress_blocks(Path("shard"), io.BytesIO(_with_dictionary(small)), "xz"))


def _with_dictionary(packed: bytes) -> bytes:
    """The stream with the dictionary size of its block header set to 1.5 GiB."""
    import zlib

    header = bytearray(packed)
    size = (header[12] + 1) * 4
    place = header.index(b"\x21\x01", 12) + 2
    header[place] = 37
    header[12 + size - 4 : 12 + size] = zlib.crc32(header[12 : 12 + size - 4]).to_bytes(4, "little")
    return bytes(header)


def test_format_over_the_name(tmp_path: Path, outcomes: Callable[..., Any]) -> None:
    for name, data in (("part-0", jsonl(TEXTS)), ("part-1.gz", gzip.compress(jsonl(TEXTS)))):
        (tmp_path / name).write_bytes(data)
    assert outcomes(tmp_path, "jsonl") == TEXTS * 2
    pq.write_table(table(TEXTS), tmp_path / "other")
    assert outcomes(tmp_path / "other", "parquet") == TEXTS
    with pytest.raises(InputError, match="not a valid parquet file"):
        outcomes(tmp_path / "part-0", "parquet")


def test_plain_json_is_no_jsonl(tmp_path: Path, outcomes: Callable[..., Any]) -> None:
    """It may as well be one whole document; `format` says which."""
    (tmp_path / "a.json").write_bytes(jsonl(TEXTS))
    with pytest.raises(InputError, match="found 1 file but none that ends in"):
        outcomes(tmp_path)
    assert outcomes(tmp_path, "jsonl") == TEXTS


def test_text_is_read_where_it_is_asked_for(tmp_path: Path, outcomes: Callable[..., Any]) -> None:
    (tmp_path / "README.txt").write_text("read me")
    (tmp_path / "LICENSE").write_text("no format")
    with pytest.raises(InputError, match=r"plain text is only read on request: give \*\.txt"):
        outcomes(tmp_path)
    (tmp_path / "a.jsonl").write_bytes(jsonl(["data"]))
    assert outcomes(tmp_path) == ["data"]
    assert outcomes(tmp_path / "README.txt") == ["read me"]
    assert outcomes(tmp_path / "*.txt") == ["read me"]
    found, others = files.find("in", str(tmp_path), tmp_path)
    assert ([f.path for f in found], len(others)) == (["a.jsonl"], 2)


class TestText:
    def test_one_document(self, tmp_path: Path, read: Callable[..., Any]) -> None:
        path = tmp_path / "a.txt"
        path.write_bytes(b"\xef\xbb\xbfone\r\n\r\ntwo")
        (item,) = read(path)
        assert (item.text, item.source, item.meta) == ("one\r\n\r\ntwo", None, "{}")
        assert (item.place.line, item.place.byte_offset, item.place.byte_length) == (1, 0, 13)

    @pytest.mark.parametrize("data", [b"P", b"PA", b"B", b"\xc3\xa9"])
    def test_short_text_is_text(
        self, data: bytes, tmp_path: Path, read: Callable[..., Any]
    ) -> None:
        """Though some formats begin like it."""
        path = tmp_path / "a.txt"
        path.write_bytes(data)
        assert [item.text for item in read(path)] == [data.decode()]

    def test_bad(self, tmp_path: Path, outcomes: Callable[..., Any]) -> None:
        path = tmp_path / "a.txt"
        path.write_bytes(b"caf\xe9")
        assert outcomes(path) == ["!not_utf8"]
        path.write_bytes(b"x" * 65)
        assert outcomes(path, max_document_bytes=64) == ["!too_large"]
        assert outcomes(path, text_key="body") == ["!no_text"]

    @given(data=st.binary(max_size=50).map(lambda b: b.replace(b"z", b"\n")))
    def test_lines(self, data: bytes, tmp_path_factory: Any, read: Callable[..., Any]) -> None:
        """A document a line; places are those of the bytes."""
        path = tmp_path_factory.mktemp("lines") / "a.txt"
        path.write_bytes(data)
        try:
            items = read(path, "lines")
        except InputError:
            assert sniff(data[:4]) or data[:2] in (b"\xff\xfe", b"\xfe\xff")
            return
        expected = [line for line in data.split(b"\n") if line.strip()]
        assert len(items) == len(expected)
        for item, line in zip(items, expected, strict=True):
            start = item.place.byte_offset
            assert data[start : start + item.place.byte_length] == line
            assert data[:start].count(b"\n") + 1 == item.place.line
            if isinstance(item, BadRecord):
                assert item.reason == "not_utf8"
                with pytest.raises(UnicodeDecodeError):
                    line.decode()
            else:
                assert isinstance(item, Record)
                bare = line.removesuffix(b"\r").decode()
                assert item.text == (bare.removeprefix("\ufeff") if start == 0 else bare)
