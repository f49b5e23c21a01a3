"""The stage contract, on one page.

A stage is a list of independent tasks. A task is a pure function of its input shards (named by
hash) and its job (a frozen dataclass of plain data): the same inputs and job give the same bytes,
in any process, at any time. It returns the bytes of its output shards and counters; it never
writes, never schedules and knows nothing of other tasks. The runner verifies inputs, publishes
outputs, keeps the records and skips what is already there. docs/add_a_stage.md shows how to add a
stage; `version` is raised whenever its output changes.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import IntegrityError
from pipeline.core.hashes import hash_bytes
from pipeline.core.manifest import Shard, ShardEnd, StageManifest
from pipeline.core.mirror.fetching import fetch, fetch_again
from pipeline.engine.shared import Shared, identify
from pipeline.engine.verified import verify_once

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.engine.arrow_shard import ArrowShard


@dataclass(frozen=True)
class Output:
    """Bytes to publish, whole or in pieces as they come, under a path relative to the run
    directory. Without a content hash they are their own content; with an end, of which the pieces
    are the last ones, tasks may read parts of the file."""

    path: str
    data: bytes | Iterable[bytes | memoryview]
    content_hash: str | None = None
    end: ShardEnd | None = None


@dataclass(frozen=True)
class Result:
    """What a task hands to the runner. Outputs that do not fit in memory together come from an
    iterator and are published one by one; counters, which it may still fill, are read after it."""

    outputs: Iterable[Output]
    counters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Inputs:
    """Verified access to published shards; what is read is hashed once per host before its use."""

    root: Path

    def locate(self, shard: Shard) -> Path:
        """The path of a shard, whose file is neither verified nor perhaps on this machine."""
        return self.root / shard.path

    def path(self, shard: Shard) -> Path:
        """The verified file behind a shard. Raises IntegrityError naming file and hashes."""
        path = fetch(self.locate(shard))
        try:
            verify_once(path, shard.hash)
        except IntegrityError:
            if not fetch_again(path):
                raise
            verify_once(path, shard.hash)
        return path

    def open(self, shard: Shard) -> "ArrowShard":
        """An Arrow IPC shard, memory-mapped, of which parts can be read: what is not read costs
        nothing. Raises IntegrityError naming file and hashes, as its methods do."""
        from pipeline.engine.arrow_shard import ArrowShard, map_blocks, map_table
        from pipeline.engine.blocks import open_blocks

        if shard.end is None:
            return ArrowShard(map_table(self.path(shard)))
        blocks = open_blocks(self.locate(shard), shard, shard.end)
        return ArrowShard(map_blocks(blocks), blocks)

    def table(self, shard: Shard, columns: list[str] | None = None) -> "pa.Table":
        """All rows of an Arrow IPC shard, memory-mapped; without the other columns."""
        return self.open(shard).read(columns)


TaskFunction = Callable[[Any, Inputs], Result]


Shards = Shard | Shared[tuple[Shard, ...]]
"""One shard, or those that several tasks read."""


PROCESS_MEMORY = 512 << 20
"""Bytes that a process takes once it has loaded all libraries and kernels."""
MEMORY_PER_WORK = 6
"""Bytes that a task takes at most for each byte of its work (docs/benchmarks.md)."""


@dataclass(frozen=True)
class Task:
    """One unit of work: `work` bytes are what progress and time estimates count. A task that takes
    more than `MEMORY_PER_WORK` bytes for each of them, or has a budget, says so in `memory`."""

    label: str
    job: Any
    inputs: tuple[Shards, ...] = ()
    work: int = 0
    memory: int = 0

    @functools.cached_property
    def identity(self) -> str:
        """Hash of the job and the inputs."""
        return identify({"job": self.job, "inputs": self.inputs})

    @property
    def peak_memory(self) -> int:
        """Bytes that the process takes at its peak while it runs the task."""
        return PROCESS_MEMORY + (self.memory or MEMORY_PER_WORK * self.work)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A named, versioned list of tasks; its output depends on `settings` and `software`."""

    name: str
    version: int
    function: TaskFunction
    tasks: tuple[Task, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)
    still_valid: Callable[[Mapping[str, Any]], bool] | None = None
    """For tasks that read raw files: whether the inputs noted in its counters are unchanged."""
    reads_texts: bool = True
    """Whether a task looks at the texts of its documents shards, quarantined ones included. They
    are put back before one of it runs; a stage that says no does not cause that."""
    in_driver: bool = False
    """Whether its tasks run in the process that starts workers, one after the other. The pages of a
    mapped file count for the limit of a worker, though they can leave memory at any time."""


