"""Texts and tokens taken out of published files: bytes in, bytes out, the rest as it was.

Every function gives the new bytes of a file, or None when it holds nothing of these documents.
Rows, their order and all columns stay, so that whatever reads the file still can; what is left of a
document is its key, hashes, lengths and place. The same file and keys give the same bytes, and
scrubbing twice gives what scrubbing once gives.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import Mask
from pipeline.provenance.records import wrap_read_errors
from pipeline.stage import Output, arrow_output, parquet_output

Scrub = Callable[[Path, pa.Array], bytes | None]
"""(file, keys of the documents) -> its new bytes."""

WITHHELD = "withheld by a takedown"


def scrub_documents(path: Path, keys: pa.Array) -> bytes | None:
    """A shard of documents/ or quarantine/: empty texts. `text_bytes` and `text_key` stay, which
    the ledger counts and later takedowns compare."""
    return _arrow(path, keys, {"text": _empty_texts})


def scrub_tokens(path: Path, keys: pa.Array) -> bytes | None:
    """A shard of tokens/: empty lists."""
    return _arrow(path, keys, {"tokens": _empty_lists})


def scrub_drops(path: Path, keys: pa.Array) -> bytes | None:
    """A shard of drops/: empty excerpts."""
    return _parquet(path, keys, {"excerpt": _empty_texts})


def scrub_evidence(path: Path, keys: pa.Array) -> bytes | None:
    """evidence.parquet: nothing of what was seen in a text; of `attributes` the numbers. What was
    seen in metadata stays."""
    return _parquet(path, keys, {"seen": _empty_texts, "attributes": _numbers_only})


def scrub_decisions(path: Path, keys: pa.Array) -> bytes | None:
    """decisions.parquet: reasons, which may quote."""
    return _parquet(path, keys, {"reason": _withheld_reason})


Change = Callable[[pa.ChunkedArray, Mask], pa.ChunkedArray]


def _arrow(path: Path, keys: pa.Array, changes: dict[str, Change]) -> bytes | None:
    with wrap_read_errors(path):
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    changed = _changed(table, keys, changes)
    return None if changed is None else _bytes(arrow_output("", changed))


def _parquet(path: Path, keys: pa.Array, changes: dict[str, Change]) -> bytes | None:
    with wrap_read_errors(path):
        found = pc.is_in(pq.read_table(path, columns=["doc_key"])["doc_key"], keys)
        if not pc.any(found).as_py():
            return None
        table = pq.read_table(path)
    changed = _changed(table, keys, changes)
    return None if changed is None else _bytes(parquet_output("", changed))


def _changed(table: pa.Table, keys: pa.Array, changes: dict[str, Change]) -> pa.Table | None:
    found = pc.is_in(table["doc_key"], keys)
    if "byte_length" in table.column_names and "seen" in table.column_names:
        found = pc.and_(found, pc.greater(table["byte_length"], 0))
    gone = found.to_numpy()
    if not gone.any():
        return None
    for name, change in changes.items():
        if name in table.column_names:
            place = table.column_names.index(name)
            column = change(table[name], gone).cast(table[name].type)
            table = table.set_column(place, table.schema.field(name), column)
    return table


def _bytes(output: Output) -> bytes:
    return output.data if isinstance(output.data, bytes) else b"".join(output.data)


def _empty_texts(column: pa.ChunkedArray, gone: Mask) -> pa.ChunkedArray:
    return pc.if_else(pa.array(gone), pa.scalar("", column.type), column)


def _withheld_reason(column: pa.ChunkedArray, gone: Mask) -> pa.ChunkedArray:
    return pc.if_else(pa.array(gone), pa.scalar(WITHHELD, column.type), column)


def _numbers_only(column: pa.ChunkedArray, gone: Mask) -> pa.ChunkedArray:
    values = column.to_pylist()
    for row in np.flatnonzero(gone).tolist():
        found = json.loads(values[row]) if values[row] else {}
        numbers = {k: v for k, v in found.items() if isinstance(v, bool | int | float)}
        values[row] = json.dumps(numbers, sort_keys=True, separators=(",", ":")) if numbers else ""
    return pa.chunked_array([pa.array(values, column.type)])


def _empty_lists(column: pa.ChunkedArray, gone: Mask) -> pa.ChunkedArray:
    first, chunks = 0, []
    for chunk in column.chunks:
        here = gone[first : first + len(chunk)]
        first += len(chunk)
        lengths = np.diff(chunk.offsets.to_numpy())
        values = chunk.flatten().filter(pa.array(np.repeat(~here, lengths)))
        ends = np.cumsum(np.where(here, 0, lengths))
        offsets = np.concatenate([[0], ends]).astype(chunk.offsets.to_numpy().dtype)
        chunks.append(type(chunk).from_arrays(pa.array(offsets), values))
    return pa.chunked_array(chunks, column.type)
