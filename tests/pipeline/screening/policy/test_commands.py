"""`prep policy`: what it prints, and what another policy would change."""

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from pipeline.commands.app import run_app
from pipeline.commands.policy import register
from pipeline.core.errors import InputError
from pipeline.runs.events import verify_events
from pipeline.screening.detectors.catalogue import COMMON, DOCUMENT, WORK
from pipeline.screening.policy.attributes import OWN
from pipeline.screening.policy.difference import (
    WORKS,
    DecisionChange,
    compare_policies,
    find_filter_decisions,
)
from pipeline.screening.policy.rules import BUILTIN, Policy, load_policy
from pipeline.screening.reviews import REVIEWS, load_reviews

Make = Callable[..., Any]
Write = Callable[[str], Path]

LENIENT = '  - {id: origin, when: {origin.family: books3}, decision: review, reason: "listed"}\n'


@pytest.fixture
def policy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """`prep policy …`: exit code, output, errors."""

    def call(*arguments: object) -> tuple[int, str, str]:
        app = typer.Typer()
        app.command("other")(lambda: None)
        register(app)
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        monkeypatch.setattr(sys, "argv", ["prep", "policy", *map(str, arguments)])
        capsys.readouterr()
        code = run_app(app, "prep")
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_check(policy: Any, write_policy: Write) -> None:
    path = write_policy(LENIENT)
    code, out, _ = policy("check", path)
    assert code == 0 and out.startswith("ok: 1 rule\n")
    assert "artefact, marker, identifier" in out
    assert json.loads(policy("check", BUILTIN, "--json")[1]) == {"rules": 22, "unasked": ["notice"]}
    code, _, err = policy("check", write_policy(LENIENT.replace("books3", "[]")))
    assert code == 2
    assert err == f"prep: {path}:3: rules.0.when.origin.family: the list is empty, so nothing " \
                  "could match; got []\n"  # fmt: skip
    assert policy("check", path.parent / "none.yaml")[0] == 2


def test_show(policy: Any, write_policy: Write, default_policy: Policy) -> None:
    _, out, _ = policy("show")
    for rule in default_policy.rules:
        assert rule.id in out
    assert "Jaccard similarity 0.8 or more" in out
    assert Policy.model_validate_json(policy("show", "--json")[1]) == default_policy
    path = write_policy(LENIENT + "propagate: {mode: none}\n")
    assert "applies only to the document" in policy("show", path)[1]


def test_attributes(policy: Any) -> None:
    rows = json.loads(policy("show", "--attributes", "--json")[1])
    own = sum(map(len, OWN.values()))
    assert len(rows) == len(COMMON) + own + len(WORK) + len(DOCUMENT)
    assert "text_match.longest_run_words" in policy("show", "--attributes")[1]


def test_diff(
    run: Path, policy: Any, write_policy: Write, default_policy: Policy, make_key: Make
) -> None:
    """Books3 becomes a review; the kept near-duplicate follows; what the filter dropped stays."""
    lenient = write_policy(LENIENT)
    found = compare_policies(run, default_policy, load_policy(lenient))
    assert found.documents == 4 and found.decisions_changed == 2
    bytes_ = [r["text_bytes"] for r in pq.read_table(run / "documents.parquet").to_pylist()]
    estimate = round(bytes_[1] * 30 / (bytes_[2] + bytes_[3]))
    assert found.changes == (
        DecisionChange(
            old_decision="quarantine",
            old_rule="origin-listed",
            new_decision="review",
            new_rule="origin",
            documents=2,
            kept=1,
            text_bytes=bytes_[1] + bytes_[2],
            tokens=20,
            tokens_estimated=estimate,
        ),
    )
    code, out, _ = policy("diff", BUILTIN, lenient, "--run", run)
    assert code == 0 and out.startswith("2 of 4 documents decided differently\n")
    assert "quarantine (origin-listed)" in out and "review (origin)" in out
    value = json.loads(policy("diff", BUILTIN, lenient, "--run", run, "--json")[1])
    assert value["changes"][0]["tokens"] == 20
    same = policy("diff", lenient, lenient, "--run", run)[1]
    assert same == "0 of 4 documents decided differently\n"


