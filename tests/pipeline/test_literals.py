"""The marker search of the screen: the first place of every literal, as `bytes.find` says."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipeline.provenance.literals import first_places

LITERALS = st.lists(st.text("aAbBé.- "[:4] + "-.", min_size=2, max_size=4), min_size=1, max_size=6)
TEXTS = st.lists(st.text("aAbBé-. \U0001f600", max_size=30), max_size=5)


@given(TEXTS, LITERALS, st.integers(0, 3))
def test_equals_bytes_find(texts: list[str], literals: list[str], cut: int) -> None:
    chunks = [pa.array(texts[:cut], pa.large_string()), pa.array(texts[cut:], pa.large_string())]
    found = first_places(pa.chunked_array(chunks), literals)
    expected = [
        (i, j, place)
        for i, text in enumerate(texts)
        for j, literal in enumerate(literals)
        if (place := text.encode().lower().find(literal.lower().encode())) >= 0
    ]
    columns = (found.text.tolist(), found.literal.tolist(), found.offset.tolist())
    assert list(zip(*columns, strict=True)) == expected
