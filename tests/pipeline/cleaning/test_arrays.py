"""What may go in and what comes out: kinds of arrays, slices, chunks, and what is refused."""

import ftfy
import numpy as np
import pyarrow as pa
import pytest

from dedup.text import Texts
from pipeline.cleaning import clean_array, clean_text, short_mask

TEXTS = [
    "schÃ¶n",
    "",
    "a &amp; b",
    "plain",
    "it’s\r\n",
    "e\u0301",
    "<p>&amp;",
    "ﬁn",
    "x\x00y",
    "é" * 40,
]
CLEAN = [ftfy.fix_text(text, normalization="NFC") for text in TEXTS]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_arrays_of_every_kind(kind: pa.DataType) -> None:
    found = clean_array(pa.array(TEXTS, kind))
    assert isinstance(found, pa.LargeStringArray)
    assert found.to_pylist() == CLEAN
    found.validate(full=True)


def test_dictionaries_slices_and_chunks() -> None:
    assert clean_array(pa.array(TEXTS * 2).dictionary_encode()).to_pylist() == CLEAN * 2
    for start in range(len(TEXTS)):
        for length in range(len(TEXTS) - start):
            piece = pa.array(TEXTS, pa.large_string()).slice(start, length)
            assert clean_array(piece).to_pylist() == CLEAN[start : start + length]
    chunked = pa.chunked_array([TEXTS[:3], [], TEXTS[3:]], pa.string())
    found = clean_array(chunked)
    assert isinstance(found, pa.LargeStringArray) and found.to_pylist() == CLEAN


@pytest.mark.parametrize(
    "empty", [[], pa.array([], pa.string()), pa.chunked_array([], pa.string()), [""], ["", ""]]
)
def test_nothing(empty: object) -> None:
    assert clean_array(empty).to_pylist() == list(map(str, empty))  # type: ignore[arg-type, call-overload]
    assert short_mask(empty, 1).tolist() == [True] * len(empty)  # type: ignore[arg-type]


def test_a_sequence_that_is_not_a_list() -> None:
    assert clean_array(tuple(TEXTS)).to_pylist() == CLEAN


def test_the_input_is_left_alone() -> None:
    data = np.frombuffer("aé’&amp;".encode(), np.uint8).copy()
    offsets = np.array([0, len(data)])
    before = data.copy()
    assert clean_array(Texts(data, offsets)).to_pylist() == ["aé'&"]
    assert (data == before).all() and data.flags.writeable and offsets.flags.writeable


def test_lone_surrogates_are_left_to_ftfy() -> None:
    texts = ["it’s", "a’\ud83d\r&lt;", ""]
    assert clean_array(texts).to_pylist() == [ftfy.fix_text(t, normalization="NFC") for t in texts]


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"text 1 holds a lone surrogate, U\+D83D at character 2"):
        short_mask(["ok", "ab\ud83d"], 10)
    with pytest.raises(ValueError, match="1 texts are null"):
        clean_array(pa.array(["a", None]))
    with pytest.raises(TypeError, match="give strings"):
        clean_array(pa.array([1, 2]))
    invalid = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.array([0, 2], pa.int32()).buffers()[1], pa.py_buffer(b"\xc3(")]
    )
    with pytest.raises(ValueError, match="UTF8"):
        clean_array(invalid)


@pytest.mark.parametrize(("text", "clean"), list(zip(TEXTS, CLEAN, strict=True)))
def test_one_text(text: str, clean: str) -> None:
    assert clean_text(text) == clean