def test_nothing_follows_from_the_policy_that_allows(policy: Any, run: Path) -> None:
    value = json.loads(policy("diff", BUILTIN, "builtin:allow", "--run", run, "--json")[1])
    assert value["changes"]
    assert {change["new_decision"] for change in value["changes"]} == {"allow"}


def test_diff_does_not_spread_when_told(run: Path, write_policy: Write) -> None:
    spreads = load_policy(write_policy(LENIENT.replace("review", "drop")))
    stays = load_policy(write_policy(LENIENT.replace("review", "drop") + "propagate: {mode: none}"))
    found = compare_policies(run, spreads, stays)
    assert [(c.old_decision, c.new_decision, c.documents) for c in found.changes] == [
        ("drop", "allow", 1)
    ]


def test_diff_shows_another_rule_behind_a_decision(run: Path, write_policy: Write) -> None:
    one = load_policy(write_policy(LENIENT))
    two = load_policy(write_policy(LENIENT.replace("id: origin", "id: other")))
    found = compare_policies(run, one, two)
    assert found.decisions_changed == 0
    assert [(c.old_rule, c.new_rule, c.documents) for c in found.changes] == [
        ("origin", "other", 2)
    ]


def test_filter_decisions(run: Path, make_key: Make) -> None:
    """As recorded, for every document that fails one, whatever outdid it."""
    evidence = pq.read_table(run / "evidence.parquet")
    recorded = pq.read_table(run / "decisions.parquet")
    found = find_filter_decisions(evidence, recorded).to_pylist()
    assert [(d["doc_key"], d["decision"], d["rule"], d["evidence"]) for d in found] == [
        (make_key(1), "drop", "gopher_word_count", [f"{make_key(1).hex()}-f0"])
    ]
    silent = recorded.filter(recorded["rule"].to_numpy(zero_copy_only=False) == "origin-listed")
    assert len(find_filter_decisions(evidence, silent)) == 0


def test_diff_reads_the_works_of_the_run(
    run: Path, write_policy: Write, works: pa.Table, make_row: Make, make_evidence: Make
) -> None:
    """And what was taken down stays so under any policy."""
    rows = [make_row(n, 9, "text_match", "passage", work_id=w, document_fraction=0.9, words=900)
            for n, w in ((3, "w-asserted"), (4, "w-open"))]  # fmt: skip
    path = run / "evidence.parquet"
    found = make_evidence(rows).drop_columns(["doc_id"])
    pq.write_table(pa.concat_tables([pq.read_table(path), found]), path)
    (run / "registry").mkdir()
    with pa.OSFile(str(run / WORKS), "wb") as sink, pa.ipc.new_file(sink, works.schema) as writer:
        writer.write_table(works)
    rule = "  - {id: text, when: {text_match.kind: any, work.status: asserted}, decision: drop, " \
           "reason: r}\n"  # fmt: skip
    one, two = load_policy(write_policy(LENIENT)), load_policy(write_policy(LENIENT + rule))
    changes = compare_policies(run, one, two).changes
    assert [(c.old_decision, c.new_decision, c.documents) for c in changes] == [
        ("review", "drop", 2)
    ]
    recorded = pq.read_table(run / "decisions.parquet").to_pylist()
    recorded[1] |= {"decision": "drop", "rule": "takedown"}
    pq.write_table(pa.Table.from_pylist(recorded, schema=pq.read_schema(run / "decisions.parquet")),
                   run / "decisions.parquet")  # fmt: skip
    changed = compare_policies(run, one, two)
    assert changed.decisions_changed == 1
    assert [(c.old_rule, c.new_rule, c.documents) for c in changed.changes] == [
        ("origin", "text", 1), ("takedown", "text", 1),
    ]  # fmt: skip


