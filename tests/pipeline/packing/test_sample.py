"""The `sample` format through all stages, brute-forced.

MSL edge cases on purpose: T - 1 a multiple of MSL, one document longer than many rows, windows that
reach over several buckets, buckets without a document, streams of one or two tokens.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.core import rng
from pipeline.core.rng import permute
from pipeline.hdf5.read import check_split, open_dataset


def brute_force(stream: list[int], length: int, eos: int) -> list[list[list[int]]]:
    """Rows in stream order, token by token."""
    rows = []
    for start in range(0, len(stream) - 1, length):
        ids, mask, labels = [], [], []
        for j in range(start, start + length):
            real = j + 1 < len(stream)
            ids.append(stream[j] if real else eos)
            mask.append(int(real))
            labels.append(stream[j + 1] if real else eos)
        rows.append([ids, mask, labels])
    return rows


lengths = st.lists(st.lists(st.integers(1, 30), max_size=6), min_size=1, max_size=4)


@settings(max_examples=8)
@given(
    lengths.filter(lambda tasks: any(tasks)),
    st.integers(2, 16),
    st.integers(1, 40),
    st.integers(1, 5),
)
@example([[17]], 16, 1000, 5)  # T - 1 = MSL: one full row, no padding
@example([[9, 8]], 16, 1000, 5)  # the same over two documents
@example([[33]], 16, 1000, 1)  # T - 1 = 2 MSL
@example([[34]], 16, 1000, 1)  # one label more
@example([[18]], 16, 1000, 1)
@example([[2]], 2, 1, 1)  # one label
@example([[1, 1]], 2, 1, 1)  # two documents that are nothing but EOS
@example([[1] * 6] * 4, 5, 1, 2)  # as many buckets as tokens: windows reach over many
@example([[200]], 3, 7, 4)  # one document through every bucket
@example([[1, 100], [], [1]], 16, 10, 2)  # empty buckets, an empty task
def test_rows_and_lineage(
    packed: Callable[..., Any], tasks: list[list[int]], length: int, bucket: int, per_shard: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        found = packed(tasks, root, bucket, per_shard, max_sequence_length=length)
        stream = found.stream
        expected = brute_force(stream, length, found.params["eos_id"])
        assert found.params["n_examples"] == len(expected) == -(-(len(stream) - 1) // length)
        assert found.ledger.problems() == []
        if not expected:
            return
        order = permute(np.arange(len(expected)), len(expected), rng.key(3, "rows", "train"))
        rows = order.astype(int).tolist()
        assert found.data.tolist() == [expected[stream_row] for stream_row in rows]
        owners = [(doc, place) for doc, ids in found.documents for place in range(len(ids))]
        _check_spans(found.spans, rows, owners, length)
        facts = check_split(open_dataset(root / "hdf5/train"))
        padded = int((len(stream) - 1) % length > 0)
        assert (facts.rows, facts.mask_sum, facts.padded_rows) == (
            len(expected), len(stream) - 1, padded,
        )  # fmt: skip


def _check_spans(
    spans: list[dict[str, Any]], order: list[int], owners: list[tuple[int, int]], length: int
) -> None:
    """Spans, in (row, token_start) order, name the document and its token for every input id."""
    assert [(s["row"], s["token_start"]) for s in spans] == sorted(
        (s["row"], s["token_start"]) for s in spans
    )
    found: dict[int, tuple[int, int]] = {}
    for span in spans:
        assert span["stream_row"] == order[span["row"]]
        assert span["token_end"] > span["token_start"]
        for i in range(span["token_end"] - span["token_start"]):
            place = span["stream_row"] * length + span["token_start"] + i
            assert place not in found
            found[place] = (span["doc"], span["doc_token_start"] + i)
    assert found == dict(enumerate(owners[:-1])), "every token but the last is an input once"


def test_uint32_ids(packed: Callable[..., Any], wide: Any, tmp_path: Path) -> None:
    found = packed([[30, 4, 9], [17, 2]], tmp_path, 20, 3, wide, max_sequence_length=8)
    expected = brute_force(found.stream, 8, wide.eos_id)
    assert found.data.max() == wide.eos_id > 1 << 16
    assert sorted(found.data.tolist()) == sorted(expected)
    assert (found.params["eos_id"], found.params["vocab_size"]) == (199_999, 200_000)
