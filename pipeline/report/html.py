"""The pages of a report: report.html and the page of duplicate clusters.

Renders a `Report` as one HTML file: no scripts, no requests, the same bytes every time.

Every value passes two guards on its way into the page: control, format and other invisible
characters are spelled out (`\\x1b`, `\\u202e`), then the text is HTML-escaped. Charts are inline
SVG computed here with fixed precision, coloured by style rules so that they follow dark mode.

The page of duplicate clusters: what it shows, and how it becomes HTML.

As with the report, nothing here may hold a time, a host or a worker count: the page is a pure
function of published tables. Texts may be hostile; the templates escape.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.core.words import pluralise
from pipeline.report import page
from pipeline.report.cluster_summary import Cluster, ClusterSummary, Matrix, SimilarityBin, SizeBin
from pipeline.report.model import Bin, RecordLedger, Report, Sample, SourceRow
from pipeline.report.page import (
    BarPart,
    ChartColumn,
    ColumnChart,
    chart,
    format_power,
    parts_of,
    render_page,
    size_label,
)
from pipeline.report.side_by_side import Piece
from pipeline.runs import layout

_SHOWN_SOURCES = 60
_STATES = {
    "kept": "kept",
    "duplicates": "duplicates",
    "dropped": "dropped",
    "quarantined": "quarantined",
    "bad": "bad records",
}


def render_report(report: Report) -> bytes:
    """The HTML page of `report` in UTF-8; a pure function of it."""
    total = report.ledger.total()
    dropped = {reason: count for reason, count in total.dropped.items() if count}
    return render_page(
        "report.html.j2",
        report=report,
        floor=page.FLOOR,
        total=total,
        rows=_shown(report.ledger),
        segments=_segments,
        drop_reasons=sorted(dropped, key=lambda reason: (-dropped[reason], reason)),
        imbalances=[row.source for row in (*report.ledger.sources, total) if not _balances(row)],
        clusters=report.clusters,
        cluster_bars=_cluster_bars(report.clusters.sizes),
        cluster_page=layout.CLUSTER_REPORT,
        mixture_tokens=sum(row.stream_tokens for row in report.mixture),
        kinds=parts_of(report.clusters.kinds),
        bytes_chart=_histogram(report.document_bytes, "bytes"),
        tokens_chart=_histogram(report.document_tokens, "tokens"),
    )


def _balances(row: SourceRow) -> bool:
    return row.documents == row.dropped_total + row.quarantined + row.duplicates + row.kept


def _shown(ledger: RecordLedger) -> list[SourceRow]:
    """The sources with most records, the rest summed up in one row."""
    rows = sorted(ledger.sources, key=lambda row: (-row.records, row.source))
    if len(rows) <= _SHOWN_SOURCES:
        return rows
    rest = rows[_SHOWN_SOURCES - 1 :]
    summed = RecordLedger(tuple(rest)).total()
    summed = SourceRow(**{**vars(summed), "source": pluralise(len(rest), "smaller source")})
    return [*rows[: _SHOWN_SOURCES - 1], summed]


def _segments(row: SourceRow) -> list[BarPart]:
    """The terminal states of a source as parts of a bar, empty ones left out."""
    counts = {state: getattr(row, state) for state in _STATES} | {"dropped": row.dropped_total}
    return parts_of(counts, _STATES)


def _cluster_bars(sizes: Sequence[SizeBin]) -> list[tuple[str, int, str]]:
    """(label, clusters, bar length in percent) of the sizes that occur."""
    top = max((size.clusters for size in sizes), default=1)
    return [
        (size_label(s), s.clusters, f"{100 * s.clusters / top:.2f}") for s in sizes if s.clusters
    ]


def _histogram(bins: Sequence[Bin], unit: str) -> ColumnChart | None:
    """Documents by length, the kept ones set apart."""
    return chart(
        [
            ChartColumn(
                format_power(b.low),
                f"{b.low:,} to {b.high - 1:,} {unit}: {pluralise(b.count, 'document')}, "
                f"{b.kept:,} kept",
                b.count,
                b.kept,
            )
            for b in bins
        ]
    )


_SHOWN_SHARES = 40

KINDS = {
    "exact": "exact: the same normalised text",
    "near": "near: much of the text is the same",
    "key": "key: the same key",
    "chain": "chain: linked through other documents, not verified",
}


@dataclass(frozen=True)
class SourceShare:
    """How many of the documents of a source that reached dedup went as duplicates."""

    source: str
    compared: int
    duplicates: int


@dataclass(frozen=True, kw_only=True)
class MemberExcerpt:
    """A document of a cluster beside the kept one: the passages around their first difference.

    Both are empty when the texts are equal (`equal`) or the kept text is not in this run.
    """

    sample: Sample
    kind: str
    state: str
    bands: tuple[int, ...]
    estimate: float | None
    jaccard: float | None
    equal: bool = False
    kept_passage: tuple[Piece, ...] = ()
    passage: tuple[Piece, ...] = ()


@dataclass(frozen=True)
class ClusterExcerpt:
    """A cluster, its kept document (None: it stands in an earlier index) and some members. The
    state of the kept one is another than `kept` when a rule of the policy took the whole cluster.
    """

    cluster: Cluster
    kept: Sample | None
    kept_state: str
    members: tuple[MemberExcerpt, ...]


@dataclass(frozen=True, kw_only=True)
class ClusterPage:
    """Everything that `render_clusters` shows. `recipe` is empty when nothing was compared."""

    config_name: str
    manifest_hash: str
    recipe: str = ""
    bands: int = 0
    summary: ClusterSummary = field(default_factory=ClusterSummary)
    shares: tuple[SourceShare, ...] = ()
    clusters: tuple[ClusterExcerpt, ...] = ()


def render_clusters(page: ClusterPage) -> bytes:
    """The HTML page in UTF-8; a pure function of `page`."""
    shares = sorted(
        (share for share in page.shares if share.duplicates),
        key=lambda share: (-share.duplicates / share.compared, -share.duplicates, share.source),
    )
    return render_page(
        "clusters.html.j2",
        page=page,
        summary=page.summary,
        report_page=layout.REPORT,
        compared=sum(share.compared for share in page.shares),
        duplicates=sum(share.duplicates for share in page.shares),
        largest=max((c.cluster.size for c in page.clusters), default=0),
        kinds=parts_of(page.summary.kinds, KINDS),
        sizes=_size_chart(page.summary.sizes),
        similarities=_similarity_chart(page.summary.similarities),
        heat=_heat(page.summary.matrix),
        shares=shares[:_SHOWN_SHARES],
        more_shares=len(shares[_SHOWN_SHARES:]),
    )


def _size_chart(sizes: Sequence[SizeBin]) -> ColumnChart | None:
    columns = [
        ChartColumn(
            label, f"{label} documents: {pluralise(s.clusters, 'cluster')}", s.clusters, s.clusters
        )
        for s in sizes
        for label in (size_label(s),)
    ]
    return chart(columns)


def _similarity_chart(bins: Sequence[SimilarityBin]) -> ColumnChart | None:
    return chart([_similarity_column(b) for b in bins])


def _similarity_column(b: SimilarityBin) -> ChartColumn:
    range_ = "1" if b.low == b.high else f"{b.low:.2f} to {b.high:.2f}"
    title = f"{range_}: {b.exact:,} exact" + f", {b.estimated:,} estimated" * bool(b.estimated)
    label = "1" if b.low == b.high else f"{b.low:.2f}"
    return ChartColumn(label, title, b.exact + b.estimated, b.exact)


def _heat(matrix: Matrix) -> list[list[tuple[int, str]]]:
    """(count, opacity of the cell) by row; a cell is as dark as its share of the row."""
    return [
        [(count, f"{0.08 + 0.72 * count / max(1, sum(row)):.3f}") for count in row]
        for row in matrix.counts
    ]
