"""Answers about documents of several generations of a run, put together: documents one generation
after the other, sums over all. `doc` counts rows of documents.parquet over all generations.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.lineage.checkpoint_trace import CheckpointTrace, sum_by_source, trace_checkpoint
from pipeline.lineage.exposure import Exposure, ForwardTrace, SplitShare
from pipeline.lineage.training import Period, TrainingRecord
from pipeline.runs.generations import Generation, list_generations
from pipeline.runs.records import DocumentTable


def trace_run_checkpoint(directory: Path, model_dir: Path, checkpoint: Path) -> CheckpointTrace:
    """`trace_checkpoint` over all generations of a run."""
    generations = list_generations(directory)
    traces = [trace_checkpoint(g.directory, model_dir, checkpoint) for g in generations]
    return _join_checkpoint_traces(traces, count_documents_before(generations))


def count_documents_before(generations: Sequence[Generation]) -> list[int]:
    """How many documents the tables of earlier generations have, for each."""
    if len(generations) == 1:
        return [0]
    return [*accumulate((len(DocumentTable(g.directory)) for g in generations), initial=0)][:-1]


def join_forward_traces(
    traces: Sequence[ForwardTrace], documents: Sequence[int], training: TrainingRecord | None
) -> ForwardTrace:
    """One answer from that of each generation; `documents`: how many rows each has before it in the
    tables of the earlier ones."""
    if len(traces) == 1:
        return traces[0]
    moved = [_move(trace, before) for trace, before in zip(traces, documents, strict=True)]
    exposures = [trace.exposure for trace in moved if trace.exposure is not None]
    return ForwardTrace(
        tuple(document for trace in moved for document in trace.documents),
        _join_shares([share for trace in moved for share in trace.splits]),
        pa.concat_tables([trace.places for trace in moved]).combine_chunks(),
        join_exposures(exposures, training) if training is not None else None,
        tuple(dict.fromkeys(note for trace in moved for note in trace.notes)),
    )


def _move(trace: ForwardTrace, before: int) -> ForwardTrace:
    return replace(
        trace,
        documents=tuple(replace(d, doc=d.doc + before) for d in trace.documents),
        places=_move_docs(trace.places, before),
    )


def _move_docs(table: pa.Table, before: int) -> pa.Table:
    doc = pa.array(table["doc"].to_numpy() + np.uint32(before), pa.uint32())
    return table.set_column(table.column_names.index("doc"), "doc", doc)


def _join_shares(shares: Sequence[SplitShare]) -> tuple[SplitShare, ...]:
    joined: dict[str, SplitShare] = {}
    for share in shares:
        before = joined.get(share.split)
        joined[share.split] = share if before is None else _add_share(before, share)
    return tuple(joined[name] for name in sorted(joined))


def _add_share(a: SplitShare, b: SplitShare) -> SplitShare:
    names = ("documents", "copies", "tokens", "stream_tokens", "rows")
    return replace(a, **{name: getattr(a, name) + getattr(b, name) for name in names})


def join_exposures(exposures: Sequence[Exposure], training: TrainingRecord) -> Exposure:
    """What a training run read of documents of several generations."""
    steps = sorted({step for exposure in exposures for step in exposure.steps})
    context = {step for exposure in exposures for step in exposure.context_steps} - {*steps}
    following = [e.next_step for e in exposures if e.next_step is not None]
    return Exposure(
        model_dir=training.model_dir,
        last_step=training.last_step,
        steps=tuple(steps),
        context_steps=tuple(sorted(context)),
        labels_read=sum(exposure.labels_read for exposure in exposures),
        first_exposed=training.first_exposed(steps[0]) if steps else None,
        last_unexposed=training.last_unexposed(steps[0] if steps else training.last_step + 1),
        next_step=min(following, default=None),
        elsewhere=_join_elsewhere([exposure.elsewhere for exposure in exposures]),
    )


def _join_elsewhere(of_generations: Sequence[tuple[Period, ...]]) -> tuple[Period, ...]:
    """What none of the generations explains."""
    first, *others = of_generations
    return tuple(period for period in first if all(period in other for other in others))


def _join_checkpoint_traces(
    traces: Sequence[CheckpointTrace], documents: Sequence[int]
) -> CheckpointTrace:
    first = traces[0]
    if len(traces) == 1:
        return first
    moved = [_move_docs(t.documents, before) for t, before in zip(traces, documents, strict=True)]
    table = pa.concat_tables(moved).combine_chunks()
    return replace(
        first,
        rows=sum(trace.rows for trace in traces),
        rows_of_data_set=sum(trace.rows_of_data_set for trace in traces),
        labels_read=sum(trace.labels_read for trace in traces),
        context_only=sum(trace.context_only for trace in traces),
        sources=sum_by_source(table),
        documents=table,
        elsewhere=_join_elsewhere([trace.elsewhere for trace in traces]),
    )
