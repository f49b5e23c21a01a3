"""Which works of a registry are editions or parts of each other.

Two works are kin when they share KIN_SHARE of the sampled grams of the smaller one, and KIN_GRAMS
at least; kinship is passed on. A gram that only kin hold tells as much about them as one that a
single work holds; one that others hold too tells nothing (a proverb, a quotation in both).
"""

import numpy as np

from dedup.arrays import I64, U64
from dedup.compiled import kernel
from pipeline.provenance.fingerprints.growing import room_for

KIN_SHARE, KIN_GRAMS = 0.1, 8
WIDELY_SHARED = 32
"""A gram of more works than this says nothing about kinship."""


def kinship_of(grams_E: I64, works_E: I64, works: int) -> I64:
    """A number for each of the works, (W,): the smallest work of its kinship.

    grams_E: a number for the gram of each of E distinct (gram, work), ascending; works_E: its work.
    """
    grams_W = np.bincount(works_E, minlength=works)
    keys, times = np.unique(_shared_pairs(grams_E, works_E, np.uint64(works)), return_counts=True)
    one, other = (keys // np.uint64(works)).astype(np.int64), (keys % np.uint64(works))
    other = other.astype(np.int64)
    enough = np.maximum(KIN_SHARE * np.minimum(grams_W[one], grams_W[other]), KIN_GRAMS)
    kin_W = np.arange(works, dtype=np.int64)
    for first, second in zip(one[times >= enough], other[times >= enough], strict=True):
        roots = sorted((_root(kin_W, first), _root(kin_W, second)))
        kin_W[roots[1]] = roots[0]
    return np.array([_root(kin_W, work) for work in range(works)], np.int64)


def _root(kin_W: I64, work: int) -> int:
    while kin_W[work] != work:
        kin_W[work] = kin_W[kin_W[work]]
        work = int(kin_W[work])
    return work


@kernel
def _shared_pairs(grams_E: I64, works_E: I64, works: np.uint64) -> U64:
    """one * works + other, for every gram of each pair of works with one < other."""
    found = np.empty(max(16, len(grams_E)), np.uint64)
    held, start = 0, 0
    while start < len(grams_E):
        stop = start
        while stop < len(grams_E) and grams_E[stop] == grams_E[start]:
            stop += 1
        many = stop - start
        if 1 < many <= WIDELY_SHARED:
            found = room_for(found, held, many * many)
            for one in range(start, stop):
                for other in range(one + 1, stop):
                    found[held] = np.uint64(works_E[one]) * works + np.uint64(works_E[other])
                    held += 1
        start = stop
    return found[:held]
