"""Rows of lists and texts copied: equal to pyarrow's `take`, for every chunking and slicing."""

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.hdf5.packing import measure_byte_lengths, take_rows

KINDS = {
    "uint16": (pa.large_list(pa.uint16()), st.lists(st.integers(0, 2**16 - 1), max_size=6)),
    "uint32": (pa.large_list(pa.uint32()), st.lists(st.integers(0, 2**32 - 1), max_size=6)),
    "text": (pa.large_string(), st.text(max_size=6)),
}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_take(kind: str, data: st.DataObject) -> None:
    arrow, values = KINDS[kind]
    chunks = []
    for rows in data.draw(st.lists(st.lists(values, max_size=8), max_size=4)):
        first = data.draw(st.integers(0, len(rows)))
        chunks.append(pa.array(rows, arrow).slice(first, data.draw(st.integers(0, len(rows)))))
    column = pa.chunked_array(chunks, arrow)
    count = len(column)
    order = data.draw(st.lists(st.integers(0, count - 1), max_size=20)) if count else []
    taken = take_rows(column, pa.array(order, pa.int64()).to_numpy())
    taken.validate(full=True)
    assert taken.type == arrow
    assert taken.to_pylist() == [column[i].as_py() for i in order]


@given(st.lists(st.text(max_size=5), max_size=9))
@example([])
def test_byte_lengths(texts: list[str]) -> None:
    column = pa.chunked_array([pa.array(texts, pa.large_string())])
    assert measure_byte_lengths(column).tolist() == [len(text.encode()) for text in texts]
