"""A declared licence never clears a listed origin: no policy can say so, and none does it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import ConfigError
from pipeline.screening.policy.evaluation import evaluate_policy
from pipeline.screening.policy.rules import Policy, PolicyRule, RuleError, compile_rule, load_policy

Write = Callable[[str], Path]
Make = Callable[..., Any]

ORIGIN = '  - {id: origin, when: {origin.family: books3}, decision: quarantine, reason: "listed"}\n'
KEEPS = "a rule that keeps documents"
READS = "must not depend on a licence or on what the registry allows"

REFUSED = [
    ("licence.spdx: any", "allow", KEEPS),
    ("licence.spdx: MIT, not: origin", "allow", KEEPS),
    ("licence.spdx: MIT, not: artefact", "allow", KEEPS),
    ("licence.spdx: MIT, not: {origin.family: books3}", "allow", KEEPS),
    ("marker.kind: mention, document.licence: mit", "allow", KEEPS),
    ("text_match.kind: any, work.status: licensed", "allow", KEEPS),
    ("text_match.kind: any, work.status: public_domain", "redact", KEEPS),
    ("origin.family: books3", "allow", KEEPS),
    ("origin.family: books3, licence.spdx: any", "quarantine", READS),
    ("origin.family: books3, not: licence", "quarantine", READS),
    ("origin.family: books3, not: {licence.kind: declared}", "drop", READS),
    ("origin.family: books3, document.licence: {not: mit}", "quarantine", READS),
    ("artefact.list: any, not: licence", "drop", READS),
    ("origin.family: books3, not: {work.status: licensed}", "quarantine", READS),
]


@pytest.mark.parametrize(("when", "decision", "message"), REFUSED)
def test_refused(when: str, decision: str, message: str, write_policy: Write) -> None:
    text = f"  - {{id: a, when: {{{when}}}, decision: {decision}, reason: r}}\n"
    with pytest.raises(ConfigError, match=message):
        load_policy(write_policy(text + ORIGIN))


ALLOWED = [
    ("licence.spdx: MIT, not: [artefact, origin]", "allow"),
    ("text_match.kind: any, work.status: licensed, not: [artefact, origin]", "allow"),
    ("text_match.kind: any, not: [origin, artefact]", "redact"),
    ("review.decision: allow", "allow"),
    ("review.decision: allow, licence.spdx: any", "allow"),
    ("licence.kind: conflict", "review"),
    ("licence.kind: conflict", "quarantine"),
    ("origin.family: books3, text_match.kind: any, work.status: verified", "drop"),
]


@pytest.mark.parametrize(("when", "decision"), ALLOWED)
def test_not_refused(when: str, decision: str, write_policy: Write) -> None:
    text = f"  - {{id: a, when: {{{when}}}, decision: {decision}, reason: r}}\n"
    assert len(load_policy(write_policy(text)).rules) == 1


def test_books3_that_declares_mit(
    default_policy: Policy, make_row: Make, make_evidence: Make, works: pa.Table
) -> None:
    """The case of the hub's card: quarantined whatever the licence, and whatever work it is."""
    origin = make_row(0, 0, "origin", "label", target="books3", list="origins", list_version="1")
    others = [
        make_row(0, 1, "licence", "declared", target="MIT", declared="MIT"),
        make_row(0, 2, "licence", "statement", target="CC0-1.0", confidence="high"),
        make_row(0, 3, "text_match", "passage", work_id="w-open", document_fraction=1.0, words=900),
        make_row(0, 4, "text_match", "passage", work_id="w-licensed", document_fraction=0.9),
    ]
    for rows in ([origin], [origin, *others], [*others, origin]):
        found = evaluate_policy(default_policy, make_evidence(rows), works).to_pylist()
        assert [(d["decision"], d["rule"]) for d in found] == [("quarantine", "origin-listed")]
    allowed = evaluate_policy(default_policy, make_evidence(others), works).to_pylist()
    assert [d["decision"] for d in allowed] == ["allow"]


