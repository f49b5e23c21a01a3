"""`prep explain` and `prep inspect`: parse, call, print."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pipeline.options import JsonOption, complete_runs

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="a run directory", autocompletion=complete_runs)
]
MinOption = Annotated[
    float | None, typer.Option(min=0, max=1, metavar="J", help="smallest exact Jaccard similarity")
]
MaxOption = Annotated[
    float | None, typer.Option(min=0, max=1, metavar="J", help="largest exact Jaccard similarity")
]


def register(app: typer.Typer) -> None:
    """Add both commands to the `prep` app."""
    app.command(
        epilog="Examples:\n\n`prep explain runs/quickstart 550f72f4`\n\n"
        "`prep explain runs/quickstart shard-00.jsonl.zst:191 --all`"
    )(explain)
    app.command(
        epilog="Examples:\n\n`prep inspect runs/quickstart --kind near --max-jaccard 0.85`\n\n"
        "`prep inspect runs/quickstart --cluster 550f72f4`\n\n"
        "`prep inspect runs/quickstart --dropped too_short`"
    )(inspect)


def explain(
    directory: RunArgument,
    document: Annotated[
        str,
        typer.Argument(
            metavar="DOC",
            help="its key or the first 6 or more digits of it, FILE:LINE, or SHARD[ROW]",
        ),
    ],
    lines: Annotated[int, typer.Option(min=1, help="rows of each list to show")] = 40,
    all_: Annotated[bool, typer.Option("--all", help="show everything, with equal lines")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what became of a document; a duplicate is shown next to the document that was kept."""
    from pipeline.provenance.explain import explain as find
    from pipeline.show_explanation import show

    most = None if all_ else lines
    show(find(directory, document, most), most, as_json)


def inspect(
    directory: RunArgument,
    top: Annotated[int, typer.Option(min=0, help="how many clusters to list, largest first")] = 10,
    source: Annotated[
        str, typer.Option(help="only pairs in which one document is from this source")
    ] = "",
    cluster: Annotated[
        str, typer.Option(metavar="DOC", help="list the cluster of this document")
    ] = "",
    kind: Annotated[
        str, typer.Option(help="only pairs of this kind: exact, near, key or chain")
    ] = "",
    min_jaccard: MinOption = None,
    max_jaccard: MaxOption = None,
    dropped: Annotated[
        str,
        typer.Option(
            metavar="REASON", help="list the records that left for this reason, not clusters"
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Show the duplicate clusters of a run, or with --dropped what left for a reason.

    Of clusters: sizes, kinds, similarities, and which sources duplicate which.
    """
    from pipeline.provenance.inspect import ClusterFilters, inspect_cluster
    from pipeline.provenance.inspect import inspect as inspect_run
    from pipeline.provenance.origin import texts_home
    from pipeline.show_clusters import show_cluster, show_clusters
    from pipeline.terminal import print_json

    directory = texts_home(directory)
    if dropped:
        return _inspect_dropped(directory, dropped, source, top, as_json)
    filters = ClusterFilters(source, kind, min_jaccard, max_jaccard)
    if cluster:
        members = inspect_cluster(directory, cluster, filters)
        return print_json(asdict(members)) if as_json else show_cluster(members)
    found = inspect_run(directory, filters, top)
    return print_json(asdict(found)) if as_json else show_clusters(found)


def _inspect_dropped(directory: Path, reason: str, source: str, top: int, as_json: bool) -> None:
    from pipeline.provenance.dropped import find_dropped
    from pipeline.show_dropped import show_dropped
    from pipeline.terminal import print_json

    found = find_dropped(directory, reason, source, top)
    return print_json(asdict(found)) if as_json else show_dropped(found)
