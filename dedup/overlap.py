"""Overlap of documents with the items of evaluation sets: shared runs of words.

Texts are compared as `dedup.presets.normalize` leaves them: lower case, no ASCII punctuation, words
between white space (and see `dedup.words`). `dedup.eval_index` says which runs of an item are
looked for. The share of a part that a document holds is the share of its words that stand in a run
found there; the `min_overlap` of the index is meant as the share that makes a document
contaminated.

Limits: text without blanks between words (Chinese, Japanese, Thai) has hardly any runs; paraphrase
and translation are not found; a run that stands more than COMMON times in the items is a prompt
rather than an item, and is left out. A run counts as found when the 64-bit hashes of all its words
agree.

Shapes: N documents, P parts, K words of all parts, G grams, H hits.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dedup.arrays import F64, I64, U8, U32, U64
from dedup.compiled import kernel
from dedup.eval_index import COMMON, ItemIndex, Whole, backwards, build_item_index, forwards
from dedup.polynomial import fmix64
from dedup.presets import BASE
from dedup.text import TextArray, case_table, view_texts
from dedup.words import read_words

__all__ = ["SPANS", "Hits", "ItemIndex", "build_item_index", "find_overlaps"]

SPANS = 16
"""Spans listed at most for one part in one document; its share counts all of them."""


_BLOCK = 4096
_FILTER_BITS = 16
_BASE = np.uint64(BASE)
_ZERO, _ONE = np.uint64(0), np.uint64(1)
_HIGH, _LOW6 = np.uint64(32), np.uint64(63)


@dataclass(frozen=True)
class Hits:
    """Where parts stand in documents; a row is a span of grams that touch or overlap.

    Ordered by document, part, start. document, part int64; byte_start, byte_end int64:
    half-open in the document's UTF-8; share float64: the share of the part's searched words that
    the whole document holds, the same in all rows of a document and part.
    """

    document: I64
    part: I64
    byte_start: I64
    byte_end: I64
    share: F64

    def __len__(self) -> int:
        return len(self.document)

    def at_least(self, share: float) -> "Hits":
        """The hits of parts of which their document holds this share or more."""
        rows = self.share >= share
        return Hits(**{name: column[rows] for name, column in vars(self).items()})


class _Block(NamedTuple):
    """Some words in a row of one document: hash, first byte, byte after the last."""

    words: U64
    starts: I64
    ends: I64


class _Tally(NamedTuple):
    """Scratch of a scan: what the document at hand holds of each part."""

    covered_word: U8
    covered: I64
    spans: I64
    stop_word: I64
    byte_start: I64
    byte_end: I64
    touched: I64


def find_overlaps(texts: TextArray, index: ItemIndex) -> Hits:
    """Every place where a document holds a gram of the index. Raises ValueError as `view_texts`."""
    if not len(index.gram_key):
        none = np.zeros(0, np.int64)
        return Hits(none, none, none, none, np.zeros(0))
    parts = len(index.gram)
    scratch = _Tally(
        np.zeros(len(index.words), np.uint8), *(np.zeros(parts, np.int64) for _ in range(6))
    )
    lengths = np.unique(index.gram).astype(np.int64)
    bloom = _bloom(index, lengths[0])
    hits, documents = [], 0
    for chunk in view_texts(texts):
        rows = _scan(chunk.data, chunk.offsets, case_table(), index, bloom, lengths, scratch)
        rows[:, 0] += documents
        documents += len(chunk)
        hits.append(rows)
    rows = np.concatenate([np.zeros((0, 5), np.int64), *hits])
    rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
    document, part, start, end, covered = np.ascontiguousarray(rows.T)
    return Hits(document, part, start, end, covered / index.searched[part])


@kernel
def _bits(key: np.uint64) -> np.uint64:
    """Three bits of a word of the filter."""
    low = _ONE << (key & _LOW6)
    middle = _ONE << ((key >> np.uint64(6)) & _LOW6)
    return low | middle | (_ONE << ((key >> np.uint64(12)) & _LOW6))


@kernel
def _bloom(index: ItemIndex, seed: Whole) -> U64:
    """A blocked Bloom filter over the last `seed` words of every gram, (2^f,) uint64."""
    size = 1
    while size * 64 < len(index.gram_key) * _FILTER_BITS:
        size *= 2
    bloom = np.zeros(size, np.uint64)
    for gram in range(len(index.gram_key)):
        part = index.gram_part[gram]
        stop = index.starts[part] + index.gram_position[gram] + index.gram[part]
        key = fmix64(forwards(index.words, stop - seed, stop))
        bloom[(key >> _HIGH) & np.uint64(size - 1)] |= _bits(key)
    return bloom


@kernel
def _first_of(keys_G: U64, key: np.uint64) -> int:
    """The first place in ascending keys that is not below the key."""
    low, high = 0, len(keys_G)
    while low < high:
        middle = (low + high) // 2
        if keys_G[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _find_grams(
    words: U64, carried: int, filled: int, keys_G: U64, bloom: U64, lengths: I64, grams: I64
) -> int:
    """Write (first index in keys_G, last word) of every gram that ends at words [carried, held).

    found must hold (held * len(lengths), 2); returns how many rows were written.
    """
    seed = lengths[0]
    top = _ONE
    for _ in range(seed):
        top *= _BASE
    room = np.uint64(len(bloom) - 1)
    roll = forwards(words, max(0, carried - seed), carried)
    count = 0
    for last in range(carried, filled):
        roll = roll * _BASE + words[last]
        if last >= seed:
            roll -= top * words[last - seed]
        key = fmix64(roll)
        bits = _bits(key)
        if bloom[(key >> _HIGH) & room] & bits != bits:
            continue
        value, hashed = _ZERO, 0
        for length in lengths:
            if length > last + 1:
                break
            value = backwards(words, last - hashed, length - hashed, value)
            hashed = length
            key = fmix64(value + np.uint64(length))
            gram = _first_of(keys_G, key)
            if gram < len(keys_G) and keys_G[gram] == key:
                grams[count, 0], grams[count, 1] = gram, last
                count += 1
    return count


@kernel
def _with_room(rows: I64, needed: int) -> I64:
    """The rows, in an array at least twice as long when they need more than it holds."""
    if needed <= len(rows):
        return rows
    more = np.empty((max(needed, 2 * len(rows)), rows.shape[1]), np.int64)
    for row in range(len(rows)):
        for column in range(rows.shape[1]):
            more[row, column] = rows[row, column]
    return more


@kernel
def _end_span(tally: _Tally, part: Whole, rows: I64, used: int) -> int:
    """Write the open span of a part, unless SPANS are written; returns the rows used."""
    tally.spans[part] += 1
    if tally.spans[part] > SPANS:
        return used
    rows[used, 1], rows[used, 2] = part, tally.byte_start[part]
    rows[used, 3] = tally.byte_end[part]
    return used + 1


@kernel
def _note(
    index: ItemIndex,
    gram: int,
    block: _Block,
    last: int,
    before: int,
    tally: _Tally,
    rows: I64,
    used: int,
    touched: int,
) -> tuple[int, int]:
    """Account for a gram found at word `last` of the block, in every part that holds it.

    `before`: words of the document before the block. rows must have room for COMMON more. Returns
    (rows used, parts touched).
    """
    key = index.gram_key[gram]
    while gram < len(index.gram_key) and index.gram_key[gram] == key:
        part, length = np.int64(index.gram_part[gram]), np.int64(index.gram[index.gram_part[gram]])
        at = index.starts[part] + np.int64(index.gram_position[gram])
        gram += 1
        first = last - length + 1
        if first < 0 or not _same(index.words, at, block.words, first, length):
            continue
        if tally.stop_word[part] == 0:
            tally.touched[touched] = part
            touched += 1
        elif before + first > tally.stop_word[part]:
            used = _end_span(tally, part, rows, used)
            tally.stop_word[part] = 0
        if tally.stop_word[part] == 0:
            tally.byte_start[part] = block.starts[first]
        tally.byte_end[part] = block.ends[last]
        tally.stop_word[part] = before + last + 1
        for word in range(at, at + length):
            tally.covered[part] += 1 - tally.covered_word[word]
            tally.covered_word[word] = 1
    return used, touched


@kernel
def _same(words_K: U64, at: Whole, words: U64, first: Whole, count: Whole) -> bool:
    """Whether two runs of words are equal."""
    for k in range(count):  # noqa: SIM110 - a kernel
        if words_K[at + k] != words[first + k]:
            return False
    return True


@kernel
def _close(index: ItemIndex, tally: _Tally, touched: int, rows: I64, first: int, used: int) -> int:
    """End a document: write the open spans, fill in what is covered, and clear the tally."""
    for k in range(touched):
        used = _end_span(tally, tally.touched[k], rows, used)
    for row in range(first, used):
        rows[row, 4] = tally.covered[rows[row, 1]]
    for k in range(touched):
        part = tally.touched[k]
        tally.covered[part] = tally.spans[part] = tally.stop_word[part] = 0
        for word in range(index.starts[part], index.starts[part + 1]):
            tally.covered_word[word] = 0
    return used


@kernel
def _carry(block: _Block, filled: int, carried: int) -> int:
    """Bring the last `carried` words to the front."""
    for k in range(carried):
        block.words[k] = block.words[filled - carried + k]
        block.starts[k] = block.starts[filled - carried + k]
        block.ends[k] = block.ends[filled - carried + k]
    return carried


@kernel
def _scan(
    data: U8, offsets_N1: I64, table: U32, index: ItemIndex, bloom: U64, lengths: I64, tally: _Tally
) -> I64:
    """Rows (H, 5): document, part, byte start, byte end, covered words of the part.

    `lengths`: the lengths of grams that occur, ascending. Documents are read in blocks of words;
    the last words of a block are carried over, so that a gram may lie across two.
    """
    block = _Block(
        np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
    )
    grams = np.empty((_BLOCK * len(lengths), 2), np.int64)
    rows, used = np.empty((1024, 5), np.int64), 0
    for document in range(len(offsets_N1) - 1):
        position, end = offsets_N1[document], offsets_N1[document + 1]
        opened, before, carried, touched = used, 0, 0, 0
        while position < end:
            filled, position = read_words(
                data, position, end, table, block.words, block.starts, block.ends, carried
            )
            count = _find_grams(block.words, carried, filled, index.gram_key, bloom, lengths, grams)
            for k in range(count):
                rows = _with_room(rows, used + COMMON)
                used, touched = _note(
                    index, grams[k, 0], block, grams[k, 1], before, tally, rows, used, touched
                )
            carried = _carry(block, filled, min(filled, lengths[-1] - 1))
            before += filled - carried
        rows = _with_room(rows, used + touched)
        used = _close(index, tally, touched, rows, opened, used)
        for row in range(opened, used):
            rows[row, 0] = document
            rows[row, 2] -= offsets_N1[document]
            rows[row, 3] -= offsets_N1[document]
    return rows[:used]
