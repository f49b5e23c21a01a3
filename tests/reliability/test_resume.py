"""What is reused and what is rebuilt when the config, the inputs or the files of a run change."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.hashes import tree_hash
from pipeline.stories.run import run_preparation
from tests.forked import prep_in_fork
from tests.slow import mark_slow
from tests.stages import stages_by_default

STAGES = stages_by_default()

BEFORE_PACKING = STAGES[: STAGES.index("gather") + 1]


def events(directory: Path) -> list[dict[str, Any]]:
    lines = (directory / "journal/events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_an_unchanged_run_is_reused_whole(collection: Any, clean: Any, tmp_path: Path) -> None:
    directory = clean.copy(tmp_path / "run")
    stamps = {p: p.stat().st_mtime_ns for p in directory.rglob("*.h5")}
    manifest = run_preparation(collection.config, directory, 0)
    assert manifest.reused == STAGES
    assert {p: p.stat().st_mtime_ns for p in directory.rglob("*.h5")} == stamps
    assert tree_hash(directory) == clean.tree_hash


def test_another_sequence_length_reuses_everything_up_to_the_shuffle(
    collection: Any, clean: Any, tmp_path: Path, undamaged: Any
) -> None:
    directory, change = clean.copy(tmp_path / "run"), ("pack.max_sequence_length=48",)
    manifest = run_preparation(collection.config, directory, 0, overrides=change)
    assert set(BEFORE_PACKING) <= set(manifest.reused)
    assert not {"rows", "pack", "params", "account"} & set(manifest.reused)
    fresh = run_preparation(collection.config, tmp_path / "fresh", 0, overrides=change).directory
    assert tree_hash(directory) == tree_hash(fresh) != clean.tree_hash
    changes = {e["name"]: e["changed"] for e in events(directory) if e["event"] == "stage"}
    assert "settings.max_sequence_length" in changes["rows"]
    run_preparation(collection.config, directory, 0)
    undamaged(directory)


def test_the_user_is_told_which_field_changed(
    collection: Any, clean: Any, tmp_path: Path, prep: Any
) -> None:
    directory = clean.copy(tmp_path / "run")
    change = ("--set", "clean.min_length=210", "--set", "dedup.preset=none")
    outcome = prep("run", collection.config, "--out", directory, "--workers", 0, *change)
    assert outcome.code == 0
    assert "clean: rebuilding, changed: " in outcome.err
    assert "settings.min_length" in outcome.err
    assert not (directory / "signatures").exists() or not list((directory / "bands").glob("*"))
    assert prep("verify", directory).code == 0


def test_changed_content_of_equal_size_is_noticed(
    collection: Any, clean: Any, tmp_path: Path
) -> None:
    mine, directory = collection.copy(tmp_path / "mine"), clean.copy(tmp_path / "run")
    shard = mine.plain_shard
    shard.write_bytes(shard.read_bytes().replace(b"river", b"RIVER", 1))
    assert shard.stat().st_size == collection.plain_shard.stat().st_size
    manifest = run_preparation(mine.config, directory, 0)
    assert "clean" not in manifest.reused
    fresh = run_preparation(mine.config, tmp_path / "fresh", 0).directory
    assert tree_hash(directory) == tree_hash(fresh) != clean.tree_hash


def test_only_the_task_of_the_changed_shard_runs_again(
    collection: Any, clean: Any, tmp_path: Path, prep: Any
) -> None:
    mine, directory = collection.copy(tmp_path / "mine"), clean.copy(tmp_path / "run")
    shard = mine.plain_shard
    shard.write_bytes(shard.read_bytes().replace(b"river", b"RIVER", 1))
    outcome = prep("run", mine.config, "--out", directory, "--workers", 0)
    assert outcome.code == 0
    assert outcome.tasks["clean"] == outcome.tasks["signatures"] == 1


def test_a_lost_journal_costs_work_never_correctness(
    collection: Any, clean: Any, tmp_path: Path, undamaged: Any
) -> None:
    directory = clean.copy(tmp_path / "run")
    shutil.rmtree(directory / "journal")
    assert run_preparation(collection.config, directory, 0).reused == STAGES
    (directory / "journal/inputs.json").write_bytes(b'{"torn')
    (directory / "journal/events.jsonl").write_bytes(b"\xff\x00not json")
    assert run_preparation(collection.config, directory, 0).reused == STAGES
    undamaged(directory)


@pytest.mark.crash
def test_status_agrees_with_the_files(
    collection: Any, tmp_path: Path, prep: Any, undamaged: Any
) -> None:
    out = tmp_path / "run"
    command = ("run", collection.config, "--out", out, "--workers", 0)
    assert prep_in_fork(*command, fault="task.start.tokenize@2=kill").code == -9
    found = json.loads(prep("status", out, "--json").out)
    states = {s["stage"]: s["state"] for s in found["stages"]}
    assert not found["finished"]
    done = STAGES[: STAGES.index("tokenize")]
    assert {s for s, state in states.items() if state == "done"} == set(done)
    assert states["tokenize"] == "partial"
    assert states["report"] == "not started"
    assert prep(*command).code == 0
    assert json.loads(prep("status", out, "--json").out)["finished"]
    undamaged(out)


def test_cleaned_up_intermediates_are_rebuilt_when_needed(
    collection: Any, clean: Any, tmp_path: Path, prep: Any, undamaged: Any
) -> None:
    directory = clean.copy(tmp_path / "run")
    assert prep("clean-up", directory).code == 0
    assert prep("verify", directory).code == 0
    lean = tree_hash(directory)
    assert run_preparation(collection.config, directory, 0).reused == STAGES
    assert tree_hash(directory) == lean
    run_preparation(collection.config, directory, 0, overrides=("pack.max_sequence_length=48",))
    assert prep("verify", directory).code == 0


@pytest.mark.parametrize("k", [1, 2, 4])
def test_an_interrupted_clean_up_is_finished_by_either_command(
    collection: Any, clean: Any, tmp_path: Path, prep: Any, k: int
) -> None:
    lean = clean.copy(tmp_path / "lean")
    assert prep("clean-up", lean).code == 0
    for command in (("clean-up",), ("run", collection.config, "--workers", 0, "--out")):
        directory = clean.copy(tmp_path / command[0])
        stopped = prep("clean-up", directory, fault=f"storage.remove@{k}=raise:EIO")
        assert stopped.code == 5
        assert prep(*command, directory).code == 0
        assert prep("verify", directory).code == 0
        assert tree_hash(directory) == tree_hash(lean)


@pytest.mark.parametrize("k", mark_slow([1, 3, 6], 3))
def test_a_stopped_rebuild_of_a_cleaned_up_run_ends_as_an_undisturbed_one(
    collection: Any, clean: Any, tmp_path: Path, prep: Any, k: int
) -> None:
    command = ("run", collection.config, "--workers", 0, "--set", "pack.max_sequence_length=48")
    trees = []
    for name in ("undisturbed", "stopped"):
        directory = clean.copy(tmp_path / name)
        assert prep("clean-up", directory).code == 0
        if name == "stopped":
            fault = f"storage.publish.start@{k}=raise:EIO"
            assert prep(*command, "--out", directory, fault=fault).code == 5
        assert prep(*command, "--out", directory).code == 0
        assert prep("verify", directory).code == 0
        trees.append(tree_hash(directory))
    assert trees[0] == trees[1]
