"""HDF5's fletcher32, for chunks that are filtered here instead of by the HDF5 library.

The library adds up 16-bit big-endian words in C. Here two dot products of numpy do it: sums
modulo 65535 do not care about the byte order of the words, but that the result has to be swapped
(RFC 1071, section 2), so the words are read as little-endian and never copied for it.
"""

import numpy as np

_MODULUS = 65535
_BLOCK = 1 << 13
"""Words per block: few enough that BLAS starts no threads for a dot product, and that a float64
holds every sum exactly."""
_WEIGHTS = np.arange(_BLOCK, 0, -1, dtype=np.float64)
_ONES = np.ones(_BLOCK)


def fletcher32(data: bytes | memoryview) -> int:
    """The fletcher32 that HDF5 stores, little-endian, behind the bytes `data` of a chunk.

    >>> hex(fletcher32(b"abcde"))
    '0x4ff029c7'
    """
    words = np.frombuffer(data, "<u2", len(data) // 2)
    odd = len(data) % 2
    left = len(words) + odd
    total = weighted = 0
    for start in range(0, len(words), _BLOCK):
        block = words[start : start + _BLOCK].astype(np.float64)
        left -= len(block)
        block_sum = int(block @ _ONES[: len(block)])
        weighted += int(block @ _WEIGHTS[_BLOCK - len(block) :]) + left * block_sum
        total += block_sum
    if odd:
        total += data[-1]
        weighted += data[-1]
    return _reduced(weighted) << 16 | _reduced(total)


def _reduced(total: int) -> int:
    """Bytes swapped, modulo 65535; as in C, 65535 stands for 0 unless every word is 0."""
    swapped = total * 256 % _MODULUS
    return _MODULUS if swapped == 0 and total else swapped
