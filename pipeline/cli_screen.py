"""`prep screen`: parses, calls, prints; no logic."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.core.errors import ConfigError
from pipeline.options import JsonOption, WorkersOption


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
    from pipeline.preparation import prepare, run
    from pipeline.progress import Progress
    from pipeline.screen_alone import SCREEN, ScreeningOptions, settings
    from pipeline.show_plan import show_plan
    from pipeline.show_screen import show_decisions

    if out is None:
        return _another_policy(files or [], policy, as_json)
    options = ScreeningOptions(registry or (), policy, origins or (), optout or (), text_key)
    loaded = settings(config, files or (), options, tuple(set_ or ()))
    if dry_run:
        return show_plan(prepare(loaded, out), as_json, SCREEN)
    manifest = run(loaded, out, workers, progress=Progress(), story=SCREEN)
    return show_decisions(manifest, as_json)


def _another_policy(runs: list[str], policy: str | None, as_json: bool) -> None:
    """What the policy would decide otherwise on a run. Raises ConfigError for anything else."""
    from pipeline.provenance.policy.difference import compare_policies
    from pipeline.provenance.policy.loading import find_policy, load_policy, policy_of
    from pipeline.show_policy import show_difference

    if len(runs) != 1 or policy is None:
        raise ConfigError(
            "--out: missing; give it, or give one finished run directory and --policy"
        )
    directory = Path(runs[0])
    changed = load_policy(find_policy(policy))
    show_difference(compare_policies(directory, policy_of(directory), changed), as_json)
