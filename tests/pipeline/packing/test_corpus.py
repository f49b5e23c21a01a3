"""The `corpus` format through all stages: the stream itself, and whose every token is."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

lengths = st.lists(st.lists(st.integers(1, 30), max_size=6), min_size=1, max_size=4)


@settings(max_examples=8)
@given(lengths.filter(lambda tasks: any(tasks)), st.integers(1, 60), st.integers(1, 40))
@example([[17]], 1000, 17)
@example([[1] * 6] * 4, 1, 1)
@example([[1, 100], [], [1]], 10, 7)
def test_stream_and_lineage(
    packed: Callable[..., Any], tasks: list[list[int]], bucket: int, per_shard: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        found = packed(tasks, Path(directory), bucket, per_shard, format="corpus")
    assert found.data.dtype == "uint16"
    assert found.data.tolist() == found.stream
    assert found.params["n_examples"] == len(found.stream) == found.ledger.corpus_tokens
    assert found.ledger.problems() == []
    owners = [(doc, place) for doc, tokens in found.documents for place in range(len(tokens))]
    named = [
        (span["doc"], span["doc_token_start"] + i)
        for span in found.spans
        for i in range(span["token_end"] - span["token_start"])
    ]
    assert named == owners, "every token, in order"
    starts = [span["token_start"] for span in found.spans]
    assert [0, *(span["token_end"] for span in found.spans[:-1])] == starts


def test_uint32(packed: Callable[..., Any], wide: Any, tmp_path: Path) -> None:
    found = packed([[30, 4, 9], [17, 2]], tmp_path, 20, 8, wide, format="corpus")
    assert found.data.dtype == "uint32"
    assert found.data.tolist() == found.stream
