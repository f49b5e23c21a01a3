"""`prep search RUN --index`: an index of the words of a finished run, in RUN/word_index/.

The run stays as it is. A takedown or a purge deletes the index, because it holds words of texts; a
run that was made again with other texts has one that is not used until it is made again too.

Its stages are word_runs and words. word_runs: for every documents shard, or few where there are
many, the spellings of its texts by hash, each with the rows of the texts that hold it; texts in
quarantine are among them. words: one shard for each range of hashes, with the spellings of that
range and the rows, counted over all documents shards, of all texts that hold them.
"""

from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.text import join_texts
from pipeline.config.cluster import LOCAL, Cluster
from pipeline.core.manifest import Shard, read_manifest
from pipeline.engine.executor import Executor
from pipeline.engine.levels import MOST_SHARDS
from pipeline.engine.progress import Progress
from pipeline.engine.ranges import copy_table
from pipeline.engine.runner import Runner, manifest_path
from pipeline.engine.shared import Shared
from pipeline.engine.stage import Inputs, Result, Stage, Task, arrow_output, borrow
from pipeline.explain.text_search import find_readable_home
from pipeline.explain.word_index.spellings import UNICODE, find_spellings, group_rows
from pipeline.runs import layout
from pipeline.runs.held_texts import SCHEMA, count_texts, quarantine_path, with_texts
from pipeline.runs.run_directory import commit_run, read_committed, read_stage
from pipeline.runs.views.documents import CleanOutput, QuarantineOutput, WordRunsOutput
from pipeline.stories.loop import Manifest, StageRecord, Stages, StoryRun

PAIRS_PER_SHARD = 1 << 26
"""Rows that a shard of words/ has about: 4 bytes each."""
_HASHES = 1 << 64
_MEMORY_PER_PAIR = 32
RUN_SCHEMA = pa.schema(
    [("hash", pa.uint64()), ("spelling", pa.large_string()), ("rows", pa.large_list(pa.uint32()))]
)
"""A shard of word_runs/, by hash; rows count from the first text of the task."""
WORD_SCHEMA = pa.schema([("spelling", pa.large_string()), ("rows", pa.large_list(pa.uint32()))])
"""A shard of words/."""


@dataclass(frozen=True)
class WordRunJob:
    """Documents shards that follow one another, with those of quarantine/ that belong to them."""

    index: int
    documents: tuple[Shard, ...]
    held: tuple[Shard | None, ...]


def _run(job: WordRunJob, inputs: Inputs) -> Result:
    parts, counts, noted = [], [], []
    rows: list[int] = []
    for shard, held in zip(job.documents, job.held, strict=True):
        table = inputs.table(shard, ["doc_key", "text", "text_bytes"])
        quarantine = inputs.table(held) if held else SCHEMA.empty_table()
        parts.append((sum(rows), _group(with_texts(table, quarantine)["text"])))
        counts.append(list(count_texts(table, quarantine)))
        noted.append([shard.path, shard.hash, held.hash if held else ""])
        rows.append(len(table))
    merged = _merge_tables(parts)
    pairs = pc.sum(pc.list_value_length(merged["rows"])).as_py() or 0
    counters = {"rows": rows, "pairs": pairs, "shards": noted}
    path = layout.shard(layout.WORD_RUNS, job.index, "arrow")
    return Result((arrow_output(path, merged),), {**counters, "texts": counts})


def _group(texts: pa.ChunkedArray) -> pa.Table:
    """The spellings of some texts by hash, with their rows."""
    found = find_spellings(join_texts(texts))
    order = np.argsort(found.hashes, kind="stable")
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    counts = np.bincount(found.spelling, minlength=len(order))[order]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    rows = group_rows(found.spelling, found.row, ranks, offsets)
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(rows))
    columns = [found.hashes[order], found.texts.take(pa.array(order)), lists]
    return pa.table(columns, schema=RUN_SCHEMA)


@dataclass(frozen=True)
class WordsJob:
    """Hashes [low, high) of all runs; `bases`: the first row of each of them."""

    index: int
    low: int
    high: int
    runs: Shared[tuple[Shard, ...]]
    bases: Shared[tuple[int, ...]]


def _words(job: WordsJob, inputs: Inputs) -> Result:
    slices = []
    for shard, base in zip(job.runs.value, job.bases.value, strict=True):
        run = inputs.open(shard)
        start, stop = run.find("hash", job.low, job.high)
        slices.append((base, copy_table(run.read(None, start, stop))))
    merged = _merge_tables(slices)
    path = layout.shard(layout.WORDS, job.index, "arrow")
    return Result((arrow_output(path, merged.drop_columns(["hash"])),), {"words": len(merged)})


