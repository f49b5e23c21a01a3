"""The tables of a run, read into one table of DuckDB when the explorer starts.

It holds no text. Labels are enumerations, and rows are in the order of documents.parquet. Every
combination of labels has a number, and so has the bin of every number of a document: all counts of
labels, and each histogram, are counts of one small column.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64
from pipeline.core.errors import IntegrityError
from pipeline.core.manifest import read_manifest
from pipeline.engine.runner import manifest_path
from pipeline.explore.bins import choose_edges, number_bins
from pipeline.explore.conditions import is_number, quote
from pipeline.runs import layout
from pipeline.runs.parts import RowGroups, list_parts, wrap_read_errors
from pipeline.runs.views.documents import SignalsOutput

TABLE = "documents"
COMBINATION = "combination"
FACETS = ("source", "state", "reason", "decision", "split")
LANGUAGE = "language"
ENDS = (
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
_PLACE = ("path_id", "line", "byte_offset", "representative")
_LABELS = (*FACETS, "licence", "rule", LANGUAGE)
_MOST_LABELS = 1 << 12
"""Values of a column up to which it becomes an enumeration."""
_MOST_CODES = 1 << 20
"""Numbers of which each has a place in an array, rather than that they are sorted."""


@dataclass(frozen=True, kw_only=True)
class LoadedTable:
    """What is in the table.

    schema: the columns that filters can name. combinations: number -> label -> value. bounds: the
    smallest and largest value of every number. bins: the edges of its bins, ascending, and whether
    they are powers of two; the column `bin_column` has the number of the bin, from 1.
    """

    schema: pa.Schema
    combinations: dict[int, dict[str, str]]
    bounds: dict[str, tuple[float, float]]
    bins: dict[str, tuple[tuple[float, ...], bool]]

    @property
    def facets(self) -> tuple[str, ...]:
        """The labels of which documents are counted."""
        return (*FACETS, *([LANGUAGE] if LANGUAGE in self.schema.names else []))


def bin_column(name: str) -> str:
    """The column with the bins of a column, which no expression can name, for SQL."""
    return quote(f"bin of {name}")


def load_table(connection: Any, directory: Path) -> LoadedTable:
    """Make the table of a finished run. Raises IntegrityError for damage."""
    table, signals = directory / layout.DOCUMENTS, _list_signals(directory)
    groups = RowGroups(table, _list_labels(list_parts(table)[0]))
    meta = [name for name in groups.schema.names if name.startswith("meta_")]
    combinations = _Combinations()
    reader = _read_batches(groups, ["doc_key", *_PLACE, *ENDS, *meta], signals, combinations)
    names = reader.schema.names
    hidden = ("row", "doc_key", COMBINATION, *_PLACE)
    schema = pa.schema([field for field in reader.schema if field.name not in hidden])
    labels: dict[str, set[str]] = {name: set() for name in _LABELS if name in names}
    bounds: dict[str, tuple[float, float]] = {}
    for path in [*list_parts(table), *signals]:
        with (
            wrap_read_errors(path),
            pq.ParquetFile(path, read_dictionary=_list_labels(path)) as file,
        ):
            _add_labels(file, labels)
            _add_bounds(file, [f.name for f in schema if is_number(f.type)], bounds)
    bins = {
        name: choose_edges(low, high, pa.types.is_integer(schema.field(name).type))
        for name, (low, high) in bounds.items()
    }
    columns = [
        _enumerate(connection, name, labels[name]) if name in labels else quote(name)
        for name in names
    ]
    for name, (edges, _) in bins.items():
        kind = "bigint" if pa.types.is_integer(schema.field(name).type) else "double"
        number = number_bins(quote(name), edges, kind)
        columns.append(f"({number})::utinyint as {bin_column(name)}")
    connection.register("arriving", reader)
    connection.execute(f"create table {TABLE} as select {', '.join(columns)} from arriving")
    connection.unregister("arriving")
    return LoadedTable(schema=schema, combinations=combinations.labels, bounds=bounds, bins=bins)


def _list_labels(path: Path) -> list[str]:
    """The labels that are columns of a file, which are read as dictionaries."""
    with wrap_read_errors(path):
        names = pq.read_schema(path).names
    return [name for name in _LABELS if name in names]


def _add_labels(file: pq.ParquetFile, labels: dict[str, set[str]]) -> None:
    """Add the values of labels that are columns of a file."""
    table = file.read([name for name in labels if name in file.schema_arrow.names])
    for name, column in zip(table.column_names, table.columns, strict=True):
        for chunk in column.chunks:
            labels[name].update(chunk.dictionary.to_pylist())


def _add_bounds(
    file: pq.ParquetFile, numbers: list[str], bounds: dict[str, tuple[float, float]]
) -> None:
    """Widen the bounds of numbers that are columns of a file by its finite values."""
    for group in range(file.num_row_groups):
        for name in (name for name in numbers if name in file.schema_arrow.names):
            place = file.schema_arrow.get_field_index(name)
            noted = file.metadata.row_group(group).column(place).statistics
            ends = (noted.min, noted.max) if noted and noted.has_min_max else (math.nan,) * 2
            if not all(map(math.isfinite, ends)):
                values = file.read_row_group(group, [name])[name]
                ends = pc.min_max(values.filter(pc.is_finite(values))).as_py().values()
            known = [*bounds.get(name, ()), *(end for end in ends if end is not None)]
            if known:
                bounds[name] = min(known), max(known)


def _enumerate(connection: Any, name: str, values: set[str]) -> str:
    """The column as an enumeration, for SQL; where it has too many values, as it is."""
    column, kind = quote(name), quote(f"label {name}")
    if not 0 < len(values) <= _MOST_LABELS:
        return column
    connection.register("label values", pa.table({"value": sorted(values)}))
    connection.execute(f"create type {kind} as enum (select value from {quote('label values')})")
    connection.unregister("label values")
    return f"{column}::{kind} as {column}"


def read_columns(groups: RowGroups, names: Sequence[str]) -> pa.RecordBatchReader:
    """Every record with the number of its row and these columns."""
    return _read_batches(groups, names, (), None)


def _list_signals(directory: Path) -> list[Path]:
    manifest = read_manifest(manifest_path(directory, "signals"))
    return [directory / s.path for s in SignalsOutput(manifest).signals] if manifest else []


def _read_batches(
    groups: RowGroups,
    names: Sequence[str],
    signals: Sequence[Path],
    combinations: "_Combinations | None",
) -> pa.RecordBatchReader:
    """Every record with the number of its row, these columns and its signals, which are null for a
    record that never became a document; then the number of its combination of labels."""
    measured = _Signals(signals, [*names, "row", COMBINATION])
    kinds = groups.read([], names).schema
    fields = [pa.field("row", pa.uint32()), *map(_signed, kinds)]
    schema = pa.schema([*fields, *measured.fields])
    numbered = schema.append(pa.field(COMBINATION, pa.uint32())) if combinations else schema

    def batches() -> Iterator[pa.RecordBatch]:
        first = 0
        for part in groups.parts(names):
            rows = pa.array(np.arange(first, first + len(part), dtype=np.uint32))
            is_live = part["representative"].is_valid().to_numpy()
            parts = (part[name].cast(schema.field(name).type) for name in names)
            columns = [rows, *parts, *measured.take(part["doc_key"], is_live)]
            first += len(part)
            table = pa.table(columns, schema=schema)
            if combinations is not None:
                table = table.append_column(numbered.field(-1), combinations.number(table))
            yield from table.to_batches()

    return pa.RecordBatchReader.from_batches(numbered, batches())


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
            return pq.read_table(path, read_dictionary=_list_labels(path))

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


class _Combinations:
    """The combinations of labels that occur, by number, in the order in which they come first."""

    def __init__(self) -> None:
        self.labels: dict[int, dict[str, str]] = {}
        self._numbers: dict[tuple[str, ...], int] = {}

    def number(self, table: pa.Table) -> pa.Array:
        """The number of the combination that each row has."""
        names = [*FACETS, *([LANGUAGE] if LANGUAGE in table.column_names else [])]
        codes, size = np.zeros(len(table), np.int64), 1
        for name in names:
            column = table[name].combine_chunks()
            encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
            absent = len(encoded.dictionary)
            codes *= absent + 1
            codes += encoded.indices.fill_null(absent).to_numpy()
            size *= absent + 1
            codes, size = _renumber(codes, size)
        first = np.zeros(size, np.int64)
        first[codes[::-1]] = np.arange(len(codes))[::-1]
        numbers = np.zeros(size, np.uint32)
        for code, row in enumerate(table.select(names).take(pa.array(first)).to_pylist()):
            labels = {name: row[name] or "" for name in names}
            number = self._numbers.setdefault(tuple(labels.values()), len(self._numbers))
            self.labels[number] = labels
            numbers[code] = number
        return pa.array(numbers[codes])


def _renumber(codes: I64, size: int) -> tuple[I64, int]:
    """Codes below `size` as numbers without gaps, in the same order, and how many there are.

    >>> _renumber(np.array([7, 2, 7]), 9)
    (array([1, 0, 1]), 2)
    """
    if size > _MOST_CODES:
        known, codes = np.unique(codes, return_inverse=True)
        return codes, len(known)
    occurs = np.zeros(size, np.int64)
    occurs[codes] = 1
    return np.cumsum(occurs)[codes] - 1, int(occurs.sum())
