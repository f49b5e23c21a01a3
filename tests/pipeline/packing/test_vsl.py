"""The `vsl` format through all stages: what a reader of the rows may rely on, token by token."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.core import rng
from pipeline.core.rng import permute

lengths = st.lists(st.lists(st.integers(1, 30), max_size=6), min_size=1, max_size=4)


def segments_of(row: Any, eos: int) -> list[tuple[int, list[int]]]:
    """(first column, tokens) of every segment of a row, from mask and positions; all five channels
    must agree on them."""
    ids, mask, labels, span, position = (channel.tolist() for channel in row)
    used = sum(mask)
    assert mask == [1] * used + [0] * (len(mask) - used)
    assert ids[used:] == labels[used:] == [eos] * (len(mask) - used)
    assert span[used:] == position[used:] == [0] * (len(mask) - used)
    found, start = [], 0
    while start < used:
        count = span[start] + 1
        stop = start + count
        assert span[start:stop] == list(range(count - 1, -1, -1))
        assert position[start:stop] == list(range(count))
        assert ids[start + 1 : stop] == labels[start : stop - 1], "labels are the next inputs"
        assert eos not in ids[start:stop], "an EOS is never an input"
        found.append((start, [*ids[start:stop], labels[stop - 1]]))
        start = stop
    assert start == used
    return found


@settings(max_examples=8)
@given(
    lengths.filter(lambda tasks: any(tasks)), st.integers(2, 16), st.integers(1, 60),
    st.integers(1, 5), st.sampled_from(["first_fit", "greedy"]),
)  # fmt: skip
@example([[17]], 16, 1000, 5, "first_fit")  # exactly one full segment
@example([[18]], 16, 1000, 5, "first_fit")  # folded: the second segment has one label, the EOS
@example([[1, 1], [1]], 4, 1000, 5, "greedy")  # no document has a label: no row at all
@example([[1, 100], [], [1]], 16, 10, 2, "greedy")
@example([[3] * 6] * 4, 5, 1, 2, "first_fit")
def test_rows_and_lineage(
    packed: Callable[..., Any], tasks: list[list[int]], msl: int, bucket: int, per_shard: int,
    packer: str,
) -> None:  # fmt: skip
    with tempfile.TemporaryDirectory() as directory:
        found = packed(
            tasks, Path(directory), bucket, per_shard,
            format="vsl", packer=packer, max_sequence_length=msl,
        )  # fmt: skip
    eos = found.params["eos_id"]
    documents = dict(found.documents)
    labels: dict[int, list[int]] = {number: [] for number in documents}
    spans = {(s["row"], s["token_start"]): s for s in found.spans}
    for number, row in enumerate(found.data):
        for start, tokens in segments_of(row, eos):
            span = spans.pop((number, start))
            assert span["token_end"] - start == len(tokens) - 1
            first = span["doc_token_start"]
            assert tokens == documents[span["doc"]][first : first + len(tokens)]
            labels[span["doc"]] += range(first + 1, first + len(tokens))
    assert not spans, "a span without a segment"
    for number, tokens in documents.items():
        assert sorted(labels[number]) == list(range(1, len(tokens))), "a label exactly once"
    total = sum(map(len, documents.values()))
    found.ledger.problems()
    assert found.ledger.problems() == []
    assert found.ledger.mask_sum == total - len(documents)
    assert found.ledger.rows == len(found.data) == found.params["n_examples"]


def test_rows_are_permuted_over_all_buckets(packed: Callable[..., Any], tmp_path: Path) -> None:
    """Position p of the data set is the row that the keyed bijection says."""
    tasks = [[5 + i % 7 for i in range(40)] for _ in range(3)]
    found = packed(tasks, tmp_path, 100, 4, format="vsl", max_sequence_length=16)
    total = len(found.data)
    stream_row = {span["row"]: span["stream_row"] for span in found.spans}
    order = permute(range_array(total), total, rng.key(3, "rows", "train")).astype(int).tolist()
    assert [stream_row[row] for row in range(total)] == order


def range_array(count: int) -> Any:
    import numpy as np

    return np.arange(count)


def test_uint32_ids(packed: Callable[..., Any], wide: Any, tmp_path: Path) -> None:
    found = packed(
        [[30, 4, 9], [17, 2]], tmp_path, 20, 3, wide, format="vsl", max_sequence_length=8
    )
    documents = dict(found.documents)
    for number, row in enumerate(found.data):
        for start, tokens in segments_of(row, wide.eos_id):
            span = next(s for s in found.spans if (s["row"], s["token_start"]) == (number, start))
            begin = span["doc_token_start"]
            assert tokens == documents[span["doc"]][begin : begin + len(tokens)]
    assert (found.params["vocab_size"], found.params["pad_id"]) == (200_000, 199_999)


def test_first_fit_pads_less(packed: Callable[..., Any], tmp_path: Path) -> None:
    tasks = [[2 + (i * 7) % 23 for i in range(200)]]
    pads = {}
    for packer in ("first_fit", "greedy"):
        found = packed(
            tasks, tmp_path / packer, 10**6, 50,
            format="vsl", packer=packer, max_sequence_length=24,
        )  # fmt: skip
        pads[packer] = found.ledger.padding
        assert found.params["h5_dataset_stats"]["num_pad_tokens"] == found.ledger.padding
    assert pads["first_fit"] < 24 < pads["greedy"]


@pytest.mark.parametrize("format_", ["sample", "corpus"])
def test_a_packer_that_is_not_used_is_refused(format_: str) -> None:
    from pydantic import ValidationError

    from pipeline.config.prep import PackConfig

    with pytest.raises(ValidationError, match="expected no packer"):
        PackConfig(format=format_, packer="greedy")  # type: ignore[arg-type]
