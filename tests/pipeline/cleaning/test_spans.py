"""Documents are cut where ftfy cuts them."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dedup.text import join_texts
from pipeline.cleaning.repair import list_spans
from pipeline.cleaning.scan import CONTINUED, DOCUMENT


def segments(text: str, most: int) -> list[str]:
    """The forced cuts of `ftfy.fix_text`, written down from its loop; line ends do not count."""
    pieces = [""]
    position = 0
    while position < len(text):
        end = text.find("\n", position) + 1 or len(text)
        forced = end - position > most
        end = position + most if forced else end
        pieces[-1] += text[position:end]
        if forced:
            pieces.append("")
        position = end
    return pieces


texts = st.lists(st.text(st.sampled_from("aé中😀\n"), max_size=40), max_size=5)


@given(texts, st.integers(1, 9))
def test_cuts(some: list[str], most: int) -> None:
    flat = join_texts(pa.array(some, pa.large_string()))
    spans = list_spans(flat, most)
    expected = [segments(text, most) for text in some]
    found = [
        flat.data[start:end].tobytes().decode()
        for start, end in zip(spans.bounds, spans.bounds[1:], strict=False)
    ]
    assert found == [piece for pieces in expected for piece in pieces]
    assert np.diff(spans.first).tolist() == [len(pieces) for pieces in expected]
    kinds = [[DOCUMENT] + [CONTINUED] * (len(pieces) - 1) for pieces in expected]
    assert spans.kinds.tolist() == [kind for kinds_of_one in kinds for kind in kinds_of_one]
