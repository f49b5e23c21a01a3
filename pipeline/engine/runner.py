"""Runs one stage: skips what is published, runs the rest, commits records and then the manifest."""

import dataclasses
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.core import failpoint, storage
from pipeline.core.errors import InputError, IntegrityError, NondeterminismError
from pipeline.core.journal import DIRECTORY as JOURNAL
from pipeline.core.journal import Journal
from pipeline.core.manifest import (
    Shard,
    StageManifest,
    TaskRecord,
    changed_fields,
    fingerprint_of,
    read_manifest,
    read_record,
    write_manifest,
    write_record,
)
from pipeline.engine.executor import Executor
from pipeline.engine.progress import Progress
from pipeline.engine.stage import Inputs, Output, Stage, Task, TaskFunction

TOP_MANIFEST = "manifest.json"
_LEFT_OUT = ("location", "withheld")
STAGE_MANIFESTS = "manifests"


@dataclass(frozen=True)
class _TaskCall:
    """What travels to a worker: paths and plain data, never tables."""

    root: Path
    function: TaskFunction
    task: Task
    fingerprint: str
    record_path: Path


@dataclass(frozen=True)
class _FinishedTask:
    record: TaskRecord | None
    problem: str | None = None


def _perform(call: _TaskCall) -> _FinishedTask:
    """Run a task on a worker and publish: outputs as they come, then the record that commits them.

    What an attempt published before it failed is no part of any record: the next attempt writes it
    again, or it is swept when the run commits.
    """
    failpoint.hit(f"task.start.{call.record_path.parent.name}")
    try:
        inputs = Inputs(call.root)
        for shard in call.task.inputs:
            inputs.path(shard)
        result = call.function(call.task.job, inputs)
        with storage.confine_writes(call.root):
            shards = _publish(call, result.outputs)
            record = TaskRecord(call.fingerprint, shards, dict(result.counters))
            write_record(call.record_path, record)
    except InputError as error:
        return _FinishedTask(None, str(error))
    return _FinishedTask(record)


def _publish(call: _TaskCall, outputs: Iterable[Output]) -> tuple[Shard, ...]:
    """Publish outputs as they come. Raises NondeterminismError before one replaces other content
    that an earlier attempt committed; other bytes of the same content (another build of a library
    compressed them) replace the earlier ones, and the new record names them."""
    record = read_record(call.record_path)
    is_repeated = record is not None and record.fingerprint == call.fingerprint
    committed = [shard.identity for shard in record.shards] if record and is_repeated else []
    different = NondeterminismError(
        f"{call.task.label}: two attempts gave different content; please report this defect"
    )
    shards: list[Shard] = []

    def accept(output: Output, published: storage.WrittenFile) -> None:
        content = output.content_hash or published.hash
        shards.append(
            Shard(path=output.path, size=published.size, hash=published.hash, content_hash=content)
        )
        if is_repeated and committed[len(shards) - 1 : len(shards)] != [shards[-1].identity]:
            raise different

    for output in outputs:
        storage.publish(call.root / output.path, output.data, partial(accept, output))
    if is_repeated and len(committed) != len(shards):
        raise different
    return tuple(shards)


_StagePlan = tuple[dict[int, TaskRecord], list[tuple[int, _TaskCall]]]
"""Records of the tasks of a stage that are done, by number; number and call of those left."""


class RemovedInputError(Exception):
    """A task needs shards that clean-up removed; the stages that made them must run again first."""

    def __init__(self, directories: frozenset[str]) -> None:
        super().__init__(f"removed by clean-up: {', '.join(sorted(directories))}")
        self.directories = directories


class FrozenStageError(Exception):
    """A stage would have to be made again, but a takedown changed what it is made of."""

    def __init__(self, stage: str) -> None:
        super().__init__(f"{stage} changes")
        self.stage = stage


class TextsApartError(Exception):
    """Texts that are in quarantine/ are needed where they were read; says what for."""