def test_diff_needs_a_run(run: Path, tmp_path: Path, default_policy: Policy) -> None:
    with pytest.raises(
        InputError, match=r"evidence\.parquet: does not exist; `prep run` writes it"
    ):
        compare_policies(tmp_path / "none", default_policy, default_policy)
    path = run / "evidence.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["work_id"]), path)
    with pytest.raises(InputError, match="no column work_id"):
        compare_policies(run, default_policy, default_policy)
    path.write_bytes(b"PAR1")
    with pytest.raises(InputError, match="damaged"):
        compare_policies(run, default_policy, default_policy)


def test_review(run: Path, policy: Any, make_key: Make) -> None:
    key = make_key(4).hex()
    code, out, _ = policy(
        "review", run, key, "--decision", "redact", "--span", "0:7", "--span", "9:14", "--by",
        "A. Reader", "--note", "two [b]names[/b]",
    )  # fmt: skip
    assert code == 0
    assert out == f"event 1: redact for {key}, by A. Reader; the next `prep run` uses it\n"
    assert load_reviews(run / REVIEWS)[0].spans == ((0, 7), (9, 14))
    code, out, _ = policy(
        "review", run, key, "--decision", "allow", "--by", "B", "--note", "n", "--json"
    )
    assert json.loads(out)["event"] == 2 and len(verify_events(run).events) == 2
    for wrong in ("7", "a:b", "-1:3", "1:"):
        code, _, err = policy(
            "review", run, key, "--decision", "redact", "--by", "B", "--note", "n",
            f"--span={wrong}",
        )  # fmt: skip
        assert code == 2 and "FIRST:END" in err
    assert policy("review", run, key, "--decision", "erase", "--by", "B", "--note", "n")[0] == 2


def test_explain(run: Path, policy: Any, write_policy: Write, make_key: Make) -> None:
    code, out, _ = policy("explain", run, make_key(1).hex(), "--policy", BUILTIN)
    assert code == 0
    assert "recorded   drop by gopher_word_count: words" in out
    assert "builtin:default: review by marker-mention: the text names libgen: libgen" in out
    lines = {line.split("│")[1].strip(): line for line in out.splitlines() if "│" in line}
    assert (
        "yes" in lines["marker-mention"] and "p0 marker mention libgen" in lines["marker-mention"]
    )
    assert "no evidence of origin" in lines["origin-listed"]
    assert "no evidence with marker.kind: download" in lines["marker-download"]
    two = policy("explain", run, make_key(2).hex(), "--json")[1]
    value = json.loads(two)
    matched = [o for o in value["outcomes"] if o["matched"]]
    assert [(o["rule"], o["evidence"]) for o in matched] == [
        ("origin-listed", [f"{make_key(2).hex()}-p0"])
    ]
    assert value["decision"]["decision"] == value["recorded"]["decision"] == "quarantine"


def test_explain_by_the_policy_of_the_run(
    run: Path, policy: Any, write_policy: Write, make_key: Make
) -> None:
    key = make_key(2).hex()
    assert "policy     the run's own: quarantine by origin-listed" in policy("explain", run, key)[1]
    lenient = load_policy(write_policy(LENIENT))
    (run / "policy.json").write_text(lenient.model_dump_json())
    assert "the run's own: review by origin: listed" in policy("explain", run, key)[1]
    (run / "policy.json").unlink()
    code, _, err = policy("explain", run, key)
    assert code == 3 and "no policy.json; expected a run that was screened" in err


def test_explain_what_excludes(run: Path, policy: Any, write_policy: Write, make_key: Make) -> None:
    rules = (
        '  - {id: a, when: {marker.kind: any, not: [artefact, origin, {marker.family: libgen}]}, '
        'decision: allow, reason: r}\n'
        '  - {id: b, when: {marker.kind: any, document.source: Books}, decision: drop, reason: r}\n'
    )  # fmt: skip
    path = write_policy(rules)
    out = policy("explain", run, make_key(1).hex(), "--policy", path)[1]
    assert "there is evidence that the rule excludes: marker.family: libgen" in out
    assert "the document does not match document.source: Books" in out
    assert "allow: no rule matches" in out
    nothing = policy("explain", run, make_key(4).hex(), "--policy", path)[1]
    assert "no evidence of marker" in nothing
