"""Runs with more shards than one task may read (as if that were four) equal other runs."""

from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.core.hashes import files_below, hash_file, tree_hash
from pipeline.engine import levels
from pipeline.runs.catalogue import SCRATCH
from pipeline.stories.export import ExportOptions, export_run
from pipeline.stories.repack import repack_run
from pipeline.stories.verify import verify_run

SETTINGS = (
    "mixture={epochs: {Wiki: 2.5, Code: 0.5}}", "splits={test: 10 %}", "dedup.preset=none",
    "lines={unit: line, min_characters: 10, min_documents: 2}", "read.task_bytes=16 KiB",
    "pack.bucket_tokens=2048", "hdf5.shard_bytes=32 KiB",
)  # fmt: skip
FEW = 4
MERGES = ("merge", "merge_again", "merge_rows", "merge_rows_again")


@pytest.fixture(scope="module")
def usual(corpus: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with copies, cut lines and three splits."""
    out = tmp_path_factory.mktemp("usual") / "run"
    pipeline.run(corpus.config, out, 0, overrides=SETTINGS)
    return out


@pytest.fixture
def few_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "MOST_SHARDS", FEW)


def results(directory: Path) -> dict[str, str]:
    """Hash of every file that is no scratch and does not say which stages there were."""
    others = {".lock", "events.head", "events.jsonl", "manifest.json", "journal", "manifests",
              "report.html", "clusters.html"}  # fmt: skip
    return {
        path.as_posix(): hash_file(directory / path)
        for path in files_below(directory)
        if path.parts[0] not in {*SCRATCH, *others}
    }


@pytest.mark.usefixtures("few_at_most")
def test_a_run_by_workers_that_keeps_little(
    corpus: Any, usual: Path, tmp_path: Path, two_workers: int
) -> None:
    out, settings = tmp_path / "run", (*SETTINGS, "keep=minimal")
    made = pipeline.run(corpus.config, out, two_workers, overrides=settings)
    assert {*MERGES, "merge_lines"} <= made.stages.keys()
    assert results(out) == results(usual)
    assert not [name for name in SCRATCH if (out / name).exists()]
    verify_run(out)
    again = pipeline.run(corpus.config, out, 0, overrides=settings)
    assert len(again.reused) == len(again.stages)


@pytest.mark.usefixtures("few_at_most")
def test_repacked(usual: Path, tmp_path: Path) -> None:
    again = repack_run(usual, tmp_path / "packed", workers=0)
    assert set(MERGES) <= again.stages.keys()
    assert tree_hash(tmp_path / "packed/hdf5") == tree_hash(usual / "hdf5")


@pytest.mark.parametrize("shuffled", [True, False])
def test_exported(
    usual: Path, tmp_path: Path, shuffled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = []
    for most in (levels.MOST_SHARDS, FEW):
        monkeypatch.setattr(levels, "MOST_SHARDS", most)
        out = tmp_path / f"most-{most}"
        export_run(usual, out, ExportOptions(shuffle=shuffled, file_bytes=9000), 0)
        assert (out / "manifests/merge_again.json").exists() == (shuffled and most == FEW)
        assert not (out / "merged").exists()
        exported.append(results(out))
    assert exported[0] == exported[1]


def test_the_plan_counts_the_passes(
    corpus: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = []
    for most in (levels.MOST_SHARDS, FEW):
        monkeypatch.setattr(levels, "MOST_SHARDS", most)
        plans.append(pipeline.plan(corpus.config, tmp_path / "run", overrides=SETTINGS))
    one, several = ({stage.stage: stage for stage in plan.stages} for plan in plans)
    assert {"merge", "merge_rows", "merge_lines"} <= several.keys() - one.keys()
    assert several["merge"].disk_bytes == several["scatter"].disk_bytes > 0
    assert plans[1].total.cpu_seconds > plans[0].total.cpu_seconds


@pytest.mark.usefixtures("few_at_most")
def test_no_task_names_more_shards(
    corpus: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those stages that read slices of many."""
    from pipeline.engine.runner import Runner
    from pipeline.engine.shared import Shared

    most: dict[str, int] = {}
    run = Runner.run

    def count(self: Any, stage: Any) -> Any:
        read = [len(s.value) for t in stage.tasks for s in t.inputs if isinstance(s, Shared)]
        most[stage.name] = max(read, default=0)
        return run(self, stage)

    monkeypatch.setattr(Runner, "run", count)
    pipeline.run(corpus.config, tmp_path / "run", 0, overrides=SETTINGS)
    assert max(most[stage] for stage in (*MERGES, "gather", "pack")) <= FEW
