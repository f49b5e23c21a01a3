"""Records of a run and their texts, quarantined ones included.

Records of a run: by key, by the beginning of a key, or by file and line; and their texts.

A finished run is read from documents.parquet. One that stopped on its way, at the alarm of dedup
for example, is read from documents/ and keep/, so that `prep inspect` and `prep explain` can show
why. Tables are read one shard or row group at a time.

A shard of quarantine/: what it holds, and documents with their texts put back in.

A quarantined document has an empty text in documents/; everything else of it stays there. Whoever
has to compare texts, and shows none, reads both; people look through `prep quarantine`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64
from pipeline.core import ids
from pipeline.core.errors import InputError, IntegrityError, escape_text
from pipeline.runs import layout
from pipeline.runs.layout import STATES
from pipeline.runs.references import find_file, find_files_ending, is_key, shorten_list, split_place

PLACE = ["doc_key", "source", "path_id", "line", "byte_offset"]
_ENDS = ["reason", "decision", "rule", "split", "licence", "tokens", "text_bytes"]

_Part = Callable[[list[str]], pa.Table]


@dataclass(frozen=True)
class RecordPlace:
    """A record's identity and where it was read, as `prep trace` prints it: `file` is input and
    path, `line` the 1-based line (for parquet the 0-based row)."""

    key: str
    source: str
    file: str
    line: int


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A record with its one end. `state` is empty when the run stopped before the keep-list;
    `reason` to `tokens` are empty until it is finished."""

    place: RecordPlace
    state: str
    reason: str
    decision: str
    rule: str
    split: str
    licence: str
    tokens: int
    text_bytes: int
    representative: str


def describe_place(place: RecordPlace | None, index: str) -> str:
    """Source, file and line of a document in words, or the index it stands in."""
    if index or place is None:
        return f"in the earlier index {index}"
    return f"{place.source}  {place.file}:{place.line}"


