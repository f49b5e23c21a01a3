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

from dedup.arrays import I64
from pipeline.core import ids
from pipeline.core.manifest import Shard
from pipeline.engine.levels import Bundle, single_ranges
from pipeline.engine.shared import Shared
from pipeline.engine.stage import Inputs, Result, RunStage, Stage, Task, arrow_output
from pipeline.runs import layout
from pipeline.runs.views.cuts import (
    RepeatedWindowsOutput,
    SeedsOutput,
    SubstringsOutput,
    WindowsOutput,
)
from pipeline.runs.views.documents import CleanOutput, KeepOutput
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
    read_texts,
    seeds_stage,
    windows_stage,
)

if TYPE_CHECKING:
    from dedup.matches import Matches

_ENTRY_BYTES = 160
"""Working memory of one window in the join: its digest and number, the sort, and its place."""
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
    """Columns shard (the block), place; first_shard, first_place: where the window is first, in
    another block."""
    from dedup.substrings import first_of_groups

    windows, bucket = shared_entries(job, inputs)
    first = first_of_groups(bucket, entry_keys(job, inputs, windows).byteswap())
    shard, place = _columns(windows, ["shard", "place"])
    later = np.flatnonzero(first != np.arange(len(first)))
    later = later[np.argsort(shard[later], kind="stable")]
    table = pa.table(
        {
            "shard": shard[later],
            "place": place[later],
            "first_shard": shard[first[later]],
            "first_place": place[first[later]],
        }
    )
    output = arrow_output(layout.shard("repeated_windows", job.index, "arrow"), table)
    return Result((output,), {"repeated": len(table)})


@dataclass(frozen=True, kw_only=True)
class SubstringsJob:
    """A block and the bytes of its texts; its windows but the first ones; where first windows are
    that are so in another block; the documents shards, the keys of all blocks, and the shard that
    each is of."""

    index: int
    size: int
    least: int
    later: Shard
    repeated: Shared[tuple[Shard, ...]]
    keys: Shared[tuple[Shard, ...]]
    documents: Shared[tuple[Shard, ...]]
    shards: Shared[tuple[int, ...]]


def _substrings(job: SubstringsJob, inputs: Inputs) -> Result:
    """SUBSTRINGS, by row and start. They overlap where parts of a passage are first in different
    places."""
    from dedup.matches import MovedWindows, chain_matches

    parts = [
        _columns(part, ["place", "first_shard", "first_place"])
        for part in slice_found(job.repeated.value, job.index, job.index + 1, inputs)
    ]
    none = [np.zeros(0, np.uint32)] * 3
    moved = MovedWindows(*map(np.concatenate, zip(none, *parts, strict=True)))
    later, first, count = _columns(inputs.table(job.later), ["later", "first", "count"])
    matches = chain_matches(job.index, job.size, job.least, moved, (later, first, count))
    cuts = pa.concat_tables([SUBSTRINGS.empty_table(), *_verify(job, inputs, matches)])
    order = [(name, "ascending") for name in ("row", "byte_start", "byte_end")]
    output = arrow_output(
        layout.shard("substrings", job.index, "arrow"), cuts.sort_by(order).combine_chunks()
    )
    counters = {"cuts": len(cuts), "documents": len(cuts["row"].unique())}
    return Result((output,), counters)


def _columns(table: pa.Table, names: list[str]) -> list[npt.NDArray[Any]]:
    return [table[name].to_numpy() for name in names]


