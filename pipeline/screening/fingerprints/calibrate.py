"""How many grams in one band make a candidate, and which works are editions or parts of each other.

A document of PIECE words and an unrelated work share a sampled gram in one band with probability c,
and each further one for a factor of r less. On 36,588 pairs of documents and 13 novels with s = 8,
c was .151, .037, .0055, .00008 for k = 4, 5, 6, 8, and r about 70 for k = 5, 200 for k = 6. m is
the smallest with works * c * r^(1 - m) <= expected, where a work of a sparser sketch counts 8 / s.
c is measured on the registry's own works; with fewer than ENOUGH hits the values above count.

Kin are works that share KIN_SHARE of the sampled grams of the smaller one; kinship is passed on. A
gram that only kin hold counts as one that a single work holds; one that others hold too does not.
"""

from typing import NamedTuple

import numpy as np

from dedup.arrays import I64, U64
from dedup.compiled import kernel
from pipeline.screening.fingerprints.sketch import EXCERPT_S
from pipeline.screening.fingerprints.words import make_room

PIECE = 3000
"""Words of a document that the probabilities are for: about 18 kB."""
TO_VERIFY, TO_VERIFY_MANY, UNVERIFIED = 0.1, 0.01, 1e-6
"""Documents that are candidates by coincidence: this share of them at most."""
ENOUGH = 20
SMALL_REGISTRY = 100
LEAST, MOST = 2, 8
DENSE_PER_GRAM = 5
"""Grams of all that a verified passage has for each sampled one that made it a candidate. One in 8
is sampled, so five of the eight that are to be expected."""


class Background(NamedTuple):
    """Pairs of a piece and an unrelated work that were compared, and those with a common gram."""

    pairs: int
    hit: int


def choose_k(works: int) -> int:
    """Words in a gram for a registry of so many works: 5, and 6 above SMALL_REGISTRY."""
    return 5 if works <= SMALL_REGISTRY else 6


def find_published_chance(k: int) -> float:
    """c for this k, with a factor of 6.7 for each k that was not measured."""
    measured = {4: 0.151, 5: 0.037, 6: 0.0055, 8: 0.00008}
    nearest = min(measured, key=lambda one: (abs(one - k), one))
    return min(1.0, measured[nearest] * 6.7 ** (nearest - k))


def find_factor(k: int) -> float:
    """r for this k: 70 for 5, 200 for 6, and by that factor for others."""
    return 70.0 * (200 / 70) ** (k - 5)


def choose_chance(k: int, background: Background) -> float:
    """c: measured, where that was enough, else as published."""
    if background.hit < ENOUGH:
        return find_published_chance(k)
    return background.hit / background.pairs


def count_needed_grams(k: int, sparseness: I64, chance: float, expected: float) -> int:
    """m for works of these s: LEAST at least and MOST at most.

    >>> [count_needed_grams(5, np.full(100, 8), c, TO_VERIFY) for c in (0.037, 0.12)]
    [2, 3]
    >>> [count_needed_grams(6, np.full(n, 8), 0.0055, TO_VERIFY_MANY) for n in (101, 5000, 500_000)]
    [2, 3, 4]
    >>> count_needed_grams(5, np.full(30, 8), 0.037, UNVERIFIED)
    5
    """
    m = LEAST
    while m < MOST and estimate_coincidences(k, sparseness, chance, m) > expected:
        m += 1
    return m


def estimate_coincidences(k: int, sparseness: I64, chance: float, m: int) -> float:
    """The share of documents of PIECE words that are candidates by coincidence, 1 at most."""
    works = float((EXCERPT_S / sparseness).sum())
    return min(1.0, works * chance * find_factor(k) ** (1 - m))


def measure_background(
    positions_E: I64, grams_E: I64, works_E: I64, kin_W: I64, words_W: I64
) -> Background:
    """The background from E occurrences of sampled grams that works of two kinships hold.

    positions_E: in the work; grams_E: a number of the gram, equal ones in a row; kin_W: the
    kinship of each work; words_W: its length.
    """
    pieces_W = -(-words_W // PIECE)
    first_piece_W = np.concatenate([[0], np.cumsum(pieces_W)])[:-1]
    pieces_E = first_piece_W[works_E] + positions_E // PIECE
    pairs = _list_pairs(pieces_E, grams_E, works_E, kin_W, np.uint64(len(kin_W)))
    _, kinship, size = np.unique(kin_W, return_inverse=True, return_counts=True)
    unrelated = len(kin_W) - size[kinship]
    return Background(int((pieces_W * unrelated).sum()), len(np.unique(pairs)))


@kernel
def _list_pairs(pieces_E: I64, grams_E: I64, works_E: I64, kin_W: I64, works: np.uint64) -> U64:
    """piece * works + other work, for each two occurrences of one gram in two kinships."""
    pairs = np.empty(max(16, 2 * len(pieces_E)), np.uint64)
    count, start = 0, 0
    while start < len(grams_E):
        stop = start
        while stop < len(grams_E) and grams_E[stop] == grams_E[start]:
            stop += 1
        for one in range(start, stop):
            for other in range(start, stop):
                if kin_W[works_E[one]] == kin_W[works_E[other]]:
                    continue
                pairs = make_room(pairs, count, 1)
                pairs[count] = np.uint64(pieces_E[one]) * works + np.uint64(works_E[other])
                count += 1
        start = stop
    return pairs[:count]


KIN_SHARE, KIN_GRAMS = 0.1, 8
WIDELY_SHARED = 32
"""A gram of more works than this says nothing about kinship."""


def find_kinship(grams_E: I64, works_E: I64, works: int) -> I64:
    """A number for each of the works, (W,): the smallest work of its kinship.

    grams_E: a number for the gram of each of E distinct (gram, work), ascending; works_E: its work.
    """
    grams_W = np.bincount(works_E, minlength=works)
    keys, times = np.unique(
        _list_shared_pairs(grams_E, works_E, np.uint64(works)), return_counts=True
    )
    one, other = (keys // np.uint64(works)).astype(np.int64), (keys % np.uint64(works))
    other = other.astype(np.int64)
    enough = np.maximum(KIN_SHARE * np.minimum(grams_W[one], grams_W[other]), KIN_GRAMS)
    kin_W = np.arange(works, dtype=np.int64)
    for first, second in zip(one[times >= enough], other[times >= enough], strict=True):
        roots = sorted((_find_root(kin_W, first), _find_root(kin_W, second)))
        kin_W[roots[1]] = roots[0]
    return np.array([_find_root(kin_W, work) for work in range(works)], np.int64)


def _find_root(kin_W: I64, work: int) -> int:
    while kin_W[work] != work:
        kin_W[work] = kin_W[kin_W[work]]
        work = int(kin_W[work])
    return work


@kernel
def _list_shared_pairs(grams_E: I64, works_E: I64, works: np.uint64) -> U64:
    """one * works + other, for every gram of each pair of works with one < other."""
    pairs = np.empty(max(16, len(grams_E)), np.uint64)
    count, start = 0, 0
    while start < len(grams_E):
        stop = start
        while stop < len(grams_E) and grams_E[stop] == grams_E[start]:
            stop += 1
        many = stop - start
        if 1 < many <= WIDELY_SHARED:
            pairs = make_room(pairs, count, many * many)
            for one in range(start, stop):
                for other in range(one + 1, stop):
                    pairs[count] = np.uint64(works_E[one]) * works + np.uint64(works_E[other])
                    count += 1
        start = stop
    return pairs[:count]
