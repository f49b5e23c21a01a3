"""The plan: find the raw shards and assign them to tasks; publishes inputs.parquet.

Small files are packed into tasks by bytes alone, in order; a file of more than `read.task_bytes` of
text is cut into parts, a task each (`pipeline.stages.pieces`). Tasks depend on the config and on
the files' names, sizes and contents, never on workers, memory or listing order. `source_note` says
what source labels the first records of an input have.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress, islice
from operator import not_
from pathlib import Path

import pyarrow as pa

from pipeline.config.prep import Config, ReadConfig
from pipeline.config.sections import field_path
from pipeline.core.errors import InputError, PrepError, escape_text
from pipeline.engine.stage import Inputs, Result, Stage, Task, parquet_output
from pipeline.runs import layout
from pipeline.sources import files
from pipeline.sources.files import HashingReader, InputFile, read_blocks, read_rows
from pipeline.sources.part import Part
from pipeline.sources.record import Record, RecordRules, make_rules
from pipeline.sources.store import is_url
from pipeline.sources.streams import decompress_blocks

_RECORDS = 100
_LONGEST = 64
"""Characters of a label; a longer one is a title or an address."""
_NAMES = ("source", "subset", "dataset", "pile_set_name", "redpajama_set_name", "source_name")
LIKELY = tuple(prefix + name for prefix in ("", "meta.", "metadata.") for name in _NAMES)
"""Fields that hold a source label in the data sets people have, the likeliest first."""


def source_note(file: InputFile, rules: RecordRules) -> str | None:
    """A line for the user where none of the first records of a file has a label by these rules.

    Says nothing of formats without fields, and of a file that cannot be read: reading it will.
    """
    if not file.format.records.has_fields or (file.has_rows and is_url(file.location)):
        return None
    rules = replace(rules, fields=(), sources=None)
    try:
        head = _head(file)
        looked_at = list(_labels(file, rules, head))
        if not looked_at or any(looked_at):
            return None
        used = rules.source_key
        keyed = ((key, replace(rules, source_key=field_path(key))) for key in LIKELY)
        likely = next(
            (key for key, r in keyed if any(map(_is_label, _labels(file, r, head)))), None
        )
    except (PrepError, OSError):
        return None
    name = file.input
    if used is not None:
        hint = f"; did you mean {likely}?" if likely else ""
        return (
            f"input {name}: none of the first {len(looked_at)} records has {'.'.join(used)} "
            f"(source_key){hint}"
        )
    if likely is None:
        return None
    return (
        f"input {name}: records have a field {likely}, which is not used: all count as the source "
        f"{escape_text(name)}; set inputs[].source_key: {likely} to keep their sources apart"
    )


def _is_label(label: str | None) -> bool:
    return label is not None and len(label) <= _LONGEST and "/" not in label


def _head(file: InputFile) -> bytes:
    """The first block of a file that holds one record after the other."""
    if file.has_rows:
        return b""
    with closing(HashingReader(file.location)) as reader:
        return next(decompress_blocks(file.shown, reader, file.format.compression), b"")


def _labels(file: InputFile, rules: RecordRules, head: bytes) -> Iterator[str | None]:
    """The labels of its first records."""
    with ExitStack() as stack:
        if file.has_rows:
            reader = stack.enter_context(closing(HashingReader(file.location)))
            items = read_rows(file, reader, rules)
        else:
            items = read_blocks(file, iter([head]), rules)
        yield from (i.source for i in islice(items, _RECORDS) if isinstance(i, Record))


@dataclass(frozen=True)
class ReadPlan:
    """The raw shards in (input, path) order, files passed over, estimated bytes of text in one
    task, the path ids of the files that are to be cut, and notes on their sources."""

    files: tuple[InputFile, ...]
    passed_over: tuple[str, ...]
    task_bytes: int
    large: tuple[int, ...]
    notes: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of all raw shards."""
        return sum(file.size for file in self.files)

    @property
    def text_estimate(self) -> int:
        """Estimated bytes of text of all raw shards."""
        return sum(file.text_estimate for file in self.files)

    @property
    def estimate(self) -> list[int]:
        """Estimated bytes of text of every task, before any file was read."""
        sizes = [file.text_estimate for file in self.files]
        groups = _pack(sizes, self.task_bytes, frozenset(self.large))
        estimate = []
        for group in groups:
            size = sum(sizes[i] for i in group)
            parts = -(-size // self.task_bytes) if group[0] in self.large else 1
            estimate += [-(-size // parts)] * parts
        return estimate


@dataclass(frozen=True)
class Reading:
    """What every task reads: its parts, in the order of files and of the parts of each."""

    files: tuple[InputFile, ...]
    tasks: tuple[tuple[Part, ...], ...]

    @cached_property
    def tasks_of_file(self) -> tuple[range, ...]:
        """path_id -> its tasks, of which there are several when the file was cut."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for task, parts in enumerate(self.tasks):
            for part in parts:
                first.setdefault(part.path_id, task)
                last[part.path_id] = task
        return tuple(range(first[i], last[i] + 1) for i in range(len(self.files)))


def plan_reading(
    config: Config, base: Path, builtin: dict[str, Path], out: Path, is_run: bool
) -> ReadPlan:
    """Find every input file and what is to be cut. What is in `out` is no input if a run is there
    (`is_run`).

    Raises InputError when an input names nothing, or files where a run is yet to be.
    """
    all_files: list[InputFile] = []
    notes: list[str | None] = []
    passed_over: list[str] = []
    place, rules = out.resolve(), make_rules(config)
    for source in sorted(config.inputs, key=lambda i: i.name):
        paths = (source.path,) if isinstance(source.path, str) else source.path
        patterns = [str(builtin.get(path, path)) for path in paths]
        some, others = files.find(source.name, patterns, base, source.format)
        inside = [Path(f.location).is_relative_to(place) for f in some]
        if all(inside) or (any(inside) and not is_run):
            raise InputError(
                f"input {source.name!r}: {escape_text(some[inside.index(True)].path)} is in the "
                f"output directory {out}; choose another directory for the output"
            )
        some = list(compress(some, map(not_, inside)))
        all_files += some
        notes.append(source_note(some[0], rules[source.name]))
        passed_over += others
    large = tuple(i for i, file in enumerate(all_files) if _is_cut(file, config.read))
    return ReadPlan(
        tuple(all_files),
        tuple(passed_over),
        config.read.task_bytes,
        large,
        tuple(filter(None, notes)),
    )


def _is_cut(file: InputFile, read: ReadConfig) -> bool:
    """Not where one bad record makes the whole shard one to be left out: that would be known only
    after other parts were cleaned."""
    if read.on_bad_record == "fail" and read.on_bad_shard == "skip":
        return False
    return file.text_estimate > read.task_bytes and not file.is_uncut


def _pack(sizes: list[int], most: int, alone: frozenset[int]) -> list[list[int]]:
    """Indices in order, in groups of about `most`; those in `alone` by themselves."""
    groups: list[list[int]] = []
    filled = 0
    for index, size in enumerate(sizes):
        whole = index in alone or not groups or groups[-1][-1] in alone
        if whole or (filled and filled + size > most):
            groups.append([])
            filled = 0
        groups[-1].append(index)
        filled += size
    return groups


def reading(plan: ReadPlan, parts: Mapping[int, tuple[Part, ...]]) -> Reading:
    """The tasks, now that large files were cut into these parts (path_id -> parts)."""
    sizes = [file.text_estimate for file in plan.files]
    tasks: list[tuple[Part, ...]] = []
    for group in _pack(sizes, plan.task_bytes, frozenset(plan.large)):
        if group[0] in parts:
            tasks += [(part,) for part in parts[group[0]]]
        else:
            tasks.append(tuple(Part(file=plan.files[i], path_id=i) for i in group))
    return Reading(plan.files, tuple(tasks))


@dataclass(frozen=True)
class PlanJob:
    """The plan as rows (input, path, size, first task, tasks)."""

    rows: tuple[tuple[str, str, int, int, int], ...]


def _write_plan(job: PlanJob, inputs: Inputs) -> Result:
    """Write inputs.parquet: path_id, input, path, size, task, first_doc_id (that of the task),
    tasks."""
    names, paths, sizes, first, tasks = zip(*job.rows, strict=True)
    table = pa.table(
        {
            "path_id": pa.array(range(len(paths)), pa.uint32()),
            "input": pa.array(names, pa.string()),
            "path": pa.array(paths, pa.string()),
            "size": pa.array(sizes, pa.uint64()),
            "task": pa.array(first, pa.uint32()),
            "first_doc_id": pa.array([task << 32 for task in first], pa.uint64()),
            "tasks": pa.array(tasks, pa.uint32()),
        }
    )
    return Result((parquet_output(layout.INPUTS, table),))


def plan_stage(reading: Reading) -> Stage:
    """The stage that publishes the plan."""
    rows = tuple(
        (file.input, file.path, file.size, tasks.start, len(tasks))
        for file, tasks in zip(reading.files, reading.tasks_of_file, strict=True)
    )
    task = Task("plan of the inputs", PlanJob(rows))
    return Stage(name="plan", version=2, function=_write_plan, tasks=(task,))
