"""The whole pipeline killed at its fault points, resumed and compared with an undisturbed run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.screening.registry.importing import ImportOptions, import_works
from tests.stages import stages_by_default, stages_called_for_by

pytestmark = pytest.mark.crash
Sweep = Callable[..., dict[str, Any]]


@pytest.mark.timeout(600)
def test_some_fault_points(sweep: Sweep, collection: Any, clean: Any, chaos_seed: int) -> None:
    """Others every day."""
    options = ("--every", 211, "--offset", chaos_seed % 211)
    result = sweep("pipeline", "--config", collection.config, *options)
    assert result["bad"] == []
    assert result["clean"] == clean.tree_hash
    assert result["kills"] >= result["points"] // 211 > 3
    assert {f"task.start.{stage}" for stage in stages_by_default()} <= set(result["names"])


def test_scratch_deleted_on_the_way(sweep: Sweep, collection: Any, tmp_path: Path) -> None:
    """`keep: minimal`, killed among other places where it deletes; with merged shards."""
    copy = collection.copy(tmp_path / "collection")
    config = copy.config.read_text().replace("task_bytes: 14 KiB", "task_bytes: 8 KiB")
    config = config.replace("bucket_tokens: 2048", "bucket_tokens: 1024")
    copy.config.write_text(config + "keep: minimal\n")
    result = sweep("pipeline", "--config", copy.config, "--every", 509, "--most-shards", 2)
    assert result["bad"] == []
    merges = ("merge", "merge_again", "merge_rows")
    assert {f"task.start.{stage}" for stage in merges} <= set(result["names"])
    assert result["kills"] > 3


OPTIONAL = """\
lines: {unit: line, min_documents: 2, min_characters: 1}
dedup: {containment: {drop: true}, substrings: {cut: true, min_bytes: 50}}
decontaminate: {sets: [eval.jsonl], n: 5, min_words: 3}
filters:
  c4: {min_sentences: 0, min_terminal_lines: 0}
  custom: [{function: my_rules.py:is_not_long, settings: {most: 5000}}]
screen: {registry: [works], policy: policy.yaml}
"""
RULES = """\
def is_not_long(text, meta, *, most):
    return len(text) < most
"""
POLICY = """\
version: 1
rules:
  - {id: books, when: {origin.target: books3}, decision: quarantine, reason: a listed origin}
  - id: overlap
    when: {text_match.work_id: any, not: [artefact, origin]}
    decision: redact
    reason: "it overlaps {work.title}"
"""


@pytest.fixture
def every_stage(collection: Any, tmp_path: Path) -> Path:
    """The config with the stages that are off by default, shards that are too large for one task,
    an item that one document holds, and a work that another one holds, which is redacted."""
    copy = collection.copy(tmp_path / "collection")
    lines = copy.plain_shard.read_text().splitlines()
    item, work = (json.loads(lines[number])["text"] for number in (0, -1))
    (copy.directory / "eval.jsonl").write_text(json.dumps({"question": item}) + "\n")
    (copy.directory / "work.txt").write_text(work)
    (copy.directory / "works.csv").write_text("title,text\nAn invented work,work.txt\n")
    settings = ImportOptions(texts=copy.directory)
    import_works([copy.directory / "works.csv"], copy.directory / "works", settings)
    (copy.directory / "my_rules.py").write_text(RULES)
    (copy.directory / "policy.yaml").write_text(POLICY)
    config = copy.config.read_text().replace("task_bytes: 14 KiB", "task_bytes: 8 KiB")
    copy.config.write_text(config + OPTIONAL)
    return Path(copy.config)


def test_stages_that_are_off_by_default(sweep: Sweep, every_stage: Path, chaos_seed: int) -> None:
    options = ("--every", 1499, "--offset", chaos_seed % 1499)
    result = sweep("pipeline", "--config", every_stage, *options)
    assert result["bad"] == []
    causes = (
        "decontaminate", "filters", "custom filters", "lines", "containment", "substrings",
        "large shards", "redactions",
    )  # fmt: skip
    expected = {*stages_by_default(), *stages_called_for_by(*causes)}
    assert {f"task.start.{stage}" for stage in expected} <= set(result["names"])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_fault_point_of_every_stage(sweep: Sweep, every_stage: Path) -> None:
    result = sweep("pipeline", "--config", every_stage, "--every", 1, "--most-shards", 4)
    assert result["bad"] == []
    assert result["kills"] == result["points"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_fault_point(sweep: Sweep, collection: Any, clean: Any) -> None:
    result = sweep("pipeline", "--config", collection.config, "--every", 1)
    assert result["bad"] == []
    assert result["clean"] == clean.tree_hash
    assert result["kills"] == result["points"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_torn_writes_and_kills_during_recovery(sweep: Sweep, collection: Any) -> None:
    result = sweep("pipeline", "--config", collection.config, "--torn", 5, "--compound", 40)
    assert result["bad"] == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_power_loss(sweep: Sweep, collection: Any) -> None:
    result = sweep("pipeline", "--config", collection.config, "--every", 4, "--power-loss")
    assert result["bad"] == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "change", ["pack.max_sequence_length=48", "seed=9", "dedup.preset=none", "lines.unit=line"]
)
def test_kills_while_a_finished_run_is_rebuilt(sweep: Sweep, collection: Any, change: str) -> None:
    """The last one looks at texts, which then leave quarantine and go back to it."""
    result = sweep("pipeline", "--config", collection.config, "--set", change, "--every", 9)
    assert result["bad"] == []
