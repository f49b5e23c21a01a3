"""Cleaned: the kept documents as records, which is what `prep clean` hands over.

Those of every task, cleaned, in input order, under cleaned/, as records like those of `prep
export`; `key` is what `prep explain` takes.
"""

from dataclasses import dataclass

import msgspec
import pyarrow as pa

from pipeline import layout
from pipeline.core.manifest import Shard, StageManifest
from pipeline.stage import Inputs, Output, Result, Stage, Task
from pipeline.stages.export_format import FIELDS, Format, columns_for, image
from pipeline.stages.keep import STATES


@dataclass(frozen=True)
class CleanedJob:
    """One documents shard, the states of its documents, and the format to write."""

    index: int
    form: Format
    documents: Shard
    keep: Shard


def _cleaned(job: CleanedJob, inputs: Inputs) -> Result:
    table = inputs.table(job.documents, ["doc_key", "text", *columns_for(FIELDS)])
    state = inputs.table(job.keep, ["state"])["state"].to_numpy()
    kept = table.filter(pa.array(state == STATES.index("kept")))
    data, content = image(kept, job.form, FIELDS)
    output = Output(layout.shard(layout.CLEANED, job.index, job.form), data, content)
    return Result((output,), {"documents": len(kept), "bytes": len(data)})


def cleaned_stage(clean: StageManifest, keep: StageManifest, form: Format) -> Stage:
    """One task per documents shard."""
    pairs = zip(clean.below("documents"), keep.below("keep"), strict=True)
    tasks = tuple(
        Task(f"cleaned records of task {i}", CleanedJob(i, form, *pair), pair, pair[0].size)
        for i, pair in enumerate(pairs)
    )
    software = {"msgspec": msgspec.__version__, "pyarrow": pa.__version__}
    return Stage("cleaned", 1, _cleaned, tasks, {}, software)
