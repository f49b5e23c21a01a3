"""`prep run` and `prep plan`: options, and what is printed before and after a run; other commands
that make runs print the same.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.commands import options
from pipeline.commands.terminal import print_json, print_line, show_table
from pipeline.commands.usage import commands
from pipeline.core.ledger import MixtureLedger, sum_cluster_sizes
from pipeline.core.words import format_bytes, format_duration, pluralise
from pipeline.engine.progress import Progress
from pipeline.runs import layout
from pipeline.runs.catalogue import STORIES

if TYPE_CHECKING:
    from pipeline.stories.loop import Manifest
    from pipeline.stories.plan import StageForecast, Total
    from pipeline.stories.preparation import Preparation, Story

_COLUMNS = ("records", "bad", "dropped", "quarantined", "duplicates", "kept", "kept MB", "tokens")
_MOST_SOURCES = 50
"""Lines of the table of sources."""


def run(
    config: options.ConfigArgument,
    out: options.OutOption = None,
    workers: options.WorkersOption = None,
    cluster: options.ClusterOption = None,
    set_: options.SetOption = None,
    verify_inputs: bool = False,
    replace: bool = False,
    dry_run: options.DryRunOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Prepare data by a config. Finished work is reused, and an interrupted run resumes.

    --verify-inputs/--no-verify-inputs: hash the raw shards again, even if size and time of
        modification are unchanged
    --replace/--no-replace: with `pack.append`: make the whole data set again, all inputs as one
        generation

    Examples:
    prep run quickstart
    prep run pile.yaml --out /data/run --workers 8 --set pack.max_sequence_length=1024
    prep run pile.yaml --set pack.append=true
    """
    from pipeline.config.prep import load_config
    from pipeline.stories.run import run_preparation as run_config

    if dry_run:
        return plan(config, out, set_, as_json)
    loaded = load_config(config, tuple(set_ or ()))
    manifest = run_config(
        loaded,
        out,
        workers,
        cluster=options.read_cluster(cluster),
        verify_inputs=verify_inputs,
        progress=Progress(as_json=as_json),
        replace_generations=replace,
    )
    summary = read_summary(manifest)
    if as_json:
        return print_json(summary)
    ledger = summary["ledger"]
    print_sources(ledger["sources"], _COLUMNS)
    show_mixture(ledger.get("mixture", {}))
    for name, split in ledger["splits"].items():
        print_line(describe_split(name, split))
    print_line("ledger: balanced")
    data_sets = [f"hdf5/{name}" for name in ledger["splits"]]
    return print_outputs(manifest, "report.html", "manifest.json", *data_sets)