def _merge_tables(parts: list[tuple[int, pa.Table]]) -> pa.Table:
    """Tables of `RUN_SCHEMA` as one, where each spelling has the rows of all of them, a part's
    counted from its base; by hash."""
    tables = [
        pa.table([t["hash"], t["spelling"], _shift(t["rows"], base)], schema=RUN_SCHEMA)
        for base, t in parts
    ]
    every = pa.concat_tables([RUN_SCHEMA.empty_table(), *tables]).combine_chunks()
    if len(tables) < 2:
        return every
    encoded = every["spelling"].combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy()
    first = np.unique(codes, return_index=True)[1]
    by_hash = np.argsort(every["hash"].to_numpy()[first], kind="stable")
    ranks = np.empty_like(by_hash)
    ranks[by_hash] = np.arange(len(by_hash))
    order = np.argsort(ranks[codes], kind="stable")
    rows = every["rows"].combine_chunks().take(pa.array(order))
    lengths = np.diff(rows.offsets.to_numpy())
    counts = np.bincount(ranks[codes][order], lengths, len(first)).astype(np.int64)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), rows.flatten())
    picked = every.select(["hash", "spelling"]).take(pa.array(first[by_hash]))
    return picked.append_column(RUN_SCHEMA.field("rows"), lists).combine_chunks()


def _shift(rows: pa.ChunkedArray, base: int) -> pa.LargeListArray:
    """Lists of rows that count from `base`."""
    lists = rows.combine_chunks()
    if not isinstance(lists, pa.LargeListArray):
        lists = pa.concat_arrays([pa.array([], RUN_SCHEMA.field("rows").type), *rows.chunks])
    offsets = lists.offsets.to_numpy()
    values = lists.flatten().to_numpy() + np.uint32(base)
    return pa.LargeListArray.from_arrays(pa.array(offsets - offsets[0]), pa.array(values))


def runs_stage(clean: CleanOutput, quarantine: QuarantineOutput | None) -> Stage:
    """The stage that lists the spellings of documents shards."""
    texts = {shard.path: shard for shard in quarantine.texts} if quarantine else {}
    together = -(-len(clean.documents) // MOST_SHARDS) or 1
    tasks = []
    for index, first in enumerate(range(0, len(clean.documents), together)):
        documents = clean.documents[first : first + together]
        held = tuple(texts.get(quarantine_path(shard.path)) for shard in documents)
        inputs = (*documents, *(shard for shard in held if shard))
        work = sum(shard.size for shard in documents)
        job = WordRunJob(index, documents, held)
        tasks.append(Task(f"words of {documents[0].path}", job, inputs, work))
    return Stage(
        name=layout.WORD_RUNS,
        version=1,
        function=_run,
        tasks=tuple(tasks),
        software={"unicode": UNICODE},
    )


def words_stage(runs: WordRunsOutput) -> Stage:
    """The stage that brings the rows of each spelling together."""
    pairs = sum(runs.pairs)
    count = max(1, -(-pairs // PAIRS_PER_SHARD))
    shards = Shared(runs.runs)
    bases = Shared(tuple(accumulate((sum(rows) for rows in runs.rows), initial=0))[:-1])
    tasks = []
    for index in range(count):
        low, high = (_HASHES * n // count for n in (index, index + 1))
        job = WordsJob(index, low, high, shards, bases)
        work = sum(shard.size for shard in runs.runs) // count
        tasks.append(
            Task(f"words {index}", job, (shards,), work, _MEMORY_PER_PAIR * pairs // count)
        )
    return Stage(
        name=layout.WORDS, version=1, function=_words, tasks=tuple(tasks), reads_texts=False
    )


def index_words(
    directory: Path,
    workers: int | None = None,
    *,
    cluster: Cluster | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Make the index of the words of a finished run, or bring it up to date. Of a repacked run
    the one that has its texts gets it. Raises InputError for a run without texts, and the errors of
    `pipeline.stories.run.run_preparation`."""
    home = find_readable_home(directory)
    config = str(read_committed(home)["config"])
    clean = CleanOutput(read_stage(home, "clean"))
    quarantine = read_manifest(manifest_path(home, layout.QUARANTINE))
    work = StoryRun(
        out=home / layout.WORD_INDEX,
        config=config,
        story=layout.WORD_INDEX,
        size=sum(shard.size for shard in clean.documents),
        workers=workers,
        cluster=cluster or LOCAL,
        progress=progress or Progress(quiet=True),
    )
    held = QuarantineOutput(quarantine) if quarantine else None
    return work.hold(partial(_tell, home, clean, held), partial(_commit, work))


def _tell(
    home: Path, clean: CleanOutput, quarantine: QuarantineOutput | None, run: StageRecord
) -> None:
    def do(stage: Stage) -> WordRunsOutput:
        borrowed = borrow(stage, home.resolve(), ("documents", layout.QUARANTINE))
        return WordRunsOutput(run(borrowed))

    run(words_stage(do(runs_stage(clean, quarantine))))


def _commit(work: StoryRun, stages: Stages, runner: Runner, _: Executor) -> Stages:
    """Without what was sorted on the way."""
    runner.release((layout.WORD_RUNS,))
    commit_run(work.out, (work.config, work.story), stages, runner.removed)
    return stages
