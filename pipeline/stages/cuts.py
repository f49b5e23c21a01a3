"""What is cut from texts: repeated lines and passages, and what the policy redacts.

`redactions` finds the spans that are redacted, `cuts` gathers these, the repeated lines
(`pipeline.stages.lines`) and passages (`pipeline.stages.substrings`) of a documents shard, and
`cut_table` publishes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core.manifest import Shard
from pipeline.engine.levels import Bundle, single_ranges
from pipeline.engine.shared import Shared
from pipeline.engine.stage import Inputs, Result, Stage, Task, arrow_output, parquet_output
from pipeline.runs import layout, parts
from pipeline.runs.views.cuts import CutsOutput, LinesOutput, RedactionsOutput
from pipeline.runs.views.documents import CleanOutput, DecisionsOutput, VerdictsOutput
from pipeline.screening.policy.propagation import find_redaction_spans
from pipeline.stages.digest_runs import slice_found
from pipeline.stages.lines import REPEATS
from pipeline.stages.substrings import SUBSTRINGS

_CUTS = pa.schema([field for field in REPEATS if field.name != "shard"])
_MOST_BYTES = 1 << 36
"""More than any text has."""


@dataclass(frozen=True)
class RedactionsJob:
    """One documents shard, the evidence on it and the decisions that hold."""

    index: int
    documents: Shard
    evidence: Shard
    decisions: Shard


def _redactions(job: RedactionsJob, inputs: Inputs) -> Result:
    decisions, evidence = inputs.table(job.decisions), inputs.table(job.evidence)
    spans = find_redaction_spans(decisions, evidence)
    keys = inputs.table(job.documents, ["doc_key"])["doc_key"].combine_chunks()
    start = spans["byte_offset"].to_numpy()
    columns = {
        "row": pc.index_in(spans["doc_key"], value_set=keys).cast(pa.uint32()),
        "byte_start": pa.array(start.astype(np.uint32)),
        "byte_end": pa.array((start + spans["byte_length"].to_numpy()).astype(np.uint32)),
        "digest": pa.nulls(len(spans), pa.uint64()),
        "first": pa.nulls(len(spans), _CUTS.field("first").type),
    }
    output = arrow_output(layout.shard("redactions", job.index, "arrow"), pa.table(columns, _CUTS))
    return Result((output,), {"spans": len(spans)})


def redactions_stage(
    clean: CleanOutput, decided: DecisionsOutput, verdicts: VerdictsOutput
) -> Stage:
    """The stage that finds what is redacted."""
    groups = zip(clean.documents, decided.evidence, verdicts.decisions, strict=True)
    tasks = tuple(
        Task(f"redactions of {group[0].path}", RedactionsJob(i, *group), group)
        for i, group in enumerate(groups)
    )
    return Stage(name="redactions", version=1, function=_redactions, tasks=tasks, reads_texts=False)


@dataclass(frozen=True, kw_only=True)
class CutsJob:
    """One documents shard: the keys of its rows, where repeats were found, what is redacted."""

    index: int
    keys: Shard
    repeats: Shared[tuple[Shard, ...]] | None
    redactions: Shard | None


@dataclass(frozen=True, kw_only=True)
class SubstringCutsJob(CutsJob):
    """The same with the repeated passages of the shard."""

    substrings: tuple[Shard, ...]


def _cuts(job: CutsJob, inputs: Inputs) -> Result:
    """Columns doc_key, row, byte_start, byte_end, digest, first; by row and start. What is redacted
    has neither a digest nor a place where it stays; it can overlap a repeated line. With repeated
    passages, which have no digest, also first_start."""
    tables = [_CUTS.empty_table()]
    repeats = slice_found(
        job.repeats.value if job.repeats else (), job.index, job.index + 1, inputs
    )
    tables += [part.drop_columns(["shard"]) for part in repeats]
    if job.redactions:
        tables.append(inputs.table(job.redactions))
    if isinstance(job, SubstringCutsJob):
        tables += [SUBSTRINGS.empty_table(), *map(inputs.table, job.substrings)]
    table = pa.concat_tables(tables, promote_options="default")
    order = np.lexsort((table["byte_start"].to_numpy(), table["row"].to_numpy()))
    table = table.take(pa.array(order))
    keys = inputs.table(job.keys, ["doc_key"])["doc_key"].take(table["row"])
    table = table.add_column(0, "doc_key", keys).combine_chunks()
    _, start, end = _apart(table)
    counters = {
        "documents": len(np.unique(table["row"].to_numpy())),
        "cuts": len(table),
        "bytes": int((end - start).sum()),
    }
    return Result((arrow_output(layout.shard("cuts", job.index, "arrow"), table),), counters)


def cuts_stage(
    clean: CleanOutput,
    units: LinesOutput | None,
    repeats: Sequence[Bundle],
    redactions: RedactionsOutput | None,
    substrings: Sequence[tuple[Shard, ...]] | None = None,
) -> Stage:
    """The stage that gives every documents shard its cuts; `substrings`: repeated passages of each,
    if they were looked for."""
    keys = units.keys if units else clean.documents
    no_shards = (None,) * len(keys)
    repeated = [part.shards for _, part in single_ranges(repeats)] if repeats else no_shards
    redacted = redactions.redactions if redactions else no_shards
    tasks = []
    for index, read in enumerate(zip(keys, repeated, redacted, strict=True)):
        job = CutsJob(index=index, keys=read[0], repeats=read[1], redactions=read[2])
        inputs = tuple(shard for shard in read if shard)
        if substrings is not None:
            job = SubstringCutsJob(**vars(job), substrings=substrings[index])
            inputs += job.substrings
        tasks.append(Task(f"cuts of shard {index}", job, inputs))
    return Stage(name="cuts", version=2, function=_cuts, tasks=tuple(tasks), reads_texts=False)


def cut_texts(texts: pa.ChunkedArray, cuts: pa.Table) -> pa.Array:
    """The text column of a documents shard without its cuts."""
    from dedup.lines import cut_column

    return cut_column(texts, *_apart(cuts))


def list_cut_spans(cuts: pa.Table) -> dict[int, list[tuple[int, int]]]:
    """What is cut of the texts of a documents shard: row -> half-open bytes, ascending, apart."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for row, start, end in zip(*(column.tolist() for column in _apart(cuts)), strict=True):
        spans.setdefault(row, []).append((start, end))
    return spans


