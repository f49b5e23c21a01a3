"""Export: the text of the kept documents in stream order, shuffled as tokens are.

`scatter_text`: each documents shard, its repeated lines cut out, sorted by split and the ranks of
the token shuffle. `gather_text`: one range of ranks after the other, each a file below records/;
where the shards are too many for one task, they are merged before.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64, U8
from pipeline.core import ids
from pipeline.core.errors import IntegrityError
from pipeline.core.manifest import Shard
from pipeline.engine.levels import bundle_shards, merge_in_levels, single_ranges
from pipeline.engine.shared import Shared
from pipeline.engine.stage import Inputs, Output, Result, RunStage, Stage, Task, arrow_output
from pipeline.hdf5.packing import measure_byte_lengths, take_rows
from pipeline.runs import layout
from pipeline.runs.layout import STATES
from pipeline.runs.views.data_set import GatheredTextOutput, ScatteredTextOutput
from pipeline.sources.output_format import Form
from pipeline.stages.cuts import cut_texts
from pipeline.stages.findings.withheld import load_withheld
from pipeline.stages.records import columns_for, image, writing_software
from pipeline.stages.shuffle.gather import MERGES, merge_stage
from pipeline.stages.shuffle.places import Places, places
from pipeline.stages.shuffle.scatter import pieces, shard_of_piece
from pipeline.stages.shuffle.slices import WHOLE, merge_slices, order_by_rank, slice_ranks

_KEPT = STATES[0]


@dataclass(frozen=True)
class TableRows:
    """Some rows of a parquet table."""

    table: Shard
    first: int
    count: int


@dataclass(frozen=True, kw_only=True)
class TextJob:
    """One documents shard of the run in `location`: its rows of documents.parquet and of
    lines.parquet, copies if there is a mixture, and what is wanted of it. `seed` of the shuffle,
    None for document order. With a mixture `piece_bytes` of text are put out at a time.
    `taken_down`: tables of documents that are left out, with their hashes."""

    location: str
    index: int
    documents: Shard
    ends: TableRows
    cuts: TableRows | None
    copies: Shard | None
    splits: tuple[str, ...]
    fields: tuple[str, ...]
    seed: int | None
    piece_bytes: int
    taken_down: tuple[tuple[str, str], ...] = ()


def _scatter_text(job: TextJob, inputs: Inputs) -> Result:
    """Columns text and the fields asked for, doc_key, split, rank; sorted by split and rank, which
    is the place in bytes of the shard's part of the split where nothing is shuffled."""
    run = Inputs(Path(job.location))
    table = run.table(job.documents)
    split, copies = _wanted(job, run, table)
    texts = table["text"]
    if job.cuts is not None and job.cuts.count:
        texts = pa.chunked_array([cut_texts(texts, _cuts(job.cuts, run, table["doc_key"]))])
    live = np.flatnonzero(split >= 0)
    key_N2 = ids.keys_as_u64(table["doc_key"])[live]
    size = measure_byte_lengths(texts)[live]
    chosen = split[live].astype(np.uint8)
    if job.seed is None:
        placed = _in_document_order(chosen, copies, size)
    else:
        placed = places(key_N2, chosen, copies, job.seed)
    size, counts = size[placed.row], len(job.splits)
    counters = {
        "documents": len(size),
        "rows": np.bincount(placed.split, minlength=counts).tolist(),
        "bytes": np.bincount(placed.split, size, counts).astype(np.int64).tolist(),
    }
    cuts = [slice(None)] if job.copies is None else pieces(size, job.piece_bytes)
    table = table.select(["doc_key", *columns_for(job.fields)]).append_column("text", texts)
    placed = Places(live[placed.row], placed.split, placed.rank)
    return Result(_shards(job.index, table, placed, cuts), counters)


def _in_document_order(split_N: U8, copies_N: I64, size_N: I64) -> Places:
    """All copies by split and document; `rank` is where they begin in the bytes of the split."""
    order = np.argsort(split_N, kind="stable")
    row = np.repeat(order, copies_N[order])
    split, size = split_N[row], size_N[row]
    first = np.searchsorted(split, split)
    begin = np.concatenate([[0], np.cumsum(size)])
    rank = begin[: len(row)] - begin[first]
    return Places(row, split, rank.astype(np.uint64))


