"""`.bin` and `.idx` as sources of `prep convert`, against `.idx` files written here by hand."""

import os
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.convert.flat import index_bytes, read_sequence_index
from pipeline.core.errors import InputError
from tests.pipeline.convert.conversions import EOS, TEXTS, Prep, read_rows, stream, to, write_texts


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_texts(tmp_path)


def write_idx(
    path: Path, sizes: list[int], documents: list[int], code: int = 8, width: int = 2, **wrong: Any
) -> None:
    """An index, field by field; keywords put something wrong in."""
    pointers = [width * sum(sizes[:i]) for i in range(len(sizes))]
    data = wrong.get("magic", b"MMIDIDX\x00\x00") + struct.pack("<Q", wrong.get("version", 1))
    data += struct.pack("<B", code)
    data += struct.pack("<Q", wrong.get("sequences", len(sizes)))
    data += struct.pack("<Q", wrong.get("count", len(documents)))
    data += np.array(wrong.get("stored", sizes), "<i4").tobytes()
    data += np.array(wrong.get("pointers", pointers), "<i8").tobytes()
    data += np.array(documents, "<i8").tobytes()
    path.write_bytes(data[: wrong.get("cut")])


@pytest.mark.parametrize(("code", "kind"), [(8, "<u2"), (4, "<i4"), (5, "<i8")])
def test_an_index_of_megatron(tmp_path: Path, code: int, kind: str) -> None:
    """Two documents of one sequence, one of two sequences."""
    tokens = [1, 2, EOS, 3, 4, 5, 6, EOS, 7, EOS]
    np.array(tokens, kind).tofile(tmp_path / "a.bin")
    width = np.dtype(kind).itemsize
    write_idx(tmp_path / "a.idx", [3, 2, 3, 2], [0, 1, 3, 4], code, width)
    to("corpus", tmp_path / "out", tmp_path / "a")
    assert read_rows(tmp_path / "out").tolist() == tokens


def test_our_index_field_by_field(texts: Path, tmp_path: Path) -> None:
    to("bin", tmp_path / "out", texts)
    data = (tmp_path / "out" / "tokens.idx").read_bytes()
    ends = np.flatnonzero(stream() == EOS) + 1
    sizes = np.diff(ends, prepend=0).tolist()
    write_idx(tmp_path / "expected.idx", sizes, list(range(len(TEXTS) + 1)))
    assert data == (tmp_path / "expected.idx").read_bytes()


@pytest.mark.parametrize(("tokens", "fits"), [((1 << 31) - 1, True), (1 << 31, False)])
def test_a_document_of_an_index_has_31_bits_of_tokens(tokens: int, fits: bool) -> None:
    pieces = index_bytes(np.dtype("<u2"), 1, lambda: iter([np.array([tokens])]))
    if fits:
        assert b"".join(pieces)
    else:
        with pytest.raises(InputError, match=r"an \.idx holds up to 2,147,483,647"):
            b"".join(pieces)


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(0, 6), st.integers(0, 6))
def test_document_ends(sizes: list[int], low: int, span: int) -> None:
    def pieces() -> Any:
        yield from (np.array(sizes[i : i + 3], np.int64) for i in range(0, len(sizes), 3))

    path = Path(f"/dev/shm/wafermill-{os.getpid()}.idx")
    path.write_bytes(b"".join(index_bytes(np.dtype("<u2"), len(sizes), pieces)))
    try:
        index = read_sequence_index(path, 2 * sum(sizes))
        ends = sorted(set(np.cumsum(sizes).tolist()))
        assert index.tokens == sum(sizes)
        expected = [end for end in ends if low < end <= low + span]
        assert index.document_ends(low, low + span).tolist() == expected
    finally:
        path.unlink()


def test_documents_without_eos(tmp_path: Path) -> None:
    np.array([1, 2, 3, EOS, 4, 5], "<u2").tofile(tmp_path / "a.bin")
    write_idx(tmp_path / "a.idx", [2, 2, 2], [0, 1, 2, 3])
    with pytest.raises(InputError, match="ends before token 2 has no EOS"):
        to("jsonl", tmp_path / "refused", tmp_path / "a.bin")
    lossy = to("jsonl", tmp_path / "lossy", tmp_path / "a.bin", lossy=True)
    assert lossy.facts["documents"] == 3 and lossy.facts["lost"] == {"boundaries": 1}
    to("corpus", tmp_path / "added", tmp_path / "a.bin", add_eos=True)
    assert read_rows(tmp_path / "added").tolist() == [1, 2, EOS, 3, EOS, 4, 5, EOS]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"magic": b"PK\x03\x04\x00\x00\x00\x00\x00"}, "not an mmap index"),
        ({"version": 2}, "index version 2"),
        ({"code": 6}, "dtype code 6"),
        ({"sequences": 1 << 60}, "need"),
        ({"count": (1 << 64) - 1}, "need"),
        ({"sequences": 3}, "need"),
        ({"cut": 20}, "cut off after 20 bytes"),
        ({"cut": -3}, "need"),
        ({"stored": [2, -2]}, "has the size -2"),
        ({"stored": [2, 2147483647]}, "but the .bin has 8"),
        ({"stored": [1, 2]}, "begins at byte 4, expected 2"),
        ({"pointers": [0, 1 << 62]}, "begins at byte"),
        ({"pointers": [-4, 4]}, "begins at byte -4"),
        ({"documents": [0, 9]}, "do not begin at 0 and end at 2"),
        ({"documents": [0, 2, 1, 2]}, "out of order"),
        ({"documents": []}, "do not begin at 0"),
    ],
)
def test_hostile_indexes(tmp_path: Path, prep: Prep, wrong: dict[str, Any], message: str) -> None:
    np.array([1, EOS, 2, EOS], "<u2").tofile(tmp_path / "a.bin")
    documents = wrong.pop("documents", [0, 1, 2])
    write_idx(tmp_path / "a.idx", [2, 2], documents, wrong.pop("code", 8), **wrong)
    began = time.monotonic()
    ended = prep("convert", tmp_path / "a.bin", "--to", "corpus", "--out", tmp_path / "out")
    assert (ended.code, ended.out) == (3, "")
    assert message in ended.err and len(ended.err.splitlines()) == 1
    assert time.monotonic() - began < 5
    assert not (tmp_path / "out").exists()


def test_ids_outside_the_vocabulary(tmp_path: Path) -> None:
    np.array([1, 60000, EOS], "<u2").tofile(tmp_path / "a.bin")
    with pytest.raises(InputError, match=r"token 1 is 60000, outside .* gpt2 .*--tokenizer"):
        to("corpus", tmp_path / "out", tmp_path / "a.bin")
    to("corpus", tmp_path / "known", tmp_path / "a.bin", eos_id=EOS)
    assert read_rows(tmp_path / "known").tolist() == [1, 60000, EOS]
    (tmp_path / "odd.bin").write_bytes(b"123")
    with pytest.raises(InputError, match="not a whole number of uint16"):
        to("corpus", tmp_path / "out", tmp_path / "odd.bin")
