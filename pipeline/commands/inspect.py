"""`prep inspect` on the terminal: totals, bars, the matrix of sources, clusters and their members;
with --dropped, the records that left for one reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.commands.options import JsonOption, OneGenerationArgument
from pipeline.commands.terminal import (
    format_cell,
    format_similarity,
    print_json,
    print_line,
    show_table,
)
from pipeline.commands.usage import commands
from pipeline.core.errors import escape_text
from pipeline.core.words import format_bytes, pluralise

if TYPE_CHECKING:
    from pipeline.explain.explain import DocumentEvidence
    from pipeline.explain.inspect import (
        ClusterMember,
        ClusterRow,
        DroppedRecords,
        Inspection,
        Members,
    )
    from pipeline.report.cluster_summary import ClusterSummary, Matrix


_BAR = 40
_NAMED = 3

JaccardOption = Annotated[float | None, typer.Option(min=0, max=1)]


def inspect(
    directory: OneGenerationArgument,
    top: Annotated[int, typer.Option(min=0)] = 10,
    source: str = "",
    cluster: str = "",
    kind: str = "",
    min_jaccard: JaccardOption = None,
    max_jaccard: JaccardOption = None,
    dropped: str = "",
    as_json: JsonOption = False,
) -> None:
    """Show the duplicate clusters of a run, or with --dropped what left for a reason.

    Of clusters: sizes, kinds, similarities, and which sources duplicate which.

    --top: how many clusters to list, largest first
    --source: only pairs in which one document is from this source
    --cluster DOC: list the cluster of this document
    --kind: only pairs of this kind: exact, near, key or chain
    --min-jaccard J: smallest exact Jaccard similarity
    --max-jaccard J: largest exact Jaccard similarity
    --dropped REASON: list the records that left for this reason, not clusters

    Examples:
    prep inspect runs/quickstart --kind near --max-jaccard 0.85
    prep inspect runs/quickstart --cluster 550f72f4
    prep inspect runs/quickstart --dropped too_short
    """
    from pipeline.explain import inspect as explain
    from pipeline.runs.origin import texts_home

    directory = texts_home(directory)
    if dropped:
        records = explain.find_dropped(directory, dropped, source, top)
        return print_json(asdict(records)) if as_json else show_dropped(records)
    filters = explain.ClusterFilters(source, kind, min_jaccard, max_jaccard)
    if cluster:
        members = explain.inspect_cluster(directory, cluster, filters)
        return print_json(asdict(members)) if as_json else show_cluster(members)
    inspection = explain.inspect_clusters(directory, filters, top)
    return print_json(asdict(inspection)) if as_json else show_clusters(inspection)


register = commands(inspect)


def show_clusters(inspection: "Inspection") -> None:
    """Print the summary and the largest clusters."""
    summary = inspection.summary
    kinds, states = (_describe_counts(counts) for counts in (summary.kinds, summary.states))
    details = f": {kinds} ({states})" if summary.documents else ""
    replaced = pluralise(summary.documents, "document")
    print_line(f"{pluralise(summary.clusters, 'cluster')}; {replaced} replaced by another{details}")
    if summary.documents < inspection.all_rows:
        print_line(
            f"{summary.documents:,} of {pluralise(inspection.all_rows, 'row')} pass the filters"
        )
    if not summary.documents:
        return
    _print_histograms(summary)
    if summary.matrix.total:
        _print_matrix(summary.matrix, inspection.compared)
    columns = ("kept", "source", "file:line", "documents", "kinds", "their sources", "lowest J")
    show_table(columns, map(_cluster_cells, inspection.largest), title="largest clusters")


def show_cluster(members: "Members") -> None:
    """Print one cluster with all its members."""
    from pipeline.runs.records import describe_place

    cluster = members.shown.cluster
    print_line(f"{pluralise(cluster.size, 'document')}: {_describe_counts(cluster.kinds)}")
    print_line(f"kept  {cluster.kept}  {describe_place(members.shown.place, cluster.index)}")
    if members.excerpt:
        print_line(f"      {escape_text(members.excerpt, 120)}")
    columns = ("document", "source", "file:line", "state", "kind", "bands", "estimate", "exact J")
    show_table((*columns, "excerpt"), map(_member_cells, members.members))


def _print_histograms(summary: "ClusterSummary") -> None:
    print_line("")
    print_line("clusters by number of documents")
    sizes = [
        (f"{b.low:,}" if b.low == b.high else f"{b.low:,}-{b.high:,}", b) for b in summary.sizes
    ]
    _print_bars([(label, b.clusters) for label, b in sizes])
    print_line("")
    print_line("documents by Jaccard similarity to the kept one (or its estimate)")
    bars = [
        ("1" if b.low == b.high else f"{b.low:.2f}-{b.high:.2f}", b.exact + b.estimated)
        for b in summary.similarities
    ]
    _print_bars(bars + [("not known", summary.not_computed)] * bool(summary.not_computed))
    print_line("")


def _print_bars(bars: Sequence[tuple[str, int]]) -> None:
    """Bars for the counts that are not zero."""
    most = max(count for _, count in bars)
    for label, count in bars:
        if count:
            print_line(f"  {label:>12} {'█' * -(-count * _BAR // most)} {count:,}")


def _print_matrix(matrix: "Matrix", compared: Mapping[str, int]) -> None:
    """Rows are sources of duplicates, columns where the kept documents stand."""
    names = [f"index {c.index}" if c.index else c.source for c in matrix.columns]
    if matrix.rest_columns:
        names[-1] = f"{matrix.rest_columns} smaller"
    rows = []
    for place, (source, counts) in enumerate(zip(matrix.rows, matrix.counts, strict=True)):
        gone, cells = sum(counts), [f"{count:,}" if count else "" for count in counts]
        if matrix.rest_rows and place == len(matrix.rows) - 1:
            rows.append((f"{matrix.rest_rows} smaller", "", f"{gone:,}", "", *cells))
        else:
            share = f"{100 * gone / compared[source]:.1f} %"
            rows.append((source, f"{compared[source]:,}", f"{gone:,}", share, *cells))
    columns = (">compared", ">duplicates", ">share", *(f">{format_cell(name)}" for name in names))
    show_table(("duplicates from", *columns), rows, title="sources of the documents kept instead")


def _cluster_cells(row: "ClusterRow") -> tuple[str, ...]:
    c, place = row.cluster, row.place
    at = (place.source, f"{place.file}:{place.line}") if place else (f"index {c.index}", "")
    value, is_estimate = c.lowest
    lowest = "~" * is_estimate + format_similarity(value)
    return (
        c.kept,
        *at,
        f"{c.size:,}",
        _describe_counts(c.kinds),
        _describe_counts(c.sources),
        lowest,
    )


def _member_cells(member: "ClusterMember") -> tuple[str, ...]:
    place = member.place
    return (
        place.key,
        place.source,
        f"{place.file}:{place.line}",
        member.state,
        member.kind,
        " ".join(map(str, member.bands)),
        format_similarity(member.estimate),
        format_similarity(member.jaccard),
        escape_text(member.excerpt, 60),
    )


def _describe_counts(counts: Mapping[str, int]) -> str:
    """The largest of these counts in words.

    >>> _describe_counts({"near": 1200, "exact": 3})
    '1,200 near, 3 exact'
    """
    largest = [f"{count:,} {name}" for name, count in list(counts.items())[:_NAMED]]
    rest = [f"{len(counts) - _NAMED} more"] if len(counts) > _NAMED else []
    return ", ".join(largest + rest)


def show_dropped(dropped: "DroppedRecords") -> None:
    """What left for a reason, by source, then the first records with their evidence."""
    from pipeline.runs.records import describe_place

    print_line(
        f"{dropped.reason}: {pluralise(dropped.total, 'record')}, "
        f"{format_bytes(dropped.bytes)} of text"
    )
    if dropped.failed:
        print_line(
            f"the rule matched {pluralise(dropped.failed, 'document')}, including those that left "
            "for another reason or were kept"
        )
    show_table(("source", ">records"), ((s, f"{n:,}") for s, n in dropped.by_source.items()))
    for record in dropped.records:
        print_line(
            f"{record.place.key}  {describe_place(record.place, '')}  "
            f"{pluralise(record.text_bytes, 'byte')}"
        )
        for evidence in record.evidence:
            print_line(f"    {evidence_line(evidence)}")
        print_line(f"    {' '.join(record.excerpt.split())[:160]}")
    more = dropped.total - len(dropped.records)
    if more > 0:
        print_line(f"and {more:,} more; --top N lists more")


def evidence_line(row: "DocumentEvidence") -> str:
    """Evidence in words."""
    words = [row.rule or row.detector, row.kind, repr(row.target) if row.target else ""]
    line = " ".join(word for word in words if word)
    if row.work_id:
        line += f", work {row.work_id}"
    if row.seen and row.seen != row.target:
        line += f": {escape_text(row.seen)!r}"
    if row.byte_length:
        line += f" at byte {row.byte_offset:,}"
    measured = row.attributes if row.score is None else {"score": row.score} | row.attributes
    values = ", ".join(f"{name} {_plain(value)}" for name, value in measured.items())
    return f"{line} ({values})" if values else line


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else escape_text(str(value))
