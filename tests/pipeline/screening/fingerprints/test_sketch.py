"""Sketches: against the reference, nested, salted, exchanged."""

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import InputError
from pipeline.screening.fingerprints.sketch import (
    SKETCHES,
    Sketch,
    hash_with_key,
    make_key,
    make_sketch_table,
    read_sketches,
    salt_hashes,
    sketch_text,
)
from tests.pipeline.screening.fingerprints import reference

from .conftest import Book

WORDS = ["sun", "Moon", "don't", "漢", "字", "かな", "ไทย", "x", "1929", "слово", "½"]
texts = st.lists(
    st.tuples(st.sampled_from(WORDS), st.sampled_from([" ", "", "\n", "—", ", "])), max_size=60
).map(lambda pairs: "".join(word + blank for word, blank in pairs))

MASK = (1 << 64) - 1


def pairs(sketch: Sketch) -> list[tuple[int, int]]:
    return list(zip(sketch.hashes.tolist(), sketch.positions.tolist(), strict=True))


@given(texts, st.sampled_from([1, 2, 8]), st.integers(1, 15))
def test_kernel_is_the_reference(text: str, s: int, k: int) -> None:
    found = sketch_text(text, s, k)
    assert pairs(found) == reference.sketch(text, k, (1 << 64) // s)
    assert found.words == len(reference.words(text))


def test_long_text_is_the_reference(book: Book) -> None:
    text = book(1, 5000) + "漢字かな" * 500 + book(2, 3000)
    assert pairs(sketch_text(text, 8, 6)) == reference.sketch(text, 6, 1 << 61)


def test_a_sketch_holds_the_sparser_ones(book: Book) -> None:
    text = book(3, 60_000)
    dense = set(pairs(sketch_text(text, 8, 5)))
    sparse = set(pairs(sketch_text(text, 512, 5)))
    assert sparse < dense
    assert abs(len(dense) / (60_000 / 8) - 1) < 0.05
    assert abs(len(sparse) / (60_000 / 512) - 1) < 0.3


def test_a_gram_never_joins_words_and_characters() -> None:
    """Ten words and nine letters of a script without spaces, in turns: no 5 words in a row."""
    assert len(sketch_text("one two three four 漢 " * 9, 1, 5)) == 0
    assert len(sketch_text("漢字" * 8, 1, 5)) == 2


def siphash(data: bytes, key: bytes) -> int:
    """SipHash-2-4 from its paper, any length."""
    low, high = (int.from_bytes(key[i : i + 8], "little") for i in (0, 8))
    v = [low ^ 0x736F6D6570736575, high ^ 0x646F72616E646F6D]
    v += [low ^ 0x6C7967656E657261, high ^ 0x7465646279746573]

    def turn(value: int, by: int) -> int:
        return (value << by | value >> (64 - by)) & MASK

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & MASK
            v[1] = turn(v[1], 13) ^ v[0]
            v[0] = turn(v[0], 32)
            v[2] = (v[2] + v[3]) & MASK
            v[3] = turn(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & MASK
            v[3] = turn(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & MASK
            v[1] = turn(v[1], 17) ^ v[2]
            v[2] = turn(v[2], 32)

    padded = data + bytes(-(len(data) + 1) % 8) + bytes([len(data) & 255])
    for i in range(0, len(padded), 8):
        block = int.from_bytes(padded[i : i + 8], "little")
        v[3] ^= block
        rounds(2)
        v[0] ^= block
    v[2] ^= 255
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def test_the_vector_of_the_paper() -> None:
    """Appendix A: 15 bytes; and the published vector for 8 bytes, which is what is hashed here."""
    assert siphash(bytes(range(15)), bytes(range(16))) == 0xA129CA6149BE45E5
    assert siphash(bytes(range(8)), bytes(range(16))) == 0x93F5F5799A932462
    key = [int.from_bytes(bytes(range(i, i + 8)), "little") for i in (0, 8)]
    value = np.uint64(int.from_bytes(bytes(range(8)), "little"))
    assert hash_with_key(value, np.uint64(key[0]), np.uint64(key[1])) == 0x93F5F5799A932462


@given(st.lists(st.integers(0, MASK), max_size=5), st.binary(min_size=1, max_size=40))
def test_keyed_hashes_are_siphash(values: list[int], salt: bytes) -> None:
    key = hashlib.sha256(salt).digest()[:16]
    assert make_key(salt) == tuple(int.from_bytes(key[i : i + 8], "little") for i in (0, 8))
    expected = [siphash(value.to_bytes(8, "little"), key) for value in values]
    assert salt_hashes(np.array(values, np.uint64), salt).tolist() == expected


def test_a_salt_changes_values_and_nothing_else(book: Book) -> None:
    plain, salted = (sketch_text(book(4, 3000), 8, 6, salt) for salt in (None, b"shared secret"))
    assert (plain.positions == salted.positions).all()
    assert not set(plain.hashes.tolist()) & set(salted.hashes.tolist())
    assert (salt_hashes(plain.hashes, b"shared secret") == salted.hashes).all()


@pytest.mark.parametrize(("s", "k"), [(0, 6), (8, 0), (8, 16)])
def test_parameters_out_of_range(s: int, k: int) -> None:
    with pytest.raises(ValueError, match="expected 1 <= k"):
        sketch_text("a text", s, k)


def test_exchange(book: Book) -> None:
    sketches = {"a": sketch_text(book(5, 900)), "b": sketch_text(book(6, 900), salt=b"salt")}
    table = make_sketch_table(sketches)
    assert table.schema == SKETCHES
    back = read_sketches(table)
    for name, sketch in sketches.items():
        assert pairs(back[name]) == pairs(sketch)
        assert (back[name].k, back[name].s, back[name].salt) == (6, 8, sketch.salt)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normalisation": 99}, "has normalisation 99, expected"),
        ({"k": 99}, "k is 99, expected at most 15"),
        ({"s": 0}, "must be given"),
        ({"words": None}, "must be given"),
        ({"positions": [5, 4]}, "positions are not in ascending order"),
        ({"positions": [5]}, "2 hashes but 1 positions"),
        ({"positions": [5, 1000]}, "a position is after its 10 words"),
        ({"words": 1 << 31}, "words, expected at most 268435456"),
        ({"hashes": [1, None]}, "may not be null"),
        ({"hashes": None}, "must be given"),
    ],
)
def test_what_is_no_sketch_is_refused(change: dict[str, object], message: str) -> None:
    row = {"work_id": "w\x1b", "normalisation": 1, "k": 6, "s": 8, "salt": None, "words": 10,
           "hashes": [1, 2], "positions": [0, 3], **change}  # fmt: skip
    with pytest.raises(InputError, match=message) as refused:
        read_sketches(pa.Table.from_pylist([row], SKETCHES))
    assert "\x1b" not in str(refused.value)


def test_columns_are_asked_for() -> None:
    with pytest.raises(InputError, match="lacks the columns salt, words"):
        read_sketches(SKETCHES.empty_table().drop_columns(["salt", "words"]))


def test_a_work_has_one_sketch() -> None:
    table = make_sketch_table({"a": sketch_text("some words")})
    with pytest.raises(InputError, match="sketch of a: given twice"):
        read_sketches(pa.concat_tables([table, table]))
