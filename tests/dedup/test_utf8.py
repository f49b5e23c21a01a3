"""The decoder of compiled code against Python's, for both kinds of indices."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dedup.text import code_point


@given(st.text(min_size=1, max_size=30))
@example("\x00\x7f\x80\u07ff\u0800\uffff\U00010000\U0010ffff")
@pytest.mark.parametrize("kind", [np.int64, np.uint64])
def test_code_points_are_pythons(kind: type, text: str) -> None:
    data, at, points = np.frombuffer(text.encode(), np.uint8), kind(0), []
    while at < len(data):
        point, at = code_point(data, kind(at))
        points.append(chr(point))
    assert "".join(points) == text and at == len(data)
