"""The pages of a report: report.html, and clusters.html with duplicate clusters.

Each is one file without scripts or requests, a pure function of published tables: nothing here may
hold a time, a host or a worker count. Texts may be hostile; `pipeline.core.page` escapes. Charts
are inline SVG with fixed precision, coloured by style rules that follow dark mode.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.core.ledger import MixtureLedger, sum_cluster_sizes
from pipeline.core.words import pluralise
from pipeline.report import page
from pipeline.report.cluster_summary import Cluster, ClusterSummary, Matrix, SimilarityBin, SizeBin
from pipeline.report.model import Bin, Report, Sample, SourceRow
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
    total = SourceRow.sum("All sources", report.sources)
    dropped = {reason: count for reason, count in total.dropped.items() if count}
    rows = sorted(report.sources, key=lambda row: (-row.records, row.label))
    sizes = [size for size in report.clusters.sizes if size.clusters]
    top = max((size.clusters for size in sizes), default=1)
    return page.render_page(
        "report.html.j2",
        report=report,
        floor=page.FLOOR,
        total=total,
        rows=SourceRow.fold(rows, _SHOWN_SOURCES),
        segments=_split_states,
        drop_reasons=sorted(dropped, key=lambda reason: (-dropped[reason], reason)),
        imbalances=[row.label for row in (*report.sources, total) if not _balances(row)],
        clusters=report.clusters,
        cluster_bars=[
            (page.size_label(s), s.clusters, f"{100 * s.clusters / top:.2f}") for s in sizes
        ],
        cluster_page=layout.CLUSTER_REPORT,
        requested=_describe_request,
        cluster_sizes=sum_cluster_sizes(report.mixture),
        mixture_of="Group" if any(row.group for row in report.mixture.values()) else "Source",
        mixture_tokens=sum(row.stream_tokens for row in report.mixture.values()),
        kinds=page.parts_of(report.clusters.kinds),
        bytes_chart=_chart_lengths(report.document_bytes, "bytes"),
        tokens_chart=_chart_lengths(report.document_tokens, "tokens"),
    )


def _balances(row: SourceRow) -> bool:
    return row.documents == row.dropped_total + row.quarantined + row.duplicates + row.kept


def _split_states(row: SourceRow) -> list[page.BarPart]:
    """The terminal states of a source as parts of a bar, empty ones left out."""
    counts = {state: getattr(row, state) for state in _STATES} | {"dropped": row.dropped_total}
    return page.parts_of(counts, _STATES)


def _describe_request(mixture: MixtureLedger) -> str:
    """What the config asks of a source: epochs, or a share of the tokens."""
    if mixture.asked_share is not None:
        return f"{mixture.asked_share:.2%}"
    return "1 epoch" if mixture.asked_epochs == 1 else f"{mixture.asked_epochs:g} epochs"


def _chart_lengths(bins: Sequence[Bin], unit: str) -> page.ColumnChart | None:
    """Documents by length, the kept ones set apart."""
    columns = []
    for b in bins:
        documents = pluralise(b.count, "document")
        title = f"{b.low:,} to {b.high - 1:,} {unit}: {documents}, {b.kept:,} kept"
        columns.append(page.ChartColumn(page.format_power(b.low), title, b.count, b.kept))
    return page.chart(columns)


_SHOWN_SHARES = 40

KINDS = {
    "exact": "exact: the same normalised text",
    "near": "near: much of the text is the same",
    "key": "key: the same key",
    "chain": "chain: linked through other documents, not verified",
    "contained": "contained: a longer document has most of it",
}


@dataclass(frozen=True)
class SourceShare:
    """How many of the documents of a source that reached dedup went as duplicates."""

    source: str
    compared: int
    duplicates: int


@dataclass(frozen=True, kw_only=True)
class MemberExcerpt:
    """A document of a cluster next to the kept one: the passages around their first difference.

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
    """A cluster, its kept document (None: it is in an earlier index) and some members. The
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


def render_clusters(report: ClusterPage) -> bytes:
    """The HTML page in UTF-8; a pure function of `report`."""
    shares = sorted(
        (share for share in report.shares if share.duplicates),
        key=lambda share: (-share.duplicates / share.compared, -share.duplicates, share.source),
    )
    return page.render_page(
        "clusters.html.j2",
        page=report,
        summary=report.summary,
        report_page=layout.REPORT,
        compared=sum(share.compared for share in report.shares),
        duplicates=sum(share.duplicates for share in report.shares),
        largest=max((c.cluster.size for c in report.clusters), default=0),
        kinds=page.parts_of(report.summary.kinds, KINDS),
        sizes=_chart_sizes(report.summary.sizes),
        similarities=_chart_similarities(report.summary.similarities),
        heat=_shade_matrix(report.summary.matrix),
        shares=shares[:_SHOWN_SHARES],
        more_shares=len(shares[_SHOWN_SHARES:]),
    )


def _chart_sizes(sizes: Sequence[SizeBin]) -> page.ColumnChart | None:
    columns = []
    for s in sizes:
        title = f"{page.size_label(s)} documents: {pluralise(s.clusters, 'cluster')}"
        columns.append(page.ChartColumn(page.size_label(s), title, s.clusters, s.clusters))
    return page.chart(columns)


def _chart_similarities(bins: Sequence[SimilarityBin]) -> page.ColumnChart | None:
    columns = []
    for b in bins:
        label = "1" if b.low == b.high else f"{b.low:.2f}"
        values = label if b.low == b.high else f"{label} to {b.high:.2f}"
        title = f"{values}: {b.exact:,} exact" + f", {b.estimated:,} estimated" * bool(b.estimated)
        columns.append(page.ChartColumn(label, title, b.exact + b.estimated, b.exact))
    return page.chart(columns)


def _shade_matrix(matrix: Matrix) -> list[list[tuple[int, str]]]:
    """(count, opacity of the cell) by row; a cell is as dark as its share of the row."""
    return [
        [(count, f"{0.08 + 0.72 * count / max(1, sum(row)):.3f}") for count in row]
        for row in matrix.counts
    ]
