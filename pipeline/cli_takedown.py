"""`prep takedown`: parses, calls, prints; no logic."""

from datetime import date, datetime
from pathlib import Path
from typing import Annotated

import typer

from pipeline.core.errors import ConfigError
from pipeline.options import JsonOption

_MODES = ("mask", "rewrite", "forget-set")


def register(app: typer.Typer) -> None:
    """Add `takedown` to the `prep` app."""
    app.command(
        no_args_is_help=True,
        epilog="Examples:\n\n`prep takedown claim.yaml --run runs/pile --train out --plan`\n\n"
        "`prep takedown claim.yaml --run runs/pile --apply --by 'J. Doe'`\n\n"
        "`prep takedown claim.yaml --run runs/pile --apply --mode forget-set --out forget`",
    )(takedown)


def takedown(
    claim: Annotated[Path, typer.Argument(metavar="CLAIM", help="YAML file that states the claim")],
    run: Annotated[Path, typer.Option(metavar="DIR", help="a finished run directory")],
    train: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="MODEL_DIR", help="model_dir of a training run on its data, repeatable"
        ),
    ] = None,
    export: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="an export of the run, to be listed; repeatable"),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="show what would be done (default)")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="carry it out")] = False,
    mode: Annotated[
        str, typer.Option(metavar="NAME", help="with --apply: mask, rewrite or forget-set")
    ] = "mask",
    by: Annotated[
        str, typer.Option(metavar="NAME", help="with --apply: your name; it is recorded")
    ] = "",
    on: Annotated[
        str | None, typer.Option(metavar="DATE", help="with --apply: the day [default: today]")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="with forget-set: directory to write it to")
    ] = None,
    texts_from: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="directory of the claim's texts [default: that of the claim]"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Take documents down: show what a claim covers, or remove it from the run.

    Without --apply, lists the documents with all siblings, rows, steps and stored copies. With it,
    their text is removed and they are masked in the data sets. The same command resumes an
    interrupted --apply.
    """
    from pipeline.takedown.claim import load_claim
    from pipeline.takedown.command import TakedownOptions, run_command

    if plan and apply:
        raise ConfigError("--plan and --apply: expected only one of them")
    if mode not in _MODES:
        raise ConfigError(f"--mode {mode}: expected one of {', '.join(_MODES)}")
    wanted = TakedownOptions(
        load_claim(claim, texts_from), run, tuple(train or ()), tuple(export or ()), apply, mode,
        by, _day(on), out, as_json,
    )  # fmt: skip
    run_command(wanted)


def _day(text: str | None) -> date:
    if text is None:
        return datetime.now().astimezone().date()
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"--on {text}: expected a day such as 2026-03-01") from None
