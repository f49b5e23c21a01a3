"""`prep rescan`: parses, calls, prints; no logic."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from pipeline.core.figures import format_bytes
from pipeline.core.words import pluralise
from pipeline.options import JsonOption, WorkersOption, complete_runs
from pipeline.terminal import format_cell, format_seconds, out, print_json, print_line


def register(app: typer.Typer) -> None:
    """Add `rescan` to the `prep` app."""
    app.command(
        no_args_is_help=True,
        epilog="Examples:\n\n`prep rescan runs/pile --registry claims/ --estimate`\n\n"
        "`prep rescan runs/pile --registry claims/ --workers 8`\n\n"
        "Then `prep trace runs/pile --work ID --train out` and `prep takedown` use what was found.",
    )(rescan)


def rescan(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="a finished run directory", autocompletion=complete_runs
        ),
    ],
    registry: Annotated[
        list[Path], typer.Option(metavar="DIR", help="a registry of works, repeatable")
    ],
    policy: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="the policy that says what would follow, or builtin:default"
        ),
    ] = "builtin:default",
    name: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="results go to RUN/rescans/NAME [default: name of the registry]"
        ),
    ] = "",
    estimate: Annotated[bool, typer.Option(help="show the expected cost and stop")] = False,
    workers: WorkersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search the documents of a finished run for works that were registered later.

    The run is not changed; `prep trace` and `prep takedown` use what is found. A match is a text
    overlap or a resemblance, not a finding about permission. No match is not evidence of absence.
    """
    from pipeline.progress import Progress
    from pipeline.rescan import matched_works, plan_rescan
    from pipeline.rescan import rescan as look_through

    asked = plan_rescan(directory, registry, policy, name)
    cost = {"bytes": asked.bytes, "cpu_seconds": round(asked.cpu_seconds, 1),
            "works": len(asked.registry.works)}  # fmt: skip
    if estimate and as_json:
        return print_json({"directory": str(asked.out), **cost})
    if not as_json:
        against = pluralise(len(asked.registry.works), "work")
        print_line(
            f"{format_bytes(asked.bytes)} of text against {against}: "
            f"{format_seconds(asked.cpu_seconds)} of one core"
        )
    if estimate:
        return None
    look_through(asked, workers, progress=Progress())
    works = matched_works(asked)
    if as_json:
        found = [vars(work) for work in works]
        return print_json({"directory": str(asked.out), **cost, "matched": found})
    table = Table("work", "title", "found by")
    for column in ("documents", "kept", "tokens"):
        table.add_column(column, justify="right")
    for work in works:
        numbers = (f"{n:,}" for n in (work.documents, work.kept, work.tokens))
        table.add_row(work.work_id, format_cell(work.title), ", ".join(work.detectors), *numbers)
    if works:
        out.print(table)
    return print_line(f"{pluralise(len(works), 'work')} matched; {asked.out}/evidence.parquet")
