"""The texts of quarantined documents: shards of quarantine/, and tables with their texts put back.

A quarantined document has an empty text in documents/; everything else of it stays there. Whoever
compares texts, and shows none, reads both; people look through `prep quarantine`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core.mirror.fetching import fetch
from pipeline.runs import layout
from pipeline.runs.records import map_arrow, select_texts

SCHEMA = pa.schema([
    ("doc_key", pa.binary(16)), ("text_key", pa.binary(16)), ("source", pa.string()),
    ("path_id", pa.uint32()), ("line", pa.uint64()), ("byte_offset", pa.uint64()),
    ("rule", pa.string()), ("reason", pa.string()), ("evidence", pa.list_(pa.string())),
    ("text_bytes", pa.uint64()), ("text", pa.large_string()),
])  # fmt: skip
"""A shard of quarantine/, parallel to one of documents/; in the order of that one."""


QUARANTINED = "quarantined"
"""The state of these documents in documents.parquet."""

IN_QUARANTINE = "[its text is in quarantine: prep quarantine show]"
"""Shown in place of the beginning of a text."""


def quarantine_path(documents: str) -> str:
    """The path of the shard of quarantine/ that belongs to one of documents/.

    >>> quarantine_path("documents/000003.arrow")
    'quarantine/000003.arrow'
    """
    return f"{layout.QUARANTINE}/{documents.rpartition('/')[2]}"


def read_held_shard(path: Path) -> pa.Table:
    """A shard of quarantine/, memory-mapped; empty when there is none."""
    if not fetch(path).exists():
        return SCHEMA.empty_table()
    return map_arrow(path)


def keys_of(quarantine: pa.Table) -> pa.Array:
    """The keys of a shard of quarantine/, fixed_size_binary(16)."""
    return quarantine["doc_key"].combine_chunks()


def read_held_shards(directory: Path) -> Iterator[pa.Table]:
    """All shards of quarantine/."""
    for path in sorted((directory / layout.QUARANTINE).glob("*.arrow")):
        yield read_held_shard(path)


def read_held_text(directory: Path, key: bytes) -> dict[bytes, str]:
    """The text of a document in quarantine by its key, to be compared and not shown; nothing where
    there is none."""
    key_array = pa.array([key], SCHEMA.field("doc_key").type)
    texts: dict[bytes, str] = {}
    for table in read_held_shards(directory):
        texts |= select_texts(table, key_array, None)
    return texts


class TextCounts(NamedTuple):
    """Of a shard of documents/ and its shard of quarantine/: rows; texts in quarantine; bytes of
    all texts that are there; rows whose text was taken out, to quarantine/ or for good."""

    rows: int
    quarantined: int
    text_bytes: int
    emptied: int


def count_texts(documents: pa.Table, quarantine: pa.Table) -> TextCounts:
    """Count the texts of a shard."""
    lengths = pc.binary_length(documents["text"])
    emptied = pc.and_(pc.equal(lengths, 0), pc.greater(documents["text_bytes"], 0))
    inside = pc.binary_length(quarantine["text"])
    size = (pc.sum(lengths).as_py() or 0) + (pc.sum(inside).as_py() or 0)
    held = pc.sum(pc.greater(inside, 0)).as_py() or 0
    return TextCounts(len(documents), held, size, pc.sum(emptied).as_py() or 0)


def with_texts(table: pa.Table, quarantine: pa.Table) -> pa.Table:
    """A table with `doc_key` and `text` whose empty texts are those that `quarantine` has; chunks
    stay as they are, and so do the bytes of a file of it."""
    if not len(quarantine):
        return table
    place = pc.index_in(table["doc_key"], value_set=keys_of(quarantine)).combine_chunks()
    texts = quarantine["text"].combine_chunks().cast(table.schema.field("text").type).take(place)
    merged = pc.coalesce(texts, table["text"].combine_chunks())
    index = table.column_names.index("text")
    column = _as_chunks(merged, [len(chunk) for chunk in table["text"].chunks])
    return table.set_column(index, table.schema.field("text"), column)


def _as_chunks(array: pa.Array, lengths: list[int]) -> pa.ChunkedArray:
    starts = np.cumsum([0, *lengths])
    parts = [array.slice(int(a), n) for a, n in zip(starts, lengths, strict=False)]
    return pa.chunked_array([pa.concat_arrays([part]) for part in parts], array.type)