def _shards(index: int, table: pa.Table, placed: Places, cuts: list[slice]) -> Iterator[Output]:
    others = [name for name in table.column_names if name not in ("doc_key", "text")]
    key_N2 = ids.keys_as_u64(table["doc_key"])
    for number, cut in enumerate(cuts):
        row = placed.row[cut]
        columns = {
            "doc_key": ids.keys_from_u64(key_N2[row]),
            "text": take_rows(table["text"], row),
            **{name: take_rows(table[name].cast(pa.large_string()), row) for name in others},
            "split": pa.array(placed.split[cut]),
            "rank": pa.array(placed.rank[cut]),
        }
        yield arrow_output(shard_of_piece(index, number), pa.table(columns))


def _wanted(job: TextJob, run: Inputs, table: pa.Table) -> tuple[I64, I64]:
    """Per document the number of its split, -1 where it is not asked for; copies of the others."""
    ends = read_table_rows(job.ends, ["state", "split", "doc_key"], run)
    is_kept = pc.equal(ends["state"], _KEPT)
    number = number_splits(ends["split"], job.splits)
    state = is_kept.to_numpy()
    ordinal = (table["doc_id"].to_numpy() & np.uint64(0xFFFFFFFF)).astype(np.int64)
    if len(ordinal) and (
        ordinal[-1] >= len(ends) or ends["doc_key"].take(pa.array(ordinal)) != table["doc_key"]
    ):
        raise IntegrityError(f"{run.path(job.ends.table)}: not the table of {job.documents.path}")
    split = np.where(state, number, -1)[ordinal]
    if job.taken_down:
        gone = load_withheld(run.root, tuple(file for file, _ in job.taken_down)).doc_keys
        split[pc.is_in(table["doc_key"], gone).to_numpy()] = -1
    if job.copies is None:
        return split, np.ones(int((split >= 0).sum()), np.int64)
    copies = np.zeros(len(ends), np.int64)
    copies[state] = run.table(job.copies)["copies"].to_numpy()
    return split, copies[ordinal][split >= 0]


def number_splits(names_N: pa.ChunkedArray, splits: tuple[str, ...]) -> I64:
    """The place of each name among `splits`, -1 for others, (N,)."""
    places = pc.index_in(names_N, value_set=pa.array(splits, pa.string()))
    numbers: I64 = pc.fill_null(places, -1).to_numpy().astype(np.int64)
    return numbers


def _cuts(cuts: TableRows, run: Inputs, doc_key: pa.ChunkedArray) -> pa.Table:
    """The cuts of the shard with these keys, by row and start."""
    rows = read_table_rows(cuts, ["doc_key", "byte_start", "byte_end"], run)
    row = pc.index_in(rows["doc_key"], value_set=doc_key.combine_chunks())
    return rows.append_column("row", row)


def read_table_rows(rows: TableRows, columns: list[str], run: Inputs) -> pa.Table:
    """Rows of a parquet table; only the row groups that hold them are read."""
    with pq.ParquetFile(run.path(rows.table)) as file:
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        ends = np.cumsum(sizes)
        first, last = np.searchsorted(ends, [rows.first, rows.first + rows.count - 1], "right")
        groups = list(range(int(first), min(int(last) + 1, len(sizes)))) if rows.count else []
        table = file.read_row_groups(groups, columns=columns)
        return table.slice(rows.first - (int(ends[first - 1]) if first else 0), rows.count)


def scatter_text_stage(jobs: tuple[TextJob, ...]) -> Stage:
    """One task per documents shard of the run."""
    tasks = tuple(Task(f"text of {j.documents.path}", j, work=j.documents.size) for j in jobs)
    return Stage(name="scatter_text", version=1, function=_scatter_text, tasks=tasks)


@dataclass(frozen=True, kw_only=True)
class FileJob:
    """File `number` of the `count` files of one split. Of a shuffled split it holds equal ranges of
    rank out of all shards; else of every shard of its own the ranks [low, high) of `ranges`."""

    split: int
    name: str
    number: int
    count: int
    format: Form
    fields: tuple[str, ...]
    shards: Shared[tuple[Shard, ...]]
    ranges: tuple[tuple[int, int], ...] | None


