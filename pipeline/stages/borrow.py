"""Stages of which some inputs stand in another run's directory and are read there."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.core.manifest import Shard
from pipeline.stage import Inputs, Output, Result, Stage, Task, TaskFunction


@dataclass(frozen=True)
class _BorrowedInputs(Inputs):
    """Inputs whose `directories` stand below `location`."""

    location: Path
    directories: tuple[str, ...]

    def path(self, shard: Shard) -> Path:
        """See Inputs."""
        if _directory(shard) in self.directories:
            return Inputs(self.location).path(shard)
        return super().path(shard)


@dataclass(frozen=True)
class _BorrowingTask:
    """A task function that finds its inputs there."""

    function: TaskFunction
    location: Path
    directories: tuple[str, ...]

    def __call__(self, job: Any, inputs: Inputs) -> Result:
        elsewhere = _BorrowedInputs(inputs.root, self.location, self.directories)
        return self.function(job, elsewhere)


def borrow(stage: Stage, location: Path, directories: tuple[str, ...]) -> Stage:
    """The stage, reading shards of these top directories from the run in `location`.

    They count for the fingerprint as part of the jobs; the location does not.
    """
    tasks = tuple(
        replace(task, inputs=tuple(s for s in task.inputs if _directory(s) not in directories))
        for task in stage.tasks
    )
    return replace(
        stage, function=_BorrowingTask(stage.function, location, directories), tasks=tasks
    )


def _directory(shard: Shard) -> str:
    return shard.path.partition("/")[0]


@dataclass(frozen=True)
class CopyJob:
    """Files of the run in `location`."""

    location: str
    shards: tuple[Shard, ...]


def _copy(job: CopyJob, inputs: Inputs) -> Result:
    return Result(_copies(job))


def _copies(job: CopyJob) -> Iterator[Output]:
    for shard in job.shards:
        path = Inputs(Path(job.location)).path(shard)
        yield Output(shard.path, path.read_bytes(), shard.content_hash)


def tables_stage(location: Path, shards: tuple[Shard, ...]) -> Stage:
    """The stage that copies what describes the documents: tables and the tokenizer."""
    return Stage("tables", 1, _copy, (Task("tables", CopyJob(str(location), shards)),))
