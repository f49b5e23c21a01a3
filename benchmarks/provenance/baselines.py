"""What else could look for excerpts of works: three methods, each over whole documents.

All read the words that ours reads, so none loses or gains by another normalisation.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dedup.arrays import U64
from dedup.text import join_texts
from pipeline.screening.fingerprints.sketch import sample_grams
from pipeline.screening.fingerprints.words import BASE, find_words

_ALL = np.uint64((1 << 64) - 1)


class Method(Protocol):
    """Whether a text holds something of the works that it was built from."""

    name: str
    index_bytes: int

    def fires(self, text: str) -> bool: ...


def words(text: str) -> U64:
    return find_words(join_texts([text])).hashes


class ExactGrams:
    """Every run of `size` words of the works, unsampled, in a sorted array of 64-bit hashes: fires
    on a single one (the n-gram filter of GPT-3 and others, n = 13)."""

    def __init__(self, works: Iterable[str], size: int) -> None:
        self.name = f"{size}-gram exact"
        self._size = size
        self._hashes = np.unique(np.concatenate([self._grams(work) for work in works]))
        self.index_bytes = self._hashes.nbytes

    def fires(self, text: str) -> bool:
        found = self._grams(text)
        places = np.searchsorted(self._hashes, found)
        places[places == len(self._hashes)] = 0
        return bool((self._hashes[places] == found).any()) if len(found) else False

    def _grams(self, text: str) -> U64:
        if self._size <= 15:
            return sample_grams(words(text), self._size, _ALL)[0]
        found = words(text)
        count = max(0, len(found) - self._size + 1)
        sums = np.zeros(count, np.uint64)
        for place in range(self._size):
            sums = sums * np.uint64(BASE) + found[place : place + count]
        return sums ^ (sums >> np.uint64(31))


class Ensemble:
    """datasketch's `MinHashLSHEnsemble`: works of which a set of word 6-grams holds `threshold` of
    the document's, 128 permutations, 16 partitions."""

    def __init__(self, works: Sequence[str], threshold: float = 0.1) -> None:
        from datasketch import MinHashLSHEnsemble

        self.name = f"LSHEnsemble t={threshold}"
        self._index = MinHashLSHEnsemble(threshold=threshold, num_perm=128, num_part=16)
        self._index.index((number, *self._signed(work)) for number, work in enumerate(works))
        self.index_bytes = 128 * 8 * len(works)

    def fires(self, text: str) -> bool:
        signature, size = self._signed(text)
        return size > 0 and next(iter(self._index.query(signature, size)), None) is not None

    def _signed(self, text: str) -> tuple[object, int]:
        from datasketch import MinHash

        grams = np.unique(sample_grams(words(text), 6, _ALL)[0])
        signature = MinHash(num_perm=128, hashfunc=lambda value: value)
        if len(grams):
            signature.update_batch((grams >> np.uint64(32)).tolist())
        return signature, len(grams)


def fired(method: Method, texts: Sequence[str]) -> tuple[npt.NDArray[np.bool_], float]:
    """Which texts the method fires on, and the process seconds that it took."""
    started = time.process_time()
    found = np.array([method.fires(text) for text in texts], bool)
    return found, time.process_time() - started
