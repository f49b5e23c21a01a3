"""The normalisation kernel equals the Python reference; buffers of every kind of string array."""

import re
import string

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup.presets import normalize as reference
from dedup.stream import Stream
from dedup.text import (
    BLANK,
    CASED,
    ascii_steps,
    case_table,
    join_texts,
    normalize_part,
    to_lower_case,
    view_texts,
)

ODD = "İΣςσΆßẞﬁǅK𐐀𐐨😀東é́\x00\ufeff\u200d\U0010ffff"
SPACES = " \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2003\u2028\u3000"
letters = st.one_of(
    st.sampled_from("abcde ABCDE"),
    st.sampled_from(ODD + SPACES + "'-.,!_"),
    st.characters(exclude_categories=["Cs"]),
)
DELETE = str.maketrans("", "", string.punctuation)


def plain(text: str) -> str:
    """SlimPajama's own lines."""
    return re.sub(r"\s+", " ", text.lower().translate(DELETE).strip())


def by_kernel(text: str) -> str | None:
    texts = view_texts([text])[0]
    size = len(texts.data)
    out = np.zeros(size + 3, np.uint32)
    at, count, _ = normalize_part(
        texts.data, 0, size, case_table(), ascii_steps(), out, 0, size + 1, True
    )
    found = "".join(map(chr, out[:count]))
    return None if at < 0 else found.removesuffix(chr(BLANK))


@given(st.text(letters, max_size=200))
def test_kernel_equals_the_reference(text: str) -> None:
    assert reference(text) == plain(text)
    found = by_kernel(text)
    assert found == (None if "Σ" in text else plain(text))


def test_every_code_point() -> None:
    """Below CASED the kernel changes each as Python does, above it nothing changes."""
    points = [c for c in range(CASED) if not 0xD800 <= c < 0xE000 and c != 0x3A3]
    found = by_kernel("".join(f"x{chr(c)}y" for c in points))
    assert found == plain("".join(f"x{chr(c)}y" for c in points))
    above = "".join(map(chr, range(CASED, 0x110000)))
    assert above.lower() == above and not re.search(r"\s", above)
    assert by_kernel(above[::97]) == above[::97]


def test_the_two_special_capitals_are_all() -> None:
    """No other code point has a lower case of several, or one that depends on its neighbours."""
    every = [chr(c) for c in range(CASED) if not 0xD800 <= c < 0xE000]
    assert [c for c in every if len(c.lower()) != 1] == ["\u0130"]
    assert all(f"a{c}b".lower()[1:-1] == c.lower() for c in every)
    assert [c for c in every if f"a{c}".lower()[1:] != c.lower()] == ["\u03a3"]


@settings(max_examples=60)
@given(st.lists(st.text(letters, max_size=150), max_size=6), st.sampled_from([64, 100, 4096]))
def test_stream_delivers_every_text_once(texts: list[str], capacity: int) -> None:
    """Joined again, the batches are the normalised texts, wherever they were cut."""
    found = [""] * len(texts)
    for batch in Stream(overlap=1, capacity=capacity).batches(view_texts(texts)[0]):
        for number, (row, start, stop, _) in enumerate(batch.segments.tolist()):
            goes_on = number == 0 and batch.continues
            part = "".join(map(chr, batch.points[batch.fresh if goes_on else start : stop]))
            found[row] = found[row] + part if goes_on else part
            batch.keep_from = stop
    assert found == [plain(text) for text in texts]


@given(st.lists(st.text(letters, max_size=20)), st.data())
def test_buffers_of_arrays(values: list[str], data: st.DataObject) -> None:
    """string, large_string, string_view and dictionary arrays; sliced and chunked."""
    low = data.draw(st.integers(0, len(values)))
    kind = data.draw(st.sampled_from([pa.string(), pa.large_string(), pa.string_view()]))
    array = pa.array(values, kind)
    if kind == pa.string() and data.draw(st.booleans()):
        array = array.dictionary_encode()
    chunked = pa.chunked_array([array[:low], array[low:]])
    for texts, expected in ((array[low:], values[low:]), (chunked, values), (values, values)):
        found = [chunk.text(i) for chunk in view_texts(texts) for i in range(len(chunk))]
        assert found == expected
        whole = join_texts(texts)
        assert [whole.text(i) for i in range(len(whole))] == expected
        assert not whole.data.flags.writeable and not whole.offsets.flags.writeable


def test_memory_is_not_copied() -> None:
    array = pa.array(["one", "two"], pa.large_string())
    assert view_texts(array)[0].data.ctypes.data == array.buffers()[2].address
    assert view_texts(view_texts(array)[0])[0].offsets.tolist() == [0, 3, 6]


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="1 texts are null"):
        view_texts(pa.array(["a", None]))
    with pytest.raises(ValueError, match="2 texts are null"):
        view_texts(pa.array(["a", None, "a", None]).dictionary_encode())
    with pytest.raises(TypeError, match="one str; give a list"):
        view_texts("text")
    with pytest.raises(TypeError, match="text 1 is a NoneType; give strings"):
        view_texts(["text", None])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="array of int64; give strings"):
        view_texts(pa.array([1]))
    with pytest.raises(TypeError, match="array of binary; give strings"):
        view_texts(pa.array([b"a"]))
    with pytest.raises(UnicodeEncodeError):
        view_texts(["\ud800"])
    offsets, data = pa.py_buffer(np.array([0, 1], np.int64)), pa.py_buffer(b"\xf4")
    broken = pa.Array.from_buffers(pa.large_string(), 1, [None, offsets, data])
    with pytest.raises(pa.ArrowInvalid, match="UTF8"):
        view_texts(broken)


def test_dotted_capitals_fill_the_buffer() -> None:
    """U+0130 takes two bytes and becomes two code points, also at the very end of a batch."""
    for text in ("İ" * 70, "a" + "İ" * 70, "İ ." * 40 + "İ"):
        assert by_kernel(text) == plain(text)
        found = []
        for batch in Stream(capacity=64).batches(view_texts([text])[0]):
            _, start, stop, _ = batch.segments[0].tolist()
            found += batch.points[batch.fresh if batch.continues else start : stop].tolist()
            batch.keep_from = stop
        assert "".join(map(chr, found)) == plain(text)


def test_lowered_texts() -> None:
    """Lower case is final: of a text in lower case the kernel makes what it makes of the text."""
    text = "ΟΔΥΣΣΕΎΣ  İstanbul, \u3000K!"
    assert by_kernel(text) is None
    assert by_kernel(to_lower_case(text).text(0)) == plain(text)
    every = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)
    assert every.lower().lower() == every.lower() and "Σ" not in every.lower()
