"""Repeated lines or paragraphs: `lines` leaves those of every documents shard as a sorted run;
`repeats` joins the runs, one range of digests at a time, and decides which go: all but the first by
doc_key, then by byte. Where runs, or repeats, are too many for one task, they are merged.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64, U32, U64
from pipeline.core import ids
from pipeline.core.manifest import Shard, StageManifest
from pipeline.engine.levels import Bundle, bundle_shards, merge_in_levels, single_ranges
from pipeline.engine.shared import Shared
from pipeline.engine.stage import Inputs, Output, Result, RunStage, Stage, Task, arrow_output
from pipeline.runs import layout, views
from pipeline.runs.layout import STATES

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
    """Columns digest (ascending), shard, row, byte_start, byte_end; the doc_key of each row."""
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
            "shard": pa.array(np.full(len(units), job.index, np.uint32)),
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
    return Stage(name="lines", version=2, function=_units, tasks=tasks)


@dataclass(frozen=True, kw_only=True)
class RepeatsJob:
    """Digests in [low, high], both included, over the runs of all shards; the keys of their rows
    where merged runs do not have them."""

    index: int
    low: int
    high: int
    min_documents: int
    runs: Shared[tuple[Shard, ...]]
    keys: Shared[tuple[Shard, ...]] | None


def _repeats(job: RepeatsJob, inputs: Inputs) -> Result:
    """REPEATS: every unit to cut, by shard, row and start, with the key of the document where it
    stays."""
    from dedup.join import buckets
    from dedup.lines import later_occurrences

    tables = [table for table, _ in _slice_runs(job, inputs)]
    counts = np.array([len(table) for table in tables], np.int64)
    numbers = np.split(np.arange(counts.sum(), dtype=np.uint32), np.cumsum(counts)[:-1])
    member, bucket = buckets([t["digest"].to_numpy() for t in tables], numbers)
    units = pa.concat_tables(tables).take(pa.array(member))
    shard, row = units["shard"].to_numpy(), units["row"].to_numpy()
    if job.keys is None:
        key_M2 = ids.keys_as_u64(units["doc_key"])
    else:
        key_M2 = _keys(job.keys.value, inputs, shard, row)
    rank = _ranks(key_M2)
    cut, first = later_occurrences(bucket, rank, units["byte_start"].to_numpy(), job.min_documents)
    order = np.lexsort((units["byte_start"].to_numpy()[cut], row[cut], shard[cut]))
    cut, first = cut[order], first[order]
    columns = {
        **{name: units[name].take(pa.array(cut)) for name in REPEATS.names[:5]},
        "first": ids.keys_from_u64(key_M2[first]),
    }
    output = arrow_output(layout.shard("repeats", job.index, "arrow"), pa.table(columns, REPEATS))
    return Result((output,), {"repeated": len(member), "cut": len(cut)})


def _slice_runs(
    job: "RepeatsJob | MergeLinesJob", inputs: Inputs
) -> Iterator[tuple[pa.Table, Shard | None]]:
    """The units of the job's digests in every run, and the keys of the rows of its shard."""
    runs = job.runs.value
    for run, keys in zip(runs, job.keys.value if job.keys else (None,) * len(runs), strict=True):
        units = inputs.open(run)
        yield units.read(None, *units.find("digest", job.low, job.high + 1)), keys


def _keys(shards: tuple[Shard, ...], inputs: Inputs, shard_M: U32, row_M: U32) -> U64:
    """The doc_key of each unit's document, (M, 2) uint64."""
    key_M2 = np.zeros((len(shard_M), 2), np.uint64)
    for number in np.unique(shard_M).tolist():
        here = np.flatnonzero(shard_M == number)
        keys = inputs.open(shards[number]).take(["doc_key"], row_M[here])
        key_M2[here] = ids.keys_as_u64(keys["doc_key"])
    return key_M2


def _ranks(key_M2: U64) -> I64:
    """The place of each key among them in byte order, equal for equal keys, (M,)."""
    order = ids.sort_order(key_M2)
    ordered = key_M2[order]
    new = np.concatenate([[False], (ordered[1:] != ordered[:-1]).any(axis=1)])[: len(order)]
    rank = np.empty(len(order), np.int64)
    rank[order] = np.cumsum(new)
    return rank


@dataclass(frozen=True, kw_only=True)
class MergeLinesJob:
    """Digests in [low, high], both included, in a group of runs."""

    index: int
    low: int
    high: int
    runs: Shared[tuple[Shard, ...]]
    keys: Shared[tuple[Shard, ...]] | None


