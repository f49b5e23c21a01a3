"""Contained documents: those most of whose shingles a longer document has that stays.

`stays` says which documents dedup and the policy leave; `samples` has some of their shingles as
sorted runs; `containers` joins these with those of earlier batches and counts, for every document,
how many it shares with longer ones; `containments` compares the texts of those that share enough;
`contained` chooses the links by which documents go, so that each goes to one that stays. The
keep-list applies them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from dedup.arrays import I64
from dedup.presets import Preset
from pipeline.core import ids
from pipeline.core.manifest import Shard
from pipeline.engine.levels import single_ranges
from pipeline.engine.shared import Shared
from pipeline.engine.stage import Inputs, Result, RunStage, Stage, Task, arrow_output
from pipeline.runs import layout
from pipeline.runs.views.duplicates import (
    ContainedOutput,
    ContainersOutput,
    ContainmentsOutput,
    SamplesOutput,
)
from pipeline.stages.batches import Batches, Corpus, SampledBatch
from pipeline.stages.digest_runs import (
    Join,
    RunsJob,
    SortedRuns,
    join_digests,
    return_found,
    shared_entries,
    slice_found,
)
from pipeline.stages.lines import find_kept_rows

_ENTRY_BYTES = 800
"""Working memory of one sampled shingle in the join: its entry, the sort, up to eight pairs."""
_LINK_BYTES = 200
SAMPLES = 2
"""The version of `samples`: those of earlier batches must have the same."""
LINK = pa.schema(
    [
        ("member", pa.uint32()),
        ("representative", pa.uint32()),
        ("bytes", pa.uint32()),
        ("share", pa.float64()),
        ("exact", pa.float64()),
        ("kept_key", pa.binary(ids.KEY_BYTES)),
        ("kept_text_key", pa.binary(ids.KEY_BYTES)),
        ("kept_source", pa.string()),
    ]
)
"""A document and one that contains it, by dense index: bytes of the first, the share of its
shingles that the other has, their Jaccard similarity; keys and source of the other."""


@dataclass(frozen=True)
class ContainmentRules:
    """What shingles are, and the least share of a document's that another must have."""

    preset: Preset
    min_share: float


@dataclass(frozen=True, kw_only=True)
class SamplesJob:
    """One documents shard, and which of its documents stay."""

    index: int
    documents: Shard
    stays: Shard
    preset: Preset


def _samples(job: SamplesJob, inputs: Inputs) -> Result:
    """Columns digest (ascending), shard, row, bytes of its text; of every document that stays: row,
    bytes, and how many of its shingles are in the sample."""
    from dedup.containment import sample_shingles

    rows = find_kept_rows(job.documents, job.stays, None, inputs)
    texts = inputs.table(job.documents, ["text"])["text"].take(pa.array(rows))
    sizes = pa.compute.binary_length(texts).to_numpy().astype(np.uint32)
    sample = sample_shingles(texts, job.preset)
    table = pa.table(
        {
            "digest": sample.digest,
            "shard": np.full(len(sample), job.index, np.uint32),
            "row": rows[sample.row],
            "bytes": sizes[sample.row],
        }
    )
    counts = np.bincount(sample.row, minlength=len(rows)).astype(np.uint32)
    outputs = (
        arrow_output(layout.shard("samples", job.index, "arrow"), table),
        arrow_output(
            layout.shard("samples", job.index, layout.SIZES_SHARD),
            pa.table({"row": rows, "bytes": sizes, "sampled": counts}),
        ),
    )
    return Result(outputs, {"documents": len(rows), "sampled": len(sample)})


@dataclass(frozen=True, kw_only=True)
class ContainersJob(RunsJob):
    """A range of sampled shingles; documents from dense index `first_new` on are of this run."""

    first_new: int


