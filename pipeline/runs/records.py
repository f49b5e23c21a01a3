"""Records of a run: by row, by key or the beginning of one, or by file and line; and their texts.

`DocumentTable` reads documents.parquet of a finished run, one row group at a time; the number of a
row, over all parts, is the dense index that lineage refers to. `RunRecords` also reads documents/
and keep/ of a run that stopped on its way, at the alarm of dedup for example, so that `prep
inspect` and `prep explain` can show why.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64, Mask
from pipeline.core import ids
from pipeline.core.errors import InputError, escape_text
from pipeline.runs import layout
from pipeline.runs.layout import STATES
from pipeline.runs.parts import RowGroups, find_rows_by_key, wrap_read_errors
from pipeline.runs.references import find_file, find_files_ending, is_key, shorten_list, split_place

_REPEATED = ["source", "licence", "state", "reason", "decision", "rule", "split"]
PLACE = ["doc_key", "source", "path_id", "line", "byte_offset"]
_ENDS = ["reason", "decision", "rule", "split", "licence", "tokens", "text_bytes"]

_Part = Callable[[list[str]], pa.Table]
Chosen = Callable[[pa.Table], Mask]
"""Which rows of a table are meant, (N,) bool."""


def _resolve(
    name: str, files: Sequence[str], directory: Path
) -> tuple[list[str], Chosen, int | None]:
    """What picks the records that a key, FILE:LINE or FILE means from a table with these columns;
    the number of the file, if one is named. Raises InputError for a file that is not there."""
    place = split_place(name)
    if is_key(name):
        return ["doc_key"], lambda table: keys_start_with(table["doc_key"], name), None
    if place and not find_files_ending(files, name):
        path_id, line = find_file(files, place[0], str(directory)), place[1]

        def is_at_line(table: pa.Table) -> Mask:
            lines = table["line"].to_numpy()
            number = np.where(lines > 0, lines, table["byte_offset"].to_numpy())
            return np.asarray((table["path_id"].to_numpy() == path_id) & (number == line))

        return ["path_id", "line", "byte_offset"], is_at_line, path_id
    path_id = find_file(files, name, str(directory))
    return ["path_id"], lambda table: table["path_id"].to_numpy() == path_id, path_id


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
    """Source, file and line of a document in words, or the index it is in; with the name of its
    generation, where it is in an earlier one."""
    if place is None:
        return f"in the earlier index {index}"
    return f"{place.source}  {place.file}:{place.line}" + (f", in {index}" if index else "")


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

    def find(self, name: str) -> RunRecord:
        """The record that a name means (see `DocumentTable.find`); of FILE, if it has one record.
        Raises InputError when none or several match."""
        _, chosen, _ = _resolve(name, self._files, self.directory)
        return self.only_one(name, self._records(chosen))

    def only_one(self, reference: str, records: Sequence[RunRecord]) -> RunRecord:
        """What `reference` named. Raises InputError unless it is one record."""
        if not records:
            raise InputError(f"{escape_text(reference)}: no such document in {self.directory}")
        if len(records) > 1:
            names = [f"{r.place.key} ({escape_text(r.place.file)}:{r.place.line})" for r in records]
            raise InputError(
                f"{escape_text(reference)}: {len(records):,} documents match: "
                f"{shorten_list(names)}; give one of these"
            )
        return records[0]

    def by_key(self, keys: Sequence[bytes]) -> dict[bytes, RunRecord]:
        """The records with these keys, 16 bytes each; unknown keys are left out."""
        value_set = pa.array(sorted(set(keys)), pa.binary(ids.KEY_BYTES))
        records = self._records(lambda table: pc.is_in(table["doc_key"], value_set).to_numpy())
        return {bytes.fromhex(record.place.key): record for record in records}

    def places(self, table: pa.Table) -> list[RecordPlace]:
        """The rows of a table with the columns `PLACE` as places."""
        return [self._place(row) for row in table.select(PLACE).to_pylist()]

    def live(self, keys: pa.Array, columns: list[str]) -> pa.Table:
        """`columns` of the rows of documents/ that have one of these keys, in document order; and,
        should 64 bits of two keys agree, of rows that have not."""
        halves = ids.keys_as_u64(keys)[:, 0]
        parts = []
        for path in self._shards():
            table = map_arrow(path)
            rows = np.flatnonzero(np.isin(ids.keys_as_u64(table["doc_key"])[:, 0], halves))
            parts.append(table.select(columns).take(pa.array(rows)))
        return pa.concat_tables(parts) if parts else pa.table({name: [] for name in columns})

    def texts(self, keys: Sequence[bytes], most_bytes: int | None = None) -> dict[bytes, str]:
        """Cleaned texts by key, cut after `most_bytes`. Keys without a text are left out, and those
        whose text is in quarantine or was taken down."""
        value_set = pa.array(sorted(set(keys)), pa.binary(ids.KEY_BYTES))
        texts: dict[bytes, str] = {}
        for path in self._shards():
            texts |= select_texts(map_arrow(path), value_set, most_bytes)
        return texts

    def excerpt(self, key: bytes) -> str:
        """The first characters of a record that did not become a document; else empty."""
        key_scalar = pa.scalar(key, pa.binary(ids.KEY_BYTES))
        for path in sorted((self.directory / "drops").glob("*.parquet")):
            with wrap_read_errors(path):
                table = pq.read_table(path, columns=["doc_key", "excerpt"])
            excerpts = table.filter(pc.equal(table["doc_key"], key_scalar))["excerpt"]
            if len(excerpts):
                return str(excerpts[0].as_py())
        return ""

    def rows_about(self, table: str, column: str, keys: Sequence[bytes]) -> pa.Table | None:
        """All columns of the rows of a table of the run whose `column` is one of these keys; None
        where the run has no such table."""
        path = self.directory / table
        key_array = pa.array(sorted(set(keys)), pa.binary(ids.KEY_BYTES))
        return find_rows_by_key(path, column, key_array) if path.exists() else None

    def count_by_source(self) -> dict[str, int]:
        """How many documents of each source reached dedup."""
        counts: dict[str, int] = {}
        for path in self._shards():
            for entry in map_arrow(path)["source"].value_counts().to_pylist():
                counts[entry["values"]] = counts.get(entry["values"], 0) + entry["counts"]
        return dict(sorted(counts.items()))

    def _shards(self) -> list[Path]:
        return sorted((self.directory / "documents").glob("*.arrow"))

    def _parts(self) -> Iterator[_Part]:
        if self.finished:
            groups = RowGroups(self.directory / layout.DOCUMENTS)
            for group in range(len(groups)):
                yield partial(groups.read, [group])
        else:
            for path in self._shards():
                yield partial(_read_unfinished, path, self.directory / "keep" / path.name)

    def _records(self, chosen: Chosen) -> list[RunRecord]:
        """Records of the rows that `chosen` picks from a table with the columns `PLACE`."""
        records = []
        for part in self._parts():
            rows = np.flatnonzero(chosen(part(PLACE)))
            if len(rows):
                columns = [*PLACE, "state", "representative", *_ENDS]
                records += [self._record(row) for row in part(columns).take(rows).to_pylist()]
        return records

    def _record(self, row: dict[str, Any]) -> RunRecord:
        ends = {name: row[name] for name in ["state", *_ENDS]}
        representative = (row["representative"] or b"").hex()
        return RunRecord(place=self._place(row), **ends, representative=representative)

    def _place(self, row: dict[str, Any]) -> RecordPlace:
        line = row["line"] or row["byte_offset"]
        return RecordPlace(row["doc_key"].hex(), row["source"], self._files[row["path_id"]], line)


class DocumentTable:
    """The documents of a finished run. Raises InputError when there is none, IntegrityError for
    damage."""

    def __init__(self, directory: Path) -> None:
        if not (directory / layout.DOCUMENTS).exists():
            raise InputError(
                f"{directory}: no {layout.DOCUMENTS}; give the directory of a finished `prep run`"
            )
        self.directory = directory
        self._groups = RowGroups(directory / layout.DOCUMENTS, _REPEATED)
        self.files = read_file_names(directory / layout.SOURCES)
        """Input and path of every raw shard, by path_id."""

    def __len__(self) -> int:
        return int(self._groups.starts[-1])

    @property
    def column_names(self) -> list[str]:
        """What the table says of every document."""
        return list(self._groups.schema.names)

    def take(self, rows_N: I64, columns: Sequence[str]) -> pa.Table:
        """These columns of the rows, in the order asked for."""
        return self._groups.take(rows_N, columns)

    def find(self, name: str) -> I64:
        """Rows of the documents that a name means, as pages and commands print it: a key in hex or
        six and more digits of its beginning (one document), FILE:LINE (one document), or FILE (all
        its documents); of FILE an ending is enough that no other file has. Raises InputError when
        there is none."""
        columns, chosen, path_id = _resolve(name, self.files, self.directory)
        rows = self._rows(self._groups_of_file(path_id), columns, chosen)
        if is_key(name) and len(rows) > 1:
            keys = self.take(rows, ["doc_key"])["doc_key"].to_pylist()
            names = shorten_list([key.hex() for key in keys])
            raise InputError(
                f"{name}: {len(rows):,} documents begin with it: {names}; give more digits"
            )
        if not len(rows):
            raise InputError(f"{escape_text(name)}: no such document in {self.directory}")
        return rows

    def rows_of_file(self, path_id: int) -> I64:
        """Rows of the records of a raw shard, ascending."""
        groups = self._groups_of_file(path_id)
        return self._rows(groups, ["path_id"], lambda t: t["path_id"].to_numpy() == path_id)

    def rows_of_source(self, source: str) -> I64:
        """Rows of the records of a source, ascending."""
        every = self._groups_of_file(None)
        return self._rows(every, ["source"], lambda t: pc.equal(t["source"], source).to_numpy())

    def rows_of_keys(
        self,
        keys: Sequence[bytes] | pa.Array,
        ranges: Sequence[tuple[int, int]] | None = None,
    ) -> I64:
        """Rows of the documents with these keys, ascending; unknown keys are left out. `ranges`:
        rows [first, stop) among which all of them are."""
        if not len(keys):
            return np.zeros(0, np.int64)
        is_array = isinstance(keys, pa.Array)
        key_array = keys if is_array else pa.array(keys, pa.binary(ids.KEY_BYTES))
        first = np.unique(ids.keys_as_u64(key_array)[:, 0])

        def chosen(table: pa.Table) -> Mask:
            half = ids.keys_as_u64(table["doc_key"])[:, 0]
            place = np.minimum(np.searchsorted(first, half), len(first) - 1)
            near = np.flatnonzero(first[place] == half)
            keys_here = table["doc_key"].take(pa.array(near))
            out = np.zeros(len(table), np.bool_)
            out[near[pc.is_in(keys_here, key_array).to_numpy()]] = True
            return out

        groups = self._groups_of_file(None) if ranges is None else self._groups_of_rows(ranges)
        return self._rows(groups, ["doc_key"], chosen)

    def parts(self, columns: list[str]) -> Iterator[tuple[int, pa.Table]]:
        """(first row, these columns) of every row group."""
        for group in range(len(self._groups)):
            yield int(self._groups.starts[group]), self._groups.read([group], columns)

    def _rows(self, groups: Sequence[int], columns: list[str], chosen: Chosen) -> I64:
        parts = [np.zeros(0, np.int64)]
        for group in groups:
            table = self._groups.read([group], columns)
            parts.append(np.flatnonzero(chosen(table)) + self._groups.starts[group])
        return np.concatenate(parts)

    def _groups_of_file(self, path_id: int | None) -> list[int]:
        """The row groups whose statistics do not rule out this raw shard."""
        groups = range(len(self._groups))
        if path_id is None:
            return list(groups)
        return [group for group in groups if self._may_hold(group, path_id)]

    def _groups_of_rows(self, ranges: Sequence[tuple[int, int]]) -> list[int]:
        starts = self._groups.starts
        spans = [
            range(np.searchsorted(starts, first, "right") - 1, np.searchsorted(starts, stop))
            for first, stop in ranges
            if first < stop
        ]
        return sorted({group for span in spans for group in span})

    def _may_hold(self, group: int, path_id: int) -> bool:
        bounds = self._groups.bounds(group, "path_id")
        return bounds is None or bounds[0] <= path_id <= bounds[1]


def read_file_names(path: Path) -> list[str]:
    """Input and path of every raw shard, by path_id, from inputs.parquet or sources.parquet."""
    with wrap_read_errors(path):
        rows = pq.read_table(path, columns=["input", "path"]).to_pylist()
    return [f"{row['input']}/{row['path']}" for row in rows]


def select_texts(table: pa.Table, keys: pa.Array, most_bytes: int | None) -> dict[bytes, str]:
    """Texts by key from a table with `doc_key` and `text`, cut after `most_bytes`. Where it has
    `text_bytes` too, documents whose text was taken out are left out."""
    texts = {}
    sizes = table["text_bytes"] if "text_bytes" in table.column_names else None
    for row in np.flatnonzero(pc.is_in(table["doc_key"], keys).to_numpy()).tolist():
        text = table["text"][row].as_buffer()[:most_bytes].to_pybytes()
        if not text and sizes is not None and sizes[row].as_py():
            continue
        texts[table["doc_key"][row].as_py()] = text.decode(errors="ignore")
    return texts


def keys_start_with(keys: pa.ChunkedArray, prefix: str) -> Mask:
    """Which keys start with these hex digits, (N,) bool."""
    low, high = (int(prefix.ljust(32, fill), 16) for fill in "0f")
    keys_N2 = ids.keys_as_u64(keys).byteswap()
    first, second = keys_N2[:, 0], keys_N2[:, 1]
    half = (1 << 64) - 1
    above = (first > low >> 64) | ((first == low >> 64) & (second >= low & half))
    below = (first < high >> 64) | ((first == high >> 64) & (second <= high & half))
    return np.asarray(above & below)


def map_arrow(path: Path) -> pa.Table:
    """An Arrow IPC file, memory-mapped. Raises IntegrityError for damage."""
    with wrap_read_errors(path):
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def _read_unfinished(documents: Path, keep: Path, columns: list[str]) -> pa.Table:
    """What is known of the documents of a shard while the run is not finished."""
    table = map_arrow(documents)
    rows = len(table)
    ends = map_arrow(keep) if keep.exists() else pa.table({"state": pa.nulls(rows, pa.uint8())})
    state = pa.array(STATES).take(ends["state"].combine_chunks()).fill_null("")
    columns_by_name = {name: table[name] for name in table.column_names} | {"state": state}
    empty = {"tokens": pa.nulls(rows, pa.uint32()).fill_null(0), "representative": pa.nulls(rows)}
    if "representative" in ends.column_names:
        columns_by_name["representative"] = ends["representative"]
    blank = pa.nulls(rows, pa.string()).fill_null("")
    return pa.table({name: columns_by_name.get(name, empty.get(name, blank)) for name in columns})