class RunRecords:
    """The records of one run directory. Raises InputError when it is none."""

    def __init__(self, directory: Path) -> None:
        if not directory.is_dir():
            raise InputError(f"{directory}: no such run directory")
        if not (directory / layout.INPUTS).exists():
            raise InputError(f"{directory}: no {layout.INPUTS}; expected a run directory")
        self.directory = directory
        self.finished = (directory / layout.MANIFEST).exists()
        self._files = read_file_names(directory / layout.INPUTS)

    def find(self, wanted: str) -> RunRecord:
        """The record named by a key in hex, six or more digits of its beginning, FILE:LINE, or
        FILE where it has one record, as pages and commands print them; of FILE an ending is enough
        that no other file has. Raises InputError when none or several match."""
        place = split_place(wanted)
        if is_key(wanted):
            found = self._records(lambda table: keys_start_with(table["doc_key"], wanted))
        elif place and not find_files_ending(self._files, wanted):
            found = self._at(*place)
        else:
            file = find_file(self._files, wanted, str(self.directory))
            found = self._records(lambda table: table["path_id"].to_numpy() == file)
        return self.only_one(wanted, found)

    def only_one(self, wanted: str, found: Sequence[RunRecord]) -> RunRecord:
        """What `wanted` named. Raises InputError unless it is one record."""
        if not found:
            raise InputError(f"{escape_text(wanted)}: no such document in {self.directory}")
        if len(found) > 1:
            names = [f"{r.place.key} ({escape_text(r.place.file)}:{r.place.line})" for r in found]
            raise InputError(
                f"{escape_text(wanted)}: {len(found):,} documents match: {shorten_list(names)}; "
                "give one of these"
            )
        return found[0]

    def by_key(self, keys: Sequence[bytes]) -> dict[bytes, RunRecord]:
        """The records with these keys, 16 bytes each; unknown keys are left out."""
        value_set = pa.array(sorted(set(keys)), pa.binary(ids.KEY_BYTES))
        found = self._records(lambda table: pc.is_in(table["doc_key"], value_set).to_numpy())
        return {bytes.fromhex(record.place.key): record for record in found}

    def places(self, table: pa.Table) -> list[RecordPlace]:
        """The rows of a table with the columns `PLACE` as places."""
        return [self._place(row) for row in table.select(PLACE).to_pylist()]

    def live(self, keys: pa.Array, columns: list[str]) -> pa.Table:
        """`columns` of the rows of documents/ that have one of these keys, in document order; and,
        should 64 bits of two keys agree, of rows that have not."""
        wanted = np.sort(ids.keys_as_u64(keys)[:, 0])
        parts = []
        for path in self._shards():
            table = read_arrow_file(path)
            rows = _members_of(ids.keys_as_u64(table["doc_key"])[:, 0], wanted)
            parts.append(table.select(columns).take(pa.array(rows)))
        return pa.concat_tables(parts) if parts else pa.table({name: [] for name in columns})

    def texts(self, keys: Sequence[bytes], most_bytes: int | None = None) -> dict[bytes, str]:
        """Cleaned texts by key, cut after `most_bytes`. Keys without a text are left out, and those
        whose text is in quarantine or was taken down."""
        value_set = pa.array(sorted(set(keys)), pa.binary(ids.KEY_BYTES))
        found: dict[bytes, str] = {}
        for path in self._shards():
            found |= select_texts(read_arrow_file(path), value_set, most_bytes)
        return found

    def excerpt(self, key: bytes) -> str:
        """The first characters of a record that did not become a document; else empty."""
        wanted = pa.scalar(key, pa.binary(ids.KEY_BYTES))
        for path in sorted((self.directory / "drops").glob("*.parquet")):
            with wrap_read_errors(path):
                table = pq.read_table(path, columns=["doc_key", "excerpt"])
            found = table.filter(pc.equal(table["doc_key"], wanted))["excerpt"]
            if len(found):
                return str(found[0].as_py())
        return ""

    def count_by_source(self) -> dict[str, int]:
        """How many documents of each source reached dedup."""
        counts: dict[str, int] = {}
        for path in self._shards():
            for entry in read_arrow_file(path)["source"].value_counts().to_pylist():
                counts[entry["values"]] = counts.get(entry["values"], 0) + entry["counts"]
        return dict(sorted(counts.items()))

    def _shards(self) -> list[Path]:
        return sorted((self.directory / "documents").glob("*.arrow"))

    def _parts(self) -> Iterator[_Part]:
        if self.finished:
            with wrap_read_errors(self.directory / layout.DOCUMENTS) as path:
                file = pq.ParquetFile(path)
                for group in range(file.num_row_groups):
                    yield partial(file.read_row_group, group)
        else:
            for path in self._shards():
                yield partial(_unfinished, path, self.directory / "keep" / path.name)

    def _records(self, chosen: Callable[[pa.Table], npt.NDArray[np.bool_]]) -> list[RunRecord]:
        """Records of the rows that `chosen` picks from a table with the columns `PLACE`."""
        found = []
        for part in self._parts():
            rows = np.flatnonzero(chosen(part(PLACE)))
            if len(rows):
                columns = [*PLACE, "state", "representative", *_ENDS]
                found += [self._record(row) for row in part(columns).take(rows).to_pylist()]
        return found

    def _at(self, ending: str, line: int) -> list[RunRecord]:
        file = find_file(self._files, ending, str(self.directory))
        return self._records(partial(_stands_at, path_id=file, line=line))

    def _record(self, row: dict[str, Any]) -> RunRecord:
        ends = {name: row[name] for name in ["state", *_ENDS]}
        representative = (row["representative"] or b"").hex()
        return RunRecord(place=self._place(row), **ends, representative=representative)

    def _place(self, row: dict[str, Any]) -> RecordPlace:
        line = row["line"] or row["byte_offset"]
        return RecordPlace(row["doc_key"].hex(), row["source"], self._files[row["path_id"]], line)


@contextmanager
def wrap_read_errors(path: Path) -> Iterator[Path]:
    """Turns what goes wrong in reading `path` into an IntegrityError that names it."""
    try:
        yield path
    except (OSError, pa.ArrowException) as error:
        raise IntegrityError(
            f"{path}: missing or damaged ({type(error).__name__}); `prep verify` names all damage"
        ) from error


def read_file_names(path: Path) -> list[str]:
    """Input and path of every raw shard, by path_id, from inputs.parquet or sources.parquet."""
    with wrap_read_errors(path):
        rows = pq.read_table(path, columns=["input", "path"]).to_pylist()
    return [f"{row['input']}/{row['path']}" for row in rows]


def select_texts(table: pa.Table, keys: pa.Array, most_bytes: int | None) -> dict[bytes, str]:
    """Texts by key from a table with `doc_key` and `text`, cut after `most_bytes`. Where it has
    `text_bytes` too, documents whose text was taken out are left out."""
    found = {}
    sizes = table["text_bytes"] if "text_bytes" in table.column_names else None
    for row in np.flatnonzero(pc.is_in(table["doc_key"], keys).to_numpy()).tolist():
        text = table["text"][row].as_buffer()[:most_bytes].to_pybytes()
        if not text and sizes is not None and sizes[row].as_py():
            continue
        found[table["doc_key"][row].as_py()] = text.decode(errors="ignore")
    return found