def _containers(job: ContainersJob, inputs: Inputs) -> Result:
    """Columns shard, document, container (dense indices), shared: sampled shingles of this range
    that both have."""
    from dedup.containment import count_shared

    entries, group = shared_entries(job, inputs)
    has_new = np.bincount(group, entries["row"].to_numpy() >= job.first_new)[group] > 0
    entries, group = entries.filter(pa.array(has_new)), group[has_new]
    document, size, shard = (entries[n].to_numpy() for n in ("row", "bytes", "shard"))
    shorter, longer, shared = count_shared(group, document, size, job.first_new)
    order = np.argsort(shard[shorter], kind="stable")
    table = pa.table(
        {
            "shard": shard[shorter][order],
            "document": document[shorter][order],
            "container": document[longer][order],
            "shared": shared[order].astype(np.uint32),
        }
    )
    output = arrow_output(layout.shard("containers", job.index, "arrow"), table)
    return Result((output,), {"pairs": len(table)})


@dataclass(frozen=True, kw_only=True)
class ContainmentsJob:
    """A documents shard, from dense index `first` on: how much of each document is in the sample,
    the pairs that were counted, and all texts."""

    index: int
    first: int
    sizes: Shard
    pairs: Shared[tuple[Shard, ...]]
    batches: Shared[Batches]
    rules: ContainmentRules


def _containments(job: ContainmentsJob, inputs: Inputs) -> Result:
    """LINK, by document, then container."""
    from dedup.containment import compare_pairs

    member, container, size = _find_likely(job, inputs)
    corpus = Corpus(job.batches.value, inputs)
    found = compare_pairs(corpus.text, member, container, job.rules.preset)
    is_in = found[:, 0] >= job.rules.min_share
    member, container, size, found = member[is_in], container[is_in], size[is_in], found[is_in]
    known, at = np.unique(container.astype(np.int64), return_inverse=True)
    columns = ["doc_key", "text_key", "source"]
    keys = corpus.take("documents", columns, known).take(pa.array(at))
    source = keys["source"].cast(pa.string())
    values = (member, container, size, found[:, 0], found[:, 1])
    table = pa.table(
        [*map(pa.array, values), keys["doc_key"], keys["text_key"], source], schema=LINK
    ).combine_chunks()
    output = arrow_output(layout.shard("containments", job.index, "arrow"), table)
    return Result((output,), {"compared": len(is_in), "links": len(table)})


def _find_likely(job: ContainmentsJob, inputs: Inputs) -> tuple[I64, I64, I64]:
    """Pairs that share at least half as much of the sample as must be shared of the texts:
    document, container, bytes of the document, by document, then container."""
    from dedup.containment import MOST_CONTAINERS

    parts = list(slice_found(job.pairs.value, job.index, job.index + 1, inputs))
    if not sum(map(len, parts)):
        return (np.zeros(0, np.int64),) * 3
    pairs = pa.concat_tables(parts)
    document, container, shared = (
        pairs[n].to_numpy().astype(np.uint64) for n in ("document", "container", "shared")
    )
    pair, number = np.unique(document << np.uint64(32) | container, return_inverse=True)
    shared = np.bincount(number, shared).astype(np.int64)
    document, container = (
        (pair >> np.uint64(32)).astype(np.int64),
        (pair & np.uint64(0xFFFFFFFF)).astype(np.int64),
    )
    sizes = inputs.table(job.sizes)
    row = np.searchsorted(sizes["row"].to_numpy(), document - job.first)
    is_likely = 2 * shared >= job.rules.min_share * sizes["sampled"].to_numpy()[row]
    document, container, shared, row = (
        values[is_likely] for values in (document, container, shared, row)
    )
    order = np.lexsort((container, -shared, document))
    place = np.arange(len(order)) - np.searchsorted(document[order], document[order])
    chosen = np.sort(order[place < MOST_CONTAINERS])
    size = sizes["bytes"].to_numpy()[row[chosen]].astype(np.int64)
    return document[chosen], container[chosen], size


@dataclass(frozen=True)
class ContainedJob:
    """All links; documents from dense index `first_new` on are of this run."""

    links: Shared[tuple[Shard, ...]]
    first_new: int


