"""The groups of a mixture -> groups/: each kept document is in the first group of `mixture.groups`
whose expression is true of it; NULL is not true.

groups/ has a shard for each part of documents.parquet with the group in the place of the source, so
that the mixture reads the one or the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64
from pipeline.config.prep import Config
from pipeline.core.errors import ConfigError, InputError, IntegrityError, escape_text
from pipeline.core.manifest import Shard
from pipeline.core.words import pluralise
from pipeline.engine.stage import Inputs, Result, Stage, Task, parquet_output
from pipeline.filters.expression import (
    check_expression,
    describe_used,
    evaluate_expression,
    expression_software,
)
from pipeline.filters.signals import ABOUT, Signals
from pipeline.runs import layout
from pipeline.runs.ends import count_ends
from pipeline.runs.views.data_set import DocumentsOutput, GroupsOutput
from pipeline.runs.views.documents import CleanOutput, SignalsOutput
from pipeline.sources.record import COLUMN_TYPES, typed_columns

KEY = "mixture.groups"
_KEPT = ["doc_key", "source", "state", "reason", "split", "text_bytes", "tokens"]


@dataclass(frozen=True)
class MixtureGroups:
    """Names with their expressions, in order, and the columns these use: of documents.parquet,
    typed ones with their type in the config, and signals."""

    expressions: tuple[tuple[str, str], ...]
    columns: tuple[str, ...]
    typed: tuple[tuple[str, str], ...]
    signals: tuple[str, ...]

    @property
    def used(self) -> list[str]:
        """The names of all columns."""
        return [*self.columns, *(name for name, _ in self.typed), *self.signals]


def load_groups(config: Config, signals: Signals) -> MixtureGroups | None:
    """The groups of a config, if it has any. Raises ConfigError for what is no expression over the
    signals it measures and the columns of documents."""
    if config.mixture.groups is None:
        return None
    expression_software(KEY)
    own = pa.schema([*ABOUT, pa.field("tokens", pa.uint32())])
    types = {field.column: field.type for field in typed_columns(config)}
    typed = pa.schema([(name, COLUMN_TYPES[kind]) for name, kind in types.items()])
    measured = signals.schema() if signals.on else pa.schema([])
    twice = sorted({*own.names, *types} & {*measured.names})
    if twice:
        raise ConfigError(
            f"{KEY}: {twice[0]} is a column of documents too; give the signal another name"
        )
    known, used = pa.schema([*own, *typed, *measured]), set[str]()
    for name, expression in config.mixture.groups.items():
        used.update(check_expression(expression, known, f"{KEY}.{name}"))
    return MixtureGroups(
        tuple(config.mixture.groups.items()),
        tuple(name for name in own.names if name in used),
        tuple((name, kind) for name, kind in types.items() if name in used),
        tuple(name for name in measured.names if name in used),
    )


def find_groups(expressions: Sequence[tuple[str, str]], columns: pa.Table) -> I64:
    """The first of named expressions that is true of each row, (N,); -1 where none is. Raises as
    `evaluate_expression`."""
    number = np.full(len(columns), -1, np.int64)
    for index, (name, expression) in reversed([*enumerate(expressions)]):
        number[evaluate_expression(expression, columns, f"{KEY}.{name}")] = index
    return number


@dataclass(frozen=True, kw_only=True)
class GroupsJob:
    """A part of documents.parquet, the clean tasks behind it, and their signals where an expression
    uses one."""

    part: int
    tasks: tuple[int, int]
    documents: Shard
    signals: tuple[Shard, ...]
    groups: MixtureGroups


def _groups(job: GroupsJob, inputs: Inputs) -> Result:
    kept = _read_kept(inputs.path(job.documents), job.groups)
    about = _add_signals(job, inputs, kept)
    number = find_groups(job.groups.expressions, about)
    placed = pa.array(number >= 0)
    names = pa.array([name for name, _ in job.groups.expressions], pa.string())
    group = names.take(pa.array(number, mask=number < 0))
    grouped = kept.select(_KEPT).set_column(1, "source", group).filter(placed)
    left = about.filter(pc.invert(placed)).slice(0, 1).to_pylist()
    counters = {
        "tasks": list(job.tasks),
        "ends": count_ends(grouped),
        "left_over": len(kept) - len(grouped),
        "example": [
            f"{row['doc_key'].hex()} ({describe_used(row, job.groups.used)})" for row in left
        ],
    }
    path = layout.shard("groups", job.part, "parquet")
    return Result((parquet_output(path, grouped.combine_chunks()),), counters)


def _read_kept(path: Path, groups: MixtureGroups) -> pa.Table:
    """The kept documents. A typed column that no input of theirs has, as in a generation of other
    inputs, is null."""
    there = set(pq.read_schema(path).names)
    typed = [name for name, _ in groups.typed if name in there]
    columns = list(dict.fromkeys([*_KEPT, *groups.columns, *typed]))
    table = pq.read_table(path, columns=columns)
    kept = table.filter(pc.equal(table["state"], "kept"))
    for name, kind in groups.typed:
        if name not in there:
            kept = kept.append_column(name, pa.nulls(len(kept), COLUMN_TYPES[kind]))
    return kept


def _add_signals(job: GroupsJob, inputs: Inputs, kept: pa.Table) -> pa.Table:
    """doc_key and what expressions use of the kept documents; signals/ has more documents."""
    names = [*job.groups.columns, *(name for name, _ in job.groups.typed)]
    columns = kept.select(["doc_key", *names])
    if not job.signals:
        return columns
    wanted = ["doc_key", *job.groups.signals]
    measured = pa.concat_tables(
        [pq.read_table(inputs.path(shard), columns=wanted) for shard in job.signals]
    )
    row = pc.index_in(columns["doc_key"], value_set=measured["doc_key"].combine_chunks())
    if row.null_count:
        raise IntegrityError(f"{inputs.path(job.documents)}: signals/ is of other documents")
    for name in job.groups.signals:
        columns = columns.append_column(name, measured[name].take(row))
    return columns


def groups_stage(
    groups: MixtureGroups,
    clean: CleanOutput,
    documents: DocumentsOutput,
    measured: SignalsOutput | None,
) -> Stage:
    """One task per part of documents.parquet."""
    tasks = []
    behind = zip(documents.parts, documents.tasks_of_parts(clean), strict=True)
    for number, (part, own) in enumerate(behind):
        signals = measured.signals[own.start : own.stop] if measured and groups.signals else ()
        job = GroupsJob(
            part=number,
            tasks=(own.start, own.stop),
            documents=part,
            signals=signals,
            groups=groups,
        )
        tasks.append(Task(f"groups of {part.path}", job, (part, *signals)))
    return Stage(
        name="groups",
        version=1,
        function=_groups,
        tasks=tuple(tasks),
        settings={"groups": [list(own) for own in groups.expressions]},
        software=expression_software(KEY),
        reads_texts=False,
    )


def check_groups(groups: GroupsOutput) -> None:
    """Raises InputError for documents that are in no group."""
    left = sum(groups.left_over)
    if left:
        example = next(shown for examples in groups.examples for shown in examples)
        raise InputError(
            f"{KEY}: in no group: {pluralise(left, 'kept document')}, such as "
            f"{escape_text(example, 300)}; a last group `rest: true` takes all others"
        )
