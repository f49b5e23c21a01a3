"""`prep policy`: parse, call, print."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from pipeline.options import JsonOption, complete_runs

BUILTIN = "builtin:default"
"""As in `pipeline.provenance.policy.loading`, which a light command need not import."""

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="a run directory", autocompletion=complete_runs)
]
PolicyArgument = Annotated[
    str, typer.Argument(metavar="POLICY", help=f"a policy file, or {BUILTIN}")
]
DocumentArgument = Annotated[
    str,
    typer.Argument(metavar="DOC", help="its key or the first 6 or more digits of it, or FILE:LINE"),
]
Choice = Literal["allow", "review", "redact", "quarantine", "drop"]


def register(app: typer.Typer) -> None:
    """Add the group to the `prep` app."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Check, compare and explain policies of screening, and record reviews.",
    )
    group.command(epilog="Example: `prep policy check policy.yaml`")(check)
    group.command(
        epilog="Examples:\n\n`prep policy show`\n\n`prep policy show policy.yaml`\n\n"
        "`prep policy show --attributes`"
    )(show)
    group.command(
        epilog="Example: `prep policy diff builtin:default policy.yaml --run runs/quickstart`"
    )(diff)
    group.command(
        epilog="Examples:\n\n`prep policy review runs/quickstart 550f72f4 --decision allow "
        "--by 'A. Reader' --note 'our own manual'`\n\n`prep policy review runs/quickstart "
        "550f72f4 --decision redact --span 120:480 --by 'A. Reader' --note 'a poem'`"
    )(review)
    group.command(
        epilog="Examples:\n\n`prep policy explain runs/quickstart 550f72f4`\n\n"
        "`prep policy explain runs/quickstart 550f72f4 --policy policy.yaml`"
    )(explain)
    app.add_typer(group, name="policy")


def check(policy: PolicyArgument, as_json: JsonOption = False) -> None:
    """Check a policy file, and list the detectors whose evidence no rule asks about."""
    from pipeline.provenance.policy.loading import find_policy, load_policy
    from pipeline.show_policy import show_check

    show_check(load_policy(find_policy(policy)), as_json)


def show(
    policy: PolicyArgument = BUILTIN,
    attributes: Annotated[
        bool, typer.Option("--attributes", help="show what a rule can ask about, not the rules")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the rules of a policy in order."""
    from pipeline.provenance.policy.loading import find_policy, load_policy
    from pipeline.show_policy import show_attributes, show_policy

    if attributes:
        return show_attributes(as_json)
    return show_policy(load_policy(find_policy(policy)), as_json)


def diff(
    old: PolicyArgument,
    new: PolicyArgument,
    run: Annotated[Path, typer.Option(metavar="RUN", help="a finished run directory")],
    as_json: JsonOption = False,
) -> None:
    """Show which documents of a run another policy would decide differently.

    The recorded evidence is used; no detector runs again, and nothing is changed.
    """
    from pipeline.provenance.policy.difference import compare_policies
    from pipeline.provenance.policy.loading import find_policy, load_policy
    from pipeline.show_policy import show_difference

    before, after = load_policy(find_policy(old)), load_policy(find_policy(new))
    show_difference(compare_policies(run, before, after), as_json)


def review(
    directory: RunArgument,
    document: DocumentArgument,
    decision: Annotated[Choice, typer.Option(help="what is to happen to the document")],
    by: Annotated[str, typer.Option(metavar="NAME", help="who decided")],
    note: Annotated[str, typer.Option(metavar="TEXT", help="why")],
    span: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIRST:END",
            help="bytes FIRST to END - 1 of the text, to be redacted; repeatable",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Record what a person decided about a document; the next `prep run` uses it as evidence."""
    from pipeline.provenance.reviews import record_review
    from pipeline.show_policy import show_review

    spans = [_span(text) for text in span or []]
    show_review(record_review(directory, document, decision, by, note, spans), as_json)


def explain(
    directory: RunArgument,
    document: DocumentArgument,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY", help=f"a policy file, or {BUILTIN} [default: the policy of the run]"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show for one document which rules of a policy match, and why the others do not.

    A rule that matches is shown with its evidence, any other with what is missing.
    """
    from pipeline.provenance.policy.loading import find_policy, load_policy, policy_of
    from pipeline.provenance.policy.outcomes import chain
    from pipeline.show_policy import show_chain

    rules = policy_of(directory) if policy is None else load_policy(find_policy(policy))
    show_chain(chain(directory, document, rules), policy or "the run's own", as_json)


def _span(text: str) -> tuple[int, int]:
    first, _, end = text.partition(":")
    if not (first.isdecimal() and end.isdecimal()):
        raise typer.BadParameter(f"{text}: expected FIRST:END in bytes, such as 120:480")
    return int(first), int(end)
