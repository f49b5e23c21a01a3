"""The documents of a run with their signals as one table of DuckDB, for filters, counts and
histograms.

The table is made when the explorer starts, in a file of its own that goes when it ends. It holds no
text. Labels are enumerations, rows are in the order of documents.parquet, and a page of a list
begins behind a row, so no page costs more than the columns that its filters name. DuckDB is refused
everything outside this file, because an expression comes from an address.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dedup.arrays import I64
from pipeline.core.errors import IntegrityError
from pipeline.core.manifest import read_manifest
from pipeline.engine.runner import manifest_path
from pipeline.explore.conditions import Conditions, ListFilters, quote
from pipeline.runs import layout
from pipeline.runs.parts import RowGroups, wrap_read_errors
from pipeline.runs.records import DocumentTable
from pipeline.runs.views import SignalsOutput

TABLE = "documents"
FACETS = ("source", "state", "reason", "decision", "split")
LANGUAGE = "language"
_PLACE = ("path_id", "line", "byte_offset", "representative")
_LABELS = (*FACETS, "licence", "rule", LANGUAGE)
_ENDS = (
    "source",
    "licence",
    "state",
    "reason",
    "decision",
    "rule",
    "split",
    "text_bytes",
    "tokens",
)
_MOST_LABELS = 1 << 12
"""Values of a column up to which it becomes an enumeration."""
_REMEMBERED = 256


@dataclass(frozen=True)
class Count:
    """A value of a label and how many documents have it."""

    value: str
    documents: int


class RunTable:
    """The documents of a run for filters, in the table TABLE of a `connection`; `schema` has the
    columns that filters can name, `bounds` the smallest and largest value of every number."""

    def __init__(self, directory: Path, table: DocumentTable) -> None:
        import duckdb

        self._folder = TemporaryDirectory(prefix="wafermill-explore-")
        self.connection: Any = duckdb.connect(f"{self._folder.name}/documents.duckdb")
        self.files = table.files
        groups = RowGroups(table.directory / layout.DOCUMENTS)
        signals = _list_signals(directory)
        meta = [name for name in groups.schema.names if name.startswith("meta_")]
        names = ["doc_key", *_PLACE, *_ENDS, *meta]
        reader = _read_batches(groups, names, signals)
        self._facets = [*FACETS, *([LANGUAGE] if LANGUAGE in reader.schema.names else [])]
        self._load(reader)
        columns = [f for f in reader.schema if f.name not in ("row", "doc_key", *_PLACE)]
        self.schema = pa.schema(columns)
        self.bounds = self._find_bounds()
        self.connection.execute("set enable_external_access = false")
        self.connection.execute("set lock_configuration = true")
        every = f"select combination, count(*) as n from {TABLE} group by all"
        self._all = self._run(every, Conditions(), None)
        self.facets = lru_cache(_REMEMBERED)(self._count_facets)
        self.histogram = lru_cache(_REMEMBERED)(self._count_bins)

    def close(self) -> None:
        """Delete the table."""
        self.connection.close()
        self._folder.cleanup()

    def _load(self, reader: pa.RecordBatchReader) -> None:
        run = self.connection.execute
        self.connection.register("arriving", reader)
        run("create table staging as select * from arriving")
        self.connection.unregister("arriving")
        chosen = []
        for name in reader.schema.names:
            cast = quote(name)
            if name in _LABELS:
                [[count]] = run(f"select count(distinct {cast}) from staging").fetchall()
                if 0 < count <= _MOST_LABELS:
                    run(
                        f"create type {quote('label ' + name)} as enum "
                        f"(select distinct {cast} from staging where {cast} is not null order by 1)"
                    )
                    cast = f"{cast}::{quote('label ' + name)} as {cast}"
            chosen.append(cast)
        self._number_combinations()
        same = " and ".join(f"s.{name} is not distinct from c.{name}" for name in self._facets)
        columns = ", ".join(f"s.{column}" for column in chosen)
        run(
            f"create table {TABLE} as select {columns}, c.combination from staging s "
            f"join combinations c on {same} order by s.row"
        )
        run("drop table staging")
        run("checkpoint")

    def _number_combinations(self) -> None:
        """Every combination of labels that occurs gets a number, and each record will have that of
        its own: all facets are then counts of one small column."""
        labels = ", ".join(self._facets)
        self.connection.execute(
            f"create table combinations as select *, row_number() over ()::uinteger "
            f"as combination from (select distinct {labels} from staging order by all)"
        )
        rows = self.connection.execute(f"select combination, {labels} from combinations").fetchall()
        self._combinations = {
            number: {name: value or "" for name, value in zip(self._facets, values, strict=True)}
            for number, *values in rows
        }

    def _find_bounds(self) -> dict[str, tuple[float, float]]:
        numbers = [
            field.name
            for field in self.schema
            if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        ]
        columns = ", ".join(f"min({quote(n)}), max({quote(n)})" for n in numbers)
        [row] = self.connection.execute(f"select {columns} from {TABLE}").fetchall()
        pairs = zip(numbers, row[::2], row[1::2], strict=True)
        return {name: (low, high) for name, low, high in pairs if low is not None}

    def __len__(self) -> int:
        [[count]] = self.connection.execute(f"select count(*) from {TABLE}").fetchall()
        return int(count)

    def is_whole(self, column: str) -> bool:
        """Whether a column has whole numbers."""
        return bool(pa.types.is_integer(self.schema.field(column).type))

    def page(
        self, filters: ListFilters, hits: I64 | None, most: int, after: int, before: int | None
    ) -> list[dict[str, Any]]:
        """The first documents behind row `after`, or the last ones ahead of row `before`, that
        these filters let pass, ascending; one more than `most` where there are more."""
        where = self._conditions(filters, hits)
        backwards = before is not None
        where.add(f"row {'<' if backwards else '>'} ?", before if backwards else after)
        columns = "row, doc_key, path_id, line, byte_offset, representative is not null as live"
        sql = (
            f"select {columns}, {', '.join(map(quote, _ENDS))} from {TABLE} where {where.sql} "
            f"order by row {'desc' if backwards else 'asc'} limit {most + 1}"
        )
        rows = self._run(sql, where, hits)
        return rows[::-1] if backwards else rows

    def count(self, filters: ListFilters, hits: I64 | None = None) -> int:
        """How many documents the filters let pass."""
        return sum(c.documents for c in self.count_facets(filters, hits)["state"])

    def count_facets(self, filters: ListFilters, hits: I64 | None) -> dict[str, list[Count]]:
        """How many documents that the filters let pass have each label."""
        return self.facets(filters, None if hits is None else hits.tobytes())

    def _count_facets(self, filters: ListFilters, hits: bytes | None) -> dict[str, list[Count]]:
        """By facet, from one count of the combinations of labels."""
        is_by_labels = hits is None and not filters.ranges and not filters.where
        rows = _from_bytes(hits)
        where = self._conditions(ListFilters() if is_by_labels else filters, rows)
        sql = f"select combination, count(*) as n from {TABLE} where {where.sql} group by all"
        counted = self._all if is_by_labels else self._run(sql, where, rows)
        counts: dict[str, dict[str, int]] = {name: {} for name in self._facets}
        for row in counted:
            labels = self._combinations[row["combination"]]
            if not is_by_labels or all(labels[name] in values for name, values in filters.labels):
                for name, value in labels.items():
                    counts[name][value] = counts[name].get(value, 0) + row["n"]
        return {name: _sort(of_value) for name, of_value in counts.items()}

    def _count_bins(
        self, filters: ListFilters, hits: bytes | None, column: str, edges: tuple[float, ...]
    ) -> list[int]:
        """How many documents have a value of this column above each edge and up to the next one."""
        rows = _from_bytes(hits)
        where = self._conditions(filters, rows)
        # Edges of the type of the column, which is converted otherwise.
        numbers = [*map(int if self.is_whole(column) else float, edges)]
        kind = "bigint" if self.is_whole(column) else "double"
        bins = f"histogram({quote(column)}, {numbers}::{kind}[])"
        sql = f"select {bins} as bins from {TABLE} where {where.sql}"
        [row] = self._run(sql, where, rows)
        counts = row["bins"] or {}
        return [int(counts.get(edge, 0)) for edge in edges[1:]]

    def _conditions(self, filters: ListFilters, hits: I64 | None) -> Conditions:
        conditions = filters.conditions(self.schema)
        if hits is not None:
            conditions.add("row in (select row from hits)")
        return conditions

    def _run(self, sql: str, where: Conditions, hits: I64 | None) -> list[dict[str, Any]]:
        cursor = self.connection.cursor()
        try:
            if hits is not None:
                cursor.register("hits", pa.table({"row": hits.astype(np.uint32)}))
            return where.run(cursor, sql)
        finally:
            cursor.close()


def read_columns(groups: RowGroups, names: Sequence[str]) -> pa.RecordBatchReader:
    """Every record with the number of its row and these columns."""
    return _read_batches(groups, names, ())


def _from_bytes(hits: bytes | None) -> I64 | None:
    return None if hits is None else np.frombuffer(hits, np.int64)


def _sort(counts: dict[str, int]) -> list[Count]:
    return [Count(v, n) for v, n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]


def _list_signals(directory: Path) -> list[Path]:
    manifest = read_manifest(manifest_path(directory, "signals"))
    return [directory / s.path for s in SignalsOutput(manifest).signals] if manifest else []


def _read_batches(
    groups: RowGroups, names: Sequence[str], signals: Sequence[Path]
) -> pa.RecordBatchReader:
    """Every record with the number of its row, these columns and its signals, which are null for a
    record that never became a document."""
    measured = _Signals(signals, [*names, "row"])
    fields = [pa.field("row", pa.uint32()), *(_signed(groups.schema.field(name)) for name in names)]
    schema = pa.schema([*fields, *measured.fields])

    def batches() -> Iterator[pa.RecordBatch]:
        first = 0
        for part in groups.parts(names):
            rows = pa.array(np.arange(first, first + len(part), dtype=np.uint32))
            is_live = part["representative"].is_valid().to_numpy()
            parts = (part[name].cast(schema.field(name).type) for name in names)
            columns = [rows, *parts, *measured.take(part["doc_key"], is_live)]
            first += len(part)
            yield from pa.table(columns, schema=schema).to_batches()

    return pa.RecordBatchReader.from_batches(schema, batches())


def _signed(field: pa.Field) -> pa.Field:
    """Lengths as numbers that can be compared with any other: edges of bins can be below 0."""
    return field.with_type(pa.int64()) if pa.types.is_unsigned_integer(field.type) else field


class _Signals:
    """The rows of signals/, read in order next to the documents that they are of."""

    def __init__(self, paths: Sequence[Path], taken: Sequence[str]) -> None:
        self._tables = (self._read(path) for path in paths)
        self._left = self._read(paths[0]).slice(0, 0) if paths else pa.table({"doc_key": []})
        self.fields = [field for field in self._left.schema if field.name not in taken]

    @staticmethod
    def _read(path: Path) -> pa.Table:
        with wrap_read_errors(path):
            return pq.read_table(path)

    def take(self, keys: pa.ChunkedArray, is_live: Any) -> list[pa.ChunkedArray]:
        """The signals of records with these keys, null where they are not live. Raises
        IntegrityError where the two tables do not have the same documents."""
        if not self.fields:
            return []
        wanted = int(is_live.sum())
        while len(self._left) < wanted:
            table = next(self._tables, None)
            if table is None:
                raise IntegrityError("signals/: ends early; `prep verify` names all damage")
            self._left = pa.concat_tables([self._left, table])
        here, self._left = self._left.slice(0, wanted), self._left.slice(wanted)
        if not keys.filter(pa.array(is_live)).equals(here["doc_key"]):
            raise IntegrityError("signals/: not of these documents; `prep verify` names all damage")
        place = pa.array(np.cumsum(is_live) - 1, mask=~is_live)
        return [here[field.name].take(place) for field in self.fields]
