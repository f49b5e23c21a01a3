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
        typer.Option(metavar="FILE", help="a prep config: its read, clean and filters count"),
    ] = None,
    min_length: Annotated[
        int | None,
        typer.Option(min=0, help="characters below which a document is dropped [default: 200]"),
    ] = None,
    fix_text: Annotated[
        bool | None, typer.Option("--fix-text/--no-fix-text", help="ftfy and NFC [default: yes]")
    ] = None,
    mask: Annotated[
        str | None, typer.Option(metavar="KINDS", help="email, ip, phone, with commas between")
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(metavar="CODES", help="languages that stay, such as en,ar"),
    ] = None,
    gopher: Annotated[bool, typer.Option("--gopher", help="Gopher's quality rules")] = False,
    repetition: Annotated[
        bool, typer.Option("--gopher-repetition", help="Gopher's repetition rules")
    ] = False,
    c4: Annotated[bool, typer.Option("--c4", help="C4's rules for documents")] = False,
    bad_words: Annotated[
        Path | None, typer.Option(metavar="FILE", help="words of which C4's rules allow none")
    ] = None,
    text_key: Annotated[
        str | None, typer.Option(metavar="FIELD", help="field or column that holds the text")
    ] = None,
    form: Annotated[
        str, typer.Option("--format", metavar="NAME", help="jsonl.zst, jsonl.gz, jsonl or parquet")
    ] = "jsonl.zst",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="any key of a prep config; repeatable"),
    ] = None,
    workers: WorkersOption = None,
    dry_run: Annotated[bool, typer.Option(help="show the plan and stop")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write records with their text repaired, short ones dropped, and others by rules you choose.

    Every record left out stands in documents.parquet with its reason. Finished work is reused; an
    interrupted run goes on with the same command.
    """
    from pipeline.clean_alone import Options, settings, story_of
    from pipeline.preparation import prepare, run
    from pipeline.progress import Progress
    from pipeline.show_clean import show_run
    from pipeline.show_plan import show_plan
    from pipeline.stages.export_format import FORMATS

    chosen = next((name for name in FORMATS if name == form), None)
    if chosen is None:
        raise ConfigError(f"--format {form}: expected one of {', '.join(FORMATS)}")
    options = Options(
        min_length, fix_text, mask, language, gopher, repetition, c4, bad_words, text_key
    )
    loaded = settings(config, files or (), options, tuple(set_ or ()))
    story = story_of(chosen)
    if dry_run:
        return show_plan(prepare(loaded, out), as_json, story)
    return show_run(run(loaded, out, workers, progress=Progress(), story=story), as_json)
