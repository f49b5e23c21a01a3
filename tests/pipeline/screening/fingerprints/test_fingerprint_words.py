"""Words of texts: the kernel against the plain Python reference, over all of Unicode."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.text import Texts, join_texts
from pipeline.screening.fingerprints.alphabet import LIMIT, find_unit, make_alphabet
from pipeline.screening.fingerprints.words import ROOM, Words, append_words, find_words
from tests.pipeline.screening.fingerprints import reference

PIECES = [
    "a", "b", "Word", "don't", "don’t", "-", "\u2010", "\u00ad", "-\n", "-\r\n", "-\r", "\n",
    "\r\n", " ", "\t", "\u00a0", "_", "½", "ﷺ", "ﬁ", "Æ", "é", "e\u0301", "İ", "ß", "ΟΔΟΣ",
    "слово", "漢", "かな", "ガ", "ไทย", "น้ำ", "한글", "\u200b", "\ufeff", "🙂", "हिन्दी", "١٢",
    "\u0301", "㍿", "\U0002f81a", "\U00030000", "\U000e0041", "x" * 40, "1", "²", "—", "´", "ｅ",
    "㏂",
]  # fmt: skip
texts = st.one_of(
    st.text(max_size=40),
    st.lists(st.sampled_from(PIECES), max_size=24).map("".join),
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=16).map("".join),
)


def kernel_words(text: str) -> list[reference.Word]:
    found = find_words(join_texts([text]))
    return list(zip(*(column.tolist() for column in found), strict=True))


def hashes(text: str) -> list[int]:
    return [word for word, _, _ in kernel_words(text)]


@given(texts)
def test_kernel_is_the_reference(text: str) -> None:
    assert kernel_words(text) == reference.words(text)


def test_code_points() -> None:
    """Each one between letters and a hyphen, so that it may join, break, vanish or stand alone."""
    every = [*range(0x3400), *range(0x3400, 0x20000, 7), *range(0x20000, LIMIT + 0x100, 61)]
    points = [p for p in every if not 0xD800 <= p < 0xE000]
    points += [0x323AF, 0x3FFFF, 0x40000, 0xE0000, 0xE0FFF, 0xE1000, 0x10FFFF]
    for start in range(0, len(points), 4096):
        text = "".join(f"a{chr(p)}b-\n" for p in points[start : start + 4096])
        assert kernel_words(text) == reference.words(text)


def test_table_holds_what_the_definition_says() -> None:
    tables = make_alphabet()
    rng = np.random.default_rng(1)
    for point in [*range(0x250), *rng.integers(0x250, LIMIT, 2000).tolist()]:
        if not 0xD800 <= point < 0xE000:
            units = find_unit(chr(point))
            assert (len(units) == 1) == (tables.points[point] in units)


@given(texts, st.integers(ROOM, ROOM + 5))
def test_blocks_join(text: str, room: int) -> None:
    """Read in blocks of a few words, a text has the words that it has at once."""
    data = join_texts([text]).data
    words = Words(*(np.empty(room, kind) for kind in (np.uint64, np.int64, np.int64)))
    opened, found, position = np.zeros(3, np.uint64), [], 0
    while position < len(data):
        count, position = append_words(data, position, len(data), make_alphabet(), words, 0, opened)
        found += list(zip(*(column[:count].tolist() for column in words), strict=True))
    assert found == reference.words(text)


@given(texts)
def test_normal_forms_have_the_same_words(text: str) -> None:
    text = text.replace("´", "")  # dropped as an apostrophe, though NFKC makes a blank of it
    expected = hashes(text)
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert hashes(unicodedata.normalize(form, text)) == expected


@given(texts)
def test_spans_are_ascending_and_hold_letters(text: str) -> None:
    data, last = text.encode(), 0
    for _, start, end in kernel_words(text):
        assert last <= start < end <= len(data)
        data[start:end].decode()  # whole code points
        last = start


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("don't stop", "don’t STOP"),
        ("the eﬀort", "the effort"),
        ("Cæsar's œuvre", "caesars oeuvre"),
        ("a hyphen-\n  ated word", "a hyphenated word"),
        ("a hyphen-\r\nated word", "a hyphenated word"),
        ("soft\u00adly", "softly"),
        ("soft\u00ad\nly", "softly"),
        ("_emphasis_ here", "emphasis here"),
        ("“quoted” — dash", '"quoted" -- dash'),
        ("café", "cafe\u0301"),
        ("ma má mà mả mã mạ", "ma ma ma ma ma ma"),
        ("mоdеl", "model"),  # Cyrillic о and е
        ("ⅷ", "VIII"),
        ("ｆｕｌｌ　ｗｉｄｔｈ", "full width"),
    ],
)
def test_same_words(one: str, other: str) -> None:
    assert hashes(one) == hashes(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("well-known", "wellknown"), ("end -\nly", "endly"), ("end-\n\nly", "endly"), ("a.b", "ab")],
)
def test_other_words(one: str, other: str) -> None:
    assert hashes(one) != hashes(other)


def test_bytes_count_from_the_text() -> None:
    data = np.frombuffer("before ünd after".encode(), np.uint8)
    text = Texts.one(data, 7, 11)
    assert find_words(text).starts.tolist() == [0]
    assert find_words(text).ends.tolist() == [4]
