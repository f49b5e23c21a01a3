"""Repeated lines and paragraphs of the documents that are kept: found here, cut when tokenized.

Two stages: `lines` leaves the units of every documents shard as a sorted run; `repeats` joins the
runs, one range of digests at a time, and decides which occurrences go (`pipeline.stages.cuts`
gathers them). The first occurrence stays: first by doc_key, then by byte, so it depends on the
documents alone.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64, U32, U64
from pipeline import layout
from pipeline.core import ids
from pipeline.core.manifest import Shard, StageManifest
from pipeline.stage import Inputs, Result, Stage, Task, arrow_output
from pipeline.stages.keep import STATES

if TYPE_CHECKING:
    from dedup.lines import Unit


_ENTRY_BYTES = 160
"""Working memory of one unit in a join: its digest and number, the sort, and where it stands."""
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


@dataclass(frozen=True)
class UnitsJob:
    """One documents shard, its keep-list, and which units of it."""

    index: int
    documents: Shard
    keep: Shard
    unit: "Unit"
    min_characters: int
    sources: tuple[str, ...] | None


def _units(job: UnitsJob, inputs: Inputs) -> Result:
    """Columns digest (ascending), row, byte_start, byte_end; beside it, the doc_key of each row."""
    from dedup.lines import units_of

    documents = inputs.table(job.documents, ["doc_key", "source", "text"])
    wanted = pc.equal(inputs.table(job.keep, ["state"])["state"], STATES.index("kept"))
    if job.sources is not None:
        labels = documents["source"].cast(pa.string())
        wanted = pc.and_(wanted, pc.is_in(labels, pa.array(job.sources, pa.string())))
    rows = np.flatnonzero(wanted.to_numpy()).astype(np.uint32)
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
        arrow_output(layout.shard("lines", job.index, "keys.arrow"), documents.select(["doc_key"])),
    )
    return Result(outputs, {"documents": len(rows), "units": len(units)})


def units_stage(clean: StageManifest, keep: StageManifest, rules: LineRules) -> Stage:
    """The stage that reads the text of every kept document once."""
    pairs = zip(clean.below("documents"), keep.below("keep"), strict=True)
    tasks = tuple(
        Task(
            f"{rules.unit}s of {d.path}",
            UnitsJob(i, d, k, rules.unit, rules.min_characters, rules.sources),
            (d, k),
            d.size,
        )
        for i, (d, k) in enumerate(pairs)
    )
    return Stage("lines", 1, _units, tasks)


@dataclass(frozen=True)
class RepeatsJob:
    """Digests in [low, high], both included, over the runs of all shards."""

    index: int
    low: int
    high: int
    min_documents: int
    runs: tuple[Shard, ...]
    keys: tuple[Shard, ...]


def _repeats(job: RepeatsJob, inputs: Inputs) -> Result:
    """REPEATS: every unit to cut, by shard, row and start, with the key of the document where it
    stays."""
    from dedup.join import buckets
    from dedup.lines import later_occurrences
    from dedup.lsh import slice_run

    tables = []
    for run in job.runs:
        table = inputs.table(run)
        start, stop = slice_run(table["digest"].to_numpy(), job.low, job.high)
        tables.append(table.slice(start, stop - start))
    counts = np.array([len(table) for table in tables], np.int64)
    numbers = np.split(np.arange(counts.sum(), dtype=np.uint32), np.cumsum(counts)[:-1])
    member, bucket = buckets([t["digest"].to_numpy() for t in tables], numbers)
    shard = np.repeat(np.arange(len(tables), dtype=np.uint32), counts)[member]
    found = pa.concat_tables(tables).take(pa.array(member))
    row = found["row"].to_numpy()
    key_M2 = _keys(job, inputs, shard, row)
    rank = _ranks(key_M2)
    cut, first = later_occurrences(bucket, rank, found["byte_start"].to_numpy(), job.min_documents)
    order = np.lexsort((found["byte_start"].to_numpy()[cut], row[cut], shard[cut]))
    cut, first = cut[order], first[order]
    columns = {
        "shard": pa.array(shard[cut]),
        **{name: found[name].take(pa.array(cut)) for name in REPEATS.names[1:5]},
        "first": ids.keys_from_u64(key_M2[first]),
    }
    output = arrow_output(layout.shard("repeats", job.index, "arrow"), pa.table(columns, REPEATS))
    return Result((output,), {"repeated": len(member), "cut": len(cut)})


def _keys(job: RepeatsJob, inputs: Inputs, shard_M: U32, row_M: U32) -> U64:
    """The doc_key of each unit's document, (M, 2) uint64."""
    key_M2 = np.zeros((len(shard_M), 2), np.uint64)
    for number in np.unique(shard_M).tolist():
        here = np.flatnonzero(shard_M == number)
        keys = inputs.table(job.keys[number])["doc_key"]
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


def repeats_stage(units: StageManifest, rules: LineRules, memory: int) -> Stage:
    """The join; its key ranges follow from the number of units and the memory of one task, and the
    outcome does not depend on them."""
    from dedup.join import key_ranges

    keys = tuple(s for s in units.shards if s.path.endswith(".keys.arrow"))
    runs = tuple(s for s in units.shards if not s.path.endswith(".keys.arrow"))
    total = sum(task.counters["units"] for task in units.tasks)
    ranges = key_ranges(total, _ENTRY_BYTES, memory)
    size = sum(s.size for s in runs) // len(ranges)
    tasks = tuple(
        Task(
            f"repeats from {low:016x}",
            RepeatsJob(i, low, high, rules.min_documents, runs, keys),
            (*runs, *keys),
            size,
        )
        for i, (low, high) in enumerate(ranges)
    )
    return Stage("repeats", 1, _repeats, tasks)
