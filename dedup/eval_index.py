"""The index of evaluation items: what of them is looked for in documents, as plain arrays.

A part of an item, W words long, is looked for in all its runs ("grams") of g words, where g is
`min_overlap` of W, but `min_words` at least and n at most. n = 13 is the length of GPT-3 (Brown et
al. 2020, appendix C) and of the Pile (Gao et al. 2020, section 4); a shorter part could hardly be
found by it. Parts under `min_words` are not looked for.

Shapes: N texts, P parts, K words of all parts, G grams.
"""

from typing import NamedTuple, TypeAlias

import numpy as np

from dedup.arrays import I64, U8, U32, U64
from dedup.compiled import kernel
from dedup.polynomial import fmix64
from dedup.presets import BASE
from dedup.text import TextArray, view_texts
from dedup.words import compute_starts, hash_text_words

COMMON = 100
"""A gram that stands more often than this in the item texts is not looked for."""
LONGEST = 64
"""Words in a gram at most."""

CHECKED, TOO_SHORT, ALL_COMMON = 0, 1, 2
"""What `build_item_index` made of a text."""

Whole: TypeAlias = int | np.int64

_BASE = np.uint64(BASE)
_ZERO, _ONE = np.uint64(0), np.uint64(1)


class ItemIndex(NamedTuple):
    """What is looked for, as plain arrays that can be published and memory-mapped.

    words uint64: the words' hashes, those of part p at starts[p] to starts[p + 1];
    gram uint32: words in one gram of the part; searched uint32: words of the part that stand in
    a gram looked for. The grams, sorted by (key, part, position): gram_key uint64, gram_part
    uint32, gram_position uint32 (first word, in the part).
    """

    words: U64
    starts: I64
    gram: U32
    searched: U32
    gram_key: U64
    gram_part: U32
    gram_position: U32


def build_item_index(
    texts: TextArray, n: int = 13, min_words: int = 8, min_overlap: float = 0.4
) -> tuple[ItemIndex, I64, U8]:
    """The index of N item texts; the text that is each part, (P,) ascending; and what became of
    each text, (N,) uint8: CHECKED, TOO_SHORT (fewer than `min_words` words) or ALL_COMMON (none but
    grams that stand in the texts more than COMMON times).

    Texts with the same words are one part, that of the first. Raises ValueError unless
    1 <= min_words <= n <= LONGEST and 0 < min_overlap <= 1.
    """
    if not 1 <= min_words <= n <= LONGEST or not 0 < min_overlap <= 1:
        raise ValueError(
            f"expected 1 <= min_words <= n <= {LONGEST} and 0 < min_overlap <= 1, "
            f"got min_words={min_words}, n={n}, min_overlap={min_overlap}"
        )
    words, starts_N1 = hash_text_words(view_texts(texts))
    length_N = np.diff(starts_N1)
    status_N = np.where(length_N < min_words, TOO_SHORT, CHECKED).astype(np.uint8)
    long_enough = np.flatnonzero(length_N >= min_words)
    entry_P, part_of, texts_P = _distinct(_digests(words, starts_N1)[long_enough])
    entry_P = long_enough[entry_P]
    starts_P1 = compute_starts(length_N[entry_P])
    words_K = _gather(words, starts_N1[entry_P], starts_P1)
    # One gram alone holds `min_overlap` of a part that is short.
    length_P = length_N[entry_P]
    share_P = np.ceil(length_P * min_overlap - 1e-9)
    gram_P = np.clip(share_P, min_words, np.minimum(n, length_P)).astype(np.uint32)
    keys_G, part_G, position_G = _rare_grams(words_K, starts_P1, gram_P, texts_P)
    searched_P = _count_searched(starts_P1, gram_P, part_G, position_G)
    status_N[long_enough[searched_P[part_of] == 0]] = ALL_COMMON
    index = ItemIndex(
        words_K, starts_P1, gram_P, searched_P, keys_G, part_G, gram_position=position_G
    )
    for array in index:  # as those of a published index are: kernels are compiled for one kind
        array.flags.writeable = False
    return index, entry_P, status_N


