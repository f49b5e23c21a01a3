"""Parameters of datasketch's permutations, made as datasketch 2.0 makes them (`minhash.py`).

Made here, because importing datasketch costs half a second in every worker; tests hold them equal.
numpy keeps the streams of RandomState frozen (NEP 19).
"""

from functools import cache
from typing import Any

import numpy as np

PADDING = 16
"""Permutations in a vector register, so that none is left over for a slow loop."""

_PRIME = (1 << 61) - 1


@cache
def permutations(scheme: str, num_perm: int, seed: int) -> tuple[Any, Any]:
    """Parameters a and b of scheme affine32 (uint32), affine64 or legacy (uint64).

    Each is padded with zeros to a multiple of PADDING.
    """
    random = np.random.RandomState(seed)
    if scheme == "legacy":
        known = np.empty((2, num_perm), np.uint64)
        for p in range(num_perm):
            known[0, p] = random.randint(1, _PRIME, dtype=np.uint64)
            known[1, p] = random.randint(0, _PRIME, dtype=np.uint64)
    else:
        width: Any = np.uint32 if scheme == "affine32" else np.uint64
        bits = 8 * np.dtype(width).itemsize
        odd = random.randint(0, 1 << (bits - 1), num_perm, dtype=width) * width(2) + width(1)
        known = np.array([odd, random.randint(0, 1 << bits, num_perm, dtype=width)])
    padded = np.zeros((2, -(-num_perm // PADDING) * PADDING), known.dtype)
    padded[:, :num_perm] = known
    return padded[0], padded[1]
