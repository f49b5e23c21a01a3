"""The page of duplicate clusters: what it shows, and how it becomes HTML.

As with the report, nothing here may hold a time, a host or a worker count: the page is a pure
function of published tables. Texts may be hostile; the templates escape.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline import layout
from pipeline.core.words import pluralise
from pipeline.provenance.cluster_summary import (
    Cluster,
    ClusterSummary,
    Matrix,
    SimilarityBin,
    SizeBin,
)
from pipeline.provenance.side_by_side import Piece
from pipeline.report.charts import ChartColumn, ColumnChart, chart
from pipeline.report.model import Sample
from pipeline.report.page import parts_of, render_page, size_label

__all__ = ["ClusterExcerpt", "ClusterPage", "MemberExcerpt", "SourceShare", "render"]

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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class ClusterPage:
    """Everything that `render` shows. `recipe` is empty when nothing was compared."""

    config_name: str
    manifest_hash: str
    recipe: str = ""
    bands: int = 0
    summary: ClusterSummary = field(default_factory=ClusterSummary)
    shares: tuple[SourceShare, ...] = ()
    clusters: tuple[ClusterExcerpt, ...] = ()


def render(page: ClusterPage) -> bytes:
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
