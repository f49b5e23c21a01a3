"""Repeated passages: `repeated_windows` joins the windows of all blocks (`pipeline.stages.windows`)
and finds the first of equal ones, by doc_key, then by byte; `substrings` makes matches of those of
a block, compares their bytes with those of the document where they stay, and leaves what is cut.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import U32
from pipeline.core import ids
from pipeline.core.manifest import Shard
from pipeline.engine.levels import Bundle, single_ranges
from pipeline.engine.shared import Shared
from pipeline.engine.stage import Inputs, Result, RunStage, Stage, Task, arrow_output
from pipeline.runs import layout, views
from pipeline.stages.digest_runs import (
    Join,
    RunsJob,
    entry_keys,
    join_runs,
    return_found,
    shared_entries,
    slice_found,
)
from pipeline.stages.windows import (
    WINDOW_MEMORY,
    SubstringRules,
    find_shared_seeds,
    list_blocks,
    seeds_stage,
    windows_stage,
)

if TYPE_CHECKING:
    from dedup.substrings import Matches

_ENTRY_BYTES = 160
"""Working memory of one window in the join: its digest and number, the sort, and its place."""
_PLACE = ("first_shard", "first_row", "first_byte")
SUBSTRINGS = pa.schema(
    [
        ("row", pa.uint32()),
        ("byte_start", pa.uint32()),
        ("byte_end", pa.uint32()),
        ("first", pa.binary(ids.KEY_BYTES)),
        ("first_start", pa.uint32()),
    ]
)
"""What is cut of a block: the row in the documents shard, its bytes, the key of the document where
the passage stays, and its first byte there."""


def _repeated_windows(job: RunsJob, inputs: Inputs) -> Result:
    """Columns shard (the block), digest; first_shard, first_row, first_byte: where the window is
    first, in another block."""
    from dedup.substrings import first_of_groups

    windows, bucket = shared_entries(job, inputs)
    first = first_of_groups(bucket, entry_keys(job, inputs, windows).byteswap())
    later = np.flatnonzero(first != np.arange(len(first)))
    later = later[np.argsort(windows["shard"].to_numpy()[later], kind="stable")]
    table = windows.select(["shard", "digest"]).take(pa.array(later))
    places = windows.select(["shard", "row", "byte_start"]).take(pa.array(first[later]))
    for name, column in zip(_PLACE, places.columns, strict=True):
        table = table.append_column(name, column)
    path = layout.shard("repeated_windows", job.index, "arrow")
    output = arrow_output(path, table.combine_chunks())
    return Result((output,), {"repeated": len(table)})


@dataclass(frozen=True, kw_only=True)
class SubstringsJob:
    """The first windows of a block and all others; where windows are first that are so in another
    block; the documents shards, the keys of all blocks, and the shard that each is of."""

    index: int
    least: int
    firsts: Shard
    later: Shard
    repeated: Shared[tuple[Shard, ...]]
    keys: Shared[tuple[Shard, ...]]
    documents: Shared[tuple[Shard, ...]]
    shards: Shared[tuple[int, ...]]


@dataclass(frozen=True)
class _Repeats:
    """Windows of a block to cut: row, byte_start (W,) uint32, and where each is first: block, row
    and byte, (3, W) uint32."""

    row: U32
    byte_start: U32
    place: U32


def _substrings(job: SubstringsJob, inputs: Inputs) -> Result:
    """SUBSTRINGS, by row and start. They overlap where parts of a passage are first in different
    places."""
    from dedup.substrings import chain_matches

    repeats = _find_repeats(job, inputs)
    block, row, byte = repeats.place
    text = block.astype(np.int64) << 32 | row
    matches = chain_matches(repeats.row, repeats.byte_start, text, byte, job.least)
    rows = list(_verify(job, inputs, matches, repeats.place[:, matches.first]))
    table = pa.Table.from_pylist(
        [dict(zip(SUBSTRINGS.names, r, strict=True)) for r in rows], SUBSTRINGS
    )
    order = [(name, "ascending") for name in ("row", "byte_start", "byte_end")]
    output = arrow_output(
        layout.shard("substrings", job.index, "arrow"), table.sort_by(order).combine_chunks()
    )
    return Result((output,), {"cuts": len(table)})


def _find_repeats(job: SubstringsJob, inputs: Inputs) -> _Repeats:
    names = ["digest", "row", "byte_start"]
    digest_F, row_F, byte_F = _columns(inputs.table(job.firsts), names)
    digest_L, row_L, byte_L = _columns(inputs.table(job.later), names)
    place_F = np.stack([np.full_like(row_F, job.index), row_F, byte_F])
    elsewhere = [np.zeros(0, np.int64)]
    for part in slice_found(job.repeated.value, job.index, job.index + 1, inputs):
        at = np.searchsorted(digest_F, part["digest"].to_numpy())
        place_F[:, at] = _columns(part, list(_PLACE))
        elsewhere.append(at)
    moved = np.concatenate(elsewhere)
    row, byte = np.r_[row_F[moved], row_L], np.r_[byte_F[moved], byte_L]
    of_later = place_F[:, np.searchsorted(digest_F, digest_L)]
    place = np.concatenate([place_F[:, moved], of_later], axis=1)
    is_apart = (place[0] != job.index) | (place[1] != row) | (byte - place[2] >= job.least)
    return _Repeats(row[is_apart], byte[is_apart], place[:, is_apart])


def _columns(table: pa.Table, names: list[str]) -> list[npt.NDArray[Any]]:
    return [table[name].to_numpy() for name in names]


def _verify(
    job: SubstringsJob, inputs: Inputs, matches: "Matches", place_3M: U32
) -> Iterator[tuple[int, int, int, bytes, int]]:
    """SUBSTRINGS of the matches whose bytes agree, by the block where they are first."""
    from dedup.substrings import verify_match

    own = inputs.table(job.keys.value[job.index])["row"].to_numpy()
    own_texts = inputs.open(_documents(job, job.index))
    for block in np.unique(place_3M[0]).tolist():
        keys = inputs.table(job.keys.value[block])
        texts, rows = inputs.open(_documents(job, block)), keys["row"].to_numpy()
        here = np.flatnonzero(place_3M[0] == block)
        for match in here[np.argsort(place_3M[1, here], kind="stable")].tolist():
            row, first_row = int(own[matches.row[match]]), int(place_3M[1, match])
            start, place = int(matches.byte_start[match]), int(place_3M[2, match])
            later, earlier = own_texts.text("text", row), texts.text("text", int(rows[first_row]))
            spans = verify_match(
                later, start, int(matches.byte_end[match]), earlier, place, job.least
            )
            for low, high in spans.tolist():
                key = keys["doc_key"][first_row].as_py()
                yield row, low, high, key, place + low - start


def _documents(job: SubstringsJob, block: int) -> Shard:
    """The documents shard that a block is of."""
    return job.documents.value[job.shards.value[block]]


def find_substrings(
    clean: views.CleanOutput,
    keep: views.KeepOutput,
    rules: SubstringRules,
    memory: int,
    run: RunStage,
) -> tuple[tuple[Shard, ...], ...]:
    """Run the stages that find repeated passages of the kept documents; returns what is cut of
    every documents shard."""
    seeds = views.SeedsOutput(run(seeds_stage(clean, keep, rules, memory)))
    shared = find_shared_seeds(seeds, memory, run)
    windows = views.WindowsOutput(run(windows_stage(clean, keep, seeds, shared, rules)))
    join = Join(
        name="repeated_windows",
        version=1,
        function=_repeated_windows,
        make_job=RunsJob,
        merge="merge_windows",
        merged="merged_windows",
        entry_bytes=_ENTRY_BYTES,
    )
    joined = join_runs(join, windows.firsts, windows.keys, sum(windows.counts), memory, run)
    repeated = return_found(
        views.RepeatedWindowsOutput(joined).repeated,
        len(windows.firsts),
        "merge_repeated_windows",
        "merged_repeated_windows",
        run,
    )
    cut = views.SubstringsOutput(run(_substrings_stage(clean, seeds, windows, repeated, rules)))
    by_shard: list[list[Shard]] = [[] for _ in clean.documents]
    for (shard, _), of_block in zip(list_blocks(seeds), cut.substrings, strict=True):
        by_shard[shard].append(of_block)
    return tuple(map(tuple, by_shard))


def _substrings_stage(
    clean: views.CleanOutput,
    seeds: views.SeedsOutput,
    windows: views.WindowsOutput,
    repeated: tuple[Bundle, ...],
    rules: SubstringRules,
) -> Stage:
    """One task for every block."""
    blocks = list(list_blocks(seeds))
    keys, documents = Shared(windows.keys), Shared(clean.documents)
    shards = Shared(tuple(shard for shard, _ in blocks))
    tasks = []
    for index, part in single_ranges(repeated):
        size = blocks[index][1][2]
        job = SubstringsJob(
            index=index,
            least=rules.least,
            firsts=windows.firsts[index],
            later=windows.later[index],
            repeated=part.shards,
            keys=keys,
            documents=documents,
            shards=shards,
        )
        inputs = (job.firsts, job.later, job.repeated, keys, documents)
        label = f"substrings of block {index}"
        tasks.append(Task(label, job, inputs, size, WINDOW_MEMORY * size))
    return Stage(name="substrings", version=1, function=_substrings, tasks=tuple(tasks))
