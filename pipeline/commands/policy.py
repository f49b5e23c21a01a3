"""`prep policy`: its options, one call, and what it prints: rules, decisions step by step, reviews,
and what another policy would change.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pipeline.commands.options import JsonOption, OneGenerationArgument, Place
from pipeline.commands.terminal import print_facts, print_json, print_line, show_table
from pipeline.commands.usage import group
from pipeline.core.words import format_bytes, pluralise
from pipeline.screening.detectors.catalogue import COMMON, DETECTORS, Attribute
from pipeline.screening.policy.attributes import RECORDS, find_attributes, list_detectors
from pipeline.screening.policy.rules import (
    BUILTIN,
    compile_rules,
    find_policy,
    load_policy,
    read_policy,
)

if TYPE_CHECKING:
    from pipeline.screening.policy.difference import DecisionChain, PolicyDifference

PolicyArgument = Annotated[
    str, typer.Argument(metavar="POLICY", help=f"a policy file, or {BUILTIN}")
]
DocumentArgument = Annotated[
    str,
    typer.Argument(metavar="DOC", help="its key or the first 6 or more digits of it, or FILE:LINE"),
]
Choice = Literal["allow", "review", "redact", "quarantine", "drop"]


def check(policy: PolicyArgument, as_json: JsonOption = False) -> None:
    """Check a policy file, and list the detectors whose evidence no rule asks about.

    Example: prep policy check policy.yaml
    """
    rules = compile_rules(load_policy(find_policy(policy)))
    used = {name for rule in rules for group in rule.present for name in group.detectors}
    unasked = [name for name in list_detectors() if name not in used]
    if as_json:
        return print_json({"rules": len(rules), "unasked": unasked})
    print_line(f"ok: {pluralise(len(rules), 'rule')}")
    if unasked:
        print_line(f"no rule asks about evidence of {', '.join(unasked)}")
    return None


def show(
    policy: PolicyArgument = BUILTIN, attributes: bool = False, as_json: JsonOption = False
) -> None:
    """Show the rules of a policy in order.

    --attributes: show what a rule can ask about, not the rules

    Examples:
    prep policy show
    prep policy show policy.yaml
    prep policy show --attributes
    """
    if attributes:
        return show_attributes(as_json)
    loaded = load_policy(find_policy(policy))
    if as_json:
        return print_json(loaded.model_dump(mode="json"))
    rows = []
    for rule in compile_rules(loaded):
        decision = rule.rule.decision + ("" if rule.rule.propagate else ", only this document")
        conditions = [group.written for group in rule.present]
        conditions += [test.written for test in rule.document]
        conditions += [f"not {group.written}" for group in rule.absent]
        rows.append((rule.rule.id, "; ".join(conditions), decision, rule.rule.reason))
    show_table(("rule", "when", "decision", "reason"), rows)
    spread = loaded.propagate
    print_line(
        "a decision applies only to the document that it is about"
        if spread.mode == "none"
        else "the most severe decision of a duplicate cluster applies to all its documents with "
        f"Jaccard similarity {spread.min_jaccard:g} or more"
    )
    return None


def diff(old: PolicyArgument, new: PolicyArgument, run: Place, as_json: JsonOption = False) -> None:
    """Show which documents of a run another policy would decide differently.

    The recorded evidence is used; no detector runs again, and nothing is changed.

    --run RUN: a finished run directory

    Example: prep policy diff builtin:default policy.yaml --run runs/quickstart
    """
    from pipeline.screening.policy.difference import compare_policies

    before, after = load_policy(find_policy(old)), load_policy(find_policy(new))
    show_difference(compare_policies(run, before, after), as_json)


def review(
    directory: OneGenerationArgument,
    document: DocumentArgument,
    decision: Choice,
    by: str,
    note: str,
    span: list[str] | None = None,
    as_json: JsonOption = False,
) -> None:
    """Record what a person decided about a document; the next `prep run` uses it as evidence.

    --decision: what is to happen to the document
    --by NAME: who decided
    --note TEXT: why
    --span FIRST:END: bytes FIRST to END - 1 of the text, to be redacted; repeatable

    Examples:
    prep policy review runs/quickstart 550f72f4 --decision allow --by 'A. Reader'
        --note 'our own manual'
    prep policy review runs/quickstart 550f72f4 --decision redact --span 120:480 --by 'A. Reader'
        --note 'a poem'
    """
    from pipeline.screening.reviews import record_review

    spans = [_span(text) for text in span or []]
    recorded = record_review(directory, document, decision, by, note, spans)
    if as_json:
        return print_json(recorded.model_dump(mode="json"))
    return print_line(
        f"event {recorded.event}: {recorded.decision} for {recorded.doc_key}, by {recorded.by}; "
        "the next `prep run` uses it"
    )


def explain(
    directory: OneGenerationArgument,
    document: DocumentArgument,
    policy: str | None = None,
    as_json: JsonOption = False,
) -> None:
    """Show for one document which rules of a policy match, and why the others do not.

    A rule that matches is shown with its evidence, any other with what is missing.

    --policy POLICY: a policy file, or builtin:default [default: the policy of the run]

    Examples:
    prep policy explain runs/quickstart 550f72f4
    prep policy explain runs/quickstart 550f72f4 --policy policy.yaml
    """
    from pipeline.screening.policy.difference import explain_decision

    rules = read_policy(directory) if policy is None else load_policy(find_policy(policy))
    show_chain(explain_decision(directory, document, rules), policy or "the run's own", as_json)


register = group(
    "policy",
    "Check, compare and explain policies of screening, and record reviews.",
    check,
    show,
    diff,
    review,
    explain,
)


def _span(text: str) -> tuple[int, int]:
    first, _, end = text.partition(":")
    if not (first.isdecimal() and end.isdecimal()):
        raise typer.BadParameter(f"{text}: expected FIRST:END in bytes, such as 120:480")
    return int(first), int(end)


def show_attributes(as_json: bool) -> None:
    """Every attribute that a condition or a reason can name; those of all detectors once."""
    namespaces: dict[str, tuple[Attribute, ...]] = {"DETECTOR": COMMON}
    for name in (*list_detectors(), *RECORDS):
        namespaces[name] = tuple(a for a in find_attributes(name) or () if a not in COMMON)
    rows = [
        (f"{namespace}.{a.name}", ", ".join(a.choices) or a.type, a.meaning)
        for namespace, attributes in namespaces.items()
        for a in attributes
    ]
    if as_json:
        names = ("attribute", "type", "meaning")
        return print_json([dict(zip(names, row, strict=True)) for row in rows])
    show_table(
        ("detector", "needs", "what it finds"),
        [(entry.name, entry.needs, entry.finds) for entry in DETECTORS.values()],
    )
    return show_table(("attribute", "type or values", "meaning"), rows)


def show_difference(difference: "PolicyDifference", as_json: bool) -> None:
    """What another policy decides otherwise, by decision and rule."""
    if as_json:
        return print_json(asdict(difference))
    print_line(
        f"{difference.decisions_changed:,} of {pluralise(difference.documents, 'document')} "
        "decided differently"
    )
    rows = [
        (
            _side(c.old_decision, c.old_rule),
            _side(c.new_decision, c.new_rule),
            f"{c.documents:,}",
            f"{c.kept:,}",
            format_bytes(c.text_bytes),
            f"{c.tokens:,}",
            f"{c.tokens_estimated:,}",
        )
        for c in difference.changes
    ]
    counts = (">documents", ">kept by the run", ">text", ">tokens", ">tokens, estimated")
    return show_table(("old policy", "new policy", *counts), rows)


def _side(decision: str, rule: str) -> str:
    return f"{decision} ({rule})" if rule else decision


def show_chain(chain: "DecisionChain", policy: str, as_json: bool) -> None:
    """Every rule for one document, and what follows."""
    from pipeline.runs.records import describe_place

    if as_json:
        value = asdict(chain)
        decisions = [d for d in (value["decision"], value["recorded"]) if d]
        for row in (*value["evidence"], *decisions):
            row.update({k: cell.hex() for k, cell in row.items() if isinstance(cell, bytes)})
        return print_json(value)
    place = chain.record.place
    print_facts(
        [
            ("document", f"{place.key}  {describe_place(place, '')}"),
            ("recorded", _describe_decision(chain.recorded)),
            ("policy", f"{policy}: {_describe_decision(chain.decision)}"),
        ]
    )
    about = {}
    for row in chain.evidence:
        words = (row["evidence_id"].rpartition("-")[2], row["detector"], row["kind"], row["target"])
        about[row["evidence_id"]] = " ".join(word for word in words if word)
    rows = []
    for outcome in chain.outcomes:
        evidence = ", ".join(about[name] for name in outcome.evidence) or outcome.missing
        matched = "yes" if outcome.matched else "-"
        rows.append((outcome.rule, outcome.decision, matched, evidence))
    return show_table(("rule", "decision", "matched", "evidence, or why not"), rows)


def _describe_decision(decision: dict[str, Any] | None) -> str:
    if decision is None:
        return "allow: no rule matches"
    return f"{decision['decision']} by {decision['rule']}: {decision['reason']}"