def _verify(job: SubstringsJob, inputs: Inputs, matches: "Matches") -> Iterator[pa.Table]:
    """SUBSTRINGS of the matches whose bytes agree, by the block where they are first."""
    from dedup.matches import verify_matches

    own = _BlockTexts(job, inputs, job.index, matches.start)
    for block in np.unique(matches.block).tolist():
        some = matches.take(matches.block == block)
        theirs = _BlockTexts(job, inputs, block, some.first)
        start, first = own.find(some.start), theirs.find(some.first)
        end = start + (some.end - some.start)
        match, low, high = verify_matches(
            own.texts.data, start, end, theirs.texts.data, first, job.least
        )
        begin = own.begins(some.start)[match]
        moved = first[match] - theirs.begins(some.first)[match] - start[match]
        columns = (
            own.column("row", some.start).take(pa.array(match)),
            low - begin,
            high - begin,
            theirs.column("doc_key", some.first).take(pa.array(match)),
            low + moved,
        )
        yield pa.table(columns, SUBSTRINGS.names).cast(SUBSTRINGS)


class _BlockTexts:
    """The documents of a block that hold some places, with their texts."""

    def __init__(self, job: SubstringsJob, inputs: Inputs, block: int, places: I64) -> None:
        self._keys = inputs.open(job.keys.value[block]).read()
        self._starts = self._keys["start"].to_numpy().astype(np.int64)
        self._numbers = np.unique(self._number(places))
        rows = self._keys["row"].to_numpy()[self._numbers]
        self.texts = read_texts(job.documents.value[job.shards.value[block]], rows, inputs)

    def _number(self, places: I64) -> I64:
        """The number in the block of the document that holds each place."""
        return np.searchsorted(self._starts, places, "right") - 1

    def column(self, name: str, places: I64) -> pa.ChunkedArray:
        """Of the document that holds each place."""
        return self._keys[name].take(pa.array(self._number(places)))

    def begins(self, places: I64) -> I64:
        """Where the document that holds each place begins in the data of `texts`."""
        begins: I64 = self.texts.offsets[np.searchsorted(self._numbers, self._number(places))]
        return begins

    def find(self, places: I64) -> I64:
        """Where each place is in the data of `texts`."""
        found: I64 = self.begins(places) + places - self._starts[self._number(places)]
        return found


def find_substrings(
    clean: CleanOutput,
    keep: KeepOutput,
    rules: SubstringRules,
    memory: int,
    run: RunStage,
) -> tuple[tuple[Shard, ...], ...]:
    """Run the stages that find repeated passages of the kept documents; returns what is cut of
    every documents shard."""
    seeds = SeedsOutput(run(seeds_stage(clean, keep, rules, memory)))
    shared = find_shared_seeds(seeds, memory, run)
    windows = WindowsOutput(run(windows_stage(clean, keep, seeds, shared, rules)))
    join = Join(
        name="repeated_windows",
        version=2,
        function=_repeated_windows,
        make_job=RunsJob,
        merge="merge_windows",
        merged="merged_windows",
        entry_bytes=_ENTRY_BYTES,
    )
    joined = join_digests(join, windows.firsts, windows.keys, sum(windows.counts), memory, run)
    repeated = return_found(
        RepeatedWindowsOutput(joined).repeated,
        len(windows.firsts),
        "merge_repeated_windows",
        "merged_repeated_windows",
        run,
    )
    cut = SubstringsOutput(run(_substrings_stage(clean, seeds, windows, repeated, rules)))
    by_shard: list[list[Shard]] = [[] for _ in clean.documents]
    for (shard, _), of_block in zip(list_blocks(seeds), cut.substrings, strict=True):
        by_shard[shard].append(of_block)
    return tuple(map(tuple, by_shard))


def _substrings_stage(
    clean: CleanOutput,
    seeds: SeedsOutput,
    windows: WindowsOutput,
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
            size=size,
            least=rules.least,
            later=windows.later[index],
            repeated=part.shards,
            keys=keys,
            documents=documents,
            shards=shards,
        )
        inputs = (job.later, job.repeated, keys, documents)
        label = f"substrings of block {index}"
        tasks.append(Task(label, job, inputs, size, WINDOW_MEMORY * size))
    return Stage(name="substrings", version=2, function=_substrings, tasks=tuple(tasks))
