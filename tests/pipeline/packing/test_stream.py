"""Parts of a stream against the same documents put in order one by one, equal ranks among them."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import IntegrityError
from pipeline.core.manifest import Shard
from pipeline.engine.shared import Shared
from pipeline.engine.stage import Inputs, arrow_output
from pipeline.stages.shuffle.places import Places, in_order
from pipeline.stages.shuffle.stream import SplitStream, read_stream
from tests.pipeline.packing.conftest import publish

Document = tuple[int, int, int, bytes, list[int]]
"""split, rank, doc_id, key, tokens."""

tokens = st.lists(st.integers(0, 60_000), min_size=1, max_size=5)
documents = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 5), st.integers(0, 2), tokens), max_size=20
)


def write_shards(made: list[tuple[int, Document]], root: Path) -> tuple[Shard, ...]:
    shards = []
    for shard in range(3):
        mine = sorted((d for number, d in made if number == shard), key=lambda d: (*d[:2], d[3]))
        split, rank, doc_id, key, lists = (
            (list(c) for c in zip(*mine, strict=True)) if mine else [[]] * 5
        )
        table = pa.table({
            "doc_id": pa.array(doc_id, pa.uint64()), "doc_key": pa.array(key, pa.binary(16)),
            "tokens": pa.array(lists, pa.large_list(pa.uint16())),
        })  # fmt: skip
        placed = Places(np.arange(len(mine)), np.array(split, np.uint8), np.array(rank, np.uint64))
        output = arrow_output(f"tokens/{shard}.arrow", in_order(table, placed))
        shards.append(publish(output, root))
    return tuple(shards)


def stream_of(made: list[Document], edge: int, shards: Any, root: Path) -> SplitStream:
    """Split 1 in two buckets: ranks below `edge`, and the others."""
    buckets, counts = [], []
    for number, some in enumerate(
        ([d for d in made if d[1] < edge], [d for d in made if d[1] >= edge])
    ):
        table = pa.table({
            "doc_id": pa.array([d[2] for d in some], pa.uint64()),
            "rank": pa.array([d[1] for d in some], pa.uint64()),
            "tokens": pa.array([len(d[4]) for d in some], pa.int64()),
        })  # fmt: skip
        if some:
            buckets.append(publish(arrow_output(f"stream/{number}.arrow", table), root))
            counts.append(sum(len(d[4]) for d in some))
    return SplitStream(
        name="other", number=1, buckets=tuple(buckets), bucket_tokens=tuple(counts),
        documents=len(made), shards=tuple(shards[: len(buckets)]),
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(documents, st.integers(0, 6), st.data(), st.booleans())
def test_any_part_of_a_stream(
    drawn: list[tuple[int, int, int, list[int]]], edge: int, data: st.DataObject, apart: bool
) -> None:
    made = [
        (shard, (split, rank, number, bytes([97 + 7 * number % 26]) * 15 + bytes([number]), ids))
        for number, (split, rank, shard, ids) in enumerate(drawn)
    ]
    expected = sorted((d for _, d in made if d[0] == 1), key=lambda d: (d[1], d[3]))
    flat = [token for d in expected for token in d[4]]
    if not flat:
        return
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        shards = Shared(write_shards(made, root))
        several = (shards, Shared((*shards.value,)) if apart else shards)
        stream = stream_of(expected, edge, several, root)
        first = data.draw(st.integers(0, len(flat) - 1))
        stop = data.draw(st.integers(first + 1, len(flat) + 3))
        part = read_stream(stream.buckets_with(first, stop), first, stop, Inputs(root), (2, 9))
        assert part.tokens[-2:].tolist() == [9, 9]
        found = part.tokens[:-2].tolist()
        assert part.start <= first and part.start + len(found) >= min(stop, len(flat))
        assert found == flat[part.start :][: len(found)]
        owners = [d[2] for d in expected for _ in d[4]]
        got = np.repeat(part.doc_id, part.length).tolist()
        assert got == owners[part.start :][: len(found)]


def test_lists_of_other_documents_are_refused(tmp_path: Path) -> None:
    documents: list[Document] = [(1, rank, rank, bytes([rank]) * 16, [rank]) for rank in range(4)]
    shards = Shared(write_shards([(0, d) for d in documents[:3]], tmp_path))
    stream = stream_of(documents, 9, (shards,), tmp_path)
    with pytest.raises(IntegrityError, match=r"stream/0\.arrow: lists other documents"):
        read_stream(stream.buckets_with(0, 4), 0, 4, Inputs(tmp_path))
    longer = [(*d[:4], [7] * (2 if d[1] == 1 else 1)) for d in documents[:3]]
    stream = stream_of(longer, 9, (shards,), tmp_path)
    with pytest.raises(IntegrityError, match=r"stream/0\.arrow: lists other documents"):
        read_stream(stream.buckets_with(0, 4), 0, 4, Inputs(tmp_path))
