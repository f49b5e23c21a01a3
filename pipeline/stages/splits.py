"""Which split every document is in: drawn from its text key and the seed, alone and again whenever
the seed changes (`pipeline.runs.splits`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from dedup.arrays import U8
from pipeline.config.prep import Config
from pipeline.core import ids
from pipeline.core.manifest import Shard
from pipeline.engine.stage import Inputs, Result, Stage, Task, arrow_output
from pipeline.runs import layout, splits
from pipeline.runs.views import KeepOutput


@dataclass(frozen=True, kw_only=True)
class SplitJob:
    """One documents shard with its part of the keep-list; splits in order; draws that move."""

    index: int
    documents: Shard
    keep: Shard
    seed: int
    held_out: splits.HeldOut
    moves: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class SplitRules:
    """What a document's split follows from besides its text key: see `pipeline.runs.splits`."""

    seed: int
    held_out: splits.HeldOut
    moves: tuple[tuple[int, int], ...]

    def assign(self, keep: pa.Table) -> U8:
        """The split of every document of a part of the keep-list, (N,)."""
        drawn = splits.draw(ids.keys_as_u64(keep["text_key"]), self.seed)
        return splits.assign(drawn, self.held_out, dict(self.moves))


def split_rules(config: Config, keep: KeepOutput) -> SplitRules:
    """Those of a run."""
    held_out = splits.held_out(config)
    draws = [
        splits.KeptDraws(tuple(d["counts"]), tuple((n, c) for n, c in d["nearest"]))
        for d in keep.draws
    ]
    return SplitRules(config.seed, held_out, tuple(splits.find_moves(draws, held_out).items()))


def _split(job: SplitJob, inputs: Inputs) -> Result:
    """Columns doc_id and split, row-aligned with the documents."""
    rules = SplitRules(job.seed, job.held_out, job.moves)
    split = rules.assign(inputs.table(job.keep))
    doc_id = inputs.table(job.documents, ["doc_id"])["doc_id"]
    table = pa.table({"doc_id": doc_id, "split": pa.array(split)}).combine_chunks()
    return Result((arrow_output(layout.shard("splits", job.index, "arrow"), table),))


def split_stage(config: Config, documents: Sequence[Shard], keep: KeepOutput) -> Stage:
    """One task per documents shard."""
    rules, tasks = split_rules(config, keep), []
    for index, (shard, kept) in enumerate(zip(documents, keep.states, strict=True)):
        job = SplitJob(
            index=index,
            documents=shard,
            keep=kept,
            **vars(rules),
        )
        tasks.append(Task(f"splits of {shard.path}", job, (shard, kept)))
    return Stage(name="splits", version=2, function=_split, tasks=tuple(tasks), reads_texts=False)
