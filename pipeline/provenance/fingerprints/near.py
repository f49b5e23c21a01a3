"""Where texts hold a short text: its words in a row, up to a few edits.

An edit is a word that is replaced, added or left out. Of edits + 1 pieces of the words one is
intact wherever all of them stand with so many edits, so the pieces are looked for, and around each
the fewest edits are found (Sellers 1980), on the diagonals that so many edits can reach.

Shapes: W words of the query, D words of a document, M matches, B = 2 edits + 1 diagonals.
"""

from typing import NamedTuple

import numpy as np

from dedup.arrays import I64, U8, U64, Mask
from dedup.compiled import kernel
from dedup.text import Texts, Whole
from pipeline.provenance.fingerprints.alphabet import Alphabet, alphabet
from pipeline.provenance.fingerprints.growing import rows_for
from pipeline.provenance.fingerprints.words import words_between

_GATE = 1 << 12
_LOW = np.uint64(_GATE - 1)


class NearMatches(NamedTuple):
    """By row and place, int64 (M,): row of the texts; start, stop: bytes, half-open in its UTF-8;
    edits. Matches of one row do not overlap."""

    row: I64
    start: I64
    stop: I64
    edits: I64


def find_near(chunk: Texts, rows: I64, query_W: U64, edits: int) -> NearMatches:
    """Where these rows hold the words of `query_W`, with so many edits at most, fewer than W."""
    gate = np.zeros(_GATE, np.bool_)
    pieces = np.arange(edits + 1) * (len(query_W) // (edits + 1))
    gate[(query_W[pieces] >> np.uint64(1)) & _LOW] = True
    found = _find(chunk.data, chunk.offsets, rows, alphabet(), query_W, edits, gate)
    return NearMatches(*np.ascontiguousarray(found.T))


@kernel
def _find(
    data: U8, offsets_N1: I64, rows: I64, tables: Alphabet, query_W: U64, edits: int, gate: Mask
) -> I64:
    """Row, first byte, byte after the last, and edits of every match, (M, 4)."""
    size = len(query_W) // (edits + 1)
    found, used = np.empty((64, 4), np.int64), 0
    for row in rows:
        begin = offsets_N1[row]
        words = words_between(data, begin, offsets_N1[row + 1], tables)
        at, free = 0, np.int64(0)
        while at + size <= len(words.hashes):
            piece, after = 0, at + 1
            is_first = gate[(words.hashes[at] >> np.uint64(1)) & _LOW]
            while is_first and piece <= edits:
                if _is_at(words.hashes, at, query_W, piece * size, size):
                    first, stop, count = _around(words.hashes, at - piece * size, query_W, edits)
                    if count <= edits and first >= free:
                        found = rows_for(found, used, 1)
                        found[used, 0], found[used, 3] = row, count
                        found[used, 1] = words.starts[first] - begin
                        found[used, 2] = words.ends[stop - 1] - begin
                        used += 1
                        free, after = np.int64(stop), max(after, int(stop))
                        break
                piece += 1
            at = after
    return found[:used]


@kernel
def _is_at(words_D: U64, at: int, query_W: U64, first: int, size: int) -> bool:
    i = 0
    while i < size and words_D[at + i] == query_W[first + i]:
        i += 1
    return i == size


@kernel
def _around(words_D: U64, at: int, query_W: U64, edits: int) -> tuple[Whole, Whole, Whole]:
    """(first word, word after the last, edits) of the best match on the `edits` diagonals to both
    sides of the one on which the query begins at word `at`; more than `edits` when there is none.
    """
    if (
        at >= 0
        and at + len(query_W) <= len(words_D)
        and _is_at(words_D, at, query_W, 0, len(query_W))
    ):
        return at, at + len(query_W), 0
    width, never = 2 * edits + 1, edits + 1
    cost_B, first_B = np.full(width, never, np.int64), np.zeros(width, np.int64)
    for band in range(width):
        first_B[band] = at + band - edits
        if 0 <= first_B[band] <= len(words_D):
            cost_B[band] = 0
    for i in range(len(query_W)):
        best = never
        for band in range(width):
            place = at + i + band - edits
            is_word = 0 <= place < len(words_D)
            cost, first = never, first_B[band]
            if is_word:
                cost = cost_B[band] + (words_D[place] != query_W[i])
            if band + 1 < width and cost_B[band + 1] + 1 < cost:
                cost, first = cost_B[band + 1] + 1, first_B[band + 1]
            if band > 0 and is_word and cost_B[band - 1] + 1 < cost:
                cost, first = cost_B[band - 1] + 1, first_B[band - 1]
            cost_B[band], first_B[band] = cost, first
            best = min(best, cost)
        if best > edits:
            break
    closest = np.argmin(cost_B)
    stop = at + len(query_W) + closest - edits
    return first_B[closest], stop, cost_B[closest]
