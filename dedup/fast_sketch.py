"""FastSimilaritySketch: one hash per shingle in place of one per shingle and cell.

Source: Dahlgaard, Knudsen, Thorup, "Fast Similarity Sketching", FOCS 2017. In round r every shingle
throws its value into one cell chosen by its hash; an earlier round beats a later one, the smaller
value wins. A large set fills every cell in the first round. Cells that are still empty after
ROUNDS take the smallest value of all shingles under a hash of their own. As with MinHash, two
sketches agree in a cell with probability J, and the cells can be cut into bands.

A cell is a uint32: 4 bits of round, 28 bits of value; all ones for a set without shingles.
"""

import numpy as np

from dedup.arrays import I64, U32, U64
from dedup.compiled import kernel
from dedup.polynomial import fmix64
from dedup.shingle import BASE

ROUNDS = 15
BLOCK = 1024
"""Shingles hashed at once: the first loop vectorises, the second one stays in the first cache."""

EMPTY = np.uint32(0xFFFFFFFF)
_LAST = np.uint32(0xFFFFFFFE)
_CLOSING = np.uint32(0xF0000000)
_ROUND_BITS = np.uint32(28)
_VALUE = np.uint32(4)
_HALF = np.uint64(32)
_GOLDEN = np.uint64(BASE)


@kernel
def _key(seed: int, number: int) -> np.uint64:
    """A key for each seed and round, or seed and closing cell."""
    return fmix64(fmix64(np.uint64(seed) + _GOLDEN) + np.uint64(number + 1) * _GOLDEN)


@kernel
def _throw(
    hashes: U64, start: int, stop: int, key: np.uint64, top: np.uint32, mixed: U64, cells: U32
) -> None:
    """One round of hashes[start:stop]; `top` is the round in the upper 4 bits; mixed (BLOCK,)."""
    mask = np.uint64(len(cells) - 1)
    for first in range(start, stop, BLOCK):
        count = min(BLOCK, stop - first)
        block = hashes[first : first + count]
        for i in range(count):
            mixed[i] = fmix64(block[i] ^ key)
        for i in range(count):
            cell = (mixed[i] >> _HALF) & mask
            value = top | (np.uint32(mixed[i]) >> _VALUE)
            cells[cell] = min(cells[cell], value)


@kernel
def _close(hashes: U64, start: int, stop: int, seed: int, cells: U32) -> None:
    """Fill each cell that is still empty with the smallest value under its own key."""
    for cell in range(len(cells)):
        if cells[cell] != EMPTY:
            continue
        key = _key(seed, ROUNDS + cell)
        least = _LAST
        for i in range(start, stop):
            least = min(least, _CLOSING | (np.uint32(fmix64(hashes[i] ^ key)) >> _VALUE))
        cells[cell] = least


@kernel
def _count_empty(cells: U32) -> int:
    empty = 0
    for cell in range(len(cells)):
        empty += 1 if cells[cell] == EMPTY else 0
    return empty


@kernel
def fast_sketch(
    hashes: U64, windows_S3: I64, continues: bool, is_open: bool, seed: int, signatures_NP: U32
) -> None:
    """Sketch each document of a batch into its row, which begins as all EMPTY.

    windows_S3: row, first hash, end; hashes: polynomials, not mixed. Of a document that began
    earlier (`continues`, the first) or goes on (`is_open`, the last) only the first round is run:
    enough unless cells stay empty, as in a long text that repeats
    itself; then the caller sketches the distinct shingles together.
    """
    mixed = np.empty(BLOCK, np.uint64)
    last = len(windows_S3) - 1
    for s in range(last + 1):
        start, stop = windows_S3[s, 1], windows_S3[s, 2]
        if start == stop:
            continue
        cells = signatures_NP[windows_S3[s, 0]]
        _throw(hashes, start, stop, _key(seed, 0), np.uint32(0), mixed, cells)
        if (s == 0 and continues) or (s == last and is_open):
            continue
        for number in range(1, ROUNDS):
            if _count_empty(cells) == 0:
                break
            top = np.uint32(number) << _ROUND_BITS
            _throw(hashes, start, stop, _key(seed, number), top, mixed, cells)
        _close(hashes, start, stop, seed, cells)
