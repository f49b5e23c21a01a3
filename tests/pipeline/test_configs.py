"""Every shipped config parses, the rules file parses, bad rule files say where they are wrong."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.config import load_config
from pipeline.core.errors import ConfigError
from pipeline.provenance.policy import decide, load_rules
from pipeline.shipped import default_rules
from pipeline.sources import planted, quickstart
from pipeline.sources.record import BAD_REASONS
from pipeline.verify import verify

REPOSITORY = Path(__file__).resolve().parents[2]
SHIPPED = sorted((REPOSITORY / "configs/prep").glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_shipped_config(path: Path) -> None:
    by_path, by_name = load_config(path), load_config(path.stem)
    assert by_path.config == by_name.config
    assert by_path.config.name == path.stem
    assert by_path.base == path.parent


def test_pile_config_states_the_defaults() -> None:
    """The documented numbers of pile.yaml are the defaults: leaving them out changes nothing."""
    config = load_config("pile").config
    bare = config.model_validate({"name": "pile", "inputs": config.inputs})
    assert config == bare


def test_default_rules() -> None:
    rules = load_rules(default_rules()).rules
    assert {rule.decision for rule in rules} == {"quarantine", "review"}
    assert any("Books3" in rule.origin for rule in rules)
    assert all(rule.reason and rule.reason[0].islower() for rule in rules)


def test_order_of_decisions() -> None:
    """The first terminal rule decides; a review stands unless a later rule decides otherwise."""
    origin, corpus, download, mention = load_rules(default_rules()).rules
    assert decide([]) is None
    assert decide([mention]) == mention
    assert decide([corpus, mention]) == corpus
    assert decide([corpus, download, mention]) == download
    assert decide([origin, download]) == origin


GOOD = "  - {id: a, origin: [X], decision: drop, reason: because}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules:\n" + GOOD + GOOD, "two rules have the id 'a'"),
        ("rules:\n" + GOOD.replace("drop", "delete"), ":2: rules.0.decision: expected"),
        ("rules:\n" + GOOD.replace("origin", "orgin"), "did you mean 'origin'"),
        ("rules:\n" + GOOD.replace("origin: [X], ", ""), "expected either origin or markers"),
        ("rules:\n" + GOOD.replace("origin: [X]", "markers: [é]"), "plain ASCII"),
        ("rules:\n" + GOOD.replace("origin: [X]", "markers: ['']"), "plain ASCII"),
        ("rules:\n" + GOOD.replace("id: a", "id: A b"), ":2: rules.0.id:"),
        ("rules:\n" + GOOD.replace("reason: because", "reason: ''"), ":2: rules.0.reason:"),
        ("rules:\n" + GOOD.replace("[X]", "X"), ":2: rules.0.origin:"),
        ("rules: 3\n", ":1: rules:"),
        ("- id: a\n", "expected a mapping"),
        ("", "expected a mapping"),
        ("rule: []\n", "rule"),
        ("rules: &x []\n", "anchors"),
    ],
)
def test_bad_rules(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as found:
        load_rules(path)
    assert message in str(found.value)
    assert str(found.value).startswith(f"{path}:") and "\n" not in str(found.value)


def test_bad_rules_stop_a_run_before_anything_is_written(corpus: Any, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules: 3\n")
    overrides = (f"screen.rules={rules}",)
    with pytest.raises(ConfigError, match=r"rules\.yaml:1"):
        pipeline.run(corpus.config, tmp_path / "run", 0, overrides=overrides)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="cannot read"):
        pipeline.run(corpus.config, tmp_path / "run", 0, overrides=("screen.rules=nowhere.yaml",))


def test_own_rules(corpus: Any, tmp_path: Path) -> None:
    """A rule that drops and one that clears; relative to the config."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "rules:\n"
        "  - {id: no-wiki, origin: [WIKI], decision: drop, reason: no encyclopaedia wanted}\n"
        "  - {id: fine, origin: [Books3], decision: allow, reason: this copy is licensed}\n"
    )
    pipeline.run(corpus.config, tmp_path / "run", 0, overrides=(f"screen.rules={rules}",))
    table = pq.read_table(tmp_path / "run/documents.parquet").to_pylist()
    wiki = {(r["state"], r["reason"]) for r in table if r["source"] == "Wiki"}
    assert wiki == {("dropped", "no-wiki"), ("dropped", "too_short")}
    book = [r for r in table if r["source"] == "Books3"]
    assert [(r["decision"], r["rule"]) for r in book] == [("allow", "fine")]
    verify(tmp_path / "run")


@pytest.fixture(scope="module")
def quickstart_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The planted records of the quickstart corpus; the collected part is a slow test."""
    raw = tmp_path_factory.mktemp("planted")
    (raw / "planted.jsonl").write_bytes(b"".join(line + b"\n" for line in planted.lines()))
    out = raw / "run"
    overrides = (f"inputs.0.path={raw / 'planted.jsonl'}", "read.max_bad_share=20 %",
                 "read.task_bytes=4096")  # fmt: skip
    pipeline.run("quickstart", out, 0, overrides=overrides)
    return out


PLANTED_REASONS = {
    ("kept", ""), ("dropped", "too_short"), ("duplicate", "near_duplicate"),
    ("duplicate", "exact_duplicate"),
    ("quarantined", "origin-shadow-library"), ("quarantined", "marker-download"),
    ("bad_record", "bad_json"), ("bad_record", "surrogate"),
}  # fmt: skip


def test_planted_records_show_every_reason(quickstart_run: Path) -> None:
    rows = pq.read_table(quickstart_run / "documents.parquet").to_pylist()
    assert {(r["state"], r["reason"]) for r in rows} == PLANTED_REASONS
    states = Counter(r["state"] for r in rows)
    assert states == {"kept": 5, "dropped": 2, "duplicate": 2, "quarantined": 2, "bad_record": 2}
    assert {r["reason"] for r in rows if r["state"] == "bad_record"} <= set(BAD_REASONS)
    verify(quickstart_run)


@pytest.mark.slow
def test_quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`prep run quickstart`, whole: about a minute."""
    monkeypatch.setenv("WAFERMILL_CACHE", str(tmp_path / "cache"))
    assert load_config("quickstart").config.inputs[0].path == f"builtin:{quickstart.QUICKSTART}"
    pipeline.run("quickstart", tmp_path / "run")
    rows = pq.read_table(tmp_path / "run/documents.parquet").to_pylist()
    assert {(r["state"], r["reason"]) for r in rows} >= PLANTED_REASONS
    natural = [r for r in rows if r["state"] == "duplicate" and r["source"] != "Planted"]
    assert len(natural) > 20, "licences and vendored copies"
    verify(tmp_path / "run")
