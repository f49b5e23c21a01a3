"""The bytes of one exported file: records with their text, readable again by `prep`."""

import json
import zlib
from collections.abc import Iterator
from typing import Any, Literal, get_args

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from pipeline.core.content import table_hash
from pipeline.sources.copy import GZIP_LEVEL, ZSTD_LEVEL
from pipeline.sources.labels import SOURCE_KEYS, source_label
from pipeline.sources.streams import zstd

Format = Literal["jsonl.zst", "jsonl.gz", "jsonl", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)
FIELDS = ("text", "meta", "key", "source", "licence")
"""What a record can hold; `text` is always there."""

_GZIP_HEADER = 31
_BATCH = 1024


def columns_for(fields: tuple[str, ...]) -> list[str]:
    """The columns of documents/ behind these fields, text and key apart; meta needs the source."""
    wanted = {*fields, *(["source"] if "meta" in fields else [])}
    return [name for name in ("meta", "source", "licence") if name in wanted]


def image(table: pa.Table, form: Format, fields: tuple[str, ...]) -> tuple[bytes, str]:
    """The file that holds these rows in order, and the hash of its content.

    Columns of `table`: text, doc_key and `columns_for(fields)`.
    """
    if form == "parquet":
        columns = {name: _column(table, name) for name in FIELDS if name in fields}
        rows = pa.table(columns)
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="zstd", row_group_size=1 << 14)
        return sink.getvalue().to_pybytes(), table_hash(rows)
    content, compressor, pieces = xxhash.xxh3_128(), _compressor(form), []
    for lines in _lines(table, fields):
        content.update(lines)
        pieces.append(compressor.compress(lines) if compressor else lines)
    if compressor:
        pieces.append(compressor.flush())
    return b"".join(pieces), content.hexdigest()


def compress_lines(lines: bytes, form: Format) -> bytes:
    """Lines of records as a file of this format, which is not parquet."""
    compressor = _compressor(form)
    return compressor.compress(lines) + compressor.flush() if compressor else lines


def _compressor(form: Format) -> Any:
    if form == "jsonl.zst":
        options: dict[int, int] = {
            zstd.CompressionParameter.compression_level: ZSTD_LEVEL,
            zstd.CompressionParameter.checksum_flag: True,
        }
        return zstd.ZstdCompressor(options=options)
    if form == "jsonl.gz":
        return zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_HEADER)
    return None


def _lines(table: pa.Table, fields: tuple[str, ...]) -> Iterator[bytes]:
    encoder = msgspec.json.Encoder()
    names = [name for name in FIELDS if name in fields]
    for first in range(0, len(table), _BATCH):
        part = table.slice(first, _BATCH)
        columns = [_column(part, name).to_pylist() for name in names]
        if "meta" in names:
            at = names.index("meta")
            columns[at] = [msgspec.Raw(meta.encode()) for meta in columns[at]]
        yield encoder.encode_lines(
            [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        )


def _column(table: pa.Table, name: str) -> pa.Array:
    if name == "key":
        return pa.array([key.hex() for key in table["doc_key"].to_pylist()], pa.string())
    if name == "meta":
        pairs = zip(table["meta"].to_pylist(), table["source"].to_pylist(), strict=True)
        return pa.array([label_meta(meta, source) for meta, source in pairs], pa.large_string())
    return table[name]


def label_meta(meta: str, source: str) -> str:
    """The JSON of a record's meta on one line, with the source label where it says another.

    >>> label_meta('{"url": "u"}', "web"), label_meta('{"pile_set_name": "Wiki"}', "Wiki")
    ('{"pile_set_name": "web", "url": "u"}', '{"pile_set_name": "Wiki"}')
    """
    if "\n" in meta or "\r" in meta:
        meta = json.dumps(json.loads(meta), ensure_ascii=False)
    value = json.loads(meta) or {}
    if source_label(value, bool(value), None) == source:
        return meta
    given = {SOURCE_KEYS[0]: source, **{k: v for k, v in value.items() if k not in SOURCE_KEYS}}
    return json.dumps(given, ensure_ascii=False)