RunStage = Callable[[Stage], StageManifest]
"""Brings a stage up to date."""


def arrow_output(path: str, table: "pa.Table") -> Output:
    """An Arrow IPC file (uncompressed, memory-mappable), of which tasks may read parts."""
    import pyarrow as pa

    from pipeline.core.ids import table_hash
    from pipeline.engine.blocks import add_hashes

    sink = _Pieces()
    with pa.ipc.new_file(pa.PythonFile(sink, "w"), table.schema) as writer:
        writer.write_table(table)
    pieces, end = add_hashes(sink.pieces)
    return Output(path, pieces, table_hash(table), end)


class _Pieces:
    """What Arrow writes, in pieces: the buffers of a table themselves, not copies of them."""

    closed = False

    def __init__(self) -> None:
        self.pieces: list[memoryview] = []

    def write(self, data: Any) -> None:
        """Called by Arrow."""
        self.pieces.append(memoryview(data))

    def flush(self) -> None:
        """Called by Arrow."""


PLAIN, DELTA = "PLAIN", "DELTA_BINARY_PACKED"
"""Encodings of columns that a dictionary makes larger: keys and numbers that hardly repeat; numbers
that ascend, or use few of their bits."""


def parquet_output(
    path: str,
    table: "pa.Table",
    encodings: Mapping[str, str] | None = None,
    rows_per_group: int | None = None,
) -> Output:
    """A parquet file (zstd) for people and query engines; columns without an encoding have a
    dictionary. A reader of few rows decodes the row groups that hold them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from pipeline.core.ids import table_hash

    sink = pa.BufferOutputStream()
    dictionaries = [n for n in table.column_names if n not in encodings] if encodings else True
    pq.write_table(
        table,
        sink,
        rows_per_group,
        compression="zstd",
        store_schema=True,
        use_dictionary=dictionaries,
        column_encoding=dict(encodings) if encodings else None,
    )
    return Output(path, [memoryview(sink.getvalue())], table_hash(table))


def bytes_output(path: str, data: bytes) -> Output:
    """Bytes that are their own content (JSON, HTML)."""
    return Output(path, data, hash_bytes(data))


@dataclass(frozen=True)
class _BorrowedInputs(Inputs):
    """Inputs of which the shards in `directories` are below `location`."""

    location: Path
    directories: tuple[str, ...]

    def locate(self, shard: Shard) -> Path:
        """See Inputs."""
        return (
            self.location if top_directory(shard) in self.directories else self.root
        ) / shard.path


def _call_with_borrowed(
    function: TaskFunction, location: Path, directories: tuple[str, ...], job: Any, inputs: Inputs
) -> Result:
    return function(job, _BorrowedInputs(inputs.root, location, directories))


def borrow(stage: Stage, location: Path, directories: tuple[str, ...]) -> Stage:
    """The stage, reading shards of these top directories from the run in `location`.

    They count for the fingerprint as part of the jobs; the location does not.
    """

    def is_own(shards: Shards) -> bool:
        first = shards.value[:1] if isinstance(shards, Shared) else (shards,)
        return not any(top_directory(shard) in directories for shard in first)

    tasks = tuple(replace(task, inputs=tuple(filter(is_own, task.inputs))) for task in stage.tasks)
    function = functools.partial(_call_with_borrowed, stage.function, location, directories)
    return replace(stage, function=function, tasks=tasks)


def top_directory(shard: Shard) -> str:
    """The directory of a run that a shard is in; shards that tasks share are all in one."""
    return shard.path.partition("/")[0]


@dataclass(frozen=True)
class CopyJob:
    """A file of the run in `location`."""

    location: str
    shard: Shard


def _copy(job: CopyJob, inputs: Inputs) -> Result:
    shard = job.shard
    data = Inputs(Path(job.location)).path(shard).read_bytes()
    return Result((Output(shard.path, data, shard.content_hash, shard.end),))


def tables_stage(location: Path, shards: tuple[Shard, ...]) -> Stage:
    """The stage that copies what describes the documents: tables and the tokenizer."""
    tasks = [Task(shard.path, CopyJob(str(location), shard), work=shard.size) for shard in shards]
    return Stage(name="tables", version=2, function=_copy, tasks=tuple(tasks))
