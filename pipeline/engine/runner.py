"""Runs one stage: skips what is published, runs the rest, commits records and then the manifest."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.core import failpoint, rare_collections, storage
from pipeline.core.directories import confine_writes
from pipeline.core.errors import InputError, IntegrityError, NondeterminismError
from pipeline.core.journal import DIRECTORY as JOURNAL
from pipeline.core.journal import Journal
from pipeline.core.lease import check_token, lease_token
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
    write_sealed,
)
from pipeline.core.mirror.listing import refresh
from pipeline.core.mirror.paths import locate
from pipeline.engine.executor import Executor, LocalExecutor
from pipeline.engine.group_commit import GroupCommit
from pipeline.engine.progress import Progress
from pipeline.engine.shared import Shared, shorten_call
from pipeline.engine.stage import Inputs, Output, Stage, TaskFunction, top_directory
from pipeline.engine.verified import is_verified, open_table, verify_files

TOP_MANIFEST = "manifest.json"
STAGE_MANIFESTS = "manifests"
ENGINE = "engine"
_TABLE = ".parquet"
_ENGINE_VERSION = 2
"""Raised when fingerprints are made in another way: what was made before is made again."""


@dataclass(frozen=True, kw_only=True)
class _TaskCall:
    """What travels to a worker: paths and plain data, never tables. `durable`: what the task
    publishes is so at once, not only when its stage commits (`GroupCommit`). `is_only`: it is the
    only task of its stage, whose manifest follows at once, so that it needs no record of its own.
    """

    root: Path
    function: TaskFunction
    label: str
    memory: int
    job: Any
    fingerprint: str
    record_path: Path
    lease: int = 0
    durable: bool = True
    is_only: bool = False

    def shorten(self) -> "_TaskCall":
        """The call with a job that is large, or shared with others, in a file."""
        return replace(self, job=shorten_call(self.job, self.record_path.parent))


@dataclass(frozen=True)
class _FinishedTask:
    record: TaskRecord | None
    problem: str | None = None


@rare_collections()
def _perform(call: _TaskCall) -> _FinishedTask:
    """Run a task on a worker and publish: outputs as they come, then the record that commits them,
    if the stage has other tasks.

    What an attempt published before it failed is no part of any record: the next attempt writes it
    again, or it is swept when the run commits.
    """
    failpoint.hit(f"task.start.{call.record_path.parent.name}")
    try:
        job = call.job.value if isinstance(call.job, Shared) else call.job
        result = call.function(job, Inputs(call.root))
        with confine_writes(call.root):
            check_token(call.root, call.lease)
            shards = _publish(call, result.outputs)
            record = TaskRecord(call.fingerprint, shards, dict(result.counters))
            check_token(call.root, call.lease)
            if not call.is_only:
                write_record(call.record_path, record, call.durable)
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
        f"{call.label}: two attempts gave different content; please report this defect"
    )
    shards: list[Shard] = []

    def accept(output: Output, published: storage.WrittenFile) -> None:
        content = output.content_hash or published.hash
        shards.append(
            Shard(
                path=output.path,
                size=published.size,
                hash=published.hash,
                content_hash=content,
                end=output.end,
            )
        )
        if is_repeated and committed[len(shards) - 1 : len(shards)] != [shards[-1].identity]:
            raise different

    for output in outputs:
        path = call.root / output.path
        storage.publish(path, output.data, partial(accept, output), call.durable)
    if is_repeated and len(committed) != len(shards):
        raise different
    return tuple(shards)


_StagePlan = tuple[dict[int, TaskRecord], list[tuple[int, _TaskCall]]]
"""Records of the tasks of a stage that are done, by number; number and call of those left."""


class RemovedInputError(Exception):
    """A task needs shards that clean-up, or `keep`, removed; their stages must run again first."""

    def __init__(self, directories: frozenset[str]) -> None:
        super().__init__(f"needed again: {', '.join(sorted(directories))}")
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
        self._noted_engine = False
        self._executor = executor
        self._is_grouped = executor.is_here and locate(root) is None
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
        records_left = record_directory(self.root, stage.name)
        if old and old.fingerprint == fingerprint and all(self._check(stage, old.tasks)):
            if records_left.is_dir() and stage.name not in self._frozen:
                storage.remove_tree(records_left)  # a run was killed behind its manifest
            self._progress.reused(stage.name, len(stage.tasks))
            self.reused.append(stage.name)
            self.manifests.append(old)
            return old
        if stage.name in self._frozen:
            raise FrozenStageError(stage.name)
        planned = self._plan(stage, old)
        changed = find_rerun_reasons(old.fields, fields) if old else []
        if changed == [ENGINE]:
            self._note_other_engine()
        elif changed:
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
        self._remove_replaced(stage, old, planned[0].values())
        records = self._run_tasks(stage, planned)
        refresh(self.root)
        manifest = StageManifest(stage.name, fingerprint, fields, tuple(records))
        write_manifest(path, manifest)
        storage.remove_tree(records_left, durable=False)
        self.manifests.append(manifest)
        return manifest

    def release(self, directories: Iterable[str]) -> None:
        """Delete directories that nothing later reads, as clean-up does, and remember it."""
        there = [name for name in directories if (self.root / name).is_dir()]
        if not there:
            return
        storage.remove(self.root / TOP_MANIFEST)
        self.removed |= set(there)
        write_sealed(removed_note(self.root), {"removed": sorted(self.removed)})
        for name in there:
            storage.remove_tree(self.root / name)

    def _remove_replaced(
        self, stage: Stage, old: StageManifest | None, reused: Iterable[TaskRecord]
    ) -> None:
        """Delete tables that an earlier version of the stage wrote as files: what it writes now may
        be directories of these names."""
        journal = sorted(record_directory(self.root, stage.name).glob("*.json"))
        before = [*filter(None, map(read_record, journal))]
        if old and old.fields.get("version") != stage.version:
            before += old.tasks
        staying = {shard.path for record in reused for shard in record.shards}
        for path in {shard.path for record in before for shard in record.shards} - staying:
            if path.endswith(_TABLE) and (self.root / path).is_file():
                storage.remove(self.root / path)

    def _note_other_engine(self) -> None:
        if not self._noted_engine:
            self._progress.note(
                f"{self.root}: made by an earlier version of wafermill; all stages run again"
            )
        self._noted_engine = True

    def _check(self, stage: Stage, records: Sequence[TaskRecord]) -> list[bool]:
        """Whether what each record names is there and as it was; several files at a time."""
        still_valid = stage.still_valid or (lambda counters: True)
        table = open_table()
        files = [
            (number, shard)
            for number, record in enumerate(records)
            for shard in record.shards
            if top_directory(shard) not in self.removed
            and not is_verified(f"{self.root}/{shard.path}", shard.hash, table)
        ]
        found = verify_files((self.root / shard.path, shard.hash) for _, shard in files)
        valid = [still_valid(record.counters) for record in records]
        for (number, _), problem in zip(files, found, strict=True):
            if problem is not None and valid[number]:
                self._progress.rebuilding(stage.name, str(problem))
                self._journal.event("rebuild", stage=stage.name, problem=str(problem))
                valid[number] = False
        return valid

    def _plan(self, stage: Stage, old: StageManifest | None) -> _StagePlan:
        """What is done of a stage, and what is left. Raises RemovedInputError or TextsApartError
        where a task that is left lacks what it reads."""
        directory = record_directory(self.root, stage.name)
        fingerprints = task_fingerprints(stage)
        known = {record.fingerprint: record for record in (old.tasks if old else ())}
        known |= {
            r.fingerprint: r for p in sorted(directory.glob("*.json")) if (r := read_record(p))
        }
        done = [(i, known[name]) for i, name in enumerate(fingerprints) if name in known]
        valid = self._check(stage, [record for _, record in done])
        records = {index: record for (index, record), ok in zip(done, valid, strict=True) if ok}
        left = [index for index in range(len(stage.tasks)) if index not in records]
        self._check_inputs(stage, left)
        lease = lease_token(self.root)
        return records, [
            (
                index,
                _TaskCall(
                    root=self.root,
                    function=stage.function,
                    label=stage.tasks[index].label,
                    memory=stage.tasks[index].peak_memory,
                    job=stage.tasks[index].job,
                    fingerprint=fingerprints[index],
                    record_path=directory / f"{index:06d}.json",
                    lease=lease,
                    durable=not self._is_grouped,
                    is_only=len(stage.tasks) == 1,
                ),
            )
            for index in left
        ]

    def _check_inputs(self, stage: Stage, left: list[int]) -> None:
        """Looks once at what several tasks share."""
        distinct = {id(shards): shards for index in left for shards in stage.tasks[index].inputs}
        parts = [s.value if isinstance(s, Shared) else (s,) for s in distinct.values()]
        gone = self.removed & {top_directory(shard) for part in parts for shard in part}
        if gone:
            raise RemovedInputError(gone)
        if stage.reads_texts and any(shard.is_apart for part in parts for shard in part):
            raise TextsApartError(f"{stage.name} needs texts that are in quarantine")

    def _run_tasks(self, stage: Stage, planned: _StagePlan) -> list[TaskRecord]:
        records, calls = planned
        # The largest first, so that no worker is left alone with one at the end.
        calls.sort(key=lambda call: -stage.tasks[call[0]].work)
        problems = []
        works = [stage.tasks[index].work for index, _ in calls]
        with (
            GroupCommit(self.root) as commit,
            self._progress.stage(stage.name, works, len(records)) as bar,
        ):
            if record_directory(self.root, stage.name).is_dir():  # left by a run that was killed
                self._commit_later(commit, records.values())
            is_moved = stage.in_driver and self._executor.workers
            executor = LocalExecutor() if is_moved else self._executor
            jobs = [call.shorten() if executor.workers else call for _, call in calls]
            for position, done in executor.run(_perform, jobs):
                bar.done(position, done.record.counters if done.record else {})
                if done.record is None:
                    problems.append(done.problem)
                else:
                    records[calls[position][0]] = done.record
                    self._commit_later(commit, [done.record])
            commit.finish()
        if problems:
            raise InputError("\n".join(sorted(str(problem) for problem in problems)))
        return [records[index] for index in range(len(stage.tasks))]

    def _commit_later(self, commit: GroupCommit, records: Iterable[TaskRecord]) -> None:
        """What tasks published, unless they made it durable themselves."""
        if self._is_grouped:
            for record in records:
                commit.add(shard.path for shard in record.shards)


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
        "inputs": fingerprint_of({"tasks": [task.identity for task in stage.tasks]}),
    }


def task_fingerprints(stage: Stage) -> list[str]:
    """What each task's output depends on; other tasks of the stage do not count."""
    shared = fingerprint_of(_shared_fields(stage))
    return [fingerprint_of({"stage": shared, "task": task.identity}) for task in stage.tasks]


def _shared_fields(stage: Stage) -> dict[str, Any]:
    return {
        ENGINE: _ENGINE_VERSION,
        "stage": stage.name,
        "version": stage.version,
        "settings": dict(stage.settings),
        "software": dict(stage.software),
    }
