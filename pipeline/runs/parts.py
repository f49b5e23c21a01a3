"""Tables at the top of a run: directories of parquet files with the same columns, one after the
other.

`documents.parquet/` holds 000000.parquet, 000001.parquet and so on; pyarrow, polars and pandas read
the directory by its name, DuckDB its files by a glob. Each part holds what some clean tasks that
follow one another made, so that no task, and no reader that goes part by part, grows with the run.
In a run that an earlier version made the table is one file.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64
from pipeline.core.errors import IntegrityError
from pipeline.core.mirror.fetching import fetch
from pipeline.runs.layout import shard

RECORDS = 1 << 18
"""A part ends with the clean task that brings it to so many records,"""
TASKS = 16
"""or that is the last of so many: what a task reads stays few files."""
RECORD_MEMORY = 1 << 10
"""Bytes that a task takes at most for each record of its part (docs/benchmarks.md)."""


def part(table: str, index: int) -> str:
    """The path of a part.

    >>> part("documents.parquet", 3)
    'documents.parquet/000003.parquet'
    """
    return shard(table, index, "parquet")


def group_tasks(records: Sequence[int]) -> list[range]:
    """The clean tasks of each part; `records` are those of every task.

    >>> group_tasks([1, RECORDS, 5, 6])
    [range(0, 2), range(2, 4)]
    """
    groups, first, total = [], 0, 0
    for task, count in enumerate(records):
        total += count
        if total >= RECORDS or task + 1 - first == TASKS or task + 1 == len(records):
            groups.append(range(first, task + 1))
            first, total = task + 1, 0
    return groups


def list_parts(table: Path) -> list[Path]:
    """The files of a table, in order. Raises IntegrityError when there are none."""
    files = sorted(table.glob("*.parquet")) if table.is_dir() else [table]
    if not files:
        raise IntegrityError(f"{table}: no part is there; `prep verify` names all damage")
    return files


def pattern(table: Path) -> str:
    """What names the files of a table, relative to its run."""
    return f"{table.name}/*.parquet" if table.is_dir() else table.name


def read_schema(table: Path) -> pa.Schema:
    """The columns of a table. Raises IntegrityError when there is no part, OSError."""
    return pq.read_schema(fetch(list_parts(table)[0]))


@contextmanager
def wrap_read_errors(path: Path) -> Iterator[Path]:
    """A file, or a table, fetched if it is in a bucket; what goes wrong in reading it becomes an
    IntegrityError that names it."""
    try:
        for file in path.glob("*.parquet") if path.is_dir() else [path]:
            fetch(file)
        yield path
    except (OSError, pa.ArrowException) as error:
        raise IntegrityError(
            f"{path}: missing or damaged ({type(error).__name__}); `prep verify` names all damage"
        ) from error


class RowGroups:
    """The row groups of all parts of a table, numbered through. Files are open only while they are
    read. Raises IntegrityError for damage."""

    def __init__(self, table: Path, labels: Sequence[str] = ()) -> None:
        """`labels`: columns that are read as dictionaries."""
        self._labels = list(labels)
        self._groups: list[tuple[Path, pq.FileMetaData, int]] = []
        for path in list_parts(table):
            with wrap_read_errors(path):
                meta = pq.read_metadata(path)
            self.schema: pa.Schema = meta.schema.to_arrow_schema()
            self._groups += [(path, meta, group) for group in range(meta.num_row_groups)]
        sizes = [meta.row_group(group).num_rows for _, meta, group in self._groups]
        self.starts: I64 = np.cumsum([0, *sizes])
        """The row each row group begins with, and last the number of rows."""

    def __len__(self) -> int:
        return len(self._groups)

    def bounds(self, group: int, column: str) -> tuple[int, int] | None:
        """The smallest and largest value of a column of integers; None where it is not known."""
        _, meta, number = self._groups[group]
        place = self.schema.get_field_index(column)
        statistics = meta.row_group(number).column(place).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        return statistics.min, statistics.max

    def read(self, groups: Sequence[int], columns: Sequence[str] | None = None) -> pa.Table:
        """These columns of ascending row groups; by default all columns."""
        names = self.schema.names if columns is None else list(columns)
        by_path: dict[Path, tuple[pq.FileMetaData, list[int]]] = {}
        for path, meta, number in (self._groups[group] for group in groups):
            by_path.setdefault(path, (meta, []))[1].append(number)
        tables = []
        for path, (meta, numbers) in by_path.items():
            with (
                wrap_read_errors(path),
                pq.ParquetFile(
                    path, metadata=meta, memory_map=True, read_dictionary=self._labels
                ) as file,
            ):
                tables.append(file.read_row_groups(numbers, names))
        return pa.concat_tables(tables) if tables else self._empty(names)

    def take(self, rows_N: I64, columns: Sequence[str] | None = None) -> pa.Table:
        """These columns of the rows, in the order asked for; by default all columns."""
        group_N = np.searchsorted(self.starts, rows_N, side="right") - 1
        groups = np.unique(group_N)
        sizes = np.diff(self.starts)[groups]
        place = np.cumsum(sizes) - sizes
        table = self.read(groups.tolist(), columns)
        if not len(groups):
            return table
        row = place[np.searchsorted(groups, group_N)] + rows_N - self.starts[group_N]
        return table.take(pa.array(row))

    def parts(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """These columns, one row group at a time; one empty table where there is none."""
        for group in range(max(1, len(self))):
            yield self.read([group] if len(self) else [], columns)

    def _empty(self, names: Sequence[str]) -> pa.Table:
        fields = [self.schema.field(name) for name in names]
        labels = pa.dictionary(pa.int32(), pa.string())
        return pa.schema(
            [f.with_type(labels) if f.name in self._labels else f for f in fields]
        ).empty_table()


def find_rows_by_key(table: Path, column: str, keys: pa.Array) -> pa.Table:
    """All columns of the rows whose `column` is one of these keys, read one row group at a time."""
    groups = RowGroups(table)
    parts = [groups.read([])]
    for group in range(len(groups)):
        is_match = pc.is_in(groups.read([group], [column])[column], keys).to_numpy()
        if is_match.any():
            parts.append(groups.read([group]).take(np.flatnonzero(is_match)))
    return pa.concat_tables(parts)


_MERGED = 1 << 20
Sums = Mapping[str, tuple[str, str]]
"""Name of a column -> what is added up, and how: (column, function of `pa.TableGroupBy`)."""


def group_parts(parts: Iterable[pa.Table], keys: list[str], sums: Sums) -> pa.Table:
    """A table grouped by `keys` with these sums, of which one part is in memory at a time. What is
    counted as distinct is in one part only."""
    again = {
        name: (name, how if how in ("min", "max") else "sum") for name, (_, how) in sums.items()
    }
    found: list[pa.Table] = []
    for part in parts:
        found.append(_aggregate(part, keys, sums))
        if sum(map(len, found[1:])) > max(_MERGED, len(found[0])):
            found = [_aggregate(pa.concat_tables(found), keys, again)]
    return _aggregate(pa.concat_tables(found), keys, again)


def _aggregate(rows: pa.Table, keys: list[str], sums: Sums) -> pa.Table:
    columns: list[Any] = [(column or [], how) for column, how in sums.values()]
    grouped = rows.group_by(keys, use_threads=False).aggregate(columns)
    made = {n: grouped[f"{column}_{how}".lstrip("_")] for n, (column, how) in sums.items()}
    return pa.table({**{key: grouped[key] for key in keys}, **made})