def test_only_a_person_clears_it(
    default_policy: Policy, make_row: Make, make_evidence: Make
) -> None:
    origin = make_row(0, 0, "origin", "label", target="books3", list="origins", list_version="1")
    review = make_row(0, 1, "review", "current", target="allow", by="A. Reader", note="a mistake")
    found = evaluate_policy(default_policy, make_evidence([origin, review])).to_pylist()[0]
    assert (found["decision"], found["rule"]) == ("allow", "reviewed-allow")
    assert found["reason"] == "A. Reader reviewed it: a mistake"
    assert found["evidence"] == [review["evidence_id"]]


CONDITIONS = [
    {"licence.spdx": "any"}, {"licence.kind": "conflict"}, {"document.licence": "any"},
    {"document.licence": {"not": "mit"}}, {"marker.kind": "any"}, {"notice.kind": "any"},
    {"text_match.words": ">=50"}, {"text_match.work_id": "any", "work.status": "licensed"},
    {"title_author.kind": "any"}, {"identifier.kind": "any"}, {"optout.status": "reserved"},
    {"origin.list": "any"}, {"artefact.list": "any"},
]  # fmt: skip
ABSENT: list[Any] = [
    "artefact", "origin", "licence", "marker", "text_match",
    {"work.status": ["licensed", "public_domain"]}, {"origin.family": "libgen"},
]  # fmt: skip


@st.composite
def rules(draw: st.DrawFn) -> PolicyRule | None:
    """A rule that a file could hold, or None when it would be refused."""
    when: dict[str, Any] = {}
    for condition in draw(st.lists(st.sampled_from(CONDITIONS), min_size=1, max_size=3)):
        when |= condition
    if absent := draw(st.lists(st.sampled_from(ABSENT), max_size=4)):
        when["not"] = absent
    decision = draw(st.sampled_from(["allow", "review", "redact", "quarantine", "drop"]))
    rule = PolicyRule(
        id=f"r{draw(st.integers(0, 10**6))}", when=when, decision=decision, reason="r"
    )
    try:
        compile_rule(rule)
    except RuleError:
        return None
    return rule


EVIDENCE = [
    ("licence", {"kind": "declared", "target": "MIT"}),
    ("licence", {"kind": "conflict", "target": "CC0-1.0"}),
    ("marker", {"kind": "mention"}), ("notice", {"kind": "copyright"}),
    ("text_match", {"work_id": "w-licensed", "words": 400, "byte_length": 9}),
    ("text_match", {"work_id": "w-open", "words": 40}),
    ("title_author", {"work_id": "w-open"}), ("identifier", {"work_id": "w-verified"}),
    ("optout", {"status": "allowed"}),
]  # fmt: skip


@given(
    others=st.lists(rules(), max_size=6),
    place=st.integers(0, 6),
    evidence=st.lists(st.sampled_from(EVIDENCE), max_size=5),
    licence=st.sampled_from(["", "mit", "cc0"]),
)
def test_no_policy_clears_it(
    others: list[PolicyRule | None], place: int, evidence: list[tuple[str, dict[str, Any]]],
    licence: str, make_row: Make, make_evidence: Make, make_key: Make, works: pa.Table,
) -> None:  # fmt: skip
    """Whatever other rules stand before or behind it, and whatever else is found: a document that a
    quarantine rule of its listed origin matches is quarantined or dropped."""
    chosen = [rule for rule in others if rule is not None]
    listed = PolicyRule(
        id="listed", when={"origin.family": "books3"}, decision="quarantine", reason="r"
    )
    chosen.insert(min(place, len(chosen)), listed)
    policy = Policy(version=1, rules=tuple(chosen))
    rows = [make_row(0, 0, "origin", "label", target="books3", list="origins")]
    rows += [make_row(0, n, name, **given) for n, (name, given) in enumerate(evidence, 1)]
    documents = pa.table({
        "doc_key": pa.array([make_key(0)], pa.binary(16)), "source": [""], "licence": [licence],
    })  # fmt: skip
    found = evaluate_policy(policy, make_evidence(rows), works, documents).to_pylist()
    assert [d["decision"] in ("quarantine", "drop") for d in found] == [True]
