"""MinHash signatures of the `slimpajama` recipe, by datasketch itself.

13-character shingles of the normalised text; 128 permutations, seed 1, scheme `legacy`, base hash
the first four bytes of SHA-1 (little-endian): datasketch 1.x defaults, as SlimPajama used them.
Shingles are taken as a set, which leaves the signature unchanged.
"""

from itertools import islice

import numpy as np
import numpy.typing as npt
from datasketch import MinHash
from datasketch.hashfunc import sha1_hash32

from dedup.normalize import normalize

SHINGLE = 13
PERMUTATIONS = 128
SEED = 1
_BATCH = 4096

U32 = npt.NDArray[np.uint32]


def shingles(text: str) -> set[str]:
    """The set of all 13-character substrings of the normalised text; empty when it is shorter.

    >>> sorted(shingles("Hello, big world"))
    ['ello big worl', 'hello big wor', 'llo big world']
    """
    clean = normalize(text)
    return {clean[i : i + SHINGLE] for i in range(len(clean) - SHINGLE + 1)}


def new_minhash() -> MinHash:
    """An empty MinHash with the recipe's parameters."""
    return MinHash(num_perm=PERMUTATIONS, seed=SEED, hashfunc=sha1_hash32, scheme="legacy")


def signature(text: str) -> U32 | None:
    """The signature, (128,) uint32; None for a document without a shingle, which never clusters."""
    found = shingles(text)
    if not found:
        return None
    minhash = new_minhash()
    encoded = (shingle.encode() for shingle in found)
    while batch := list(islice(encoded, _BATCH)):
        minhash.update_batch(batch)
    values: U32 = minhash.hashvalues.astype(np.uint32)
    return values
