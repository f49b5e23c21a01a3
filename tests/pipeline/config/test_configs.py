"""Every shipped config parses, the rules file parses, bad rule files say where they are wrong."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.config.prep import load_config
from pipeline.core.errors import ConfigError
from pipeline.demo import planted, quickstart
from pipeline.sources.record import BAD_REASONS
from pipeline.stories.verify import verify_run

REPOSITORY = Path(__file__).resolve().parents[3]
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


def test_a_bad_policy_stops_a_run_before_anything_is_written(corpus: Any, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nrules: 3\n")
    overrides = (f"screen.policy={policy}",)
    with pytest.raises(ConfigError, match=r"policy\.yaml:2"):
        pipeline.run(corpus.config, tmp_path / "run", 0, overrides=overrides)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="cannot read"):
        pipeline.run(corpus.config, tmp_path / "run", 0, overrides=("screen.policy=nowhere.yaml",))


def test_own_policy_and_origins(corpus: Any, tmp_path: Path) -> None:
    """A rule over a list of one's own, and one over the shipped list; relative to the config."""
    policy, origins = tmp_path / "policy.yaml", tmp_path / "origins.yaml"
    policy.write_text(
        "version: 1\n"
        "rules:\n"
        "  - id: no-wiki\n"
        "    when: {origin.family: encyclopaedia}\n"
        "    decision: drop\n"
        "    reason: not wanted\n"
        "    propagate: false\n"
        "  - {id: look, when: {origin.family: books3}, decision: review, reason: is it ours}\n"
    )
    origins.write_text(
        "name: own\n"
        "version: '1'\n"
        "families:\n"
        "  - {family: encyclopaedia, basis: 'a list for this test, 2026', labels: [Wiki]}\n"
    )
    overrides = (f"screen.policy={policy}", f'screen.origins=["{origins}"]')
    pipeline.run(corpus.config, tmp_path / "run", 0, overrides=overrides)
    table = pq.read_table(tmp_path / "run/documents.parquet").to_pylist()
    wiki = {(r["state"], r["reason"]) for r in table if r["source"] == "Wiki"}
    assert wiki == {("dropped", "no-wiki"), ("dropped", "too_short")}
    book = [r for r in table if r["source"] == "Books3"]
    assert [(r["decision"], r["rule"]) for r in book] == [("review", "look")]
    verify_run(tmp_path / "run")


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
    ("quarantined", "origin-listed"), ("quarantined", "marker-download"),
    ("quarantined", "registered-text"), ("quarantined", "registered-passage"),
    ("bad_record", "bad_json"), ("bad_record", "surrogate"),
}  # fmt: skip


def test_planted_records_show_every_reason(quickstart_run: Path) -> None:
    rows = pq.read_table(quickstart_run / "documents.parquet").to_pylist()
    assert {(r["state"], r["reason"]) for r in rows} == PLANTED_REASONS
    states = Counter(r["state"] for r in rows)
    assert states == {"kept": 5, "dropped": 2, "duplicate": 2, "quarantined": 4, "bad_record": 2}
    assert {r["reason"] for r in rows if r["state"] == "bad_record"} <= set(BAD_REASONS)
    verify_run(quickstart_run)


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
    verify_run(tmp_path / "run")
