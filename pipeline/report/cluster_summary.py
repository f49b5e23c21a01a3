"""What clusters look like as a whole: kinds, sizes, similarities, and who duplicates whom.

Pure functions of the table that `cluster_table.with_sources` makes. A cluster is a kept document
and all the documents it stands for; its size counts both. Everything is grouped by Arrow, so the
cost per document is that of a hash table and the results are small.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core import ids

DUPLICATE = "duplicate"
_CLUSTER = ["index", "kept"]
_SHOWN_SOURCES = 12
_FINE, _COARSE = 50, 20  # histogram bins over [0, 1)
_FINE_FROM = 0.6


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


def summarize(clusters: pa.Table) -> ClusterSummary:
    """The summary of all rows of the table."""
    sizes = clusters.group_by(_CLUSTER, use_threads=False).aggregate([("member", "count")])
    similarities, not_computed = _count_similarities(clusters)
    return ClusterSummary(
        clusters=len(sizes),
        documents=len(clusters),
        kinds=_count_values(clusters, "kind"),
        states=_count_values(clusters, "member_state"),
        sizes=_count_sizes(sizes["member_count"].to_numpy() + 1),
        similarities=similarities,
        not_computed=not_computed,
        matrix=_count_matrix(clusters),
    )


def select_largest(clusters: pa.Table, top: int) -> list[Cluster]:
    """The `top` clusters with most documents; equal ones by index, then key."""
    estimated = pc.if_else(pc.is_null(clusters["jaccard"]), clusters["estimate"], None)
    clusters = clusters.set_column(clusters.column_names.index("estimate"), "estimate", estimated)
    grouped = clusters.group_by(_CLUSTER, use_threads=False).aggregate(
        [("member", "count"), ("jaccard", "min"), ("estimate", "min")]
    )
    order = [("member_count", "descending"), ("index", "ascending"), ("kept", "ascending")]
    rows = grouped.sort_by(order).slice(0, top).to_pylist()
    kept_keys = pa.array([row["kept"] for row in rows], pa.binary(ids.KEY_BYTES))
    all_members = clusters.filter(pc.is_in(clusters["kept"], kept_keys))
    largest = []
    for row in rows:
        members = of_cluster(all_members, row["index"], row["kept"])
        cluster = Cluster(
            kept=row["kept"].hex(),
            index=row["index"],
            size=row["member_count"] + 1,
            kinds=_count_values(members, "kind"),
            sources=_count_values(members, "source"),
            lowest_jaccard=row["jaccard_min"],
            lowest_estimate=row["estimate_min"],
        )
        largest.append(cluster)
    return largest


def of_cluster(clusters: pa.Table, index: str, kept_key: bytes) -> pa.Table:
    """The rows of one cluster, the least similar first, those without a similarity last."""
    same = pc.equal(clusters["kept"], pa.scalar(kept_key, pa.binary(ids.KEY_BYTES)))
    rows = clusters.filter(pc.and_(same, pc.equal(clusters["index"], index)))
    return rows.sort_by([("similarity", "ascending"), ("member", "ascending")])


def _count_values(table: pa.Table, column: str) -> dict[str, int]:
    """Rows by value, by falling count, then by value."""
    counts = pc.value_counts(table[column].cast(pa.string())).to_pylist()
    pairs = [(str(entry["values"]), int(entry["counts"])) for entry in counts]
    return dict(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))


def _count_sizes(sizes: npt.NDArray[np.int64]) -> tuple[SizeBin, ...]:
    """Sizes 2, 3, 4, 5-8, 9-16, ..., without empty ends.

    >>> _count_sizes(np.array([2, 2, 7]))
    (SizeBin(low=2, high=2, clusters=2), SizeBin(low=3, high=3, clusters=0), \
SizeBin(low=4, high=4, clusters=0), SizeBin(low=5, high=8, clusters=1))
    """
    bins = np.where(sizes <= 4, sizes - 2, np.frexp(np.maximum(sizes - 1, 1))[1])
    counts = np.bincount(bins).tolist()
    small = [SizeBin(n + 2, n + 2, count) for n, count in enumerate(counts[:3])]
    return (*small, *(SizeBin((1 << n - 1) + 1, 1 << n, c) for n, c in enumerate(counts[3:], 3)))


def _count_similarities(clusters: pa.Table) -> tuple[tuple[SimilarityBin, ...], int]:
    """Bins from the smallest value to 1, and how many documents have no similarity."""
    exact = clusters["jaccard"].drop_null().to_numpy()
    rest = clusters.filter(pc.is_null(clusters["jaccard"]))["estimate"].drop_null().to_numpy()
    both = np.concatenate([exact, rest])
    if len(both) == 0:
        return (), len(clusters)
    bins = _FINE if both.min() >= _FINE_FROM else _COARSE
    counts = [
        np.bincount(np.floor(values * bins + 1e-9).astype(np.int64), minlength=bins + 1)
        for values in (exact, rest)
    ]
    first = int(np.flatnonzero(counts[0] + counts[1])[0])
    counted_bins = (
        SimilarityBin(k / bins, min(k + 1, bins) / bins, int(counts[0][k]), int(counts[1][k]))
        for k in range(first, bins + 1)
    )
    return tuple(counted_bins), len(clusters) - len(both)


def _count_matrix(clusters: pa.Table) -> Matrix:
    """Duplicates by source and place; beyond the largest, sources and columns are summed up."""
    duplicates = clusters.filter(pc.equal(clusters["member_state"], DUPLICATE))
    keys = ["source", "kept_source", "index"]
    grouped = duplicates.group_by(keys, use_threads=False).aggregate([("member", "count")])
    cells: Counter[tuple[str, MatrixColumn]] = Counter()
    by_row: Counter[str] = Counter()
    by_column: Counter[MatrixColumn] = Counter()
    for row in grouped.to_pylist():
        source, column = row["source"], MatrixColumn(row["kept_source"] or "", row["index"])
        cells[source, column] += row["member_count"]
        by_row[source] += row["member_count"]
        by_column[column] += row["member_count"]
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
    for (source, column), count in cells.items():
        sums[min(ranks[source], most - 1), column_of[column]] += count
    return Matrix(
        tuple(rows[:most]),
        tuple(columns[:most]),
        tuple(map(tuple, sums.tolist())),
        len(rows) - most + 1 if len(rows) > most else 0,
        len(columns) - most + 1 if len(columns) > most else 0,
    )