def _apart(cuts: pa.Table) -> tuple["np.typing.NDArray[np.int64]", ...]:
    """Rows, starts and ends of the cuts, which ascend by row and start; what overlaps is one."""
    row, start, end = (
        cuts[n].to_numpy().astype(np.int64) for n in ("row", "byte_start", "byte_end")
    )
    reached = np.maximum.accumulate(row * _MOST_BYTES + end)
    begins = np.flatnonzero(np.r_[True, (row * _MOST_BYTES + start)[1:] > reached[:-1]][: len(row)])
    last = np.r_[begins[1:], len(row)].astype(np.int64) - 1
    stop = reached[last[: len(begins)]] - row[begins] * _MOST_BYTES
    return row[begins], start[begins], stop


@dataclass(frozen=True)
class CutTableJob:
    """The cuts of the shards of a part, which are those of these clean tasks, in order."""

    part: int
    tasks: tuple[int, int]
    cuts: tuple[Shard, ...]


def _cut_table(job: CutTableJob, inputs: Inputs) -> Result:
    table = pa.concat_tables([inputs.table(shard) for shard in job.cuts]).drop_columns(["row"])
    output = parquet_output(parts.part(layout.CUTS, job.part), table)
    return Result((output,), {"tasks": list(job.tasks)})


def cut_table_stage(cuts: CutsOutput) -> Stage:
    """The stage that publishes every cut, a task for each part of the table: document, bytes of its
    text, the unit's digest, and the key of the document where the unit stays (both null for what
    was redacted); with repeated passages also where they begin in that document."""
    tasks = []
    for part, group in enumerate(parts.group_tasks(cuts.counts)):
        shards = cuts.cuts[group.start : group.stop]
        job = CutTableJob(part, (group.start, group.stop), shards)
        work = sum(shard.size for shard in shards)
        tasks.append(Task(f"part {part} of the table of cuts", job, shards, work))
    return Stage(name="cut_table", version=2, function=_cut_table, tasks=tuple(tasks))
