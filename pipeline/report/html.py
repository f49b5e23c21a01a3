"""Renders a `Report` as one HTML file: no scripts, no requests, the same bytes every time.

Every value passes two guards on its way into the page: control, format and other invisible
characters are spelled out (`\\x1b`, `\\u202e`), then the text is HTML-escaped. Charts are inline
SVG computed here with fixed precision, coloured by style rules so that they follow dark mode.
"""

from collections.abc import Sequence

from pipeline import layout
from pipeline.core.words import pluralise
from pipeline.provenance import wording
from pipeline.provenance.cluster_summary import SizeBin
from pipeline.report.charts import ChartColumn, ColumnChart, chart, format_power
from pipeline.report.model import Bin, RecordLedger, Report, SourceRow
from pipeline.report.page import BarPart, parts_of, render_page, size_label

__all__ = ["render"]

_SHOWN_SOURCES = 60
_STATES = {"kept": "kept", "duplicates": "duplicates", "dropped": "dropped",
           "quarantined": "quarantined", "bad": "bad records"}  # fmt: skip


def render(report: Report) -> bytes:
    """The HTML page of `report` in UTF-8; a pure function of it."""
    total = report.ledger.total()
    dropped = {reason: count for reason, count in total.dropped.items() if count}
    return render_page(
        "report.html.j2",
        report=report,
        floor=wording.FLOOR,
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
