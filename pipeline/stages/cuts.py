"""What is cut from texts before they are tokenized: repeated lines, and what the policy redacts.

`lines` leaves the lines or paragraphs of every documents shard as a sorted run; `repeats` joins the
runs, one range of digests at a time, and decides which go: all but the first by doc_key, then by
byte. `redactions` finds the spans that are redacted, `cuts` gathers all spans of a documents shard,
and `cut_table` publishes them.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64, U32, U64
from pipeline.core import ids
from pipeline.core.manifest import Shard
from pipeline.engine.shared import Shared
from pipeline.engine.stage import Inputs, Result, Stage, Task, arrow_output, parquet_output
from pipeline.runs import layout, views
from pipeline.runs.layout import STATES
from pipeline.screening.policy.propagation import find_redaction_spans

if TYPE_CHECKING:
    from dedup.lines import Unit


_ENTRY_BYTES = 160
"""Working memory of one unit in a join: its digest and number, the sort, and its place."""
REPEATS = pa.schema(
    [
        ("shard", pa.uint32()),
        ("row", pa.uint32()),
        ("byte_start", pa.uint32()),
        ("byte_end", pa.uint32()),
        ("digest", pa.uint64()),
        ("first", pa.binary(ids.KEY_BYTES)),
    ]
)
"""What is cut: the documents shard and row, its bytes, the unit's digest, and the key of the
document where the unit stays."""


@dataclass(frozen=True)
class LineRules:
    """Which units are compared, and from how many documents on they are cut; see `dedup.lines`.
    `sources`: labels of the documents that are looked at, None for all.
    """

    unit: "Unit"
    min_characters: int
    min_documents: int
    sources: tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True)
class UnitsJob:
    """One documents shard, its keep-list, and which units of it."""

    index: int
    documents: Shard
    keep: Shard
    unit: "Unit"
    min_characters: int
    sources: tuple[str, ...] | None


def _units(job: UnitsJob, inputs: Inputs) -> Result:
    """Columns digest (ascending), row, byte_start, byte_end; the doc_key of each row."""
    from dedup.lines import units_of

    documents = inputs.table(job.documents, ["doc_key", "source", "text"])
    is_compared = pc.equal(inputs.table(job.keep, ["state"])["state"], STATES.index("kept"))
    if job.sources is not None:
        labels = documents["source"].cast(pa.string())
        is_compared = pc.and_(is_compared, pc.is_in(labels, pa.array(job.sources, pa.string())))
    rows = np.flatnonzero(is_compared.to_numpy()).astype(np.uint32)
    texts = documents["text"].take(pa.array(rows))
    units = units_of(texts, job.unit, job.min_characters)
    table = pa.table(
        {
            "digest": pa.array(units.digest),
            "row": pa.array(rows[units.row]),
            "byte_start": pa.array(units.byte_start),
            "byte_end": pa.array(units.byte_end),
        }
    )
    outputs = (
        arrow_output(layout.shard("lines", job.index, "arrow"), table),
        arrow_output(
            layout.shard("lines", job.index, layout.LINE_KEYS_SHARD), documents.select(["doc_key"])
        ),
    )
    return Result(outputs, {"documents": len(rows), "units": len(units)})


def units_stage(clean: views.CleanOutput, keep: views.KeepOutput, rules: LineRules) -> Stage:
    """The stage that reads the text of every kept document once."""
    pairs = zip(clean.documents, keep.states, strict=True)
    tasks = tuple(
        Task(
            f"{rules.unit}s of {d.path}",
            UnitsJob(
                index=i,
                documents=d,
                keep=k,
                unit=rules.unit,
                min_characters=rules.min_characters,
                sources=rules.sources,
            ),
            (d, k),
            d.size,
        )
        for i, (d, k) in enumerate(pairs)
    )
    return Stage(name="lines", version=1, function=_units, tasks=tasks)


@dataclass(frozen=True, kw_only=True)
class RepeatsJob:
    """Digests in [low, high], both included, over the runs of all shards."""

    index: int
    low: int
    high: int
    min_documents: int
    runs: Shared[tuple[Shard, ...]]
    keys: Shared[tuple[Shard, ...]]


def _repeats(job: RepeatsJob, inputs: Inputs) -> Result:
    """REPEATS: every unit to cut, by shard, row and start, with the key of the document where it
    stays."""
    from dedup.join import buckets
    from dedup.lines import later_occurrences
    from dedup.lsh import slice_run

    tables = []
    for run in job.runs.value:
        table = inputs.table(run)
        start, stop = slice_run(table["digest"].to_numpy(), job.low, job.high)
        tables.append(table.slice(start, stop - start))
    counts = np.array([len(table) for table in tables], np.int64)
    numbers = np.split(np.arange(counts.sum(), dtype=np.uint32), np.cumsum(counts)[:-1])
    member, bucket = buckets([t["digest"].to_numpy() for t in tables], numbers)
    shard = np.repeat(np.arange(len(tables), dtype=np.uint32), counts)[member]
    units = pa.concat_tables(tables).take(pa.array(member))
    row = units["row"].to_numpy()
    key_M2 = _keys(job, inputs, shard, row)
    rank = _ranks(key_M2)
    cut, first = later_occurrences(bucket, rank, units["byte_start"].to_numpy(), job.min_documents)
    order = np.lexsort((units["byte_start"].to_numpy()[cut], row[cut], shard[cut]))
    cut, first = cut[order], first[order]
    columns = {
        "shard": pa.array(shard[cut]),
        **{name: units[name].take(pa.array(cut)) for name in REPEATS.names[1:5]},
        "first": ids.keys_from_u64(key_M2[first]),
    }
    output = arrow_output(layout.shard("repeats", job.index, "arrow"), pa.table(columns, REPEATS))
    return Result((output,), {"repeated": len(member), "cut": len(cut)})


def _keys(job: RepeatsJob, inputs: Inputs, shard_M: U32, row_M: U32) -> U64:
    """The doc_key of each unit's document, (M, 2) uint64."""
    key_M2 = np.zeros((len(shard_M), 2), np.uint64)
    for number in np.unique(shard_M).tolist():
        here = np.flatnonzero(shard_M == number)
        keys = inputs.table(job.keys.value[number])["doc_key"]
        key_M2[here] = ids.keys_as_u64(keys.take(pa.array(row_M[here])))
    return key_M2


