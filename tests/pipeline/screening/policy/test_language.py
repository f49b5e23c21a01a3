"""The language of rules: what parses, what every condition means, and where a mistake is told."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.core.errors import ConfigError
from pipeline.screening.detectors import catalogue
from pipeline.screening.evidence import DECISIONS
from pipeline.screening.policy.attributes import (
    OWN,
    RECORDS,
    WORK_DETECTORS,
    find_attributes,
    list_detectors,
)
from pipeline.screening.policy.evaluation import evaluate_policy
from pipeline.screening.policy.rules import DEFAULT, find_policy, load_policy, reads_documents

Write = Callable[[str], Path]
Make = Callable[..., Any]


def rule(when: str, decision: str = "review", reason: str = "because", **more: str) -> str:
    extra = "".join(f", {name}: {value}" for name, value in more.items())
    return f'  - {{id: a, when: {{{when}}}, decision: {decision}, reason: "{reason}"{extra}}}\n'


MISTAKES = [
    (rule("orgin.family: x"), ":3: rules.0.when.orgin.family: no such detector; did you mean "
     "'origin'?"),
    (rule("origin.famly: x"), "origin has no attribute 'famly'; did you mean 'family'?"),
    (rule("origin: x"), "origin has no attribute ''"),
    (rule("work.status: asserted"), "when.work.status: names no evidence of a work; expected "
     "conditions on one of identifier, title_author, text_match"),
    (rule("text_match.words: '>3', identifier.kind: any, work.status: verified"),
     "is ambiguous next to text_match and identifier"),
    (rule("text_match.tier: excerp"), "no such value; did you mean 'excerpt'?"),
    (rule("text_match.words: '>=x'"), "expected a number, a comparison such as '>=50', any, or"),
    (rule("text_match.words: fifty"), "expected a number"),
    (rule("text_match.words: true"), "expected a number"),
    (rule("origin.family: '>=3'"), "expected text, a list of texts"),
    (rule("origin.family: 3"), "expected text, a list of texts, any, or {not: …}; got 3"),
    (rule("origin.family: []"), "the list is empty"),
    (rule("origin.family: [[a]]"), "expected text"),
    (rule("origin.family: [any]"), "expected text"),
    (rule("origin.family: ''"), "expected text"),
    (rule("origin.family: ~"), "expected text"),
    (rule("origin.family: {no: a}"), "expected `not` as the only key"),
    (rule("origin.family: {not: a, and: b}"), "expected `not` as the only key"),
    (rule("text_match.verified: 'yes'"), "expected true, false, any"),
    (rule("optout.captured_at: '<noon'"), "expected a comparison such as '<2024-01-01'"),
    (rule("origin.kind: any, not: orign"), "when.not: no such detector; did you mean 'origin'?"),
    (rule("origin.kind: any, not: [marker, 3]"), "when.not.1: expected a detector"),
    (rule("origin.kind: any, not: {}"), "when.not: expected a detector, conditions"),
    (rule("origin.kind: any, not: {marker.kind: mentoin}"), "did you mean 'mention'?"),
    (rule("origin.kind: any, not: {marker.kind: any, notice.kind: any}"),
     "expected conditions on one detector"),
    (rule("origin.kind: any, not: {document.source: x}"), "expected conditions on one detector"),
    (rule("not: origin"), "expected a condition on evidence, such as"),
    (rule("document.source: x"), "expected a condition on evidence, such as"),
    (rule("eval_overlap.kind: any"), "is not part of a policy; set decontaminate.action"),
    (rule("gopher.kind: any"), "is not part of a policy; set filters.action"),
    (rule("origin.kind: any", reason="{origin.famly}"), "did you mean 'family'?"),
    (rule("origin.kind: any", reason="{marker.kind}"), "the rule has no condition on 'marker'"),
    (rule("origin.kind: any", reason="{work.title}"), "the rule has no condition on 'work'"),
    (rule("origin.kind: any", reason="{0}"), "the rule has no condition on '0'"),
    (rule("origin.kind: any", reason="{origin.kind"), "reason: a brace without its partner"),
    (rule("origin.kind: any", reason=""), ":3: rules.0.reason: "),
    (rule("origin.kind: any", decision="delete"), ":3: rules.0.decision: expected"),
    (rule("origin.kind: any", propogate="false"), "did you mean 'propagate'?"),
    (rule("origin.kind: any").replace("when", "wen"), "rules.0.when: missing; expected con"),
    (rule("origin.kind: any").replace("id: a", "id: A b"), ":3: rules.0.id:"),
    (rule("origin.kind: any").replace("id: a", "id: eval-overlap"), "reserved for decontamination"),
    (rule("origin.kind: any").replace("id: a", "id: takedown"), "reserved for takedowns"),
    (rule("origin.kind: any") * 2, ":4: rules.1.id: two rules have the id 'a'"),
    (rule(""), ":3: rules.0.when:"),
    ("  []\npropagate: {mode: best}\n", "propagate.mode: expected"),
    ("  []\npropagate: {min_jaccard: 2}\n", "propagate.min_jaccard: expected"),
    ("  []\npropagte: {}\n", "did you mean 'propagate'?"),
]  # fmt: skip


@pytest.mark.parametrize(("rules", "message"), MISTAKES)
def test_mistakes(rules: str, message: str, write_policy: Write) -> None:
    path = write_policy(rules)
    with pytest.raises(ConfigError) as found:
        load_policy(path)
    assert str(found.value).startswith(f"{path}:")
    assert message in str(found.value)


def test_version(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    for text in ("rules: []\n", "version: 2\nrules: []\n"):
        path.write_text(text)
        with pytest.raises(ConfigError, match="version"):
            load_policy(path)


def test_no_control_characters_in_messages(write_policy: Write) -> None:
    path = write_policy('  - {id: a, when: {"or\\u001bgin.x": any}, decision: drop, reason: r}\n')
    with pytest.raises(ConfigError) as found:
        load_policy(path)
    assert "\x1b" not in str(found.value)


CONDITIONS = [
    ("origin.family: books3", {"target": "books3"}, {"target": "Books3"}),
    ("origin.family: [a, b]", {"target": "b"}, {"target": "c"}),
    ("origin.work_id: any", {"work_id": "w"}, {"work_id": ""}),
    ("origin.list: any", {"list": "l"}, {}),
    ("origin.list: any", {"list": "l"}, {"list": ""}),
    ("origin.score: '>=0.5'", {"score": 0.5}, {"score": 0.49}),
    ("origin.score: '> 0.5'", {"score": 0.6}, {"score": 0.5}),
    ("origin.score: '<=-1'", {"score": -1.0}, {"score": 0.0}),
    ("origin.score: '<2'", {"score": 1.9}, {"score": None}),
    ("origin.score: 2", {"score": 2.0}, {"score": 2.5}),
    ("origin.score: [1, '>5']", {"score": 7.0}, {"score": 3.0}),
    ("origin.family: {not: a}", {"target": "b"}, {"target": "a"}),
    ("origin.family: {not: [a, b]}", {"target": ""}, {"target": "b"}),
    ("origin.list: {not: any}", {}, {"list": "l"}),
    ("text_match.verified: true", {"verified": True}, {"verified": False}),
    ("text_match.verified: false", {"verified": False}, {}),
    ("text_match.words: '>=50'", {"words": 50}, {"words": "50"}),
    ("text_match.words: 1", {"words": 1}, {"words": True}),
    ("notice.year: 1999", {"year": 1999}, {"year": 2000}),
    ("notice.year: '<2000'", {"year": 1999}, {}),
    ("optout.captured_at: '<2024-05-01'", {"captured_at": "2024-04-30T10:00:00Z"},
     {"captured_at": "2024-05-01T00:00:00Z"}),
    ("optout.captured_at: '>=2024-05-01T00:00:00Z'", {"captured_at": "2024-05-01T00:00:00Z"}, {}),
    ("document.source: Wiki, origin.kind: any", {"doc_id": 0}, {"doc_id": 1}),
    ("marker.kind: any, document.licence: {not: mit}", {"doc_id": 1, "kind": "mention"},
     {"doc_id": 0, "kind": "mention"}),
    ("text_match.kind: any, work.status: [asserted, verified]", {"work_id": "w-asserted"},
     {"work_id": "w-open"}),
    ("text_match.kind: any, work.status: verified", {"work_id": "w-verified"}, {"work_id": "?"}),
    ("text_match.kind: any, work.legal_hold: true", {"work_id": "w-verified"},
     {"work_id": "w-asserted"}),
    ("text_match.kind: any, work.title: any", {"work_id": "w-open"}, {"work_id": ""}),
    ("text_match.kind: any, not: {work.status: licensed}", {"work_id": "w-open"},
     {"work_id": "w-licensed"}),
    ("text_match.kind: any, not: marker", {}, None),
    ("text_match.kind: any, not: {text_match.words: '>5'}", {"words": 5}, {"words": 6}),
    ("text_match.kind: any, not: [marker, {text_match.words: '>5'}]", {"words": 5}, {"words": 6}),
]  # fmt: skip


@pytest.mark.parametrize(("when", "yes", "no"), CONDITIONS)
def test_conditions(
    when: str, yes: dict[str, Any], no: dict[str, Any] | None, write_policy: Write,
    make_row: Make, make_evidence: Make, works: pa.Table, make_key: Make,
) -> None:  # fmt: skip
    policy = load_policy(write_policy(rule(when)))
    detector = when.partition(".")[0].replace("document", "origin")
    documents = pa.table({
        "doc_key": pa.array([make_key(0), make_key(1)], pa.binary(16)),
        "source": ["Wiki", "Web"], "licence": ["mit", ""],
    })  # fmt: skip

    def matches(**given: Any) -> bool:
        number = given.pop("doc_id", 0)
        kind = given.pop("kind", "k")
        evidence = make_evidence([make_row(number, 0, detector, kind, **given)])
        return len(evaluate_policy(policy, evidence, works, documents)) == 1

    assert matches(**yes)
    if no is not None:
        assert not matches(**no)


def test_not_excludes_other_evidence(
    write_policy: Write, make_row: Make, make_evidence: Make
) -> None:
    policy = load_policy(write_policy(rule("origin.kind: any, not: [marker, notice]")))
    origin = make_row(0, 0, "origin", "label")
    assert len(evaluate_policy(policy, make_evidence([origin]))) == 1
    for detector in ("marker", "notice"):
        both = make_evidence([origin, make_row(0, 1, detector, "mention")])
        assert len(evaluate_policy(policy, both)) == 0


def test_conditions_on_a_detector_hold_for_one_row(
    write_policy: Write, make_row: Make, make_evidence: Make, works: pa.Table
) -> None:
    """Neither two rows together nor the work of another row will do."""
    when = "text_match.words: '>=50', text_match.document_fraction: '>=0.2', work.status: asserted"
    policy = load_policy(write_policy(rule(when)))
    apart = make_evidence([
        make_row(0, 0, "text_match", words=60, document_fraction=0.1, work_id="w-asserted"),
        make_row(0, 1, "text_match", words=10, document_fraction=0.9, work_id="w-asserted"),
        make_row(0, 2, "text_match", words=60, document_fraction=0.9, work_id="w-open"),
    ])  # fmt: skip
    assert len(evaluate_policy(policy, apart, works)) == 0
    one = make_row(0, 3, "text_match", words=50, document_fraction=0.2, work_id="w-asserted")
    found = evaluate_policy(policy, pa.concat_tables([apart, make_evidence([one])]), works)
    assert found["evidence"].to_pylist() == [[one["evidence_id"]]]


def test_several_detectors_all_match(
    write_policy: Write, make_row: Make, make_evidence: Make
) -> None:
    policy = load_policy(write_policy(rule("marker.kind: mention, notice.year: '>1999'")))
    rows = [make_row(0, 0, "marker", "mention"), make_row(0, 1, "notice", year=2001),
            make_row(1, 0, "marker", "mention"), make_row(2, 0, "notice", year=2001)]  # fmt: skip
    found = evaluate_policy(policy, make_evidence(rows)).to_pylist()
    assert [(d["doc_id"], d["evidence"]) for d in found] == [
        (0, [rows[0]["evidence_id"], rows[1]["evidence_id"]])
    ]


def test_reasons(write_policy: Write, make_row: Make, make_evidence: Make, works: pa.Table) -> None:
    """Values of the first row that matched, readable, cut, and harmless whatever they hold."""
    reason = "{text_match.words} words, {text_match.document_fraction}, {work.title}, " \
             "{text_match.seen}, {text_match.verified}, {text_match.containment}"  # fmt: skip
    policy = load_policy(write_policy(rule("text_match.words: '>5'", reason=reason)))
    hostile = "{work.status}\x1b[31m" + "x" * 200
    rows = [
        make_row(0, 0, "text_match", words=3, work_id="w-open", seen="not this one"),
        make_row(0, 1, "text_match", words=1234, document_fraction=0.23456, work_id="w-asserted",
                 seen=hostile, verified=True),
        make_row(0, 2, "text_match", words=9, work_id="w-open", seen="nor this"),
    ]  # fmt: skip
    found = evaluate_policy(policy, make_evidence(rows), works)["reason"][0].as_py()
    begins = "1,234 words, 0.235, The Lantern of Tarn, {work.status}\\x1b[31mxxxx"
    assert found.startswith(begins) and found.endswith("x…, true, unknown")
    assert len(found) < 200


def test_reasons_of_documents(
    write_policy: Write, make_row: Make, make_evidence: Make, make_key: Make
) -> None:
    text = rule("origin.kind: any", reason="{document.source} declares {document.licence}")
    policy = load_policy(write_policy(text))
    assert reads_documents(policy)
    documents = pa.table({
        "doc_key": pa.array([make_key(5)], pa.binary(16)), "source": ["Web"], "licence": [""],
    })  # fmt: skip
    evidence = make_evidence([make_row(5, 0, "origin", "label")])
    assert evaluate_policy(policy, evidence, None, documents)["reason"][0].as_py() == (
        "Web declares unknown"
    )
    with pytest.raises(ValueError, match="document"):
        evaluate_policy(policy, evidence)


def test_broken_attributes_are_told(
    write_policy: Write, make_row: Make, make_evidence: Make
) -> None:
    from pipeline.core.errors import IntegrityError

    policy = load_policy(write_policy(rule("origin.list: any")))
    for attributes in ("{", "[1]"):
        evidence = make_evidence([make_row(0, 0, "origin", attributes=attributes)])
        with pytest.raises(IntegrityError, match="attributes"):
            evaluate_policy(policy, evidence)


def test_attribute_table() -> None:
    """Names are unique, choices and works are where the language needs them."""
    assert catalogue.DECISIONS == DECISIONS
    for namespace in (*list_detectors(), *RECORDS):
        attributes = find_attributes(namespace) or ()
        names = [a.name for a in attributes]
        assert len(set(names)) == len(names), namespace
        assert all(a.meaning and "\n" not in a.meaning for a in attributes)
        if namespace not in RECORDS:
            assert {"kind", "target", "work_id", "seen", "score"} <= set(names)
    assert set(WORK_DETECTORS) <= set(list_detectors())


def test_finding_a_policy(tmp_path: Path) -> None:
    assert find_policy("builtin:default", tmp_path) == DEFAULT
    assert find_policy("p.yaml", tmp_path) == tmp_path / "p.yaml"
    with pytest.raises(ConfigError, match="cannot read"):
        load_policy(find_policy("p.yaml", tmp_path))


def test_a_policy_is_plain_data(default_policy: Any) -> None:
    """It travels to workers as JSON, and equal policies have equal JSON."""
    text = default_policy.model_dump_json()
    again = type(default_policy).model_validate_json(text)
    assert again == default_policy and again.model_dump_json() == text
    assert json.loads(text)["version"] == 1


def test_the_manual_lists_every_attribute() -> None:
    """The table in docs/policy.md."""
    text = (Path(__file__).parents[4] / "docs/policy.md").read_text(encoding="utf-8")
    text = text.partition("| detector |")[2]
    for name, attributes in {**OWN, **RECORDS}.items():
        line = next(line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
        names = [a.name for a in attributes if a.name != "kind"]
        assert line.split("|")[2].strip() == ", ".join(f"`{n}`" for n in names)


def test_the_example_of_the_manual(tmp_path: Path) -> None:
    text = (Path(__file__).parents[4] / "docs/policy.md").read_text(encoding="utf-8")
    path = tmp_path / "policy.yaml"
    path.write_text(text.partition("```yaml\n")[2].partition("```")[0])
    assert load_policy(path).rules[0].id == "registered-text"
