"""Locality-sensitive hashing: bands of signature rows, one 8-byte digest each."""

import numpy as np
import numpy.typing as npt
import xxhash

from dedup.minhash import U32

BANDS = 9
ROWS = 13

U64 = npt.NDArray[np.uint64]


def band_digests(signature_P: U32) -> U64:
    """The digest of each band of one signature, (9,) uint64: xxh3-64 over its 13 rows.

    Two documents are a candidate pair when a digest of the same band is equal. Digests stand for
    the 104-byte keys of SlimPajama; at 1e9 documents about 0.03 false matches a band are expected.
    """
    rows = signature_P[: BANDS * ROWS].astype("<u4").reshape(BANDS, ROWS)
    return np.array([xxhash.xxh3_64_intdigest(row.tobytes()) for row in rows], np.uint64)


def detection_probability(jaccard: float, bands: int = BANDS, rows: int = ROWS) -> float:
    """Probability that a pair of this Jaccard similarity shares a band: 1 - (1 - J^r)^b.

    >>> round(detection_probability(0.8), 3)
    0.399
    """
    return float(1 - (1 - jaccard**rows) ** bands)
