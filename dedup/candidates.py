"""Candidate pairs of one band, as buckets: documents whose digest is the same."""

import numpy as np
import numpy.typing as npt

from dedup.lsh import U64

I64 = npt.NDArray[np.int64]


def buckets(digests_N: U64) -> tuple[I64, I64]:
    """Group equal digests; only groups of two and more are returned.

    digests_N (N,) uint64 -> (members (M,) int64 indices into digests_N, bucket (M,) int64 numbers
    from 0), ordered by bucket, then index. One sort, no pairs: a bucket of n documents costs n.
    """
    order = np.argsort(digests_N, kind="stable")
    values = digests_N[order]
    starts = (
        np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
        if len(values)
        else np.zeros(0, np.int64)
    )
    sizes = np.diff(np.r_[starts, len(values)])
    shared = np.repeat(sizes > 1, sizes)
    numbers = np.repeat(np.cumsum(sizes > 1) - 1, sizes)
    return order[shared].astype(np.int64), numbers[shared].astype(np.int64)
