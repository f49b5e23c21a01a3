"""Defects that the crash sweep must catch."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pipeline.engine.runner as runner_module
from pipeline.core import directories, failpoint, manifest, storage
from pipeline.core.directories import make_directory
from pipeline.core.hashes import hash_bytes
from pipeline.core.manifest import Shard
from pipeline.engine.group_commit import GroupCommit
from pipeline.engine.runner import Runner
from pipeline.engine.stage import Inputs, Stage


def _publish_in_place(
    path: Path,
    data: bytes | Iterable[bytes],
    accept: Callable[[storage.WrittenFile], None] = lambda published: None,
    durable: bool = True,
) -> storage.WrittenFile:
    whole = data if isinstance(data, bytes) else b"".join(data)
    published = storage.WrittenFile(len(whole), hash_bytes(whole))
    accept(published)
    make_directory(path.parent)
    failpoint.hit("storage.publish.start")
    with open(path, "wb") as file:
        file.write(whole[: len(whole) // 2])
        file.flush()
        failpoint.hit("storage.publish.fsync")
        file.write(whole[len(whole) // 2 :])
    failpoint.hit("storage.publish.done")
    return published


def _exists(self: Runner, stage: Stage, records: Sequence[manifest.TaskRecord]) -> list[bool]:
    return [all((self.root / s.path).exists() for s in record.shards) for record in records]


def _adopt_by_existence(self: Runner, stage: Stage, *_: object) -> list[manifest.TaskRecord]:
    """Skip a task when its output file is there: no record, no hash."""
    directory = runner_module.record_directory(self.root, stage.name)
    records = []
    fingerprints = runner_module.task_fingerprints(stage)
    for index, (task, fingerprint) in enumerate(zip(stage.tasks, fingerprints, strict=True)):
        path = self.root / f"{stage.name}/{index:06d}.bin"
        if path.exists():
            data = path.read_bytes()
            digest = hash_bytes(data)
            shard = Shard(
                path=str(path.relative_to(self.root)),
                size=len(data),
                hash=digest,
                content_hash=digest,
            )
            records.append(manifest.TaskRecord(fingerprint, (shard,), {}))
        else:
            place = directory / f"{index:06d}.json"
            call = runner_module._TaskCall(
                root=self.root,
                function=stage.function,
                label=task.label,
                memory=task.peak_memory,
                job=task.job,
                fingerprint=fingerprint,
                record_path=place,
            )
            done = runner_module._perform(call)
            assert done.record is not None
            records.append(manifest.TaskRecord(fingerprint, done.record.shards, {}))
    return records


def _marker_first(call: Any) -> Any:
    failpoint.hit(f"task.start.{call.record_path.parent.name}")
    result = call.function(call.job, Inputs(call.root))
    shards = tuple(
        Shard(
            path=o.path,
            size=len(o.data),
            hash=hash_bytes(o.data),
            content_hash=o.content_hash,
        )
        for o in result.outputs
    )
    record = manifest.TaskRecord(call.fingerprint, shards, dict(result.counters))
    runner_module.write_record(call.record_path, record)
    for output in result.outputs:
        storage.publish(call.root / output.path, output.data)
    return runner_module._FinishedTask(record)


def _no_file_fsync() -> None:
    real = os.fsync

    def fsync(handle: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{handle}")).is_dir():
            real(handle)

    os.fsync = fsync  # type: ignore[assignment]


def _no_directory_fsync() -> None:
    directories.sync = storage.sync = lambda directory: None


def _no_group_commit() -> None:
    GroupCommit.finish = lambda self: None


def _trust_existence() -> None:
    Runner._check = _exists


def _in_place_without_records() -> None:
    storage.publish = _publish_in_place
    Runner._run_tasks = _adopt_by_existence


def _marker_before_data() -> None:
    runner_module._perform = _marker_first


def _marker_trusted() -> None:
    runner_module._perform = _marker_first
    Runner._check = lambda self, stage, records: [True] * len(records)


def _existence_without_fsync() -> None:
    _no_file_fsync()
    _trust_existence()


def _temps_left() -> None:
    storage.sweep_temps = lambda directory: 0


def _records_ignored() -> None:
    runner_module.read_record = lambda path: None


MUTANTS: dict[str, Callable[[], None]] = {
    "in_place_without_records": _in_place_without_records,
    "marker_before_data": _marker_before_data,
    "marker_before_data_trusted": _marker_trusted,
    "no_fsync": _no_file_fsync,
    "no_directory_fsync": _no_directory_fsync,
    "no_group_commit": _no_group_commit,
    "existence_check_without_fsync": _existence_without_fsync,
    "temps_left": _temps_left,
    "records_ignored": _records_ignored,
}
"""Each patches the kernel inside the forked child only."""