def _ranks(key_M2: U64) -> I64:
    """The place of each key among them in byte order, equal for equal keys, (M,)."""
    order = ids.sort_order(key_M2)
    ordered = key_M2[order]
    new = np.concatenate([[False], (ordered[1:] != ordered[:-1]).any(axis=1)])[: len(order)]
    rank = np.empty(len(order), np.int64)
    rank[order] = np.cumsum(new)
    return rank


def repeats_stage(units: views.LinesOutput, rules: LineRules, memory: int) -> Stage:
    """The join; its key ranges follow from the number of units and the memory of one task, and the
    outcome does not depend on them."""
    from dedup.join import key_ranges

    keys, runs = Shared(units.keys), Shared(units.runs)
    ranges = key_ranges(sum(units.units), _ENTRY_BYTES, memory)
    needed = min(memory, _ENTRY_BYTES * sum(units.units))
    size = sum(s.size for s in runs.value) // len(ranges)
    tasks = tuple(
        Task(
            f"repeats from {low:016x}",
            RepeatsJob(
                index=i, low=low, high=high, min_documents=rules.min_documents, runs=runs, keys=keys
            ),
            (runs, keys),
            size,
            needed,
        )
        for i, (low, high) in enumerate(ranges)
    )
    return Stage(name="repeats", version=1, function=_repeats, tasks=tasks)


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
    clean: views.CleanOutput, decided: views.DecisionsOutput, verdicts: views.VerdictsOutput
) -> Stage:
    """The stage that finds what is redacted."""
    groups = zip(clean.documents, decided.evidence, verdicts.decisions, strict=True)
    tasks = tuple(
        Task(f"redactions of {group[0].path}", RedactionsJob(i, *group), group)
        for i, group in enumerate(groups)
    )
    return Stage(name="redactions", version=1, function=_redactions, tasks=tasks, reads_texts=False)


@dataclass(frozen=True)
class CutsJob:
    """One documents shard: the keys of its rows, where repeats were found, what is redacted."""

    index: int
    keys: Shard
    repeats: Shared[tuple[Shard, ...]]
    redactions: Shard | None


def _cuts(job: CutsJob, inputs: Inputs) -> Result:
    """Columns doc_key, row, byte_start, byte_end, digest, first; by row and start. What is redacted
    has neither a digest nor a place where it stays; it can overlap a repeated line."""
    parts = [_CUTS.empty_table()]
    for shard in job.repeats.value:
        table = inputs.table(shard)
        owner = table["shard"].to_numpy()
        start, stop = np.searchsorted(owner, np.array([job.index, job.index + 1], np.uint32))
        parts.append(table.slice(start, stop - start).drop_columns(["shard"]))
    if job.redactions:
        parts.append(inputs.table(job.redactions))
    table = pa.concat_tables(parts)
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
    clean: views.CleanOutput,
    units: views.LinesOutput | None,
    repeats: views.RepeatsOutput | None,
    redactions: views.RedactionsOutput | None,
) -> Stage:
    """The stage that gives every documents shard its cuts."""
    keys = units.keys if units else clean.documents
    repeat_shards = Shared(repeats.repeats if repeats else ())
    redacted = redactions.redactions if redactions else (None,) * len(keys)
    tasks = tuple(
        Task(
            f"cuts of shard {i}",
            CutsJob(i, k, repeat_shards, r),
            (k, repeat_shards, *((r,) if r else ())),
        )
        for i, (k, r) in enumerate(zip(keys, redacted, strict=True))
    )
    return Stage(name="cuts", version=2, function=_cuts, tasks=tasks, reads_texts=False)


def cut_texts(texts: pa.ChunkedArray, cuts: pa.Table) -> pa.Array:
    """The text column of a documents shard without its cuts."""
    from dedup.lines import cut_column

    return cut_column(texts, *_apart(cuts))


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
    """The cuts of all shards, in order."""

    cuts: tuple[Shard, ...]


def _cut_table(job: CutTableJob, inputs: Inputs) -> Result:
    columns = ["doc_key", "byte_start", "byte_end", "digest", "first"]
    table = pa.concat_tables([inputs.table(shard, columns) for shard in job.cuts])
    return Result((parquet_output(layout.CUTS, table),))


def cut_table_stage(cuts: views.CutsOutput) -> Stage:
    """The stage that publishes every cut: document, bytes of its text, the unit's digest, and the
    key of the document where the unit stays (both null for what was redacted)."""
    task = Task("table of cuts", CutTableJob(cuts.cuts), cuts.cuts)
    return Stage(name="cut_table", version=1, function=_cut_table, tasks=(task,))
