"""What tasks published is durable before their stage commits, and what the disk refuses is gone."""

import errno
import os
import signal
from pathlib import Path

import pytest

from pipeline.core import storage
from pipeline.core.errors import ResourceError
from pipeline.core.journal import Journal
from pipeline.engine.executor import LocalExecutor
from pipeline.engine.group_commit import GroupCommit
from pipeline.engine.progress import Progress
from pipeline.engine.runner import Runner
from pipeline.engine.stage import Inputs, Result, Stage, Task, bytes_output
from tests.forked import forked

PATHS = [f"documents/{number:06d}.arrow" for number in range(20)] + ["manifests/deep/one.json"]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what was synced, in order."""
    found: list[str] = []
    fsync = os.fsync

    def note(handle: int) -> None:
        fsync(handle)
        found.append(os.readlink(f"/proc/self/fd/{handle}"))

    monkeypatch.setattr(os, "fsync", note)
    return found


def publish_all(root: Path) -> None:
    for path in PATHS:
        storage.publish(root / path, path.encode(), durable=False)


def test_every_file_then_every_directory_once(tmp_path: Path, synced: list[str]) -> None:
    root = tmp_path / "run"
    publish_all(root)
    assert synced == []
    with GroupCommit(root) as commit:
        commit.add(PATHS)
        commit.finish()
    files, directories = synced[: len(PATHS)], synced[len(PATHS) :]
    assert sorted(files) == sorted(str(root / path) for path in PATHS)
    around = ["documents", "manifests", "manifests/deep", ""]
    assert sorted(directories) == sorted(str(root / name) for name in around)


def test_what_the_disk_refuses_is_named_and_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_all(tmp_path)
    fsync = os.fsync

    def refuse(handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}").endswith(PATHS[7]):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", refuse)
    with GroupCommit(tmp_path) as commit:
        commit.add(PATHS)
        with pytest.raises(ResourceError, match=f"{PATHS[7]}: cannot write: Input/output error"):
            commit.finish()
    assert [path for path in PATHS if not (tmp_path / path).exists()] == [PATHS[7]]


def _write_name(job: str, inputs: Inputs) -> Result:
    return Result((bytes_output(f"one/{job}.bin", job.encode()),))


def _run_stage(root: Path, names: str = "abcd") -> None:
    tasks = tuple(Task(name, name) for name in names)
    runner = Runner(root, LocalExecutor(), Journal(root), Progress(quiet=True))
    runner.run(Stage(name="one", version=1, function=_write_name, tasks=tasks))


def test_what_a_killed_run_published_is_made_durable_too(tmp_path: Path, synced: list[str]) -> None:
    assert forked(lambda: _run_stage(tmp_path), "task.start.one@3=kill") == -signal.SIGKILL
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["a.bin", "b.bin"]
    _run_stage(tmp_path)
    manifest = next(n for n, path in enumerate(synced) if "one.json" in path)
    assert {f"{tmp_path}/one/{name}.bin" for name in "abcd"} <= set(synced[:manifest])


@pytest.mark.parametrize(("names", "recorded"), [("a", []), ("ab", ["000000.json"])])
def test_an_only_task_leaves_no_record(tmp_path: Path, names: str, recorded: list[str]) -> None:
    """It runs again where a kill comes between its files and the manifest."""
    kill = f"storage.publish.start@{2 * len(names)}=kill"
    assert forked(lambda: _run_stage(tmp_path, names), kill) == -signal.SIGKILL
    assert [path.name for path in (tmp_path / "journal").rglob("0*.json")] == recorded
    assert len([*(tmp_path / "one").glob("*.bin")]) == len(names)
    assert not (tmp_path / "manifests/one.json").exists()
    _run_stage(tmp_path, names)
    assert (tmp_path / "manifests/one.json").exists()
