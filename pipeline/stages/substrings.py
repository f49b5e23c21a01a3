"""Repeated passages: `repeated_windows` joins the windows of all blocks (`pipeline.stages.windows`)
and finds the first of equal ones, by doc_key, then by byte; `substrings` makes matches of those of
a block, compares their bytes with those of the document where they stay, and leaves what is cut.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import I64, U8, U32, U64
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
    join_digests,
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
    from dedup.substrings import RepeatedBytes

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
    """Windows of a block to cut: row, byte_start (W,) uint32, and where each is first: first_text
    (W,) uint64, block and row, of 32 bits each; first_byte (W,) uint32."""

    row: U32
    byte_start: U32
    first_text: U64
    first_byte: U32


def _substrings(job: SubstringsJob, inputs: Inputs) -> Result:
    """SUBSTRINGS, by row and start. They overlap where parts of a passage are first in different
    places."""
    from dedup.substrings import chain_matches

    repeats = _find_repeats(job, inputs)
    matches = chain_matches(
        repeats.row, repeats.byte_start, repeats.first_text, repeats.first_byte, job.least
    )
    rows = list(_verify(job, inputs, repeats, matches))
    table = pa.Table.from_pylist(
        [dict(zip(SUBSTRINGS.names, r, strict=True)) for r in rows], SUBSTRINGS
    )
    order = [(name, "ascending") for name in ("row", "byte_start", "byte_end")]
    output = arrow_output(
        layout.shard("substrings", job.index, "arrow"), table.sort_by(order).combine_chunks()
    )
    counters = {"cuts": len(table), "documents": len(table["row"].unique())}
    return Result((output,), counters)


def _find_repeats(job: SubstringsJob, inputs: Inputs) -> _Repeats:
    digest_F, row_F, byte_F = _columns(inputs.table(job.firsts), ["digest", "row", "byte_start"])
    row_L, byte_L, first_L = _columns(inputs.table(job.later), ["row", "byte_start", "first"])
    text_F, place_F = _join_numbers(np.uint64(job.index), row_F), byte_F.copy()
    elsewhere = [np.zeros(0, np.int64)]
    for part in slice_found(job.repeated.value, job.index, job.index + 1, inputs):
        at = np.searchsorted(digest_F, part["digest"].to_numpy())
        block, row, place_F[at] = _columns(part, list(_PLACE))
        text_F[at] = _join_numbers(block, row)
        elsewhere.append(at)
    moved = np.concatenate(elsewhere)
    row, byte = np.r_[row_F[moved], row_L], np.r_[byte_F[moved], byte_L]
    text, place = np.r_[text_F[moved], text_F[first_L]], np.r_[place_F[moved], place_F[first_L]]
    is_own = text == _join_numbers(np.uint64(job.index), row)
    is_apart = ~is_own | (byte - place >= job.least)
    return _Repeats(row[is_apart], byte[is_apart], text[is_apart], place[is_apart])


def _join_numbers(block: U32 | np.uint64, row: U32) -> U64:
    """A block and a row in it as one number."""
    joined: U64 = block.astype(np.uint64) << np.uint64(32) | row
    return joined


def _columns(table: pa.Table, names: list[str]) -> list[npt.NDArray[Any]]:
    return [table[name].to_numpy() for name in names]


def _verify(
    job: SubstringsJob, inputs: Inputs, repeats: _Repeats, matches: "RepeatedBytes"
) -> Iterator[tuple[int, int, int, bytes, int]]:
    """SUBSTRINGS of the matches whose bytes agree, by the block where they are first."""
    from dedup.substrings import verify_match

    own = _BlockTexts(job, inputs, job.index, matches.row)
    text, place = repeats.first_text[matches.first], repeats.first_byte[matches.first]
    block, first_row = text >> np.uint64(32), text & np.uint64(0xFFFFFFFF)
    numbers = (block, matches.row, matches.byte_start, matches.byte_end, first_row, place)
    ordered = np.stack([number.astype(np.int64) for number in numbers])
    ordered = ordered[:, np.lexsort((matches.row, text))]
    for number, of_block in groupby(ordered.T.tolist(), itemgetter(0)):
        some = list(of_block)
        theirs = _BlockTexts(job, inputs, number, np.array([match[4] for match in some]))
        for _, row, start, end, first_row, place in some:
            later, earlier = own.text(row), theirs.text(first_row)
            for low, high in verify_match(later, start, end, earlier, place, job.least).tolist():
                yield own.rows[row], low, high, theirs.keys[first_row], place + low - start


class _BlockTexts:
    """Some documents of a block, by their numbers there; texts that were asked for are at hand."""

    def __init__(self, job: SubstringsJob, inputs: Inputs, block: int, numbers_M: I64) -> None:
        numbers = np.unique(numbers_M)
        keys = inputs.open(job.keys.value[block]).take(["row", "doc_key"], numbers)
        self.rows: dict[int, int] = dict(
            zip(numbers.tolist(), keys["row"].to_pylist(), strict=True)
        )
        self.keys: dict[int, bytes] = dict(zip(self.rows, keys["doc_key"].to_pylist(), strict=True))
        self._documents = inputs.open(job.documents.value[job.shards.value[block]])
        self._texts: dict[int, U8] = {}

    def text(self, number: int) -> U8:
        """The UTF-8 of a document, mapped."""
        if number not in self._texts:
            self._texts[number] = self._documents.text("text", self.rows[number])
        return self._texts[number]


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
    joined = join_digests(join, windows.firsts, windows.keys, sum(windows.counts), memory, run)
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
