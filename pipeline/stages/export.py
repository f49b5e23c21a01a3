"""Export: the text of the kept documents in stream order, in one scatter and one gather.

`scatter_text`: each documents shard, its repeated lines cut out, sorted by split and the ranks of
the token shuffle. `gather_text`: one range of ranks after the other, each a file below records/.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64, U8
from pipeline.core import ids
from pipeline.core.errors import IntegrityError
from pipeline.core.manifest import Shard
from pipeline.engine.shared import Shared
from pipeline.engine.stage import Inputs, Output, Result, Stage, Task, arrow_output
from pipeline.packing.rows import measure_byte_lengths, take_rows
from pipeline.runs import layout
from pipeline.runs.layout import STATES
from pipeline.runs.views import ScatteredTextOutput
from pipeline.sources.output_format import Form
from pipeline.stages import shuffle
from pipeline.stages.cuts import cut_texts
from pipeline.stages.records import columns_for, image, writing_software
from pipeline.stages.withheld import load_withheld

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
        placed = shuffle.places(key_N2, chosen, copies, job.seed)
    size, counts = size[placed.row], len(job.splits)
    counters = {
        "documents": len(size),
        "rows": np.bincount(placed.split, minlength=counts).tolist(),
        "bytes": np.bincount(placed.split, size, counts).astype(np.int64).tolist(),
    }
    cuts = [slice(None)] if job.copies is None else shuffle.pieces(size, job.piece_bytes)
    table = table.select(["doc_key", *columns_for(job.fields)]).append_column("text", texts)
    placed = shuffle.Places(live[placed.row], placed.split, placed.rank)
    return Result(_shards(job.index, table, placed, cuts), counters)


def _in_document_order(split_N: U8, copies_N: I64, size_N: I64) -> shuffle.Places:
    """All copies by split and document; `rank` is where they begin in the bytes of the split."""
    order = np.argsort(split_N, kind="stable")
    row = np.repeat(order, copies_N[order])
    split, size = split_N[row], size_N[row]
    first = np.searchsorted(split, split)
    begin = np.concatenate([[0], np.cumsum(size)])
    rank = begin[: len(row)] - begin[first]
    return shuffle.Places(row, split, rank.astype(np.uint64))


def _shards(
    index: int, table: pa.Table, placed: shuffle.Places, cuts: list[slice]
) -> Iterator[Output]:
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
        yield arrow_output(shuffle.shard_of_piece(index, number), pa.table(columns))


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


@dataclass(frozen=True)
class ScatteredSplit:
    """What every task scattered: its shards, and the bytes of text of one split in them."""

    shards: tuple[tuple[Shard, ...], ...]
    bytes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class FileJob:
    """File `number` of the `count` files of one split."""

    split: int
    name: str
    number: int
    count: int
    format: Form
    fields: tuple[str, ...]
    shuffled: bool
    scattered: Shared[ScatteredSplit]


def _gather_text(job: FileJob, inputs: Inputs) -> Result:
    bucket_slices, names, byte_lengths = [], [], []
    ranges = _ranges(job)
    empty = inputs.table(ranges[0][0]).slice(0, 0)
    others = [name for name in empty.column_names if name not in ("text", "split")]
    for here, piece in shuffle.slices(ranges, job.split, inputs):
        bucket_slices.append(here)
        names.append(shuffle.copy_table(piece.select(others)))
        byte_lengths.append(measure_byte_lengths(piece["text"]))
    whole = pa.concat_tables([*names, empty.select(others)])
    length = np.concatenate([np.zeros(0, np.int64), *byte_lengths])
    order = np.arange(len(whole))
    if job.shuffled:
        order = ids.sort_order(ids.keys_as_u64(whole["doc_key"]), whole["rank"].to_numpy())
    text = shuffle.gather_rows(bucket_slices, "text", pa.large_string(), length, order, inputs)
    table = whole.take(pa.array(order)).append_column("text", text)
    path = f"{layout.RECORDS}/{job.name}/{job.number:06d}.{job.format}"
    data, content_hash = image(path, table, job.format, job.fields)
    counters = {
        "split": job.name,
        "documents": len(table),
        "text_bytes": int(length.sum()),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    return Result((Output(path, data, content_hash),), counters)


def gather_text_stage(
    scatter: ScatteredTextOutput,
    splits: tuple[str, ...],
    form: Form,
    fields: tuple[str, ...],
    file_bytes: int,
    shuffled: bool,
) -> Stage:
    """One task per file; the number of files of a split follows from its bytes of text alone."""
    tasks = []
    for split, name in enumerate(splits):
        sizes = tuple(of_task[split] for of_task in scatter.bytes)
        shards = tuple(task.shards for task in scatter.manifest.tasks)
        scattered, inputs = (
            Shared(ScatteredSplit(shards, sizes)),
            Shared(tuple(chain.from_iterable(shards))),
        )
        count = count_files(sum(n[split] for n in scatter.rows), sum(sizes), file_bytes)
        for number in range(count):
            job = FileJob(
                split=split,
                name=name,
                number=number,
                count=count,
                format=form,
                fields=fields,
                shuffled=shuffled,
                scattered=scattered,
            )
            label = f"{name} file {number} of {count}"
            tasks.append(Task(label, job, (inputs,), sum(sizes) // count))
    return Stage(
        name="gather_text",
        version=1,
        function=_gather_text,
        tasks=tuple(tasks),
        software=writing_software(form),
    )


def count_files(documents: int, text_bytes: int, file_bytes: int) -> int:
    """The number of files of a split."""
    return max(1, -(-text_bytes // file_bytes)) if documents else 0


def _ranges(job: FileJob) -> list[tuple[Shard, int, int]]:
    """Scatter shards and the ranks [low, high) of each that belong to the file: equal ranges of
    rank; without a shuffle, equal pieces of the bytes of all tasks in order."""
    scattered = job.scattered.value
    whole = shuffle.WHOLE if job.shuffled else sum(scattered.bytes)
    low, high = (whole * (job.number + i) // job.count for i in (0, 1))
    if job.shuffled:
        return [(shard, low, high) for of_task in scattered.shards for shard in of_task]
    ranges, start = [], 0
    for of_task, size in zip(scattered.shards, scattered.bytes, strict=True):
        end = shuffle.WHOLE if job.number == job.count - 1 else high - start
        if low <= start + size and end > 0:
            ranges += [(shard, max(0, low - start), end) for shard in of_task]
        start += size
    return ranges