def _contained(job: ContainedJob, inputs: Inputs) -> Result:
    """Columns member, representative, by member: of every document that goes the one that stays for
    it."""
    from dedup.containment import choose_containers

    columns = ["member", "bytes", "representative", "share"]
    links = pa.concat_tables([inputs.table(shard, columns) for shard in job.links.value])
    member, size, container, share = (links[name].to_numpy() for name in columns)
    chosen = choose_containers(member, size, container, share, job.first_new)
    table = links.select(["member", "representative"]).filter(pa.array(chosen))
    output = arrow_output(layout.shard("contained", 0, "arrow"), table.combine_chunks())
    return Result((output,), {"documents": len(table)})


def read_contained(
    chosen: Shard, links: Sequence[Shard], bounds: tuple[int, int], inputs: Inputs
) -> pa.Table:
    """The links, LINK by member, by which documents in these bounds go; `links` are theirs."""
    goes = inputs.open(chosen)
    rows = goes.read(None, *goes.find("member", *bounds))
    table = pa.concat_tables([LINK.empty_table(), *(inputs.table(shard) for shard in links)])
    pair, wanted = (
        t["member"].to_numpy().astype(np.uint64) << np.uint64(32) | t["representative"].to_numpy()
        for t in (table, rows)
    )
    return table.filter(pa.array(np.isin(pair, wanted)))


def find_contained(
    batches: Batches,
    stays: Sequence[Shard],
    rules: ContainmentRules,
    memory: int,
    run: RunStage,
) -> tuple[ContainmentsOutput, ContainedOutput]:
    """Run all stages from samples on; returns links and choices among them. `stays` has the ends of
    this run's documents without them."""
    own, tasks = batches.all[-1], []
    for index, (documents, kept) in enumerate(zip(own.documents, stays, strict=True)):
        job: Any = SamplesJob(index=index, documents=documents, stays=kept, preset=rules.preset)
        tasks.append(Task(f"samples of {documents.path}", job, (documents, kept), documents.size))
    samples = SamplesOutput(
        run(Stage(name="samples", version=SAMPLES, function=_samples, tasks=tuple(tasks)))
    )
    join = Join(
        name="containers",
        version=2,
        function=_containers,
        make_job=partial(ContainersJob, first_new=batches.first_new),
        merge="merge_samples",
        merged="merged_samples",
        entry_bytes=_ENTRY_BYTES,
    )
    runs, entries = _list_runs(batches, samples)
    joined = join_digests(join, runs, None, entries, memory, run)
    pairs = ContainersOutput(joined).pairs
    found = return_found(pairs, len(own.documents), "merge_containers", "merged_containers", run)
    every, texts, tasks = Shared(batches), Shared(own.documents), []
    firsts = accumulate(own.counts, initial=batches.first_new)
    for (index, (_, part)), first in zip(enumerate(single_ranges(found)), firsts, strict=False):
        job = ContainmentsJob(
            index=index,
            first=first,
            sizes=samples.sizes[index],
            pairs=part.shards,
            batches=every,
            rules=rules,
        )
        inputs = (job.sizes, job.pairs, texts)
        work = own.documents[index].size
        tasks.append(Task(f"containments of shard {index}", job, inputs, work))
    links = ContainmentsOutput(
        run(Stage(name="containments", version=2, function=_containments, tasks=tuple(tasks)))
    )
    job = ContainedJob(Shared(links.links), batches.first_new)
    needed = _LINK_BYTES * sum(links.counts)
    task = Task("contained documents", job, (job.links,), sum(links.counts), needed)
    stage = Stage(
        name="contained", version=2, function=_contained, tasks=(task,), reads_texts=False
    )
    return links, ContainedOutput(run(stage))


def _list_runs(batches: Batches, own: SamplesOutput) -> tuple[list[SortedRuns], int]:
    """The samples of earlier batches that have some, and of this run; how many entries they
    hold."""
    runs: list[SortedRuns] = []
    entries, base = sum(own.counts), 0
    for batch in batches.all:
        shards = own.runs if batch is batches.all[-1] else ()
        if isinstance(batch, SampledBatch):
            shards = batch.samples
            entries += sum(batch.sampled)
        for shard, first in zip(shards, accumulate(batch.counts, initial=base), strict=False):
            runs.append(SortedRuns(shard, first, batch.location))
        base += batch.total
    return runs, entries
