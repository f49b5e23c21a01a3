"""Repeated lines or paragraphs: `lines` leaves those of every documents shard as a sorted run;
`repeats` joins the runs, one range of digests at a time, and decides which go: all but the first by
doc_key, then by byte (`pipeline.stages.digest_runs`).
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import U32
from pipeline.core import ids
from pipeline.core.manifest import Shard
from pipeline.engine.levels import Bundle
from pipeline.engine.stage import Inputs, Result, RunStage, Stage, Task, arrow_output
from pipeline.runs import layout
from pipeline.runs.layout import STATES
from pipeline.runs.views.cuts import LinesOutput, RepeatsOutput
from pipeline.runs.views.documents import CleanOutput, KeepOutput
from pipeline.stages.digest_runs import (
    Join,
    RunsJob,
    entry_keys,
    join_digests,
    rank_keys,
    return_found,
    shared_entries,
)

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

    documents = inputs.table(job.documents, ["doc_key", "text"])
    rows = find_kept_rows(job.documents, job.keep, job.sources, inputs)
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


def find_kept_rows(
    documents: Shard, keep: Shard, sources: tuple[str, ...] | None, inputs: Inputs
) -> U32:
    """The rows of a shard's kept documents, of these sources alone if some are given."""
    is_kept = pc.equal(inputs.table(keep, ["state"])["state"], STATES.index("kept"))
    if sources is not None:
        labels = inputs.table(documents, ["source"])["source"].cast(pa.string())
        is_kept = pc.and_(is_kept, pc.is_in(labels, pa.array(sources, pa.string())))
    return np.flatnonzero(is_kept.to_numpy()).astype(np.uint32)


def units_stage(clean: CleanOutput, keep: KeepOutput, rules: LineRules) -> Stage:
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
class RepeatsJob(RunsJob):
    """A range of digests over the runs of all shards."""

    min_documents: int


def _repeats(job: RepeatsJob, inputs: Inputs) -> Result:
    """REPEATS: every unit to cut, by shard, row and start, with the key of the document where it
    stays."""
    from dedup.lines import later_occurrences

    units, bucket = shared_entries(job, inputs)
    shard, row = units["shard"].to_numpy(), units["row"].to_numpy()
    key_M2 = entry_keys(job, inputs, units)
    rank = rank_keys(key_M2)
    cut, first = later_occurrences(bucket, rank, units["byte_start"].to_numpy(), job.min_documents)
    order = np.lexsort((units["byte_start"].to_numpy()[cut], row[cut], shard[cut]))
    cut, first = cut[order], first[order]
    columns = {
        **{name: units[name].take(pa.array(cut)) for name in REPEATS.names[:5]},
        "first": ids.keys_from_u64(key_M2[first]),
    }
    output = arrow_output(layout.shard("repeats", job.index, "arrow"), pa.table(columns, REPEATS))
    return Result((output,), {"repeated": len(units), "cut": len(cut)})


def find_repeats(
    units: LinesOutput, rules: LineRules, memory: int, run: RunStage
) -> tuple[Bundle, ...]:
    """Run the stages that join units and decide which are cut; returns what they left for every
    documents shard."""
    join = Join(
        name="repeats",
        version=1,
        function=_repeats,
        make_job=partial(RepeatsJob, min_documents=rules.min_documents),
        merge="merge_lines",
        merged="merged_lines",
        entry_bytes=_ENTRY_BYTES,
    )
    joined = join_digests(join, units.runs, units.keys, sum(units.units), memory, run)
    repeats = RepeatsOutput(joined).repeats
    return return_found(repeats, len(units.runs), "merge_repeats", "merged_repeats", run)