def _gather_text(job: FileJob, inputs: Inputs) -> Result:
    shards = job.shards.value
    low, high = (WHOLE * (job.number + i) // job.count for i in (0, 1))
    ranges = job.ranges or ((low, high),) * len(shards)
    slices = slice_ranks(
        ((shard, *bounds) for shard, bounds in zip(shards, ranges, strict=True)), job.split, inputs
    )
    order = order_by_rank if job.ranges is None else _keep_order
    empty = inputs.open(shards[0]).empty.drop_columns(["split"])
    slices = ((here, rows.drop_columns(["split"])) for here, rows in slices)
    table = merge_slices(slices, empty, ["text"], order, inputs)
    path = f"{layout.RECORDS}/{job.name}/{job.number:06d}.{job.format}"
    data, content_hash = image(path, table, job.format, job.fields)
    counters = {
        "split": job.name,
        "documents": len(table),
        "text_bytes": int(measure_byte_lengths(table["text"]).sum()),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    return Result((Output(path, data, content_hash),), counters)


def _keep_order(rows: pa.Table) -> I64:
    return np.arange(len(rows))


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """The files that are asked for: format, fields of a record, bytes of text in a file, and
    whether documents are in the order of the token stream."""

    form: Form
    fields: tuple[str, ...]
    file_bytes: int
    shuffled: bool


def gather_texts(
    scatter: ScatteredTextOutput, splits: tuple[str, ...], files: FileOptions, run: RunStage
) -> GatheredTextOutput:
    """Run the stages that write the files of every split; returns what they left. The number of
    files of a split follows from its bytes of text alone."""
    bundles, every = [], Shared(tuple(scatter.manifest.shards))
    for split, name in enumerate(splits):
        size = sum(of_task[split] for of_task in scatter.bytes)
        count = count_files(sum(n[split] for n in scatter.rows), size, files.file_bytes)
        if count:
            bundles.append(bundle_shards(name, count, every, work=size))
    if files.shuffled:
        narrow = merge_in_levels(
            bundles, MERGES, lambda stage, wide: run(merge_stage(stage, wide, splits))
        )
        read: Iterator[_FileShards] = ((part.shards, None) for _, part in single_ranges(narrow))
    else:
        narrow = tuple(bundles)
        read = chain.from_iterable(
            _split_by_bytes(scatter, splits.index(b.name), b.ranges) for b in bundles
        )
    tasks = []
    for (number, part), (shards, ranges) in zip(single_ranges(narrow), read, strict=True):
        job = FileJob(
            split=splits.index(part.name),
            name=part.name,
            number=number,
            count=part.ranges,
            format=files.form,
            fields=files.fields,
            shards=shards,
            ranges=ranges,
        )
        label = f"{part.name} file {number} of {part.ranges}"
        tasks.append(Task(label, job, (shards,), part.work // (part.stop - part.first)))
    software = writing_software(files.form)
    stage = Stage(
        name="gather_text", version=1, function=_gather_text, tasks=tuple(tasks), software=software
    )
    return GatheredTextOutput(run(stage))


def count_files(documents: int, text_bytes: int, file_bytes: int) -> int:
    """The number of files of a split."""
    return max(1, -(-text_bytes // file_bytes)) if documents else 0


_FileShards = tuple[Shared[tuple[Shard, ...]], tuple[tuple[int, int], ...] | None]
"""The shards of a file, and the ranks [low, high) of each; None for those of the file's number."""


def _split_by_bytes(scatter: ScatteredTextOutput, split: int, count: int) -> Iterator[_FileShards]:
    """Of every file of a split that is not shuffled: equal pieces of the bytes of all tasks."""
    sizes = [of_task[split] for of_task in scatter.bytes]
    ends = list(accumulate(sizes))
    for number in range(count):
        low, high = (ends[-1] * (number + i) // count for i in (0, 1))
        is_last = number == count - 1
        stop = len(ends) if is_last else bisect_left(ends, high) + 1
        shards: list[Shard] = []
        ranges: list[tuple[int, int]] = []
        for task in range(bisect_left(ends, low), stop):
            start = ends[task] - sizes[task]
            of_task = scatter.manifest.tasks[task].shards
            shards += of_task
            ranges += [(max(0, low - start), WHOLE if is_last else high - start)] * len(of_task)
        yield Shared(tuple(shards)), tuple(ranges)
