"""Band digests against plain Python, and SlimPajama's band keys byte for byte."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup.lsh import band_digests, band_keys

WIDTH = 2**64
GOLDEN = 0x9E3779B97F4A7C15


def fmix64(value: int) -> int:
    """MurmurHash3's finaliser."""
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD % WIDTH
    value ^= value >> 33
    value = value * 0xC4CEB9FE1A85EC53 % WIDTH
    return value ^ value >> 33


def plain_digests(signature: list[int], bands: int, rows: int) -> list[int]:
    keys = [fmix64(row * GOLDEN % WIDTH) | 1 for row in range(1, rows + 1)]
    cells = [signature[b * rows : (b + 1) * rows] for b in range(bands)]
    products = [[(c ^ c >> 32) * k % WIDTH for c, k in zip(b, keys, strict=True)] for b in cells]
    return [fmix64(sum(p ^ p >> 32 for p in band) % WIDTH) for band in products]


@st.composite
def cases(draw: st.DrawFn) -> tuple[npt.NDArray[np.uint64], int, int]:
    """(signatures, bands, rows), cells of 32 or 64 bits, some cells left over."""
    bands, rows, spare = (
        draw(st.integers(1, 5)),
        draw(st.integers(1, 14)),
        draw(st.integers(0, 3)),
    )
    kind, top = draw(st.sampled_from([(np.uint32, 2**32 - 1), (np.uint64, 2**64 - 1)]))
    cell = st.one_of(st.integers(0, top), st.sampled_from([0, 1, top]))
    width = bands * rows + spare
    documents = draw(st.lists(st.lists(cell, min_size=width, max_size=width), max_size=6))
    return np.array(documents, kind).reshape(len(documents), width), bands, rows


@settings(max_examples=60)
@given(cases())
def test_digests_equal_plain_python(case: tuple[npt.NDArray[np.uint64], int, int]) -> None:
    signatures, bands, rows = case
    found = band_digests(signatures, bands, rows)
    assert found.dtype == np.uint64 and found.shape == (bands, len(signatures))
    assert found.flags.c_contiguous
    assert found.T.tolist() == [plain_digests(s, bands, rows) for s in signatures.tolist()]


def test_digests_ignore_width_and_layout() -> None:
    signatures = np.random.default_rng(0).integers(0, 2**32, (50, 128), np.uint32)
    expected = band_digests(signatures, 9, 13)
    read_only = signatures.copy()
    read_only.flags.writeable = False
    for other in (signatures.astype(np.uint64), np.asfortranarray(signatures), read_only):
        assert (band_digests(other, 9, 13) == expected).all()
    assert (band_digests(np.repeat(signatures, 2, 0)[::2], 9, 13) == expected).all()


@given(st.integers(0, 127), st.integers(1, 2**32 - 1))
def test_one_cell_reaches_its_band_only(place: int, change: int) -> None:
    """Digest b is of cells 13 b .. 13 b + 12; the last 11 of 128 count nowhere."""
    one = np.arange(128, dtype=np.uint32)
    other = one.copy()
    other[place] ^= np.uint32(change)
    first, second = band_digests(np.stack([one, other]), 9, 13).T
    changed = np.flatnonzero(first != second).tolist()
    assert changed == ([place // 13] if place < 117 else [])


def test_order_of_cells_counts() -> None:
    cells = np.array([[1, 2, 3], [3, 2, 1], [2, 1, 3]], np.uint32)
    assert len(set(band_digests(cells, 1, 3)[0].tolist())) == 3


def test_digests_of_tiny_cells_are_uniform() -> None:
    """Sort and key ranges rely on the upper bits, whatever the cells look like."""
    numbers = np.arange(3**9)
    cells = np.stack([numbers // 3**power % 3 for power in range(9)], 1).astype(np.uint32)
    digests = band_digests(cells, 1, 9)[0]
    assert len(np.unique(digests)) == 3**9
    for shift in (59, 27, 0):
        sizes = np.bincount((digests >> np.uint64(shift)) & np.uint64(31), minlength=32)
        mean = 3**9 / 32
        assert (np.abs(sizes - mean) < 5 * mean**0.5).all()


@given(st.lists(st.integers(0, 2**32 - 1), min_size=128, max_size=128))
def test_band_keys_are_those_of_slimpajama(values: list[int]) -> None:
    """`bytes(hashvalues[i*r:(i+1)*r].byteswap())` of datasketch's uint64 hash values."""
    hashvalues = np.array(values, np.uint64)
    expected = [bytes(hashvalues[b * 13 : (b + 1) * 13].byteswap().data) for b in range(9)]
    assert [len(key) for key in expected] == [104] * 9
    assert band_keys(hashvalues, 9, 13) == expected
    assert band_keys(hashvalues.astype(np.uint32), 9, 13) == expected


def test_equal_digests_where_keys_are_equal() -> None:
    signatures = np.random.default_rng(1).integers(0, 2, (300, 12), np.uint32)
    digests = band_digests(signatures, 3, 4)
    keys = [band_keys(signature, 3, 4) for signature in signatures]
    for band in range(3):
        names = {key[band]: number for number, key in enumerate(keys)}
        numbers = np.array([names[key[band]] for key in keys])
        same_key, same_digest = (np.equal.outer(v, v) for v in (numbers, digests[band]))
        assert (same_key == same_digest).all()


@pytest.mark.parametrize(
    ("signatures", "bands", "rows", "message"),
    [
        (np.zeros((2, 128), np.uint32), 10, 13, "10 bands x 13 rows do not fit .* 128 cells"),
        (np.zeros((2, 128), np.uint32), 0, 13, "0 bands"),
        (np.zeros((2, 128), np.int64), 9, 13, "int64"),
        (np.zeros(128, np.uint32), 9, 13, r"\(128,\)"),
    ],
)
def test_what_is_no_signature(
    signatures: npt.NDArray[np.uint32], bands: int, rows: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        band_digests(signatures, bands, rows)


def test_short_signature_has_no_keys() -> None:
    with pytest.raises(ValueError, match="do not fit a signature of 12 cells"):
        band_keys(np.zeros(12, np.uint32), 1, 13)
