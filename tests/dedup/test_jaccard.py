"""Exact similarity: by sets, by hash tables, and against the labelled pairs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dedup
from dedup.presets import PRESETS, Preset
from dedup.similarity import PairJaccard
from dedup.text import Texts, view_texts
from pipeline.core import zstd

WORDS = Preset(name="words", unit="word", size=2, bands=1, rows=1)
ONE = Preset(name="one", unit="char", size=1, bands=1, rows=1)
text = st.text(st.sampled_from("abcABC  .,\tİΣσ東😀"), max_size=60)


def similarity(pair: PairJaccard, a: str, b: str) -> float:
    texts = view_texts([a, b])[0]
    start, middle, end = texts.offsets.tolist()
    return pair.of(texts.data, start, middle, texts.data, middle, end)


@pytest.fixture(scope="module", params=[PRESETS["slimpajama"], WORDS, ONE], ids=lambda p: p.name)
def pairs(request: pytest.FixtureRequest) -> tuple[Preset, PairJaccard, PairJaccard]:
    """One with a table that never fits, so that every pair takes several rounds."""
    return request.param, PairJaccard(request.param), PairJaccard(request.param, slots=64)


@settings(max_examples=60)
@given(text, text)
def test_equals_the_definition(
    pairs: tuple[Preset, PairJaccard, PairJaccard], a: str, b: str
) -> None:
    preset, pair, small = pairs
    first, second = set(dedup.shingles(a, preset)), set(dedup.shingles(b, preset))
    expected = len(first & second) / len(first | second) if first and second else 0.0
    assert dedup.jaccard(a, b, preset) == expected
    assert similarity(pair, a, b) == similarity(small, a, b) == expected
    assert similarity(pair, a, a) == (1.0 if first else 0.0)


@pytest.mark.parametrize("end", ["", " ΑΣ"])
def test_long_texts_in_parts(end: str) -> None:
    """Longer than a batch, and than the table."""
    random = np.random.default_rng(1)
    words = [str(n) for n in random.integers(0, 10**9, 15_000)]
    a, b = " ".join(words) + end, " ".join(words[2000:] + words[:500]) + end
    for slots in (1 << 12, 1 << 22):
        pair = PairJaccard(slots=slots)
        assert similarity(pair, a, b) == dedup.jaccard(a, b)
        assert len(pair._keys) <= slots, "each round has a share of the hashes only"
    assert similarity(PairJaccard(), "ab" * 90_000, "ba" * 5) == 0.0
    assert similarity(PairJaccard(), "ab" * 90_000, "ba" * 50) == 1.0


def test_a_full_table_grows() -> None:
    """Hashes are spread over the parts by chance: a table of 64 slots is often too small."""
    pair = PairJaccard(slots=64)
    letters = "".join(np.random.default_rng(2).choice(list("abcdefgh"), 40_000))
    a, b = letters[:20_100], letters[19_900:]
    assert similarity(pair, a, b) == dedup.jaccard(a, b)
    assert len(pair._keys) > 64


@pytest.mark.parametrize("slots", [4, 64])
def test_groups_of_hashes(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of texts whose table no cache holds. One of 4 slots is soon full: then there is one table."""
    monkeypatch.setattr("dedup.similarity._CACHED", slots)
    monkeypatch.setattr("dedup.similarity._EPOCHS", 5)
    pair, results = PairJaccard(), []
    by_group = pair._sizes_by_group

    def noted(*arguments: Any) -> tuple[int, int] | None:
        results.append(by_group(*arguments))
        return results[-1]

    monkeypatch.setattr(pair, "_sizes_by_group", noted)
    letters = "".join(np.random.default_rng(2).choice(list("abcdefgh"), 4_000))
    for a, b in ((letters[:2_100], letters[1_900:]), (letters, letters[7:] * 3), (letters, "")):
        assert similarity(pair, a, b) == dedup.jaccard(a, b)
    assert [found is None for found in results] == [slots == 4] * 3


def test_pairs_are_compared_by_64_bit_hashes() -> None:
    pair = PairJaccard(WORDS)
    assert similarity(pair, "a b c", "a b d") == 1 / 3
    assert pair._keys.dtype == np.uint64


def test_memory_is_bounded() -> None:
    pair = PairJaccard(slots=1 << 10)
    similarity(pair, "some words and more " * 4000, "other words " * 9000)
    assert len(pair._keys) == 1 << 10


def test_epochs_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The marks of 2^30 rounds ago must not be taken for new ones."""
    monkeypatch.setattr("dedup.similarity._EPOCHS", 5)
    pair = PairJaccard()
    for number in range(12):
        a = f"a sentence of some length {number}"
        assert similarity(pair, a, a + " more") == dedup.jaccard(a, a + " more")


@pytest.mark.shared_data
def test_labelled_pairs(shared_data: Path) -> None:
    """The corpus gives the Jaccard similarity of its pairs, by sets of strings."""
    lines = zstd.decompress((shared_data / "near_dups/docs.jsonl.zst").read_bytes()).splitlines()
    rows = [json.loads(line) for line in lines]
    number = {row["id"]: i for i, row in enumerate(rows)}
    texts: Texts = view_texts([row["text"] for row in rows])[0]
    pair, offsets = PairJaccard(), texts.offsets.tolist()
    labelled = pq.read_table(shared_data / "near_dups/pairs.parquet").to_pylist()
    close = [p for p in labelled if p["kind"] != "random"] + labelled[-2000:]
    for known in close:
        a, b = number[known["id_a"]], number[known["id_b"]]
        found = pair.of(
            texts.data, offsets[a], offsets[a + 1], texts.data, offsets[b], offsets[b + 1]
        )
        assert found == known["jaccard"], known
    assert len(close) > 5000
