"""`prep policy` on the terminal."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from rich.table import Table

from pipeline.core.figures import format_bytes
from pipeline.core.words import pluralise
from pipeline.provenance.policy.attributes import COMMON, DETECTORS, DOCUMENT, OWN, WORK
from pipeline.provenance.policy.difference import PolicyDifference
from pipeline.provenance.policy.model import Policy
from pipeline.provenance.policy.outcomes import DecisionChain
from pipeline.provenance.policy.rules import ReadyRule, compile_rules
from pipeline.provenance.records import describe_place
from pipeline.provenance.reviews import Review
from pipeline.terminal import format_cell, out, print_facts, print_json, print_line


def show_check(policy: Policy, as_json: bool) -> None:
    """That a policy is well-formed, and the detectors that none of its rules asks about."""
    rules = compile_rules(policy)
    asked = {name for rule in rules for group in rule.present for name in group.detectors}
    unasked = [name for name in DETECTORS if name not in asked]
    if as_json:
        return print_json({"rules": len(rules), "unasked": unasked})
    print_line(f"ok: {pluralise(len(rules), 'rule')}")
    if unasked:
        print_line(f"no rule asks about evidence of {', '.join(unasked)}")
    return None


def show_policy(policy: Policy, as_json: bool) -> None:
    """The rules in order, and how decisions spread."""
    if as_json:
        return print_json(policy.model_dump(mode="json"))
    table = Table("rule", "when", "decision", "reason")
    for rule in compile_rules(policy):
        decision = rule.rule.decision + ("" if rule.rule.propagate else ", only this document")
        table.add_row(*map(format_cell, (rule.rule.id, _when(rule), decision, rule.rule.reason)))
    out.print(table)
    spread = policy.propagate
    print_line(
        "a decision applies only to the document that it is about"
        if spread.mode == "none"
        else "the most severe decision of a duplicate cluster applies to all its documents with "
        f"Jaccard similarity {spread.min_jaccard:g} or more"
    )
    return None


def _when(rule: ReadyRule) -> str:
    parts = [group.written for group in rule.present]
    parts += [test.written for test in rule.document]
    parts += [f"not {group.written}" for group in rule.absent]
    return "; ".join(parts)


def show_attributes(as_json: bool) -> None:
    """Every attribute that a condition or a reason can name; those of all detectors once."""
    namespaces = {"DETECTOR": COMMON, **OWN, "work": WORK, "document": DOCUMENT}
    rows = [
        (f"{namespace}.{a.name}", ", ".join(a.choices) or a.type, a.meaning)
        for namespace, attributes in namespaces.items()
        for a in attributes
    ]
    if as_json:
        names = ("attribute", "type", "meaning")
        return print_json([dict(zip(names, row, strict=True)) for row in rows])
    table = Table("attribute", "type or values", "meaning")
    for row in rows:
        table.add_row(*map(format_cell, row))
    out.print(table)
    return None


def show_difference(found: PolicyDifference, as_json: bool) -> None:
    """What another policy decides otherwise, by decision and rule."""
    if as_json:
        return print_json(asdict(found))
    print_line(
        f"{found.decisions_changed:,} of {pluralise(found.documents, 'document')} decided "
        "differently"
    )
    if not found.changes:
        return None
    table = Table("old policy", "new policy")
    for title in ("documents", "kept by the run", "text", "tokens", "tokens, estimated"):
        table.add_column(title, justify="right")
    for c in found.changes:
        table.add_row(
            format_cell(_side(c.old_decision, c.old_rule)), format_cell(_side(c.new_decision,
            c.new_rule)), f"{c.documents:,}", f"{c.kept:,}", format_bytes(c.text_bytes),
            f"{c.tokens:,}", f"{c.tokens_estimated:,}",
        )  # fmt: skip
    out.print(table)
    return None


def _side(decision: str, rule: str) -> str:
    return f"{decision} ({rule})" if rule else decision


def show_review(review: Review, as_json: bool) -> None:
    """The review as recorded."""
    if as_json:
        return print_json(review.model_dump(mode="json"))
    print_line(
        f"event {review.event}: {review.decision} for {review.doc_key}, by {review.by}; "
        "the next `prep run` uses it"
    )
    return None


def show_chain(found: DecisionChain, policy: str, as_json: bool) -> None:
    """Every rule for one document, and what follows."""
    if as_json:
        return print_json(_plain(found))
    place = found.record.place
    print_facts([
        ("document", f"{place.key}  {describe_place(place, '')}"),
        ("recorded", _decided(found.recorded)),
        ("policy", f"{policy}: {_decided(found.decision)}"),
    ])  # fmt: skip
    table = Table("rule", "decision", "matched", "evidence, or why not")
    for outcome in found.outcomes:
        evidence = ", ".join(_numbered(outcome.evidence, found.evidence))
        cells = (outcome.rule, outcome.decision, "yes" if outcome.matched else "-")
        table.add_row(*map(format_cell, cells), format_cell(evidence or outcome.missing))
    out.print(table)
    return None


def _decided(decision: dict[str, Any] | None) -> str:
    if decision is None:
        return "allow: no rule matches"
    return f"{decision['decision']} by {decision['rule']}: {decision['reason']}"


def _numbered(ids: Iterable[str], evidence: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Evidence in a few words: its id without the key, its detector, and what it is about."""
    rows = {row["evidence_id"]: row for row in evidence}
    for name in ids:
        row = rows[name]
        words = (name.rpartition("-")[2], row["detector"], row["kind"], row["target"])
        yield " ".join(word for word in words if word)


def _plain(found: DecisionChain) -> dict[str, Any]:
    """The chain as plain data, keys in hex."""
    value = asdict(found)
    rows = [*value["evidence"], *(v for v in (value["decision"], value["recorded"]) if v)]
    for row in rows:
        for name, cell in row.items():
            row[name] = cell.hex() if isinstance(cell, bytes) else cell
    return value