class Runner:
    """Runs stages of one run directory, one after the other.

    Shards in `removed` directories were deleted by clean-up; their stages count as done until
    another stage needs them. Raises FrozenStageError instead of making a `frozen` stage again.
    """

    def __init__(
        self,
        root: Path,
        executor: Executor,
        journal: Journal,
        progress: Progress,
        removed: frozenset[str] = frozenset(),
        frozen: frozenset[str] = frozenset(),
    ) -> None:
        self.root = root
        self._frozen = frozen
        self.removed = removed
        self.manifests: list[StageManifest] = []
        self.reused: list[str] = []
        self._executor = executor
        self._journal = journal
        self._progress = progress

    def run(self, stage: Stage) -> StageManifest:
        """Bring a stage up to date and return its manifest.

        Raises InputError naming every damaged input, ResourceError, or IntegrityError.
        """
        path = manifest_path(self.root, stage.name)
        fields = stage_fields(stage)
        fingerprint = fingerprint_of(fields)
        try:
            old = read_manifest(path)
        except IntegrityError as error:
            self._progress.note(f"{error}; rebuilding")
            old = None
        if (
            old
            and old.fingerprint == fingerprint
            and all(self._valid(stage, record) for record in old.tasks)
        ):
            self._progress.reused(stage.name, len(stage.tasks))
            self.reused.append(stage.name)
            self.manifests.append(old)
            return old
        if stage.name in self._frozen:
            raise FrozenStageError(stage.name)
        planned = self._plan(stage, old)
        changed = find_rerun_reasons(old.fields, fields) if old else []
        if changed:
            self._progress.note(f"{stage.name}: rebuilding, changed: {', '.join(changed)}")
        self._journal.event(
            "stage",
            name=stage.name,
            workers=self._executor.workers,
            changed=changed,
            tasks=len(planned[1]),
            reused=len(planned[0]),
        )
        storage.remove(self.root / TOP_MANIFEST)
        records = self._run_tasks(stage, planned)
        manifest = StageManifest(stage.name, fingerprint, fields, tuple(records))
        write_manifest(path, manifest)
        shutil.rmtree(record_directory(self.root, stage.name), ignore_errors=True)
        self.manifests.append(manifest)
        return manifest

    def _valid(self, stage: Stage, record: TaskRecord) -> bool:
        if stage.still_valid is not None and not stage.still_valid(record.counters):
            return False
        for shard in record.shards:
            if _directory(shard) in self.removed:
                continue
            try:
                storage.verify_file(self.root / shard.path, shard.hash)
            except IntegrityError as error:
                self._progress.rebuilding(stage.name, str(error))
                self._journal.event("rebuild", stage=stage.name, problem=str(error))
                return False
        return True

    def _plan(self, stage: Stage, old: StageManifest | None) -> _StagePlan:
        """What is done of a stage, and what is left. Raises RemovedInputError or TextsApartError
        where a task that is left lacks what it reads."""
        directory = record_directory(self.root, stage.name)
        known = {record.fingerprint: record for record in (old.tasks if old else ())}
        known |= {
            r.fingerprint: r for p in sorted(directory.glob("*.json")) if (r := read_record(p))
        }
        records: dict[int, TaskRecord] = {}
        calls: list[tuple[int, _TaskCall]] = []
        for index, task in enumerate(stage.tasks):
            fingerprint = task_fingerprint(stage, task)
            record = known.get(fingerprint)
            if record is not None and self._valid(stage, record):
                records[index] = record
            else:
                self._check_inputs(stage, task)
                place = directory / f"{index:06d}.json"
                call = _TaskCall(self.root, stage.function, task, fingerprint, place)
                calls.append((index, call))
        return records, calls

    def _check_inputs(self, stage: Stage, task: Task) -> None:
        gone = self.removed & {_directory(shard) for shard in task.inputs}
        if gone:
            raise RemovedInputError(gone)
        if stage.reads_texts and any(shard.is_apart for shard in task.inputs):
            raise TextsApartError(f"{stage.name} needs texts that are in quarantine")

    def _run_tasks(self, stage: Stage, planned: _StagePlan) -> list[TaskRecord]:
        records, calls = planned
        # The largest first, so that no worker is left alone with one at the end.
        calls.sort(key=lambda call: -call[1].task.work)
        problems = []
        works = [call.task.work for _, call in calls]
        with self._progress.stage(stage.name, works, len(records)) as bar:
            jobs, names = [call for _, call in calls], [call.task.label for _, call in calls]
            for position, done in self._executor.run(_perform, jobs, names):
                bar.done(position, done.record.counters if done.record else {})
                if done.record is None:
                    problems.append(done.problem)
                else:
                    records[calls[position][0]] = done.record
        if problems:
            raise InputError("\n".join(sorted(str(problem) for problem in problems)))
        return [records[index] for index in range(len(stage.tasks))]


def _directory(shard: Shard) -> str:
    return shard.path.partition("/")[0]


def find_rerun_reasons(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The fields that changed; `inputs` only when no other did."""
    changed = changed_fields(old, new)
    return [name for name in changed if name != "inputs"] or changed


def manifest_path(root: Path, stage: str) -> Path:
    """The path of a stage's manifest."""
    return root / STAGE_MANIFESTS / f"{stage}.json"


def removed_note(root: Path) -> Path:
    """Where the journal keeps which directories `prep clean-up` removed."""
    return root / JOURNAL / "removed.json"


def record_directory(root: Path, stage: str) -> Path:
    """Where a stage's task records stand until its manifest is committed."""
    return root / JOURNAL / "records" / stage


def stage_fields(stage: Stage) -> dict[str, Any]:
    """What a stage's fingerprint is made of: settings, versions, and the content of its inputs."""
    return {
        **_shared_fields(stage),
        "inputs": fingerprint_of({"tasks": [_task_fields(task) for task in stage.tasks]}),
    }


def _task_fields(task: Task) -> dict[str, Any]:
    return {"job": to_plain_data(task.job), "inputs": [s.identity for s in task.inputs]}


def task_fingerprint(stage: Stage, task: Task) -> str:
    """What one task's output depends on; other tasks of the stage do not count."""
    return fingerprint_of({**_shared_fields(stage), **_task_fields(task)})


def _shared_fields(stage: Stage) -> dict[str, Any]:
    return {
        "stage": stage.name,
        "version": stage.version,
        "settings": dict(stage.settings),
        "software": dict(stage.software),
    }


def to_plain_data(value: Any) -> Any:
    """A job as plain data for hashing; shards count by their content. Fields named `location` say
    where, not what, and `withheld` what must not be stored whatever is asked for; both are left
    out.
    """
    if isinstance(value, Shard):
        return list(value.identity)
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_plain_data(v) for k, v in value.items() if k not in _LEFT_OUT}
    if isinstance(value, list | tuple):
        return [to_plain_data(v) for v in value]
    if isinstance(value, bytes):
        return value.hex()
    return value
