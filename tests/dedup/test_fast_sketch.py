"""FastSimilaritySketch: a sketch of the set, as exact as MinHash with as many cells."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dedup
from dedup.arrays import F64
from dedup.minhash import _sketch
from dedup.presets import BASE, PRESETS, Preset, evaluate_polynomial, fmix64_integer
from dedup.sketches import EMPTY, ROUNDS, fast_sketch

SET = Preset(name="set", unit="word", size=1, bands=1, rows=1)
"""Texts as sets of words: any Jaccard similarity can be made."""
MASK = 2**64 - 1


def plain(shingles: set[bytes], cells: int, seed: int) -> list[int]:
    """The sketch as its module describes it, in plain Python."""

    def key(number: int) -> int:
        return fmix64_integer(fmix64_integer(seed + BASE & MASK) + (number + 1) * BASE & MASK)

    row: list[int | None] = [None] * cells
    for number in range(ROUNDS):
        if shingles and None not in row:
            break
        thrown: dict[int, int] = {}
        for shingle in shingles:
            mixed = fmix64_integer(evaluate_polynomial(shingle) ^ key(number))
            cell, value = (mixed >> 32) % cells, number << 28 | (mixed & 0xFFFFFFFF) >> 4
            thrown[cell] = min(thrown.get(cell, value), value)
        row = [thrown.get(c) if row[c] is None else row[c] for c in range(cells)]
    for cell in range(cells):
        if row[cell] is None and shingles:
            mixes = [fmix64_integer(evaluate_polynomial(s) ^ key(ROUNDS + cell)) for s in shingles]
            row[cell] = min(0xFFFFFFFE, *(0xF << 28 | (m & 0xFFFFFFFF) >> 4 for m in mixes))
    return [int(EMPTY) if value is None else value for value in row]


@settings(max_examples=40)
@given(
    st.sets(st.integers(0, 500), max_size=40), st.sampled_from([1, 2, 16, 128]), st.integers(0, 9)
)
def test_equals_the_description(numbers: set[int], cells: int, seed: int) -> None:
    text = " ".join(map(str, sorted(numbers)))
    found = dedup.signatures([text], preset=SET, scheme="fss", num_perm=cells, seed=seed)
    assert found[0].tolist() == plain({str(n).encode() for n in numbers}, cells, seed)


def test_only_the_set_counts() -> None:
    """Order and repetition do not, also where the text is cut into many batches."""
    words = [f"word{i}" for i in range(30)]
    few = " ".join(words)
    many = " ".join(words[::-1] * 3000)
    found = dedup.signatures([few, many], preset=SET, scheme="fss")
    assert (found[0] == found[1]).all()
    recipe = replace(PRESETS["slimpajama"], scheme="fss")
    texts = ["ab" * 20, "ab" * 100_000, "ab" * 100_000 + "ΑΣ", "ab" * 20 + "ΑΣ"]
    rows = _sketch(texts, recipe, with_digest=False).signatures
    assert (rows[0] == rows[1]).all() and (rows[2] == rows[3]).all()
    assert (rows[0] != rows[2]).any() and not (rows == EMPTY).any()


def similar_sets(pairs: int, seed: int) -> tuple[list[str], F64]:
    """Two texts per pair, with Jaccard similarities evenly over [0.5, 1)."""
    random = np.random.default_rng(seed)
    texts, similarity = [], []
    for pair in range(pairs):
        size = int(random.integers(2000, 4000))
        wanted = 0.5 + 0.5 * pair / pairs
        own = round(size * (1 - wanted) / (1 + wanted))
        names = random.integers(0, 2**40, size + own).tolist()
        texts += [" ".join(map(str, names[:size])), " ".join(map(str, names[own:]))]
        similarity.append((size - own) / (size + own))
    return texts, np.array(similarity)


@pytest.mark.parametrize("scheme", ["affine32", "fss"])
def test_error_is_that_of_theory(scheme: str) -> None:
    """RMSE over four seeds within 5 % of sqrt(J (1 - J) / 128), and no bias.

    (On sets of a few hundred the fast sketch is better than that: no shingle holds two cells.)
    """
    texts, similarity = similar_sets(400, seed=7)
    errors = []
    for seed in range(1, 5):
        rows = dedup.signatures(texts, preset=SET, scheme=scheme, seed=seed)
        errors.append((rows[::2] == rows[1::2]).mean(axis=1) - similarity)
    theory = np.sqrt((similarity * (1 - similarity) / 128).mean())
    assert np.sqrt(np.square(errors).mean()) == pytest.approx(theory, rel=0.05)
    assert abs(np.mean(errors)) < 0.002


def test_bands_find_as_theory_says() -> None:
    """Cells can be banded: the share of pairs with a common band is 1 - (1 - J^r)^b."""
    texts, similarity = similar_sets(400, seed=3)
    rows = dedup.signatures(texts, preset=SET, scheme="fss")
    same = (rows[::2, :112] == rows[1::2, :112]).reshape(-1, 14, 8).all(axis=2).any(axis=1)
    expected = np.array([dedup.detection_probability(j, 14, 8) for j in similarity])
    deviation = np.sqrt((expected * (1 - expected)).sum())
    assert abs(same.sum() - expected.sum()) < 3 * deviation


def test_a_part_runs_the_first_round_only() -> None:
    hashes = np.arange(1, 4, dtype=np.uint64)
    rows = np.full((1, 128), EMPTY)
    fast_sketch(hashes, np.array([[0, 0, 3]]), True, False, 1, rows)
    assert (rows != EMPTY).sum() <= 3
    fast_sketch(hashes, np.array([[0, 0, 3]]), False, False, 1, rows)
    assert not (rows == EMPTY).any()
