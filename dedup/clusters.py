"""Which of the near-duplicates stays: a selection no transitive chain can inflate.

Documents are visited in ascending rank; one is dropped if and only if it shares a bucket with a
document already kept, and its representative is the smallest such. So every dropped document has a
candidate edge to the document that stands for it, and the answer does not depend on the order of
edges.
"""

import numpy as np

from dedup.candidates import I64

KEPT = -1


def select(members_M: I64, buckets_M: I64, rank_N: I64) -> tuple[I64, I64]:
    """Choose representatives.

    members_M (M,) int64: document indices; buckets_M (M,) int64: bucket of each membership,
    numbered from 0 over all bands; rank_N (N,) int64: a permutation, smaller is preferred. Returns
    (representative (N,) int64: an index, or -1 for a document that stays; shared bands (N,) int64
    between a dropped document and its representative).

    Work is linear in M: a bucket holds at most one kept document, because any later member of the
    bucket is dropped.
    """
    representative = np.full(len(rank_N), KEPT, np.int64)
    shared = np.zeros(len(rank_N), np.int64)
    if not len(members_M):
        return representative, shared
    order = np.argsort(rank_N[members_M], kind="stable")
    documents, bucket = members_M[order], buckets_M[order]
    starts = np.flatnonzero(np.r_[True, documents[1:] != documents[:-1]])
    ends = np.r_[starts[1:], len(documents)]
    keeper = np.full(int(bucket.max()) + 1, KEPT, np.int64)
    for start, end in zip(starts, ends, strict=True):
        document, own = documents[start], bucket[start:end]
        found = keeper[own]
        found = found[found != KEPT]
        if not len(found):
            keeper[own] = document
            continue
        best = found[np.argmin(rank_N[found])]
        representative[document] = best
        shared[document] = np.count_nonzero(found == best)
    return representative, shared
