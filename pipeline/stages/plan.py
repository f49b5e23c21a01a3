"""Plan: find the raw shards and pack them into tasks by bytes alone; publishes inputs.parquet.

Tasks depend on the config and the files' names and sizes, never on workers, memory or listing
order. A file is never cut, so a task holds at least one whole file.
"""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pipeline import layout
from pipeline.config import Config
from pipeline.core.errors import InputError
from pipeline.sources import files
from pipeline.sources.files import InputFile
from pipeline.stage import Inputs, Result, Stage, Task, parquet_output


@dataclass(frozen=True)
class Plan:
    """The raw shards in (input, path) order, the task each belongs to, and files passed over."""

    files: tuple[InputFile, ...]
    task_of_file: tuple[int, ...]
    passed_over: int

    @property
    def tasks(self) -> list[list[int]]:
        """Indices into `files`, per task."""
        groups: list[list[int]] = [[] for _ in range(max(self.task_of_file) + 1)]
        for index, task in enumerate(self.task_of_file):
            groups[task].append(index)
        return groups

    @property
    def bytes(self) -> int:
        """Bytes of all raw shards."""
        return sum(file.size for file in self.files)


def make_plan(config: Config, base: Path, builtin: dict[str, Path], out: Path) -> Plan:
    """Find every input file and assign tasks; what stands in the output directory is no input.

    Raises InputError when an input names nothing.
    """
    found: list[InputFile] = []
    passed_over = 0
    for source in sorted(config.inputs, key=lambda i: i.name):
        paths = (source.path,) if isinstance(source.path, str) else source.path
        patterns = [str(builtin.get(path, path)) for path in paths]
        some, others = files.find(source.name, patterns, base)
        some = [f for f in some if not Path(f.location).is_relative_to(out.resolve())]
        if not some:
            raise InputError(
                f"input {source.name!r}: all of it stands in the output directory {out}"
            )
        found += some
        passed_over += others
    tasks, task, filled = [], 0, 0
    for file in found:
        if filled and filled + file.text_estimate > config.read.task_bytes:
            task, filled = task + 1, 0
        tasks.append(task)
        filled += file.text_estimate
    return Plan(tuple(found), tuple(tasks), passed_over)


@dataclass(frozen=True)
class PlanJob:
    """The plan as rows (input, path, size, task)."""

    rows: tuple[tuple[str, str, int, int], ...]


def _write_plan(job: PlanJob, inputs: Inputs) -> Result:
    """Write inputs.parquet: path_id, input, path, size, task, first_doc_id (that of the task)."""
    names, paths, sizes, tasks = zip(*job.rows, strict=True)
    table = pa.table(
        {
            "path_id": pa.array(range(len(paths)), pa.uint32()),
            "input": pa.array(names, pa.string()),
            "path": pa.array(paths, pa.string()),
            "size": pa.array(sizes, pa.uint64()),
            "task": pa.array(tasks, pa.uint32()),
            "first_doc_id": pa.array([task << 32 for task in tasks], pa.uint64()),
        }
    )
    return Result((parquet_output(layout.INPUTS, table),))


def plan_stage(plan: Plan) -> Stage:
    """The stage that publishes the plan."""
    rows = tuple(
        (f.input, f.path, f.size, t) for f, t in zip(plan.files, plan.task_of_file, strict=True)
    )
    return Stage("plan", 1, _write_plan, (Task("plan of the inputs", PlanJob(rows)),))
