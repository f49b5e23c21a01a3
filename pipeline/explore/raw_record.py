"""The record of a document as it is in its raw shard, where that file is still what it was.

The journal of a run notes where its raw shards were, and by which size and times of change it knows
them. A compressed file is read from its beginning, so a record far behind is not looked for.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.core.errors import InputError
from pipeline.core.journal import DIRECTORY
from pipeline.core.words import format_bytes
from pipeline.explore.lookup import IndexedRecords
from pipeline.runs.records import RunRecord
from pipeline.sources.streams import decompress_blocks, sniff

MOST_RAW = 200_000
"""Bytes of a record that are shown."""
_MOST_SKIPPED = 64 << 20
"""Bytes of a compressed file in front of a record that are decompressed to get there."""


@dataclass(frozen=True)
class RawRecord:
    """The bytes of a record as text, or why they are not shown."""

    text: str | None
    note: str = ""


def read_raw_record(home: Path, records: IndexedRecords, record: RunRecord) -> RawRecord:
    """The record behind a document of the run in `home`."""
    key = bytes.fromhex(record.place.key)
    rows = np.array([records.rows_of_keys([key])[key]], np.int64)
    columns = ["path_id", "line", "byte_offset", "byte_length"]
    [place] = records.table.take(rows, columns).to_pylist()
    if not place["line"]:
        return RawRecord(None, "a row of a table: only lines and streams of records are shown")
    shard = records.table.files[place["path_id"]]
    location = _find_location(home, records, shard)
    if location is None:
        return RawRecord(None, f"{shard} is not where the run noted it, or was changed since")
    size = min(place["byte_length"], MOST_RAW)
    try:
        data = _read(location, place["byte_offset"], size)
    except (OSError, InputError) as error:
        return RawRecord(None, str(error))
    cut = "" if size == place["byte_length"] else f"the first {size:,} bytes"
    return RawRecord(data.decode(errors="replace"), cut)


def _find_location(home: Path, records: IndexedRecords, shard: str) -> Path | None:
    """Where a raw shard (`input/path`) is, if it is there and as it was."""
    hashes = {f"{name}/{path}": digest for name, path, digest in records.raw_hashes}
    try:
        noted = json.loads((home / DIRECTORY / "inputs.json").read_bytes())
    except (OSError, ValueError):
        return None
    for location, (size, stamp, digest) in noted.items():
        path = Path(location)
        if digest == hashes.get(shard) and path.is_absolute() and path.is_file():
            status = path.stat()
            now = f"modified {status.st_mtime_ns} changed {status.st_ctime_ns}"
            if (status.st_size, now) == (size, stamp):
                return path
    return None


def _read(path: Path, offset: int, size: int) -> bytes:
    """Bytes [offset, offset + size) of the decompressed file. Raises InputError, OSError."""
    with open(path, "rb") as file:
        compression = sniff(file.read(8))
        if compression is None:
            file.seek(offset)
            return file.read(size)
        if offset > _MOST_SKIPPED:
            raise InputError(
                f"not read: {format_bytes(offset)} of the compressed file lie in front of it"
            )
        file.seek(0)
        data, at = bytearray(), 0
        for block in decompress_blocks(path, file, compression):
            data += block[max(0, offset - at) : max(0, offset + size - at)]
            at += len(block)
            if at >= offset + size:
                break
        return bytes(data)
