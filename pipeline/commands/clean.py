"""`prep clean`: its options, one call, and what it prints: what stayed of every source, and why the
rest left.
"""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from pipeline.commands.options import JsonOption, WorkersOption
from pipeline.commands.terminal import format_cell, out, print_json, print_line
from pipeline.runs import layout

if TYPE_CHECKING:
    from pipeline.stories.loop import Manifest


def register(app: typer.Typer) -> None:
    """Add `clean` to the `prep` app."""
    app.command(
        no_args_is_help=True,
        epilog="Examples:\n\n`prep clean corpus/*.jsonl.zst --out cleaned`\n\n"
        "`prep clean web/ --out cleaned --language en,ar --gopher --gopher-repetition "
        "--mask email,ip`\n\n"
        "`prep clean --config pile.yaml --out cleaned --set filters.gopher.min_words=20`\n\n"
        "What a rule dropped: `prep inspect cleaned --dropped gopher_word_count`",
    )(clean)


def clean(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="run directory; the records go to OUT/cleaned")
    ],
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILES", help="files, directories or globs [default: the inputs of --config]"
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="a prep config; its sections read, clean and filters apply"
        ),
    ] = None,
    min_length: Annotated[
        int | None,
        typer.Option(min=0, help="drop documents with fewer characters [default: 200]"),
    ] = None,
    fix_text: Annotated[
        bool | None,
        typer.Option(
            "--fix-text/--no-fix-text",
            help="repair text with ftfy and normalise it to NFC [default: yes]",
        ),
    ] = None,
    mask: Annotated[
        str | None,
        typer.Option(metavar="KINDS", help="what to mask: email, ip, phone, separated by commas"),
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(metavar="CODES", help="languages to keep, such as en,ar"),
    ] = None,
    gopher: Annotated[bool, typer.Option("--gopher", help="apply Gopher's quality rules")] = False,
    repetition: Annotated[
        bool, typer.Option("--gopher-repetition", help="apply Gopher's repetition rules")
    ] = False,
    c4: Annotated[bool, typer.Option("--c4", help="apply C4's rules for documents")] = False,
    bad_words: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="list of words; with --c4, documents with one are dropped"
        ),
    ] = None,
    text_key: Annotated[
        str | None, typer.Option(metavar="FIELD", help="field or column that holds the text")
    ] = None,
    form: Annotated[
        str, typer.Option("--format", metavar="NAME", help="jsonl.zst, jsonl.gz, jsonl or parquet")
    ] = "jsonl.zst",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="set any key of a prep config; repeatable"),
    ] = None,
    workers: WorkersOption = None,
    dry_run: Annotated[bool, typer.Option(help="show the plan and stop")] = False,
    as_json: JsonOption = False,
) -> None:
    """Repair the text of records, and drop short ones and those that rules of your choice refuse.

    Every record that is left out is listed in documents.parquet with its reason. Finished work is
    reused; the same command resumes an interrupted run.
    """
    from pipeline.commands.run import show_run_plan
    from pipeline.engine.progress import Progress
    from pipeline.stages.records import choose_form
    from pipeline.stories.clean import CleaningOptions, clean_settings, make_clean_story
    from pipeline.stories.preparation import prepare, run_preparation

    chosen = choose_form(form)
    options = CleaningOptions(
        min_length=min_length,
        fix_text=fix_text,
        mask=mask,
        language=language,
        gopher=gopher,
        gopher_repetition=repetition,
        c4=c4,
        bad_words=bad_words,
        text_key=text_key,
    )
    loaded = clean_settings(config, files or (), options, tuple(set_ or ()))
    story = make_clean_story(chosen)
    if dry_run:
        return show_run_plan(prepare(loaded, out), as_json, story)
    return show_clean_run(
        run_preparation(loaded, out, workers, progress=Progress(), story=story), as_json
    )


def show_clean_run(manifest: "Manifest", as_json: bool) -> None:
    """A finished `prep clean`: documents by source, reasons, and where things stand."""
    directory = manifest.directory
    ledger = json.loads((directory / layout.LEDGER).read_bytes())
    if as_json:
        value = {
            "directory": str(directory),
            "reused": list(manifest.reused),
            "ledger": ledger,
            "masked": dict(_masked(manifest)),
        }
        return print_json(value)
    _print_sources(ledger["sources"])
    _print_reasons(ledger["sources"])
    masked = _masked(manifest)
    if masked:
        print_line("masked: " + ", ".join(f"{count:,} {kind}" for kind, count in masked.items()))
    if len(manifest.reused) == len(manifest.stages):
        print_line(f"everything was up to date: all {len(manifest.stages)} stages reused")
    return print_line(
        f"outputs: {directory}/  ({layout.CLEANED}/, drops/, {layout.DOCUMENTS}, {layout.LEDGER}, "
        f"{layout.MANIFEST})"
    )


def _print_sources(sources: dict[str, Any]) -> None:
    table = Table("source", title="documents by source")
    for name in ("records", "bad", "dropped", "kept", "MB", "kept MB"):
        table.add_column(name, justify="right")
    totals = [0] * 6
    for name, source in sources.items():
        values = [
            source["records"]["documents"],
            _documents(source["bad"]),
            _documents(source["dropped"]) + source["quarantined"]["documents"],
            source["kept"]["documents"],
            source["documents"]["bytes"],
            source["kept"]["bytes"],
        ]
        totals = [a + b for a, b in zip(totals, values, strict=True)]
        table.add_row(format_cell(name), *_numbers(values))
    table.add_section()
    table.add_row("all", *_numbers(totals))
    out.print(table, soft_wrap=True)


def _print_reasons(sources: dict[str, Any]) -> None:
    counts: Counter[str] = Counter()
    for source in sources.values():
        for ends in ("bad", "dropped"):
            for reason, tally in source[ends].items():
                counts[reason] += tally["documents"]
    if not counts:
        return
    table = Table("reason", title="why records left")
    table.add_column("records", justify="right")
    for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(format_cell(reason), f"{count:,}")
    out.print(table, soft_wrap=True)


def _masked(manifest: "Manifest") -> Counter[str]:
    """How often each kind was masked."""
    counts: Counter[str] = Counter()
    for task in manifest.stages["clean"].tasks:
        for of_source in task.counters.get("masked", {}).values():
            counts.update(of_source)
    return counts


def _documents(tallies: dict[str, dict[str, int]]) -> int:
    return sum(tally["documents"] for tally in tallies.values())


def _numbers(values: list[int]) -> list[str]:
    return [f"{v:,}" for v in values[:4]] + [f"{v / 1e6:,.2f}" for v in values[4:]]