def _distinct(digests_M: U64) -> tuple[I64, I64, I64]:
    """Where each different digest comes first, (P,) ascending; which of them each is, (M,); and how
    often each comes, (P,)."""
    _, first, which, times = np.unique(
        digests_M, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(first)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return first[order], place[which], times[order]


def _rare_grams(words_K: U64, starts_P1: I64, gram_P: U32, texts_P: I64) -> tuple[U64, U32, U32]:
    """Grams that stand there COMMON times at most, ordered by key, part, position."""
    keys, part, position = _grams(words_K, starts_P1, gram_P)
    if not len(keys):
        return keys, part, position
    order = np.argsort(keys, kind="stable")
    keys, part, position = keys[order], part[order], position[order]
    new_key = np.r_[True, keys[1:] != keys[:-1]]
    times = np.add.reduceat(texts_P[part], np.flatnonzero(new_key))
    rare = (times <= COMMON)[np.cumsum(new_key) - 1]
    return keys[rare], part[rare], position[rare]


def _count_searched(starts_P1: I64, gram_P: U32, part_G: U32, position_G: U32) -> U32:
    """Words of each part that stand in one of these grams, (P,) uint32."""
    if not len(gram_P):
        return np.zeros(0, np.uint32)
    change = np.zeros(int(starts_P1[-1]) + 1, np.int64)
    first = starts_P1[part_G] + position_G
    np.add.at(change, first, 1)
    np.add.at(change, first + gram_P[part_G], -1)
    inside = np.cumsum(change[:-1]) > 0
    return np.add.reduceat(inside, starts_P1[:-1], dtype=np.uint32)


@kernel
def _digests(words: U64, starts_N1: I64) -> U64:
    """A 64-bit digest of each text's words, (N,)."""
    digests = np.empty(len(starts_N1) - 1, np.uint64)
    for text in range(len(digests)):
        value = _ZERO
        for word in range(starts_N1[text], starts_N1[text + 1]):
            value = fmix64(value + words[word]) + _ONE
        digests[text] = value
    return digests


@kernel
def _gather(words: U64, from_P: I64, starts_P1: I64) -> U64:
    """The words of chosen texts end to end."""
    words_K = np.empty(starts_P1[-1], np.uint64)
    for part in range(len(from_P)):
        for at in range(starts_P1[part], starts_P1[part + 1]):
            words_K[at] = words[from_P[part] + at - starts_P1[part]]
    return words_K


@kernel
def forwards(words: U64, first: Whole, stop: Whole) -> np.uint64:
    """The polynomial of words [first, stop), which can roll on."""
    value = _ZERO
    for word in range(first, stop):
        value = value * _BASE + words[word]
    return value


@kernel
def backwards(words: U64, last: Whole, count: Whole, value: np.uint64) -> np.uint64:
    """The polynomial `value` taken on over `count` words from word `last` down."""
    for word in range(last, last - count, -1):
        value = value * _BASE + words[word]
    return value


@kernel
def _grams(words_K: U64, starts_P1: I64, gram_P: U32) -> tuple[U64, U32, U32]:
    """Every gram of every part in order: key, part, position."""
    count = starts_P1[-1]
    for part in range(len(gram_P)):
        count -= np.int64(gram_P[part]) - 1
    keys, part_G = np.empty(count, np.uint64), np.empty(count, np.uint32)
    position_G = np.empty(count, np.uint32)
    at = 0
    for part in range(len(gram_P)):
        length = np.int64(gram_P[part])
        for first in range(starts_P1[part], starts_P1[part + 1] - length + 1):
            value = backwards(words_K, first + length - 1, length, _ZERO)
            keys[at] = fmix64(value + np.uint64(length))
            part_G[at] = part
            position_G[at] = first - starts_P1[part]
            at += 1
    return keys, part_G, position_G