def _merge_lines(job: MergeLinesJob, inputs: Inputs) -> Result:
    """The columns of the runs, and doc_key."""
    parts = []
    for table, keys in _slice_runs(job, inputs):
        if keys is not None:
            of_rows = inputs.open(keys).take(["doc_key"], table["row"].to_numpy())
            table = table.append_column("doc_key", of_rows["doc_key"])
        parts.append(table)
    return Result((_sorted_by("digest", parts, layout.shard("merged_lines", job.index, "arrow")),))


def _sorted_by(column: str, parts: list[pa.Table], path: str) -> Output:
    table = pa.concat_tables(parts)
    order = np.argsort(table[column].to_numpy(), kind="stable")
    return arrow_output(path, table.take(pa.array(order)).combine_chunks())


def find_repeats(
    units: views.LinesOutput, rules: LineRules, memory: int, run: RunStage
) -> tuple[Bundle, ...]:
    """Run the stages that join units and decide which are cut; returns what they left for every
    documents shard. The key ranges of the join follow from the number of units and the memory of
    one task, and the outcome does not depend on them."""
    from dedup.join import key_ranges

    ranges = len(key_ranges(sum(units.units), _ENTRY_BYTES, memory))
    needed = min(memory, _ENTRY_BYTES * sum(units.units))
    size = sum(s.size for s in units.runs)

    def merge(name: str, wide: Sequence[Bundle]) -> StageManifest:
        tasks = []
        for index, part in enumerate(wide):
            low, high = part.bounds(1 << 64)
            keys = part.kinds[1] if len(part.kinds) > 1 else None
            job = MergeLinesJob(index=index, low=low, high=high - 1, runs=part.shards, keys=keys)
            label = f"{name} from {low:016x}, group {index}"
            tasks.append(Task(label, job, part.kinds, part.work, needed))
        return run(Stage(name=name, version=1, function=_merge_lines, tasks=tuple(tasks)))

    whole = bundle_shards("units", ranges, Shared(units.runs), Shared(units.keys), work=size)
    tasks = []
    for index, part in single_ranges(merge_in_levels((whole,), ("merge_lines",), merge)):
        low, high = (((index + i) << 64) // ranges for i in (0, 1))
        job = RepeatsJob(
            index=index,
            low=low,
            high=high - 1,
            min_documents=rules.min_documents,
            runs=part.shards,
            keys=part.kinds[1] if len(part.kinds) > 1 else None,
        )
        work = part.work // (part.stop - part.first)
        tasks.append(Task(f"repeats from {low:016x}", job, part.kinds, work, needed))
    joining = Stage(name="repeats", version=1, function=_repeats, tasks=tuple(tasks))
    return _merge_repeats(views.RepeatsOutput(run(joining)), len(units.runs), run)


@dataclass(frozen=True, kw_only=True)
class MergeRepeatsJob:
    """The repeats of documents shards [first, stop) in a group of key ranges."""

    index: int
    first: int
    stop: int
    repeats: Shared[tuple[Shard, ...]]


def _merge_repeats_of(job: MergeRepeatsJob, inputs: Inputs) -> Result:
    """REPEATS by shard."""
    parts = list(slice_repeats(job.repeats.value, job.first, job.stop, inputs))
    return Result((_sorted_by("shard", parts, layout.shard("merged_repeats", job.index, "arrow")),))


def slice_repeats(
    repeats: Iterable[Shard], first: int, stop: int, inputs: Inputs
) -> Iterator[pa.Table]:
    """What is repeated of documents shards [first, stop) in every shard of REPEATS."""
    for shard in repeats:
        rows = inputs.open(shard)
        yield rows.read(None, *rows.find("shard", first, stop))


def _merge_repeats(
    repeats: views.RepeatsOutput, documents: int, run: RunStage
) -> tuple[Bundle, ...]:
    """The repeats of every documents shard, merged where they are too many for one task."""

    def merge(name: str, wide: Sequence[Bundle]) -> StageManifest:
        tasks = []
        for index, part in enumerate(wide):
            job = MergeRepeatsJob(
                index=index, first=part.first, stop=part.stop, repeats=part.shards
            )
            tasks.append(Task(f"{name} from shard {part.first}", job, part.kinds, part.work))
        stage = Stage(name=name, version=1, function=_merge_repeats_of, tasks=tuple(tasks))
        return run(stage)

    size = sum(shard.size for shard in repeats.repeats)
    whole = bundle_shards("repeats", documents, Shared(repeats.repeats), work=size)
    return merge_in_levels((whole,), ("merge_repeats",), merge)
