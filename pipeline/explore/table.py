"""The documents of a run with their signals as one table of DuckDB, for filters, counts and
histograms.

The table is made when the explorer starts, in a file of its own that goes when it ends. A page of a
list begins behind a row, so no page costs more than the columns that its filters name. DuckDB is
refused everything outside this file, because an expression comes from an address.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from dedup.arrays import U32
from pipeline.explore.conditions import ListFilters, quote
from pipeline.explore.loading import COMBINATION, ENDS, TABLE, bin_column, load_table
from pipeline.runs.records import DocumentTable

_REMEMBERED, _REMEMBERED_HITS = 256, 4
"""Counts; those of hits keep the hits, which take megabytes."""
_FEW_HITS = 1 << 16
"""Hits that are looked up; more are a column next to the table."""
_IS_HIT = quote("is a hit")
_LISTED = ", ".join(
    (
        "row, doc_key, path_id, line, byte_offset, representative is not null as live",
        *map(quote, ENDS),
    )
)
_FIRST_PASSED = 1 << 6


@dataclass(frozen=True)
class Count:
    """A value of a label and how many documents have it."""

    value: str
    documents: int


@dataclass(frozen=True, eq=False)
class Hits:
    """Rows of a table of so many `documents` in which words can be, (N,) ascending."""

    rows: U32
    documents: int

    @property
    def are_few(self) -> bool:
        """Whether they are looked up in the table."""
        return len(self.rows) <= _FEW_HITS

    @cached_property
    def table(self) -> pa.Table:
        """The rows; of many, for each document whether it is one."""
        if self.are_few:
            return pa.table({"row": self.rows})
        mask = np.zeros(self.documents, np.bool_)
        mask[self.rows] = True
        return pa.table({"is a hit": mask})


class RunTable:
    """The documents of a run for filters, in the table TABLE of a `connection`; `about`: what is in
    it."""

    def __init__(self, directory: Path, table: DocumentTable) -> None:
        import duckdb

        self._folder = TemporaryDirectory(prefix="wafermill-explore-")
        self.connection: Any = duckdb.connect(f"{self._folder.name}/documents.duckdb")
        # A third less time to write it, half of it for every count, and half as much disk again.
        self.connection.execute("set force_compression = 'uncompressed'")
        self.files, self._documents = table.files, len(table)
        self.about = load_table(self.connection, directory)
        self.connection.execute("set enable_external_access = false")
        self.connection.execute("set lock_configuration = true")
        self._count_any = lru_cache(_REMEMBERED)(self._count)
        self._count_hits = lru_cache(_REMEMBERED_HITS)(self._count)
        self._all = self._count(ListFilters(), None, None)[0]

    def close(self) -> None:
        """Delete the table."""
        self.connection.close()
        self._folder.cleanup()

    def list_page(
        self, filters: ListFilters, most: int, after: int, before: int | None
    ) -> list[dict[str, Any]]:
        """The first documents behind row `after`, or the last ones ahead of row `before`, that
        these filters let pass, ascending; one more than `most` where there are more."""
        limits, order = _beyond(after, before)
        rows = self._select(_LISTED, filters, None, limits, f"{order} limit {most + 1}")
        return rows if before is None else rows[::-1]

    def pass_hits(
        self, filters: ListFilters, hits: Hits, after: int, before: int | None
    ) -> Iterator[U32]:
        """The hits behind row `after`, ascending, or ahead of row `before`, descending, that the
        filters let pass: some at first, then more and more."""
        most = _FIRST_PASSED
        while True:
            passed = self._pass_some(filters, hits, after, before, most)
            yield passed
            if len(passed) < most:
                return
            last = int(passed[-1])
            after, before = (last, None) if before is None else (after, last)
            most *= 2

    def _pass_some(
        self, filters: ListFilters, hits: Hits, after: int, before: int | None, most: int
    ) -> U32:
        if filters != ListFilters():
            limits, order = _beyond(after, before)
            rows = self._select("row", filters, hits, limits, f"{order} limit {most}")
            return np.array([row["row"] for row in rows], np.uint32)
        # Of the type of the array: else all of it would be converted.
        if before is not None:
            stop = int(np.searchsorted(hits.rows, np.uint32(before)))
            return hits.rows[max(0, stop - most) : stop][::-1]
        first = int(np.searchsorted(hits.rows, np.uint32(after + 1)))
        return hits.rows[first : first + most]

    def describe(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """What a list shows of these rows, which ascend."""
        hits = Hits(np.array(rows, np.uint32), self._documents)
        return self._select(_LISTED, ListFilters(), hits, (), "order by row")

    def count_facets(
        self, filters: ListFilters, hits: Hits | None, column: str | None = None
    ) -> dict[str, list[Count]]:
        """How many documents that the filters let pass have each label. `column`: one of which the
        histogram under these filters is asked for, too."""
        is_by_labels = hits is None and _is_by_labels(filters)
        counted = self._all if is_by_labels else self._count_once(filters, hits, column)[0]
        counts: dict[str, dict[str, int]] = {name: {} for name in self.about.facets}
        for number, documents in counted.items():
            labels = self.about.combinations[number]
            if not is_by_labels or all(labels[name] in values for name, values in filters.labels):
                for name, value in labels.items():
                    counts[name][value] = counts[name].get(value, 0) + documents
        return {name: _sort(of_value) for name, of_value in counts.items()}

    def count_bins(self, filters: ListFilters, hits: Hits | None, column: str) -> list[int]:
        """How many documents that the filters let pass are in each bin of a column."""
        counts = self._count_once(filters, hits, column)[1]
        edges, _ = self.about.bins[column]
        return [counts.get(number, 0) for number in range(1, len(edges))]

    def _count_once(
        self, filters: ListFilters, hits: Hits | None, column: str | None
    ) -> tuple[Counter[int], Counter[int]]:
        count = self._count_any if hits is None else self._count_hits
        return count(filters, hits, column)

    def _count(
        self, filters: ListFilters, hits: Hits | None, column: str | None
    ) -> tuple[Counter[int], Counter[int]]:
        """How many documents have each combination of labels, and how many are in each bin of the
        column, in one pass; only one of both where nothing else is needed."""
        columns = [] if column and hits is None and _is_by_labels(filters) else [COMBINATION]
        columns += [f"{bin_column(column)} as bin"] if column else []
        sql = f"{', '.join(columns)}, count(*) as n"
        by_combination, by_bin = Counter[int](), Counter[int]()
        for row in self._select(sql, filters, hits, (), "group by all"):
            by_combination[row.get(COMBINATION, 0)] += row["n"]
            by_bin[row.get("bin") or 0] += row["n"]
        return by_combination, by_bin

    def _select(
        self,
        columns: str,
        filters: ListFilters,
        hits: Hits | None,
        limits: tuple[str, int] | tuple[()],
        rest: str,
    ) -> list[dict[str, Any]]:
        where, source = filters.conditions(self.about.schema), TABLE
        if limits:
            where.add(*limits)
        if hits is not None and hits.are_few:
            where.add("row in (select row from hits)")
        elif hits is not None:
            where.add(_IS_HIT)
            source = f"{TABLE} positional join hits"
        cursor = self.connection.cursor()
        try:
            if hits is not None:
                cursor.register("hits", hits.table)
            return where.run(cursor, f"select {columns} from {source} where {where.sql} {rest}")
        finally:
            cursor.close()


def _is_by_labels(filters: ListFilters) -> bool:
    """Whether labels alone decide what passes: all counts of labels are known then."""
    return not filters.ranges and not filters.where


def _beyond(after: int, before: int | None) -> tuple[tuple[str, int], str]:
    """The rows that come next, and their order."""
    if before is not None:
        return ("row < ?", before), "order by row desc"
    return ("row > ?", after), "order by row"


def _sort(counts: dict[str, int]) -> list[Count]:
    return [Count(v, n) for v, n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
