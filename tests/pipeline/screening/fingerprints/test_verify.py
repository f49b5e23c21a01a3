"""Dense verification against a plain oracle."""

import random
from collections import defaultdict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup.text import join_texts
from pipeline.screening.fingerprints.build import build_index
from pipeline.screening.fingerprints.index import FingerprintIndex
from pipeline.screening.fingerprints.match import BAND, Candidates, find_candidates, join_passages
from pipeline.screening.fingerprints.verify import GAP, SAME, verify_candidates
from tests.pipeline.screening.fingerprints import reference

from .conftest import invented

Row = tuple[int, ...]


def oracle(
    documents: list[str], works: list[str], notice: str, found: Candidates, index: FingerprintIndex
) -> set[Row]:
    """Document, work, first byte, byte after the last, hits, longest run, words, matched, grams."""
    k, passages = index.parameters.k, set()
    boilerplate = {gram for gram, _ in reference.sketch(notice, k, 1 << 64)}
    by_pair: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for document, work, *rest in zip(*(column.tolist() for column in found), strict=True):
        by_pair[document, work].append(tuple(rest))
    for (document, work), candidates in by_pair.items():
        words = reference.words(documents[document])
        places = defaultdict(list)
        for gram, place in reference.sketch(works[work], k, 1 << 64):
            if len(places[gram]) < SAME and gram not in boilerplate:
                places[gram].append(place)
        first = max(0, min(c[2] for c in candidates) - GAP)
        stop = max(c[3] for c in candidates) + reference.CHARACTERS + GAP
        matches: list[tuple[int, int, bool]] = []
        before = None
        for place in range(first, min(stop, len(words)) - k + 1):
            gram = reference.gram_hash([word for word, _, _ in words[place : place + k]])
            near = [
                at - place
                for at in places.get(gram, [])
                if any(low - 1 <= (at - place) // BAND <= high + 1 for low, high, *_ in candidates)
            ]
            diagonal = before if before in near else next(iter(near), None)
            if diagonal is not None:
                matches.append((place, diagonal, diagonal == before))
            before = diagonal
        for group in grouped(matches, k):
            hits = len({place + diagonal for place, diagonal, _ in group})
            if hits >= index.parameters.dense:
                start, end = group[0][0], group[-1][0] + k
                span = (words[start][1], words[end - 1][2])
                counts = (longest(group, k), end - start, len(group), end - start - k + 1)
                passages.add((document, work, *span, hits, *counts))
    return passages


def grouped(matches: list[tuple[int, int, bool]], k: int) -> list[list[tuple[int, int, bool]]]:
    groups: list[list[tuple[int, int, bool]]] = []
    for match in matches:
        if not groups or match[0] > groups[-1][-1][0] + k + GAP:
            groups.append([])
        groups[-1].append(match)
    return groups


def longest(group: list[tuple[int, int, bool]], k: int) -> int:
    best = run = 0
    for number, (_, _, is_joined) in enumerate(group):
        run = run + 1 if is_joined and number else k
        best = max(best, run)
    return best


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.sampled_from([60, 400, 4000]))
def test_against_the_oracle(seed: int, vocabulary: int) -> None:
    rng = random.Random(seed)
    notice = invented(seed + 5, 60, vocabulary)
    works = [
        f"{invented(seed + n, 900, vocabulary)} {notice} {invented(seed + n + 2, 300, vocabulary)}"
        for n in range(2)
    ]
    entries = [(str(n), "excerpt", text) for n, text in enumerate(works)]
    index = build_index(entries, boilerplate=[notice])
    documents = []
    for number in range(4):
        pieces = invented(seed + 10 + number, 300, vocabulary).split()
        for _ in range(rng.randrange(4)):
            words = rng.choice(works).split()
            start = rng.randrange(len(words))
            piece = words[start : start + rng.randrange(400)]
            pieces += [w if rng.random() < 0.9 else "é" for w in piece]
            pieces += ["other"] * rng.randrange(2 * GAP)
        documents.append(" ".join(pieces))
    chunk = join_texts(documents)
    candidates, hits, words_N = find_candidates(chunk, index)
    found = verify_candidates(chunk, candidates, hits, words_N, index)
    rows = list(zip(*(column.tolist() for column in found[:9]), strict=True))
    assert rows == sorted(rows, key=lambda row: (row[0], row[2], row[1]))
    assert set(rows) == oracle(documents, works, notice, candidates, index)
    assert found.document_words.tolist() == words_N[found.document].tolist()
    for document, work, share in zip(found.document, found.work, found.fraction, strict=True):
        mine = (found.document == document) & (found.work == work)
        assert found.longest[mine].max() / words_N[document] <= share
        assert share <= found.words[mine].sum() / words_N[document]


def test_passages_part_at_gaps() -> None:
    """Places 0 to 4 on one diagonal, one more on another, and one after the gap."""
    rows = [(place, 10, 5, place > 0, place) for place in range(5)]
    rows += [(5, 40, 5, False, 5), (5 + 5 + 21, 10, 5, False, 31)]
    matches = np.array(rows, np.int64)
    found = join_passages(matches, len(matches), 20, np.zeros(100, np.int64), 1)
    assert found.tolist() == [[0, 10, 6, 6, 6, 9, 0], [31, 36, 1, 1, 1, 5, 0]]
    assert join_passages(matches, 0, 20, np.zeros(100, np.int64), 1).tolist() == []
