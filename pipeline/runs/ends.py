"""What became of documents, counted: `Ends`."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from pipeline.runs.splits import TRAIN
from pipeline.runs.views.data_set import Ends


def count_ends(table: pa.Table) -> list[list[Any]]:
    """`Ends` of some documents."""
    keys = ["source", "state", "reason", "split"]
    sums = table.group_by(keys, use_threads=False).aggregate(
        [([], "count_all"), ("text_bytes", "sum"), ("tokens", "sum")]
    )
    columns = [*keys, "count_all", "text_bytes_sum", "tokens_sum"]
    rows = sums.select(columns).sort_by([(name, "ascending") for name in keys])
    return [list(row.values()) for row in rows.to_pylist()]


def count_trained(ends: Iterable[Ends]) -> dict[str, tuple[int, int]]:
    """Source -> documents and tokens of train."""
    trained: dict[str, tuple[int, int]] = {}
    for source, state, _, split, count, _, tokens in ends:
        if state == "kept" and split == TRAIN:
            documents, before = trained.get(source, (0, 0))
            trained[source] = documents + count, before + tokens
    return trained