def keys_start_with(keys: pa.ChunkedArray, prefix: str) -> npt.NDArray[np.bool_]:
    """Which keys start with these hex digits, (N,) bool."""
    low, high = (int(prefix.ljust(32, fill), 16) for fill in "0f")
    keys_N2 = ids.keys_as_u64(keys).byteswap()
    first, second = keys_N2[:, 0], keys_N2[:, 1]
    half = (1 << 64) - 1
    above = (first > low >> 64) | ((first == low >> 64) & (second >= low & half))
    below = (first < high >> 64) | ((first == high >> 64) & (second <= high & half))
    return np.asarray(above & below)


def read_arrow_file(path: Path) -> pa.Table:
    """An Arrow IPC file, memory-mapped. Raises IntegrityError for a missing or damaged one."""
    with wrap_read_errors(path):
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def _unfinished(documents: Path, keep: Path, columns: list[str]) -> pa.Table:
    """What is known of the documents of a shard while the run is not finished."""
    table = read_arrow_file(documents)
    rows = len(table)
    ends = (
        read_arrow_file(keep) if keep.exists() else pa.table({"state": pa.nulls(rows, pa.uint8())})
    )
    state = pa.array(STATES).take(ends["state"].combine_chunks()).fill_null("")
    known = {name: table[name] for name in table.column_names} | {"state": state}
    empty = {"tokens": pa.nulls(rows, pa.uint32()).fill_null(0), "representative": pa.nulls(rows)}
    if "representative" in ends.column_names:
        known["representative"] = ends["representative"]
    blank = pa.nulls(rows, pa.string()).fill_null("")
    return pa.table({name: known.get(name, empty.get(name, blank)) for name in columns})


def _stands_at(table: pa.Table, path_id: int, line: int) -> npt.NDArray[np.bool_]:
    lines = table["line"].to_numpy()
    number = np.where(lines > 0, lines, table["byte_offset"].to_numpy())
    return np.asarray((table["path_id"].to_numpy() == path_id) & (number == line))


def _members_of(values: npt.NDArray[np.uint64], wanted: npt.NDArray[np.uint64]) -> I64:
    """Positions of the values that occur in `wanted`, which is sorted."""
    if len(wanted) == 0:
        return np.zeros(0, np.int64)
    place = np.minimum(np.searchsorted(wanted, values), len(wanted) - 1)
    return np.flatnonzero(wanted[place] == values)


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
"""What stands where else the beginning of a text is shown."""


def quarantine_path(documents: str) -> str:
    """The path of the shard of quarantine/ beside one of documents/.

    >>> quarantine_path("documents/000003.arrow")
    'quarantine/000003.arrow'
    """
    return f"{layout.QUARANTINE}/{documents.rpartition('/')[2]}"


def read_held_shard(path: Path) -> pa.Table:
    """A shard of quarantine/, memory-mapped; empty when there is none."""
    if not path.exists():
        return SCHEMA.empty_table()
    return read_arrow_file(path)


def keys_of(held: pa.Table) -> pa.Array:
    """The keys of a shard of quarantine/, fixed_size_binary(16)."""
    return held["doc_key"].combine_chunks()


def read_held_shards(directory: Path) -> Iterator[pa.Table]:
    """All shards of quarantine/."""
    for path in sorted((directory / layout.QUARANTINE).glob("*.arrow")):
        yield read_held_shard(path)


def read_held_text(directory: Path, key: bytes) -> dict[bytes, str]:
    """The text of a document in quarantine by its key, to be compared and not shown; nothing where
    there is none."""
    wanted = pa.array([key], SCHEMA.field("doc_key").type)
    found: dict[bytes, str] = {}
    for table in read_held_shards(directory):
        found |= select_texts(table, wanted, None)
    return found


def with_texts(table: pa.Table, held: pa.Table) -> pa.Table:
    """A table with `doc_key` and `text` whose empty texts are those that `held` has; chunks stay as
    they are, and so do the bytes of a file of it."""
    if not len(held):
        return table
    place = pc.index_in(table["doc_key"], value_set=keys_of(held)).combine_chunks()
    texts = held["text"].combine_chunks().cast(table.schema.field("text").type).take(place)
    merged = pc.coalesce(texts, table["text"].combine_chunks())
    index = table.column_names.index("text")
    column = _as_chunks(merged, [len(chunk) for chunk in table["text"].chunks])
    return table.set_column(index, table.schema.field("text"), column)


def _as_chunks(array: pa.Array, lengths: list[int]) -> pa.ChunkedArray:
    starts = np.cumsum([0, *lengths])
    parts = [array.slice(int(a), n) for a, n in zip(starts, lengths, strict=False)]
    return pa.chunked_array([pa.concat_arrays([part]) for part in parts], array.type)
