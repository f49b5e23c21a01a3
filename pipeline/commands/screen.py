"""`prep screen`: its options, one call, and what it prints: documents by decision and rule, and
what was found.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from pipeline.commands.options import JsonOption, WorkersOption
from pipeline.commands.terminal import format_cell, out, print_json, print_line
from pipeline.core.errors import ConfigError
from pipeline.runs import layout

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.stories.loop import Manifest


def register(app: typer.Typer) -> None:
    """Add `screen` to the `prep` app."""
    app.command(
        no_args_is_help=True,
        epilog="Examples:\n\n`prep screen corpus/*.jsonl.zst --out screened --registry works/`\n\n"
        "`prep screen --config pile.yaml --out screened --policy policy.yaml`\n\n"
        "What another policy would decide, without looking at the documents again:\n\n"
        "`prep screen runs/pile --policy policy.yaml`",
    )(screen)


def screen(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILES",
            help="files, directories or globs; or with --policy alone, a finished run directory",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="run directory of the result")
    ] = None,
    registry: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="a registry of works, repeatable")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="the policy, which decides what follows from evidence"),
    ] = None,
    origins: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="a list of origins, repeatable")
    ] = None,
    optout: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="captured opt-outs, repeatable")
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="a prep config to take everything else from")
    ] = None,
    text_key: Annotated[
        str | None, typer.Option(metavar="FIELD", help="field or column that holds the text")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="set any key of a prep config; repeatable"),
    ] = None,
    workers: WorkersOption = None,
    dry_run: Annotated[bool, typer.Option(help="show the plan and stop")] = False,
    as_json: JsonOption = False,
) -> None:
    """Look for listed origins, works, licences and opt-outs in documents, and decide by a policy.

    The result is evidence and decisions, not a data set. A match is a text overlap or a statement
    in the data, not a finding about permission. No match is not evidence of absence. This is not
    legal advice.
    """
    from pipeline.commands.run import show_run_plan
    from pipeline.engine.progress import Progress
    from pipeline.stories.clean import SCREEN, ScreeningOptions, screen_settings
    from pipeline.stories.preparation import prepare, run_preparation

    if out is None:
        return _another_policy(files or [], policy, as_json)
    options = ScreeningOptions(registry or (), policy, origins or (), optout or (), text_key)
    loaded = screen_settings(config, files or (), options, tuple(set_ or ()))
    if dry_run:
        return show_run_plan(prepare(loaded, out), as_json, SCREEN)
    manifest = run_preparation(loaded, out, workers, progress=Progress(), story=SCREEN)
    return show_decisions(manifest, as_json)


def _another_policy(runs: list[str], policy: str | None, as_json: bool) -> None:
    """What the policy would decide otherwise on a run. Raises ConfigError for anything else."""
    from pipeline.commands.policy import show_difference
    from pipeline.screening.policy.difference import compare_policies
    from pipeline.screening.policy.rules import find_policy, load_policy, policy_of

    if len(runs) != 1 or policy is None:
        raise ConfigError(
            "--out: missing; give it, or give one finished run directory and --policy"
        )
    directory = Path(runs[0])
    changed = load_policy(find_policy(policy))
    show_difference(compare_policies(directory, policy_of(directory), changed), as_json)


def show_decisions(manifest: "Manifest", as_json: bool) -> None:
    """A finished screening."""
    import pyarrow.parquet as pq

    directory = manifest.directory
    documents = pq.read_table(directory / layout.DOCUMENTS, columns=["decision", "rule"])
    evidence = pq.read_table(directory / layout.EVIDENCE, columns=["detector", "kind"])
    decided = _counts(documents, ["decision", "rule"])
    found = _counts(evidence, ["detector", "kind"])
    if as_json:
        return print_json(
            {
                "directory": str(directory),
                "reused": list(manifest.reused),
                "decisions": decided,
                "evidence": found,
            }
        )
    _print("documents by decision", ["decision", "rule"], decided)
    _print("evidence", ["detector", "kind"], found)
    return print_line(
        f"outputs: {directory}/  ({layout.EVIDENCE}, {layout.DECISIONS}, {layout.DOCUMENTS}); "
        "`prep explain` shows one document"
    )


def _counts(table: "pa.Table", columns: list[str]) -> list[dict[str, object]]:
    """Rows by the values of these columns, the largest count first."""
    grouped = table.group_by(columns, use_threads=False).aggregate([([], "count_all")])
    order = [("count_all", "descending"), *((name, "ascending") for name in columns)]
    rows = grouped.sort_by(order).to_pylist()
    return [{**{c: row[c] for c in columns}, "count": row["count_all"]} for row in rows]


def _print(title: str, columns: list[str], rows: list[dict[str, object]]) -> None:
    if not rows:
        return print_line(f"{title}: none")
    table = Table(*columns, title=title, title_justify="left")
    table.add_column("documents" if "rule" in columns else "rows", justify="right")
    for row in rows:
        names = (format_cell(str(row[column] or "-")) for column in columns)
        table.add_row(*names, f"{row['count']:,}")
    return out.print(table)
