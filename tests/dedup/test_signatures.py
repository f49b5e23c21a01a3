"""Signatures and band digests equal datasketch, used as SlimPajama's `to_hash.py` uses it."""

import re
import string

import numpy as np
import pytest
import xxhash
from datasketch import MinHash
from datasketch.hashfunc import sha1_hash32
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup.lsh import BANDS, ROWS, band_digests, detection_probability
from dedup.minhash import PERMUTATIONS, SHINGLE, shingles, signature

text = st.text(st.sampled_from("abcdefg hijk\n.,!Éß東ß\u0130\t-"), max_size=300)


def ngrams(document: str) -> list[str]:
    """With multiplicity, as the script has them."""
    clean = re.sub(r"\s+", " ", document.lower().translate(_DELETE).strip())
    return [clean[i : i + 13] for i in range(len(clean) - 12)]


_DELETE = str.maketrans("", "", string.punctuation)


def datasketch_signature(document: str) -> MinHash:
    """One `update` per n-gram, nothing deduplicated, nothing batched."""
    minhash = MinHash(num_perm=128, seed=1, hashfunc=sha1_hash32, scheme="legacy")
    for ngram in ngrams(document):
        minhash.update(ngram.encode("utf8"))
    return minhash


@settings(max_examples=40)
@given(text)
def test_signature_equals_datasketch(document: str) -> None:
    found = signature(document)
    if not ngrams(document):
        assert found is None
        return
    assert found is not None and found.dtype == np.uint32 and found.shape == (PERMUTATIONS,)
    assert found.tolist() == datasketch_signature(document).hashvalues.tolist()


@pytest.mark.parametrize("length", [0, 12, 13, 14, 4096 + 12, 4096 + 13, 9000])
def test_lengths_around_the_batch(length: int) -> None:
    document = "".join(chr(97 + (i * i + i // 7) % 26) for i in range(length))
    found = signature(document)
    expected = datasketch_signature(document).hashvalues.tolist()
    assert (found.tolist() if found is not None else None) == (expected if length > 12 else None)


def test_repetition_changes_nothing() -> None:
    """Multiplicity does not reach a minimum: the set of shingles is enough."""
    once, twice = signature("the same words " * 20), signature("the same words " * 200)
    assert once is not None and twice is not None and (once == twice).all()


@given(text)
def test_shingles(document: str) -> None:
    assert shingles(document) == set(ngrams(document))
    assert all(len(s) == SHINGLE for s in shingles(document))


@settings(max_examples=30)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=128, max_size=128), st.data())
def test_band_digests(values: list[int], data: st.DataObject) -> None:
    """Digest b is of rows 13 b .. 13 b + 12 and of nothing else; the last 11 rows count nowhere."""
    assert (BANDS, ROWS) == (9, 13)
    one = np.array(values, np.uint32)
    digests = band_digests(one)
    assert digests.dtype == np.uint64 and digests.shape == (9,)
    packed = [one[13 * b : 13 * b + 13].astype("<u4").tobytes() for b in range(9)]
    assert digests.tolist() == [xxhash.xxh3_64_intdigest(p) for p in packed]
    place = data.draw(st.integers(0, 127))
    other = one.copy()
    other[place] ^= 1
    changed = np.flatnonzero(band_digests(other) != digests).tolist()
    assert changed == ([place // 13] if place < 117 else [])


def test_digests_stand_for_the_original_keys() -> None:
    """Equal digests exactly where SlimPajama's 104-byte keys (byte-swapped uint64) are equal."""
    documents = [" ".join(f"word{i * j % 17}" for j in range(80)) for i in range(12)]
    documents += [d + " tail" for d in documents]
    sketches = [datasketch_signature(d).hashvalues for d in documents]
    for band in range(9):
        rows = [bytes(s[band * 13 : band * 13 + 13].byteswap().data) for s in sketches]
        digests = [int(band_digests(s.astype(np.uint32))[band]) for s in sketches]
        same_rows = [[a == b for a in rows] for b in rows]
        assert same_rows == [[a == b for a in digests] for b in digests]


@pytest.mark.parametrize(
    ("jaccard", "probability"), [(0.5, 0.001), (0.7, 0.084), (0.8, 0.399), (0.9, 0.929), (1, 1)]
)
def test_detection_probability(jaccard: float, probability: float) -> None:
    assert detection_probability(jaccard) == pytest.approx(probability, abs=6e-4)
