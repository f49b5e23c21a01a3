"""`prep clean`: parses, calls, prints; no logic."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.core.errors import ConfigError
from pipeline.options import JsonOption, WorkersOption


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
    from pipeline.clean_alone import CleaningOptions, settings, story_of
    from pipeline.preparation import prepare, run
    from pipeline.progress import Progress
    from pipeline.show_clean import show_run
    from pipeline.show_plan import show_plan
    from pipeline.stages.export_format import FORMATS

    chosen = next((name for name in FORMATS if name == form), None)
    if chosen is None:
        raise ConfigError(f"--format {form}: expected one of {', '.join(FORMATS)}")
    options = CleaningOptions(
        min_length, fix_text, mask, language, gopher, repetition, c4, bad_words, text_key
    )
    loaded = settings(config, files or (), options, tuple(set_ or ()))
    story = story_of(chosen)
    if dry_run:
        return show_plan(prepare(loaded, out), as_json, story)
    return show_run(run(loaded, out, workers, progress=Progress(), story=story), as_json)
