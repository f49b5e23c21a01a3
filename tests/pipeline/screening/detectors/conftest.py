"""Batches of documents for detectors."""

from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest

MakeBatch = Callable[..., pa.Table]


@pytest.fixture(scope="session")
def make_batch() -> MakeBatch:
    """A function that makes the batch of a detector from texts; other columns are constant unless
    given, and `chunks` are the lengths of the chunks."""

    def make(
        texts: Sequence[str],
        metas: Sequence[str] | None = None,
        sources: Sequence[str] | None = None,
        path_ids: Sequence[int] | None = None,
        chunks: Sequence[int] = (),
    ) -> pa.Table:
        count = len(texts)
        keys = [number.to_bytes(16, "big") for number in range(count)]
        batch = pa.table({
            "doc_key": pa.array(keys, pa.binary(16)),
            "source": pa.array(sources or [""] * count, pa.string()),
            "licence": pa.array([""] * count, pa.string()),
            "meta": pa.array(metas or ["{}"] * count, pa.string()),
            "path_id": pa.array(path_ids or [0] * count, pa.uint32()),
            "text": pa.array(texts, pa.large_string()),
        })  # fmt: skip
        parts, row = [], 0
        for length in chunks:
            parts.append(batch.slice(row, length))
            row += length
        return pa.concat_tables([*parts, batch.slice(row)]) if chunks else batch

    return make
