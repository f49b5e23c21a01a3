"""`prep run` and `prep plan`: options, and what is printed before and after a run."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from pipeline.commands.options import (
    ConfigArgument,
    JsonOption,
    OutOption,
    SetOption,
    WorkersOption,
)
from pipeline.commands.terminal import format_cell, out, print_json, print_line
from pipeline.config.prep import load_config
from pipeline.core.words import format_bytes, format_duration, pluralise
from pipeline.engine.progress import Progress
from pipeline.runs.catalogue import STORIES

if TYPE_CHECKING:
    from pipeline.stories.preparation import Preparation, Story


def register(app: typer.Typer) -> None:
    """Add `run` and `plan` to the `prep` app."""
    app.command(
        epilog="Examples:\n\n`prep run quickstart`\n\n`prep run pile.yaml --out /data/run "
        "--workers 8 --set pack.max_sequence_length=1024`"
    )(run)
    app.command(epilog="Example: `prep plan pile.yaml`")(plan)


def run(
    config: ConfigArgument,
    out: OutOption = None,
    workers: WorkersOption = None,
    set_: SetOption = None,
    verify_inputs: Annotated[
        bool,
        typer.Option(
            help="hash the raw shards again, even if size and time of modification are unchanged"
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option(help="show the plan and stop")] = False,
    as_json: JsonOption = False,
) -> None:
    """Prepare data by a config. Finished work is reused, and an interrupted run resumes."""
    from pipeline.stories.preparation import run_preparation as run_config

    if dry_run:
        return plan(config, out, set_, as_json)
    loaded = load_config(config, tuple(set_ or ()))
    manifest = run_config(loaded, out, workers, verify_inputs=verify_inputs, progress=Progress())
    ledger = json.loads((manifest.directory / "ledger.json").read_bytes())
    if as_json:
        summary = {
            "directory": str(manifest.directory),
            "reused": list(manifest.reused),
            "ledger": ledger,
        }
        return print_json(summary)
    _print_ledger(ledger)
    fresh = len(manifest.stages) - len(manifest.reused)
    if fresh == 0:
        print_line(f"everything was up to date: all {len(manifest.stages)} stages reused")
    data_sets = ", ".join(f"hdf5/{name}" for name in ledger["splits"])
    print_line(f"outputs: {manifest.directory}/  (report.html, manifest.json, {data_sets})")
    return None


def plan(
    config: ConfigArgument,
    out: OutOption = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a config and show what would run. Nothing is written to the run directory."""
    from pipeline.stories.preparation import PREPARATION, prepare

    show_run_plan(prepare(load_config(config, tuple(set_ or ())), out), as_json, PREPARATION)


def show_run_plan(prepared: "Preparation", as_json: bool, story: "Story") -> None:
    """Print it, and last what all of it costs; nothing is written."""
    from pipeline.stories.plan import forecast_stages, total_of
    from pipeline.stories.preparation import describe_dedup

    stages = forecast_stages(prepared, story)
    if as_json:
        return print_json([vars(stage) for stage in stages])
    files, size = len(prepared.plan.files), format_bytes(prepared.plan.bytes)
    tasks = pluralise(len(prepared.plan.estimate), "task")
    print_line(f"{pluralise(files, 'raw shard')}, {size}, {tasks}; output {prepared.out}/")
    for note in prepared.plan.notes if STORIES[story.name].labels_sources else ():
        print_line(f"note: {note}")
    if story.name != "clean":
        print_line(describe_dedup(prepared.config.dedup))
    if "custom_filters" in (stage.stage for stage in stages):
        for own in prepared.screening.custom_filters:
            print_line(f"custom filter {own.describe()}")
    table = Table("stage", "state", "CPU time", "disk", "memory per worker")
    for s in stages:
        disk, memory = format_bytes(s.disk_bytes), format_bytes(s.memory_bytes)
        table.add_row(s.stage, s.state, format_duration(s.cpu_seconds), disk, memory)
    total = total_of(stages, prepared)
    table.add_section()
    table.add_row(
        "total",
        "",
        format_duration(total.cpu_seconds),
        format_bytes(total.disk_bytes),
        format_bytes(total.memory_bytes),
    )
    out.print(table, soft_wrap=True)
    where = pluralise(total.workers, "worker") if total.workers else "one process"
    memory = format_bytes(total.memory_bytes * max(1, total.workers))
    print_line(
        f"in all about {format_duration(total.seconds)} with {where}, {memory} of memory, "
        f"{format_bytes(total.disk_bytes)} of disk ({format_bytes(total.kept_bytes)} after "
        "prep clean-up)"
    )


def _print_ledger(ledger: dict[str, Any]) -> None:
    table = Table("source", title="documents by source")
    for name in (
        "records",
        "bad",
        "dropped",
        "quarantined",
        "duplicates",
        "kept",
        "kept MB",
        "tokens",
    ):
        table.add_column(name, justify="right")
    totals = [0.0] * 8
    for name, source in ledger["sources"].items():
        values = _source_values(source)
        totals = [a + b for a, b in zip(totals, values, strict=True)]
        table.add_row(format_cell(name), *_cells(values))
    table.add_section()
    table.add_row("all", *_cells(totals))
    out.print(table)
    show_mixture(ledger.get("mixture", {}))
    for name, split in ledger["splits"].items():
        out.print(describe_split(name, split))
    out.print("ledger: balanced")


def _source_values(source: dict[str, Any]) -> list[float]:
    bad = sum(t["documents"] for t in source["bad"].values())
    dropped = sum(t["documents"] for t in source["dropped"].values())
    return [
        source["records"]["documents"],
        bad,
        dropped,
        source["quarantined"]["documents"],
        source["duplicates"]["documents"],
        source["kept"]["documents"],
        source["kept"]["bytes"] / 1e6,
        source["tokens"],
    ]


def _cells(values: list[float]) -> list[str]:
    return [f"{v:,.2f}" if i == 6 else f"{int(v):,}" for i, v in enumerate(values)]


def show_mixture(mixture: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the section `mixture` of ledger.json; nothing for an empty one."""
    if not mixture:
        return
    total = sum(row["stream_tokens"] for row in mixture.values())
    by_share = any(row["asked_share"] is not None for row in mixture.values())
    table = Table("source", title="mixture of the training split")
    asked = "share requested" if by_share else "epochs requested"
    for name in ("documents", "tokens", asked, "epochs", "in the stream", "tokens there", "share"):
        table.add_column(name, justify="right")
    for source, row in mixture.items():
        wanted = f"{row['asked_share']:.2%}" if by_share else f"{row['asked_epochs']:g}"
        table.add_row(
            format_cell(source),
            f"{row['documents']:,}",
            f"{row['tokens']:,}",
            wanted,
            f"{row['epochs']:.4g}",
            f"{row['stream_documents']:,}",
            f"{row['stream_tokens']:,}",
            f"{row['stream_tokens'] / total:.2%}" if total else "-",
        )
    out.print(table, soft_wrap=True)


def describe_split(name: str, split: dict[str, Any]) -> str:
    """One line about a split of the ledger."""
    line = (
        f"{name}: {pluralise(split['documents'], 'document')}, "
        f"{pluralise(split['tokens'], 'token')}"
    )
    if split["format"] == "corpus":
        return f"{line}, one stream"
    rows, length, padding = split["rows"], split["max_sequence_length"], split["padding"]
    share = f" ({100 * padding / (rows * length):.2f} %)" if rows else ""
    return f"{line}, {pluralise(rows, 'row')} of {length}, {padding:,} padding{share}"
