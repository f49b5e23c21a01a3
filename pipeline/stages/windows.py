"""Windows of text that may repeat (`dedup.substrings`): `seeds` leaves those of every documents
shard as a sorted run of digests, and cuts it into blocks; `shared_seeds` finds the digests that
occur more than once; `windows` hashes the windows of a block that no other seed rules out.

The documents of a block are in the order of their keys, so that the first of equal windows comes
first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import U32
from pipeline.core import ids
from pipeline.core.manifest import Shard
from pipeline.engine.levels import Bundle, single_ranges
from pipeline.engine.shared import Shared
from pipeline.engine.stage import Inputs, Result, RunStage, Stage, Task, arrow_output
from pipeline.runs import layout
from pipeline.runs.views.cuts import SeedsOutput, SharedSeedsOutput
from pipeline.runs.views.documents import CleanOutput, KeepOutput
from pipeline.stages.digest_runs import (
    Join,
    RunsJob,
    join_digests,
    return_found,
    slice_found,
    slice_runs,
)
from pipeline.stages.lines import find_kept_rows

if TYPE_CHECKING:
    from dedup.text import Texts

WINDOW_MEMORY = 64
"""Working memory of a task for each byte of text that repeats: hashes, places, their sort."""
_ENTRY_BYTES = 64
"""Working memory of one seed in the join."""


@dataclass(frozen=True)
class SubstringRules:
    """Bytes of the shortest passage; labels of the documents that are looked at, None for all."""

    least: int
    sources: tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True)
class SeedsJob:
    """One documents shard, its keep-list; bytes of text of one block."""

    index: int
    documents: Shard
    keep: Shard
    rules: SubstringRules
    block_bytes: int


def _seeds(job: SeedsJob, inputs: Inputs) -> Result:
    """Columns digest (ascending), shard, and whether it occurs more than once in it."""
    from dedup.lsh import sort_run
    from dedup.substrings import find_seeds
    from dedup.text import join_texts

    rows = find_kept_rows(job.documents, job.keep, job.rules.sources, inputs)
    texts = inputs.table(job.documents, ["text"])["text"].take(pa.array(rows))
    sizes = pc.binary_length(texts).to_numpy()
    digests = find_seeds(join_texts(texts), job.rules.least).digest
    ordered, _ = sort_run(digests, np.zeros(len(digests), np.uint32))
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]][: len(ordered)])
    table = pa.table(
        {
            "digest": pa.array(ordered[starts]),
            "shard": pa.array(np.full(len(starts), job.index, np.uint32)),
            "is_repeated": pa.array(np.diff(starts, append=len(ordered)) > 1),
        }
    )
    counters = {
        "documents": len(rows),
        "seeds": len(starts),
        "blocks": _cut_blocks(rows, sizes, job.block_bytes),
    }
    return Result((arrow_output(layout.shard("seeds", job.index, "arrow"), table),), counters)


def _cut_blocks(rows: U32, sizes: npt.NDArray[np.integer], most: int) -> list[list[int]]:
    """Consecutive rows with at most so many bytes of text together, or single ones: [first row,
    after the last, bytes] of each; of no rows an empty block."""
    blocks: list[list[int]] = []
    for row, size in zip(rows.tolist(), sizes.tolist(), strict=True):
        if blocks and blocks[-1][2] + size <= most:
            blocks[-1][1:] = [row + 1, blocks[-1][2] + size]
        else:
            blocks.append([row, row + 1, size])
    return blocks or [[0, 0, 0]]


def seeds_stage(clean: CleanOutput, keep: KeepOutput, rules: SubstringRules, memory: int) -> Stage:
    """The stage that reads the text of every kept document once."""
    tasks = tuple(
        Task(
            f"seeds of {d.path}",
            SeedsJob(
                index=i, documents=d, keep=k, rules=rules, block_bytes=memory // WINDOW_MEMORY
            ),
            (d, k),
            d.size,
        )
        for i, (d, k) in enumerate(zip(clean.documents, keep.states, strict=True))
    )
    return Stage(name="seeds", version=1, function=_seeds, tasks=tasks)


def _shared_seeds(job: RunsJob, inputs: Inputs) -> Result:
    """Columns shard, digest, ascending: those of which there is a second, in any shard."""
    tables = [table for table, _ in slice_runs(job, inputs)]
    seeds = pa.concat_tables(tables) if tables else None
    shard, digest = np.zeros(0, np.uint32), np.zeros(0, np.uint64)
    if seeds is not None and len(seeds):
        digest, shard = seeds["digest"].to_numpy(), seeds["shard"].to_numpy()
        order = np.lexsort((shard, digest))
        digest, shard = digest[order], shard[order]
        is_equal = digest[1:] == digest[:-1]
        is_shared = np.r_[is_equal, False] | np.r_[False, is_equal]
        is_shared |= seeds["is_repeated"].to_numpy()[order]
        digest, shard = digest[is_shared], shard[is_shared]
        order = np.argsort(shard, kind="stable")
        digest, shard = digest[order], shard[order]
    table = pa.table({"shard": pa.array(shard), "digest": pa.array(digest)})
    output = arrow_output(layout.shard("shared_seeds", job.index, "arrow"), table)
    return Result((output,), {"shared": len(table)})


def find_shared_seeds(seeds: SeedsOutput, memory: int, run: RunStage) -> tuple[Bundle, ...]:
    """Run the stages that join seeds; returns what they left for every documents shard."""
    join = Join(
        name="shared_seeds",
        version=1,
        function=_shared_seeds,
        make_job=RunsJob,
        merge="merge_seeds",
        merged="merged_seeds",
        entry_bytes=_ENTRY_BYTES,
    )
    joined = join_digests(join, seeds.runs, None, sum(seeds.counts), memory, run)
    shared = SharedSeedsOutput(joined).shared
    return return_found(shared, len(seeds.runs), "merge_shared_seeds", "merged_shared_seeds", run)


@dataclass(frozen=True, kw_only=True)
class WindowsJob:
    """Rows [first, stop) of a documents shard, its keep-list, and where its shared seeds are."""

    index: int
    shard: int
    first: int
    stop: int
    documents: Shard
    keep: Shard
    shared: Shared[tuple[Shard, ...]]
    rules: SubstringRules


def _windows(job: WindowsJob, inputs: Inputs) -> Result:
    """Of the first windows of a digest: digest (ascending), shard (the block), row, place; of the
    others, as runs, later, first, count; of every document of the block, by key: doc_key, row in
    the documents shard, and the place of its first byte."""
    from dedup.substrings import find_seeds, group_windows, hash_candidates, is_among

    rows = find_kept_rows(job.documents, job.keep, job.rules.sources, inputs)
    rows = rows[(rows >= job.first) & (rows < job.stop)]
    keys = inputs.open(job.documents).take(["doc_key"], rows)["doc_key"]
    order = ids.sort_order(ids.keys_as_u64(keys))
    rows = rows[order]
    texts = read_texts(job.documents, rows, inputs)
    shared = [
        part["digest"].to_numpy()
        for part in slice_found(job.shared.value, job.shard, job.shard + 1, inputs)
    ]
    seeds = find_seeds(texts, job.rules.least)
    is_shared = is_among(seeds.digest, np.concatenate([np.zeros(0, np.uint64), *shared]))
    digest, place = hash_candidates(texts, seeds, is_shared, job.rules.least)
    windows = group_windows(texts, digest, place)
    columns = {
        "arrow": {
            "digest": windows.digest,
            "shard": np.full(len(windows.digest), job.index, np.uint32),
            "row": windows.row,
            "place": windows.place,
        },
        layout.LATER_SHARD: {
            "later": windows.later,
            "first": windows.first,
            "count": windows.count,
        },
        layout.LINE_KEYS_SHARD: {
            "doc_key": keys.take(pa.array(order)).combine_chunks(),
            "row": rows,
            "start": (texts.offsets[:-1] - texts.offsets[0]).astype(np.uint32),
        },
    }
    outputs = tuple(
        arrow_output(layout.shard("windows", job.index, end), pa.table(of_end))
        for end, of_end in columns.items()
    )
    counters = {"windows": len(digest), "firsts": len(windows.digest)}
    return Result(outputs, counters)


def read_texts(documents: Shard, rows: U32, inputs: Inputs) -> "Texts":
    """The texts of these rows, in this order."""
    from dedup.text import join_texts

    return join_texts(inputs.open(documents).take(["text"], rows)["text"])


def windows_stage(
    clean: CleanOutput,
    keep: KeepOutput,
    seeds: SeedsOutput,
    shared: Sequence[Bundle],
    rules: SubstringRules,
) -> Stage:
    """One task for every block; it reads its text again."""
    found = [part.shards for _, part in single_ranges(shared)]
    tasks = []
    for index, (shard, (first, stop, size)) in enumerate(list_blocks(seeds)):
        job = WindowsJob(
            index=index,
            shard=shard,
            first=first,
            stop=stop,
            documents=clean.documents[shard],
            keep=keep.states[shard],
            shared=found[shard],
            rules=rules,
        )
        inputs = (job.documents, job.keep, job.shared)
        label = f"windows of block {index}"
        tasks.append(Task(label, job, inputs, size, WINDOW_MEMORY * size))
    return Stage(name="windows", version=2, function=_windows, tasks=tuple(tasks))


def list_blocks(seeds: SeedsOutput) -> Iterator[tuple[int, list[int]]]:
    """Every block with the documents shard that it is of, in order."""
    return chain.from_iterable(
        ((shard, block) for block in blocks) for shard, blocks in enumerate(seeds.blocks)
    )
