"""How much of a document is a work's: never more than the words that both hold."""

import random
from pathlib import Path

import numpy as np
import pytest

from dedup.text import join_texts
from pipeline.screening.fingerprints import find_passages
from pipeline.screening.fingerprints.match import COPY
from pipeline.screening.fingerprints.words import find_words

from .conftest import invented


def share_of(text: str, first: int, size: int) -> float:
    """The share of a text's words that are its words [first, first + size), or a run of COPY of
    them wherever it is repeated."""
    words = find_words(join_texts([text])).hashes.tolist()
    long = -int(-COPY * size // 1)
    runs = {tuple(words[at : at + long]) for at in range(first, first + size - long + 1)}
    is_copied = np.zeros(len(words), bool)
    is_copied[first : first + size] = True
    for at in range(len(words) - long + 1):
        if tuple(words[at : at + long]) in runs:
            is_copied[at : at + long] = True
    return float(is_copied.mean())


def excerpt_of(text: str, first: int, size: int) -> str:
    words = find_words(join_texts([text]))
    return text.encode()[words.starts[first] : words.ends[first + size - 1]].decode()


def check_random_excerpts(texts: list[str], rng: random.Random, count: int) -> None:
    """Random excerpts of random texts, each a registered work, against the text it is from."""
    found = 0
    for _ in range(count):
        text, size = rng.choice(texts), rng.choice([30, 60, 120, 400])
        words = len(find_words(join_texts([text])).hashes)
        if words <= size:
            continue
        first = rng.randrange(words - size)
        rows = find_passages([text], [("w", excerpt_of(text, first, size))]).to_pylist()
        if rows:
            found += 1
            assert rows[0]["document_fraction"] <= 1.1 * share_of(text, first, size)
            assert rows[0]["work_fraction"] <= 1
    assert found > count / 2


def test_invented_excerpts_are_not_overstated() -> None:
    """Of few different words, so that phrases recur in every text."""
    texts = [invented(900 + n, 2000, vocabulary=60) for n in range(4)]
    check_random_excerpts(texts, random.Random(1), 60)


@pytest.mark.shared_data
def test_real_excerpts_are_not_overstated(shared_data: Path) -> None:
    from benchmarks.provenance.excerpts import read_corpus

    corpus = read_corpus([str(shared_data / "pile_sample" / "03.jsonl.zst")], [], "Gutenberg")
    texts = random.Random(2).sample(list(corpus.unrelated), 300)
    check_random_excerpts(texts, random.Random(3), 400)


def test_a_phrase_that_a_document_repeats_is_no_more_of_it() -> None:
    words = invented(950, 1000).split()
    excerpt = words[400:460]
    for at in range(0, 1000, 40):
        if not 394 <= at < 460:
            words[at : at + 6] = excerpt[10:16]
    (row,) = find_passages([" ".join(words)], [("w", " ".join(excerpt))]).to_pylist()
    assert row["document_fraction"] == 60 / 1000
    assert row["work_fraction"] == 1


def test_every_copy_of_a_work_counts() -> None:
    work = invented(960, 100)
    text = f"{work} {invented(961, 50)} {work} {invented(962, 150)}"
    (row,) = find_passages([text], [("w", work)]).to_pylist()
    assert row["document_fraction"] == 200 / 400
    assert row["work_fraction"] == 1


def test_words_between_two_equal_runs_count_where_they_are_equal() -> None:
    words = invented(970, 600).split()
    edited = [word if n % 8 else f"new{n}" for n, word in enumerate(words)]
    (row,) = find_passages([" ".join(edited[:300])], [("w", " ".join(words))]).to_pylist()
    assert row["document_fraction"] == pytest.approx(7 / 8, abs=0.03)
    assert row["work_fraction"] == pytest.approx(7 / 16, abs=0.02)
