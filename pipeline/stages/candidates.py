"""Candidates of dedup: documents that share a digest.

`signatures` reads the text once: `signatures/` has the MinHash signature of every document (unless
nothing is verified by it), one shard per documents shard, and `runs/` the sorted digests of every
channel with their rows, one shard per task, which takes several documents shards where there are
many. Channels are the bands; `same`, the digest of the whole normalised text; and, where
one is configured, `key`, the digest of a field of `meta`. `bands` joins one key range of a channel
over all shards; where these are too many for one task, their runs are merged before.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from dedup.arrays import U32, U64
from dedup.presets import Preset
from pipeline.core.manifest import Shard, StageManifest
from pipeline.engine.levels import Bundle, bundle_shards, merge_in_levels, shards_together
from pipeline.engine.shared import Shared
from pipeline.engine.stage import (
    MEMORY_PER_WORK,
    Inputs,
    Output,
    Result,
    RunStage,
    Stage,
    Task,
    arrow_output,
)
from pipeline.runs import layout
from pipeline.runs.views.documents import CleanOutput
from pipeline.runs.views.duplicates import BandsOutput
from pipeline.sources.record import get_field
from pipeline.stages.batches import Batches
from pipeline.stages.digest_runs import Runs, SortedRuns, open_run, with_own_shards

SAME = "same"
KEY = "key"
Entries = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]


@dataclass(frozen=True, kw_only=True)
class SignatureJob:
    """Neighbouring documents shards, from number `first` on, under a preset; `key` is a dotted
    field of meta, or empty."""

    index: int
    first: int
    documents: tuple[Shard, ...]
    preset: Preset
    key: str
    keep_signatures: bool


def channels(preset: Preset, key: str | None) -> tuple[str, ...]:
    """Names of the channels in which documents can meet: bands, then `same`, then `key`."""
    bands = tuple(f"band_{b:02d}" for b in range(preset.bands))
    return (*bands, SAME, *((KEY,) if key else ()))


def _signatures(job: SignatureJob, inputs: Inputs) -> Result:
    counters: dict[str, Any] = {}
    return Result(_sketch(job, inputs, counters), counters)


def _sketch(job: SignatureJob, inputs: Inputs, counters: dict[str, Any]) -> Iterator[Output]:
    from dedup.lsh import band_digests
    from dedup.minhash import sketch_documents

    found: list[dict[str, Entries]] = []
    keyed: list[dict[str, Entries]] = []
    counts: list[int] = []
    for number, shard in enumerate(job.documents, job.first):
        table = inputs.table(shard, ["meta", "text"] if job.key else ["text"])
        sketches, base = sketch_documents(table["text"], job.preset), np.uint32(sum(counts))
        rows = np.flatnonzero(sketches.shingles > 0).astype(np.uint32)
        signatures = sketches.signatures
        runs: dict[str, Entries] = {SAME: (sketches.text_digest[rows], rows + base)}
        if job.preset.bands:
            digests = band_digests(signatures[rows], job.preset.bands, job.preset.rows)
            runs |= {f"band_{b:02d}": (digests[b], rows + base) for b in range(job.preset.bands)}
        found.append(runs)
        if job.key:
            digests, owners = _key_digests(table["meta"], job.key)
            keyed.append({KEY: (digests, owners + base)})
        if job.keep_signatures:
            column = pa.FixedSizeListArray.from_arrays(
                pa.array(np.ascontiguousarray(signatures).reshape(-1)), job.preset.num_perm
            )
            path = layout.shard("signatures", number, "arrow")
            yield arrow_output(path, pa.table({"signature": column}))
        counts.append(len(table))
    yield _runs(layout.shard("runs", job.index, "arrow"), found)
    if job.key:
        yield _runs(layout.shard("runs", job.index, "key.arrow"), keyed)
    counters["documents"] = sum(counts)
    counters["counts"] = counts
    counters["entries"] = sum(len(runs[SAME][1]) for runs in found)
    counters["keyed"] = sum(len(runs[KEY][1]) for runs in keyed)


def _runs(path: str, found: list[dict[str, Entries]]) -> Output:
    """Columns CHANNEL (uint64 digests, ascending) and CHANNEL_row (uint32) per channel, of all that
    was found."""
    from dedup.lsh import sort_run

    columns: dict[str, pa.Array] = {}
    for channel in found[0]:
        digests, rows = ([entries[channel][of] for entries in found] for of in (0, 1))
        ordered, owners = sort_run(np.concatenate(digests), np.concatenate(rows))
        columns |= {channel: pa.array(ordered), f"{channel}_row": pa.array(owners)}
    return arrow_output(path, pa.table(columns))


def _key_digests(metas: pa.ChunkedArray, key: str) -> Entries:
    """Digests of the field `key` of every meta object that holds it, and their rows."""
    digests, rows = [], []
    for row, meta in enumerate(metas):
        value = get_field(msgspec.json.decode(meta.as_buffer()), key)
        if value not in (None, ""):
            digests.append(xxhash.xxh3_64_intdigest(msgspec.json.encode(value)))
            rows.append(row)
    return np.array(digests, np.uint64), np.array(rows, np.uint32)


_CHANNEL_BYTES = 48
"""Working memory of one document in a channel: digest and row, as found, together, and twice for
the sort."""


def signature_stage(clean: CleanOutput, preset: Preset, key: str | None, keep: bool) -> Stage:
    """The stage that reads each document once; `keep` also writes the signatures themselves."""
    tasks = []
    together, entry = shards_together(len(clean.documents)), _CHANNEL_BYTES * (preset.bands + 2)
    for index, first in enumerate(range(0, len(clean.documents), together)):
        shards = clean.documents[first : first + together]
        job = SignatureJob(
            index=index,
            first=first,
            documents=shards,
            preset=preset,
            key=key or "",
            keep_signatures=keep,
        )
        sizes, records = [s.size for s in shards], sum(clean.records[first : first + together])
        memory = MEMORY_PER_WORK * max(sizes) + entry * records
        label = f"signatures of {shards[0].path}"
        tasks.append(Task(label, job, shards, sum(sizes), memory))
    settings = {"preset": asdict(preset), "key": key or ""}
    return Stage(
        name="signatures", version=3, function=_signatures, tasks=tuple(tasks), settings=settings
    )


_ENTRY_BYTES = 48
"""Working memory of one entry: digest and document, twice for the sort, and its bucket."""


@dataclass(frozen=True, kw_only=True)
class JoinJob:
    """Digests of `channel` in [low, high], both included, over all runs."""

    index: int
    channel: str
    low: int
    high: int
    runs: Runs
    first_new: int


def _join(job: JoinJob, inputs: Inputs) -> Result:
    """Columns member (uint32 dense index), bucket (uint32 from 0); only buckets of two and more
    documents, of which one is new."""
    from dedup.join import buckets

    digests, members = _read_runs(job, inputs)
    member, bucket = buckets(digests, members, new_from=job.first_new)
    table = pa.table({"member": pa.array(member), "bucket": pa.array(bucket)})
    output = arrow_output(layout.shard("bands", job.index, "arrow"), table)
    count = int(bucket.max()) + 1 if len(bucket) else 0
    return Result((output,), {"channel": job.channel, "buckets": count, "memberships": len(member)})


def _read_runs(job: "JoinJob | MergeRunsJob", inputs: Inputs) -> tuple[list[U64], list[U32]]:
    """The digests of every run, ascending, and the documents they are of."""
    digests, members = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint32)]
    for entry in job.runs.value:
        (table, base), row = open_run(entry, inputs), f"{job.channel}_row"
        start, stop = table.find(job.channel, job.low, job.high + 1)
        if stop > start:
            part = table.read([job.channel, row], start, stop)
            digests.append(part[job.channel].to_numpy())
            members.append((part[row].to_numpy() + np.uint64(base)).astype(np.uint32))
    return digests, members


@dataclass(frozen=True, kw_only=True)
class MergeRunsJob:
    """Digests of `channel` in [low, high], both included, in a group of runs."""

    index: int
    channel: str
    low: int
    high: int
    runs: Runs


def _merge_runs(job: MergeRunsJob, inputs: Inputs) -> Result:
    """The columns of the channel, of which CHANNEL_row has dense indices."""
    from dedup.join import merge

    digests, members = merge(*_read_runs(job, inputs))
    table = pa.table({job.channel: digests, f"{job.channel}_row": members})
    return Result((arrow_output(layout.shard("merged_runs", job.index, "arrow"), table),))


def join_channels(
    batches: Batches, channels: tuple[str, ...], memory: int, run: RunStage
) -> BandsOutput:
    """Run the stages that find documents with equal digests: channels x key ranges. The ranges
    follow from the number of documents and the memory of one task alone."""
    from dedup.join import key_ranges

    batches.check_size()
    ranges = len(key_ranges(batches.total, _ENTRY_BYTES, memory))
    needed = min(memory, _ENTRY_BYTES * batches.total)
    bundles = []
    for channel in channels:
        runs = _runs_of_channel(batches, channel)
        size = sum(run.size for run in runs if not run.location) // max(len(channels), 1)
        bundles.append(bundle_shards(channel, ranges, Shared(runs), work=size))

    def merge(name: str, wide: Sequence[Bundle]) -> StageManifest:
        tasks = [
            Task(
                f"{name} of {bundle.name} from {low:016x}, group {index}",
                MergeRunsJob(
                    index=index, channel=bundle.name, low=low, high=high - 1, runs=bundle.shards
                ),
                own,
                bundle.work,
                needed,
            )
            for index, (bundle, own) in enumerate(with_own_shards(wide))
            for low, high in [bundle.bounds(1 << 64)]
        ]
        return run(Stage(name=name, version=1, function=_merge_runs, tasks=tuple(tasks)))

    narrow = merge_in_levels(bundles, ("merge_runs",), merge)
    tasks: list[Task] = []
    for bundle, own in with_own_shards(narrow):
        for number in range(bundle.first, bundle.stop):
            low, high = ((number + i << 64) // ranges for i in (0, 1))
            job = JoinJob(
                index=len(tasks),
                channel=bundle.name,
                low=low,
                high=high - 1,
                runs=bundle.shards,
                first_new=batches.first_new,
            )
            label = f"{bundle.name} from {low:016x}"
            work = bundle.work // (bundle.stop - bundle.first)
            tasks.append(Task(label, job, own, work, needed))
    settings = {"first_new": batches.first_new}
    bands = Stage(name="bands", version=2, function=_join, tasks=tuple(tasks), settings=settings)
    return BandsOutput(run(bands))


def _runs_of_channel(batches: Batches, channel: str) -> tuple[SortedRuns, ...]:
    runs, base = [], 0
    for batch in batches.all:
        shards = [s for s in batch.runs if s.path.endswith(".key.arrow") == (channel == KEY)]
        if shards:
            bases = accumulate(batch.run_counts[:-1], initial=base)
            runs += [SortedRuns(s, b, batch.location) for s, b in zip(shards, bases, strict=True)]
        base += batch.total
    return tuple(runs)
