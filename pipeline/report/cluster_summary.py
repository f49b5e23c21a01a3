"""What clusters look like as a whole: kinds, sizes, similarities, and who duplicates whom.

Pure functions of parts of clusters.parquet. A cluster is a kept document and all the documents it
stands for; its size counts both. Everything is grouped by Arrow, so the cost per document is that
of a hash table and the results are small.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64
from pipeline.core import ids

DUPLICATE = "duplicate"
_CLUSTER = ["index", "kept"]
_SHOWN_SOURCES = 12
_FINEST, _FINE, _COARSE = 100, 50, 20  # histogram bins over [0, 1): counted, and shown
_FINE_FROM = 60


@dataclass(frozen=True)
class SizeBin:
    """How many clusters hold from `low` to `high` documents."""

    low: int
    high: int
    clusters: int


@dataclass(frozen=True)
class SimilarityBin:
    """Documents whose Jaccard similarity to the kept one is in [low, high), or is 1 when both are:
    by exact similarity, and by estimate where that was not computed."""

    low: float
    high: float
    exact: int
    estimated: int


@dataclass(frozen=True)
class MatrixColumn:
    """Where kept documents stand: a source of this run, or an earlier index."""

    source: str
    index: str = ""


@dataclass(frozen=True)
class Matrix:
    """Duplicates by their own source (rows) and by where the kept document stands (columns).

    `rest_rows` and `rest_columns` say how many smaller ones the last row and column sum up (0: it
    stands for itself).
    """

    rows: tuple[str, ...] = ()
    columns: tuple[MatrixColumn, ...] = ()
    counts: tuple[tuple[int, ...], ...] = ()
    rest_rows: int = 0
    rest_columns: int = 0

    @property
    def total(self) -> int:
        """All duplicates."""
        return sum(map(sum, self.counts))


@dataclass(frozen=True, kw_only=True)
class ClusterSummary:
    """The whole table in numbers; documents by kind and by state, the largest count first."""

    clusters: int = 0
    documents: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    states: dict[str, int] = field(default_factory=dict)
    sizes: tuple[SizeBin, ...] = ()
    similarities: tuple[SimilarityBin, ...] = ()
    not_computed: int = 0
    matrix: Matrix = Matrix()


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """One cluster; the lowest exact similarity to the kept document, and the lowest estimate where
    no exact one was computed (None: there is none)."""

    kept: str
    index: str
    size: int
    kinds: dict[str, int]
    sources: dict[str, int]
    lowest_jaccard: float | None
    lowest_estimate: float | None

    @property
    def lowest(self) -> tuple[float | None, bool]:
        """The lower of the two, and whether it is the estimate."""
        both = ((self.lowest_jaccard, False), (self.lowest_estimate, True))
        return min(((v, e) for v, e in both if v is not None), default=(None, False))


class ClusterCounts:
    """Adds up clusters.parquet, part after part, and notes its `top` largest clusters with their
    first `shown` members."""

    def __init__(self, top: int, shown: int = 0) -> None:
        self._top, self._shown = top, shown
        self.rows = self._clusters = 0
        self._kinds: Counter[str] = Counter()
        self._states: Counter[str] = Counter()
        self._sizes: Counter[int] = Counter()
        self._similarities = np.zeros((2, _FINEST + 1), np.int64)  # exact, estimated
        self._cells: Counter[tuple[str, MatrixColumn]] = Counter()
        self.largest: list[tuple[Cluster, list[dict[str, Any]]]] = []
        """Those with most documents, and their least similar members; equal ones by index, then
        key."""

    def add(self, clusters: pa.Table) -> None:
        """Rows of the table, with all members of each cluster that they name."""
        self.rows += len(clusters)
        self._kinds.update(count_values(clusters, "kind"))
        self._states.update(count_values(clusters, "member_state"))
        estimate = pc.if_else(pc.is_null(clusters["jaccard"]), clusters["estimate"], None)
        for number, column in enumerate((clusters["jaccard"], estimate)):
            hundredths = np.floor(column.drop_null().to_numpy() * _FINEST + 1e-9).astype(np.int64)
            self._similarities[number] += np.bincount(hundredths, minlength=_FINEST + 1)
        self._add_matrix(clusters)
        self._add_clusters(clusters.append_column("estimate_alone", estimate))

    def _add_matrix(self, clusters: pa.Table) -> None:
        duplicates = clusters.filter(pc.equal(clusters["member_state"], DUPLICATE))
        keys = ["source", "kept_source", "index"]
        grouped = duplicates.group_by(keys, use_threads=False).aggregate([("member", "count")])
        for row in grouped.to_pylist():
            column = MatrixColumn("" if row["index"] else row["kept_source"], row["index"])
            self._cells[row["source"], column] += row["member_count"]

    def _add_clusters(self, clusters: pa.Table) -> None:
        grouped = clusters.group_by(_CLUSTER, use_threads=False).aggregate(
            [("member", "count"), ("jaccard", "min"), ("estimate_alone", "min")]
        )
        self._clusters += len(grouped)
        self._sizes.update(_bin_sizes(grouped["member_count"].to_numpy() + 1).tolist())
        order = [("member_count", "descending"), ("index", "ascending"), ("kept", "ascending")]
        found = [*self.largest]
        for row in grouped.sort_by(order).slice(0, self._top).to_pylist():
            if self.largest[self._top - 1 :] and row["member_count"] < self.largest[-1][0].size - 1:
                break
            members = of_cluster(clusters, row["index"], row["kept"])
            cluster = Cluster(
                kept=row["kept"].hex(),
                index=row["index"],
                size=row["member_count"] + 1,
                kinds=count_values(members, "kind"),
                sources=count_values(members, "source"),
                lowest_jaccard=row["jaccard_min"],
                lowest_estimate=row["estimate_alone_min"],
            )
            found.append((cluster, members.slice(0, self._shown).to_pylist()))
        found.sort(key=lambda pair: (-pair[0].size, pair[0].index, pair[0].kept))
        self.largest = found[: self._top]

    def summarize(self) -> ClusterSummary:
        """The numbers of all rows that were added."""
        return ClusterSummary(
            clusters=self._clusters,
            documents=self.rows,
            kinds=_sort_counts(self._kinds),
            states=_sort_counts(self._states),
            sizes=_make_size_bins(self._sizes),
            similarities=_make_similarity_bins(self._similarities),
            not_computed=self.rows - int(self._similarities.sum()),
            matrix=_make_matrix(self._cells),
        )


def of_cluster(clusters: pa.Table, index: str, kept_key: bytes) -> pa.Table:
    """The rows of one cluster, the least similar first, those without a similarity last; by the
    exact Jaccard similarity where it was computed, else by the estimate."""
    same = pc.equal(clusters["kept"], pa.scalar(kept_key, pa.binary(ids.KEY_BYTES)))
    rows = clusters.filter(pc.and_(same, pc.equal(clusters["index"], index)))
    similarity = pc.coalesce(rows["jaccard"], rows["estimate"])
    ranked = pa.table({"similarity": similarity, "member": rows["member"]})
    order = [("similarity", "ascending"), ("member", "ascending")]
    return rows.take(pc.sort_indices(ranked, order))


def count_values(table: pa.Table, column: str) -> dict[str, int]:
    """Rows by value; the largest count first, then by value."""
    counts = pc.value_counts(table[column]).to_pylist()
    return _sort_counts({str(entry["values"]): int(entry["counts"]) for entry in counts})


def _sort_counts(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def _bin_sizes(sizes: I64) -> I64:
    """The number of the bin of each size; see `_make_size_bins`."""
    return np.where(sizes <= 4, sizes - 2, np.frexp(np.maximum(sizes - 1, 1))[1])


def _make_size_bins(counts: Mapping[int, int]) -> tuple[SizeBin, ...]:
    """Sizes 2, 3, 4, 5-8, 9-16, ..., without empty ends, from clusters by number of the bin.

    >>> _make_size_bins(Counter(_bin_sizes(np.array([2, 2, 7])).tolist()))
    (SizeBin(low=2, high=2, clusters=2), SizeBin(low=3, high=3, clusters=0), \
SizeBin(low=4, high=4, clusters=0), SizeBin(low=5, high=8, clusters=1))
    """
    edges = ((n + 2, n + 2) if n < 3 else ((1 << n - 1) + 1, 1 << n) for n in count())
    bins = range(max(counts, default=-1) + 1)
    return tuple(SizeBin(*edge, counts.get(n, 0)) for n, edge in zip(bins, edges, strict=False))


def _make_similarity_bins(hundredths: I64) -> tuple[SimilarityBin, ...]:
    """Bins from the smallest value to 1, from documents by the hundredths of their similarity."""
    present = np.flatnonzero(hundredths.sum(axis=0))
    if not len(present):
        return ()
    bins = _FINE if present[0] >= _FINE_FROM else _COARSE
    starts = np.arange(0, _FINEST + 1, _FINEST // bins)
    exact, estimated = np.add.reduceat(hundredths, starts, axis=1).tolist()
    return tuple(
        SimilarityBin(k / bins, min(k + 1, bins) / bins, exact[k], estimated[k])
        for k in range(present[0] * bins // _FINEST, bins + 1)
    )


def _make_matrix(cells: Mapping[tuple[str, MatrixColumn], int]) -> Matrix:
    """Duplicates by source and place; beyond the largest, sources and columns are summed up."""
    by_row: Counter[str] = Counter()
    by_column: Counter[MatrixColumn] = Counter()
    for (source, column), duplicates in cells.items():
        by_row[source] += duplicates
        by_column[column] += duplicates
    most = _SHOWN_SOURCES
    rows = sorted(by_row, key=lambda source: (-by_row[source], source))
    columns = sorted(by_column, key=lambda c: (-by_column[c], c.index, c.source))
    # Sources are in the same order in rows and columns; indexes come behind them.
    ranks = {source: rank for rank, source in enumerate(rows)}
    fit = most if len(columns) <= most else most - 1
    columns[:fit] = sorted(
        columns[:fit], key=lambda c: (c.index, ranks.get(c.source, len(ranks)), c.source)
    )
    sums = np.zeros((min(len(rows), most), min(len(columns), most)), np.int64)
    column_of = {column: min(place, most - 1) for place, column in enumerate(columns)}
    for (source, column), duplicates in cells.items():
        sums[min(ranks[source], most - 1), column_of[column]] += duplicates
    return Matrix(
        tuple(rows[:most]),
        tuple(columns[:most]),
        tuple(map(tuple, sums.tolist())),
        len(rows) - most + 1 if len(rows) > most else 0,
        len(columns) - most + 1 if len(columns) > most else 0,
    )
