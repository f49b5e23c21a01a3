"""Our deflate: read by zlib and libdeflate, with codes as short as Huffman's."""

import heapq
import itertools
import zlib

import deflate
import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dedup.arrays import I64, Array
from pipeline.hdf5 import word_deflate
from pipeline.hdf5.chunks import shard_image
from pipeline.hdf5.word_deflate import compress_words

WINDOW = 8192


def assert_read_by_others(words: Array) -> bytes:
    stream = compress_words(words)
    assert zlib.decompress(stream) == words.tobytes()
    assert deflate.zlib_decompress(stream, words.nbytes) == words.tobytes()
    return stream


def numbers(top: int) -> st.SearchStrategy[Array]:
    return arrays.arrays(np.int32, st.integers(0, 400), elements=st.integers(-top, top))


@given(
    pieces=st.lists(
        st.sampled_from([0, 1, 9, 300, 70_000, 2**31 - 1]).flatmap(numbers), max_size=6
    ),
    order=st.lists(st.integers(0, 5), max_size=30),
)
def test_any_words_are_read_by_others(pieces: list[Array], order: list[int]) -> None:
    chosen = [pieces[i] for i in order if i < len(pieces)]
    assert_read_by_others(np.concatenate([np.zeros(0, np.int32), *chosen]))


@pytest.mark.parametrize("back", [1, 2, 3, 64, WINDOW - 1, WINDOW, WINDOW + 1])
def test_repeats_as_far_back_as_the_window(back: int) -> None:
    once = np.random.default_rng(7).integers(0, 1 << 31, back, dtype=np.int32)
    stream = assert_read_by_others(np.concatenate([once, once, once]))
    once_size = len(compress_words(once))
    is_found = len(stream) < 1.5 * once_size + 400
    assert is_found == (back <= WINDOW)


@pytest.mark.parametrize("words", range(1, 270))
def test_runs_of_every_length(words: int) -> None:
    """A run of `words` equal words, whose repeat has every length modulo 258 bytes, and an end."""
    assert_read_by_others(np.array([7] * words + [8], np.int32))
    assert_read_by_others(np.array([1 << 20] * words, np.uint32))


def test_rows_are_smaller_than_by_libdeflate() -> None:
    """Ids as frequent as words of a text, in rows of the `sample` layout."""
    ids = np.minimum(np.random.default_rng(7).zipf(1.2, (12, 2049)), 50256).astype(np.int32)
    rows = np.stack([ids[:, :-1], np.ones((12, 2048), np.int32), ids[:, 1:]], axis=1)
    chunks = [np.ascontiguousarray(rows[first : first + 3]) for first in range(0, 12, 3)]
    ours = sum(len(assert_read_by_others(chunk)) for chunk in chunks)
    assert ours < sum(len(deflate.zlib_compress(chunk, 1)) for chunk in chunks)


def test_words_without_order_hardly_grow() -> None:
    words = np.random.default_rng(7).integers(-(1 << 31), 1 << 31, 100_000, dtype=np.int32)
    assert len(assert_read_by_others(words)) < 1.001 * words.nbytes


@pytest.mark.parametrize("dtype", ["<i4", "<u4"])
def test_h5py_reads_chunks_of_words(dtype: str) -> None:
    rows = np.random.default_rng(7).integers(0, 50257, (8, 3, 16)).astype("<i4")
    array = rows if dtype == "<i4" else rows.reshape(-1).astype("<u4")
    with h5py.File.in_memory(shard_image(array)) as file:
        assert np.array_equal(file["data"][:], array)
        assert file["data"].compression == "gzip"


@given(
    counts=st.lists(st.integers(0, 1 << 20), min_size=3, max_size=286),
    most=st.sampled_from([9, 14]),
)
def test_codes_are_as_short_as_huffmans(counts: list[int], most: int) -> None:
    count = np.array(counts, np.int64)
    bits, code = make_code(count, most)
    used = np.flatnonzero(count)
    assert all(bits[used] > 0)
    assert sum(2.0**-bit for bit in bits[bits > 0]) == 1.0
    assert bits.max() <= most
    assert are_prefix_free(bits, code)
    depths = find_huffman_depths(count[used])
    cost = int((count * bits).sum())
    if max(depths, default=0) <= most and len(used) > 1:
        assert cost == int((count[used] * depths).sum())
    elif len(used) > 1:
        assert cost <= int(count.sum()) * (np.log2(len(used)) + 1)


@pytest.mark.parametrize("symbols", [2, 16, 30, 40])
def test_codes_that_would_be_too_long(symbols: int) -> None:
    """Of counts like Fibonacci's numbers each code would be a bit longer than the next."""
    counts = [1, 1]
    while len(counts) < symbols:
        counts.append(counts[-1] + counts[-2])
    bits, code = make_code(np.array(counts, np.int64), 14)
    assert bits.max() == min(14, symbols - 1)
    assert sum(2.0**-bit for bit in bits) == 1.0
    assert are_prefix_free(bits, code)
    assert list(bits) == sorted(bits, reverse=True)


def make_code(count: I64, most: int) -> tuple[I64, list[str]]:
    """Bits of every symbol, and its code as it stands in the stream."""
    bits, code = np.zeros(len(count), np.int64), np.zeros(len(count), np.uint64)
    word_deflate._make_code(count.copy(), most, bits, code)
    turned = [int(c) & ((1 << 48) - 1) for c in code]
    assert [int(c) >> 48 for c in code] == list(bits)
    return bits, [f"{c:0{b}b}"[::-1] if b else "" for c, b in zip(turned, bits, strict=True)]


def are_prefix_free(bits: I64, code: list[str]) -> bool:
    """Whether no code begins another one, and codes of the same length ascend by symbol."""
    texts = sorted(text for text in code if text)
    for length in set(bits[bits > 0]):
        same = [text for text in code if len(text) == length]
        assert same == sorted(same)
    return not any(after.startswith(text) for text, after in itertools.pairwise(texts))


def find_huffman_depths(weights: I64) -> I64:
    """By merging the two smallest trees, with lists of their leaves."""
    heap = [(int(weight), n, [n]) for n, weight in enumerate(weights)]
    heapq.heapify(heap)
    depths = np.zeros(len(weights), np.int64)
    while len(heap) > 1:
        (first, _, leaves), (second, tie, others) = heapq.heappop(heap), heapq.heappop(heap)
        depths[[*leaves, *others]] += 1
        heapq.heappush(heap, (first + second, tie, leaves + others))
    return depths