def plan(
    config: options.ConfigArgument,
    out: options.OutOption = None,
    set_: options.SetOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Check a config and show what would run. Nothing is written to the run directory.

    Example: prep plan pile.yaml
    """
    from pipeline.config.prep import load_config
    from pipeline.stories.generations import plan_preparation
    from pipeline.stories.preparation import PREPARATION

    prepared = plan_preparation(load_config(config, tuple(set_ or ())), out)
    if prepared.number and not as_json:
        print_line(f"generation {prepared.number}; the rows of earlier ones stay as they are")
    show_run_plan(prepared, as_json, PREPARATION)


register = commands(run, plan)


def show_run_plan(prepared: "Preparation", as_json: bool, story: "Story") -> None:
    """Print it, and last what all of it costs; nothing is written."""
    from pipeline.stories.plan import forecast_stages, sum_stages
    from pipeline.stories.selection import describe_dedup

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
    if "custom_detectors" in (stage.stage for stage in stages):
        for detector in prepared.screening.detectors:
            print_line(f"detector {detector.describe()}")
    if "custom_filters" in (stage.stage for stage in stages):
        for own in prepared.screening.custom_filters:
            print_line(f"custom filter {own.describe()}")
    total = sum_stages(stages, prepared)
    show_table(
        ("stage", "state", ">CPU time", ">disk", ">memory per worker"),
        ((s.stage, s.state, *_costs(s)) for s in stages),
        total=("total", "", *_costs(total)),
    )
    where = pluralise(total.workers, "worker") if total.workers else "one process"
    memory = format_bytes(total.memory_bytes * max(1, total.workers))
    print_line(
        f"in all about {format_duration(total.seconds)} with {where}, {memory} of memory, "
        f"{format_bytes(total.disk_bytes)} of disk ({format_bytes(total.kept_bytes)} after "
        "prep clean-up)"
    )


def _costs(part: "StageForecast | Total") -> tuple[str, str, str]:
    seconds = format_duration(part.cpu_seconds)
    return seconds, format_bytes(part.disk_bytes), format_bytes(part.memory_bytes)


def read_summary(manifest: "Manifest") -> dict[str, Any]:
    """What the JSON of every such command begins with."""
    ledger = json.loads((manifest.own_directory / layout.LEDGER).read_bytes())
    number = {"generation": manifest.generation} if manifest.generation else {}
    reused = list(manifest.reused)
    return {"directory": str(manifest.directory), **number, "reused": reused, "ledger": ledger}


def print_outputs(manifest: "Manifest", *names: str) -> None:
    """Where the outputs are, and whether all of them were there already."""
    if len(manifest.reused) == len(manifest.stages):
        print_line(f"everything was up to date: all {len(manifest.stages)} stages reused")
    if manifest.generation:
        print_line(f"generation {manifest.generation} of {manifest.directory}/")
    print_line(f"outputs: {manifest.own_directory}/  ({', '.join(names)})")


def print_sources(
    sources: Mapping[str, Any],
    columns: Sequence[str],
    counts: Mapping[str, Mapping[str, int]] | None = None,
) -> None:
    """A line for each source, of many for the largest by the first column, and a total, in columns
    of the ledger or of `counts`."""

    def format_cells(values: Sequence[int]) -> list[str]:
        pairs = zip(columns, values, strict=True)
        return [f"{v / 1e6:,.2f}" if name.endswith("MB") else f"{v:,}" for name, v in pairs]

    rows = {}
    for name, source in sources.items():
        own = (counts or {}).get(name, {})
        rows[name] = [own[c] if c in own else _count(source, c) for c in columns]
    totals = [sum(values) for values in zip(*rows.values(), strict=True)]
    title = "documents by source"
    if len(rows) > _MOST_SOURCES:
        title += f" (the {_MOST_SOURCES} largest; all {len(rows):,} are in {layout.LEDGER})"
        largest = sorted(rows, key=lambda name: -rows[name][0])[:_MOST_SOURCES]
        others = [sum(v) for v in zip(*(rows.pop(n) for n in {*rows} - {*largest}), strict=True)]
        rows[f"{len(sources) - _MOST_SOURCES:,} others"] = others
    show_table(
        ("source", *(f">{name}" for name in columns)),
        ((name, *format_cells(values)) for name, values in rows.items()),
        title=title,
        total=("all", *format_cells(totals)),
    )


def _count(source: Mapping[str, Any], column: str) -> int:
    """Documents or bytes of a source; 0 for a kind of duplicates that it has not."""
    match column:
        case "bad" | "dropped":
            return sum(tally["documents"] for tally in source[column].values())
        case "MB":
            return int(source["documents"]["bytes"])
        case "kept MB":
            return int(source["kept"]["bytes"])
        case "tokens":
            return int(source["tokens"])
    return int(source.get(column, {"documents": 0})["documents"])


def show_mixture(mixture: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the section `mixture` of ledger.json; nothing for an empty one."""
    total = sum(row["stream_tokens"] for row in mixture.values())
    by_share = any(row["asked_share"] is not None for row in mixture.values())
    request = "share requested" if by_share else "epochs requested"
    names = ("documents", "tokens", request, "epochs", "in the stream", "tokens there", "share")
    rows = (
        (
            source,
            f"{row['documents']:,}",
            f"{row['tokens']:,}",
            f"{row['asked_share']:.2%}" if by_share else f"{row['asked_epochs']:g}",
            f"{row['epochs']:.4g}",
            f"{row['stream_documents']:,}",
            f"{row['stream_tokens']:,}",
            f"{row['stream_tokens'] / total:.2%}" if total else "-",
        )
        for source, row in mixture.items()
    )
    is_grouped = any("group" in row for row in mixture.values())
    columns = ("group" if is_grouped else "source", *(f">{name}" for name in names))
    show_table(columns, rows, title="mixture of the training split")
    _show_cluster_sizes(mixture)


def _show_cluster_sizes(mixture: Mapping[str, Mapping[str, Any]]) -> None:
    """The same by size of the clusters, all sources together; nothing without cluster weights."""
    sums = sum_cluster_sizes({n: MixtureLedger.from_dict(row) for n, row in mixture.items()})
    counts = ("documents", "tokens", "stream_documents", "stream_tokens")
    rows = (
        (size, f"{row.weight:g}", *(f"{getattr(row, name):,}" for name in counts))
        for size, row in sums.items()
    )
    names = ("weight", "documents", "tokens", "in the stream", "tokens there")
    columns = ("documents in the cluster", *(f">{name}" for name in names))
    show_table(columns, rows, title="the same by size of the cluster")


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
