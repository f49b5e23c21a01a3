"""Mixtures and splits: which documents are repeated and held out, against plain Python."""

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dedup.arrays import U64
from pipeline.config.prep import Config, load_config
from pipeline.config.sections import MixtureConfig
from pipeline.core import rng
from pipeline.core.errors import ConfigError, InputError
from pipeline.runs import splits
from pipeline.stages.mixture.quotas import (
    ALL,
    DocumentTokens,
    SizeClasses,
    check_sources,
    draw_copies,
    fill_quotas,
    group_quotas,
    group_targets,
    quota_of_epochs,
    size_classes,
    targets,
)
from pipeline.stages.shuffle.places import places

SEED = 5
MASK = (1 << 64) - 1


def keys(count: int, salt: int = 0) -> U64:
    drawn = [rng.key(salt, "document", i) for i in range(count)]
    return np.array([[k & MASK, k >> 64] for k in drawn], np.uint64).reshape(-1, 2)


def plain_rank(key: np.ndarray, purpose: str) -> int:
    """rng.rank in plain integers: fmt of MurmurHash3's finalizer over both halves of the key."""

    def mix(x: int) -> int:
        x ^= x >> 33
        x = x * 0xFF51AFD7ED558CCD & MASK
        x ^= x >> 33
        x = x * 0xC4CEB9FE1A85EC53 & MASK
        return x ^ x >> 33

    secret = rng.key(SEED, "rank", purpose)
    mixed = mix(int(key[0]) ^ (secret & MASK))
    return mix(mix((mixed + int(key[1])) & MASK) ^ (secret >> 64))


def plain_copies(key: np.ndarray, epochs: Fraction) -> int:
    """Copy c is there when c + u(c) < epochs, counted one by one."""
    copies = 0
    while copies + Fraction(plain_rank(key, f"mixture/{copies}"), ALL) < epochs:
        copies += 1
    return copies


@given(st.floats(0, 6), st.integers(0, 30))
@example(1.0, 20)
@example(0.0, 20)
@example(2.5, 20)
def test_epochs_against_plain_python(epochs: float, count: int) -> None:
    key_N2 = keys(count)
    part = DocumentTokens(key_N2, np.zeros(count, np.int64), np.ones(count, np.int64))
    found = draw_copies(part, (quota_of_epochs(epochs),), SEED)
    expected = [plain_copies(key, Fraction(epochs)) for key in key_N2]
    assert found.tolist() == expected


@given(st.lists(st.floats(0, 4), min_size=2, max_size=2))
def test_more_epochs_only_add_copies(epochs: list[float]) -> None:
    part = DocumentTokens(keys(40), np.zeros(40, np.int64), np.ones(40, np.int64))
    less, more = (draw_copies(part, (quota_of_epochs(e),), SEED) for e in sorted(epochs))
    assert (less <= more).all()


def test_a_share_of_documents() -> None:
    """2.25 epochs of many documents are 2.25 copies on average, each document 2 or 3."""
    count = 20_000
    part = DocumentTokens(keys(count), np.zeros(count, np.int64), np.ones(count, np.int64))
    copies = draw_copies(part, (quota_of_epochs(2.25),), SEED)
    assert set(copies.tolist()) == {2, 3}
    assert abs(copies.mean() - 2.25) < 5 * (0.25 * 0.75 / count) ** 0.5


documents = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 50)), min_size=1, max_size=60)


@given(documents, st.lists(st.integers(0, 3_000), min_size=3, max_size=3), st.integers(1, 4))
@example([(0, 5)] * 3, [15, 0, 0], 1)
@example([(0, 5)] * 3, [4, 0, 0], 1)
def test_fill_comes_within_a_document(
    rows: list[tuple[int, int]], wanted: list[int], pieces: int
) -> None:
    """Never more than asked; less by less than the next document of that source, by draw."""
    source, tokens = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    whole = DocumentTokens(keys(len(rows)), source, tokens)
    totals = np.bincount(source, tokens, 3).astype(np.int64)
    target = np.where(totals > 0, np.array(wanted, np.int64), 0)

    def parts() -> Iterator[DocumentTokens]:
        for at in np.array_split(np.arange(len(rows)), pieces):
            yield DocumentTokens(whole.key_N2[at], source[at], tokens[at])

    quotas = fill_quotas(target, totals, parts, SEED)
    copies = draw_copies(whole, quotas, SEED).astype(np.int64)
    got = np.bincount(source, tokens * copies, 3).astype(np.int64)
    for s in range(3):
        assert got[s] <= target[s]
        left_out = [i for i in np.flatnonzero(source == s) if copies[i] == quotas[s].copies]
        if left_out:
            purpose = f"mixture/{quotas[s].copies}"
            next_one = min(left_out, key=lambda i: plain_rank(whole.key_N2[i], purpose))
            assert got[s] + tokens[next_one] > target[s]
        else:
            assert got[s] == target[s]


@given(documents, st.integers(0, 500), st.tuples(st.integers(0, 2), st.integers(1, 50)))
def test_one_more_document_only_thins_out_its_source(
    rows: list[tuple[int, int]], wanted: int, new: tuple[int, int]
) -> None:
    """By weight: other sources keep every copy, its own source loses some at most."""

    def copies(rows: list[tuple[int, int]], target: np.ndarray) -> np.ndarray:
        source, tokens = (np.array(column, np.int64) for column in zip(*rows, strict=True))
        part = DocumentTokens(keys(len(rows)), source, tokens)
        totals = np.bincount(source, tokens, 3).astype(np.int64)
        target = np.where(totals > 0, target, 0)
        return draw_copies(part, fill_quotas(target, totals, lambda: iter([part]), SEED), SEED)

    target = np.full(3, wanted)
    before, after = copies(rows, target), copies([*rows, new], target)
    for (source, _), old, now in zip(rows, before.tolist(), after.tolist(), strict=False):
        assert now <= old if source == new[0] else now == old


@given(st.lists(st.integers(0, 5), max_size=30), st.integers(0, 5))
def test_copies_have_ranks_of_their_own(copies: list[int], more: int) -> None:
    """Every copy once, in the order of (split, rank); a document more moves no other's copies."""
    key_N2 = keys(len(copies) + 1)
    split = np.array([i % 3 for i in range(len(copies) + 1)], np.uint8)
    count = np.array([*copies, more], np.int64)
    with_more = places(key_N2, split, count, SEED)
    without = places(key_N2[:-1], split[:-1], count[:-1], SEED)
    assert Counter(with_more.row.tolist()) == {i: n for i, n in enumerate(count.tolist()) if n}
    order = list(zip(with_more.split.tolist(), with_more.rank.tolist(), strict=True))
    assert order == sorted(order)
    kept = with_more.row != len(copies)
    assert with_more.row[kept].tolist() == without.row.tolist()
    assert with_more.rank[kept].tolist() == without.rank.tolist()
    for row, rank in zip(without.row, without.rank, strict=True):
        purposes = ["shuffle", *(f"shuffle/{c}" for c in range(1, copies[row]))]
        assert int(rank) in {plain_rank(key_N2[row], purpose) for purpose in purposes}


def test_copies_spread() -> None:
    """The copies of a document stand as far apart as two documents drawn at random."""
    count = 4_000
    placed = places(keys(count), np.zeros(count, np.uint8), np.full(count, 2), SEED)
    position = np.argsort(placed.row, kind="stable").reshape(count, 2)
    gaps = np.abs(position[:, 0] - position[:, 1]) / (2 * count)
    assert abs(gaps.mean() - 1 / 3) < 5 * (1 / 18 / count) ** 0.5
    assert (gaps < 0.01).mean() < 0.03


cluster_weights = st.dictionaries(
    st.integers(1, 12), st.sampled_from([0, 0.25, 1, 1.5, 3]), min_size=1, max_size=4
)


@given(cluster_weights, st.lists(st.integers(1, 15), max_size=20))
def test_classes_against_plain_python(weights: dict[int, float], sizes: list[int]) -> None:
    classes = size_classes(MixtureConfig(cluster_weights=weights))
    found = [classes.weights[c] for c in classes.find(np.array(sizes, np.int64))]
    assert found == [plain_cluster_weight(weights, size) for size in sizes]
    assert len(set(classes.labels)) == len(classes.weights)


def plain_cluster_weight(weights: dict[int, float], size: int) -> float:
    """From a size on, a weight; 1 below the first."""
    below = [least for least in weights if least <= size]
    return weights[max(below)] if below else 1.0


@given(
    cluster_weights, st.sampled_from([0, 0.5, 1, 2.25]),
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 15)), min_size=1, max_size=30),
)  # fmt: skip
def test_epochs_and_cluster_weights_multiply(
    weights: dict[int, float], epochs: float, rows: list[tuple[int, int]]
) -> None:
    config = MixtureConfig(epochs={"b": epochs}, cluster_weights=weights)
    classes = size_classes(config)
    source, size = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    group = source * len(classes.least) + classes.find(size)
    part = DocumentTokens(keys(len(rows)), group, np.ones(len(rows), np.int64))
    found = draw_copies(part, group_quotas(config, ("a", "b"), classes), SEED)
    expected = [
        plain_copies(
            key,
            Fraction(epochs if of == 1 else 1) * Fraction(plain_cluster_weight(weights, size)),
        )
        for key, (of, size) in zip(part.key_N2, rows, strict=True)
    ]
    assert found.tolist() == expected


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=2, max_size=2),
    st.sampled_from([0, 0.5, 1, 3]), st.integers(1, 100),
)  # fmt: skip
@example([(10, 30), (0, 7)], 3, 50)
def test_targets_of_groups(tokens: list[tuple[int, int]], weight: float, wanted: int) -> None:
    """A source's tokens are divided as cluster weights divide one epoch of it."""
    classes = SizeClasses((1, 4), (1.0, weight))
    totals = {name: [(1, t) for t in of] for name, of in zip("ab", tokens, strict=True)}
    weighted = [a + Fraction(weight) * b for a, b in tokens]
    config = MixtureConfig(weights={"a": 1.0, "b": 3.0}, tokens=wanted)
    if not all(weighted) or wanted > 1000 * min(weighted):
        return
    found = group_targets(config, totals, classes)
    for source, share in ((0, Fraction(1, 4)), (1, Fraction(3, 4))):
        target = int(wanted * share)
        for c, factor in ((0, Fraction(1)), (1, Fraction(weight))):
            exact = target * tokens[source][c] * factor / weighted[source]
            assert found[2 * source + c] == int(exact)


def test_one_epoch_of_weights_is_what_cluster_weights_say() -> None:
    """Without a number of tokens the source that has least of its share is there once as a whole,
    each document as often as its cluster weight says."""
    config = MixtureConfig(weights={"a": 1.0, "b": 1.0})
    totals = {"a": [(1, 100), (1, 20)], "b": [(1, 1000), (1, 0)]}
    assert group_targets(config, totals, SizeClasses((1, 4), (1.0, 3.0))) == [100, 60, 160, 0]


def test_targets() -> None:
    tokens = {"a": 100, "b": 1000, "c": 50, "none": 0}
    config = MixtureConfig(weights={"a": 1.0, "b": 2.0}, default=1.0)
    assert targets(config, tokens) == {"a": 50, "b": 100, "c": 50, "none": 0}
    config = MixtureConfig(weights={"a": 1.0, "b": 2.0}, default=0.0, max_epochs=3.0)
    assert targets(config, tokens) == {"a": 300, "b": 600, "c": 0, "none": 0}
    config = MixtureConfig(weights={"a": 0.5, "b": 0.5}, default=0.0, tokens=1001)
    assert targets(config, tokens) == {"a": 500, "b": 500, "c": 0, "none": 0}
    thirds = MixtureConfig(weights={"a": 3.0, "b": 4.0}, default=0.0)
    assert targets(thirds, tokens)["a"] == 100, "the anchor has all of its documents"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MixtureConfig(weights={"none": 1.0}, default=1.0), "source 'none' has no document left"),
        (
            MixtureConfig(weights={"a": 1.0}, default=0.0, tokens=500, max_epochs=2.0),
            "5.00 epochs of source 'a', more than 2; ask for 200 at most",
        ),
        (MixtureConfig(weights={"a": 1.0}, default=0.0, tokens=10**9), "more than 1000"),
        (MixtureConfig(weights={"none": 0.0}, default=1.0), ""),
    ],
)
def test_targets_that_cannot_be(config: MixtureConfig, message: str) -> None:
    tokens = {"a": 100, "none": 0}
    if not message:
        assert targets(config, tokens) == {"a": 100, "none": 0}
        return
    with pytest.raises(InputError) as found:
        targets(config, tokens)
    assert message in str(found.value)


def test_unknown_sources() -> None:
    with pytest.raises(ConfigError, match=r"'Wikipeda'; did you mean 'Wikipedia'\?; sources: Git"):
        check_sources(MixtureConfig(epochs={"Wikipeda": 2.0}), {"Wikipedia": 5, "Git": 0})
    with pytest.raises(ConfigError, match=r"no weight for Wikipedia; give each of them"):
        check_sources(MixtureConfig(weights={"Git": 2.0}), {"Wikipedia": 5, "Git": 3, "empty": 0})
    check_sources(MixtureConfig(weights={"Git": 2.0}, default=0.0), {"Wikipedia": 5, "Git": 3})
    check_sources(MixtureConfig(epochs={"Git": 2.0}), {"Wikipedia": 5, "Git": 3})


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("mixture: {epochs: {a: 1}, weights: {a: 1}}", "either epochs or weights"),
        ("mixture: {epochs: {a: -1}}", "greater than or equal to 0"),
        ("mixture: {epochs: {a: 1001}}", "less than or equal to 1000"),
        ("mixture: {epochs: {a: .nan}}", "finite"),
        ("mixture: {tokens: 10B}", "only for weights"),
        ("mixture: {weights: {a: 0}}", "a weight above 0"),
        ("mixture: {weights: {a: 1}, tokens: 10Q}", "units k, M, B, T"),
        ("mixture: {epoch: {a: 1}}", "did you mean 'epochs'"),
        ("mixture: pile", "mixture: "),
        ("mixture: {cluster_weights: {}}", "mixture.cluster_weights: expected at least 1 item"),
        ("mixture: {cluster_weights: {0: 2}}", "a number of documents such as 5"),
        ("mixture: {cluster_weights: {01: 2}}", "mixture.cluster_weights.01: expected a number"),
        ("mixture: {cluster_weights: {2.5: 2}}", "a number of documents such as 5"),
        ("mixture: {cluster_weights: {2: -1}}", "mixture.cluster_weights.2: expected greater"),
        ("mixture: {cluster_weights: {2: 51}}", "less than or equal to 50"),
        ("mixture: {cluster_weights: {2: .nan}}", "finite"),
        ("mixture: {cluster_weights: 3}", "mixture.cluster_weights: expected"),
        ("mixture: {cluster_weight: {2: 2}}", "did you mean 'cluster_weights'"),
        ("mixture: {cluster_weights: {2: 2}}\ndedup: {preset: none}", "no cluster_weights: dedup"),
        ("splits: {train: 1 %}", "held-out splits only"),
        ("splits: {test: 60 %, more: 40 %}", "less than 1"),
        ("splits: {a-b: 1 %}", "splits.a-b"),
        ("splits: {Test: 1 %, test: 1 %}", "upper and lower case"),
        ("splits: {validation: 1 %}\npack: {validation_share: 1 %}", "give it only once"),
    ],
)
def test_bad_config(section: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(f"inputs: [{{name: a, path: .}}]\n{section}\n")
    with pytest.raises(ConfigError) as found:
        load_config(path)
    assert message in str(found.value)
    assert "\n" not in str(found.value)


def test_token_counts() -> None:
    found = MixtureConfig.model_validate_json('{"weights": {"a": 1}, "tokens": "1.5B"}')
    assert found.tokens == 1_500_000_000


def config_with(**sections: Any) -> Config:
    return Config.model_validate({"name": "x", "inputs": ({"name": "a", "path": "."},), **sections})


@given(
    st.integers(0, 300),
    st.integers(0, 2**32),
    st.lists(st.floats(0, 0.3), max_size=3),
    st.integers(1, 4),
)
@example(3, 0, [0.001] * 3, 3)
def test_splits_against_plain_python(
    count: int, salt: int, shares: list[float], pieces: int
) -> None:
    """Consecutive pieces of [0, 1), and one document at least in each, as long as there are two."""
    key_N2 = keys(count, salt)
    held_out = tuple((f"s{i}", share) for i, share in enumerate(shares))
    kept = np.arange(count) % 4 != 0
    drawn = splits.draw(key_N2, SEED)
    parts = np.array_split(np.arange(count), pieces)
    counts = [splits.count_kept(drawn[at], kept[at], held_out) for at in parts]
    found = splits.assign(drawn, held_out, splits.find_moves(counts, held_out))
    point = [plain_rank(key, "split") >> 11 for key in key_N2]
    expected = []
    for p in point:
        start, here = 0.0, 0
        for index, share in enumerate(shares, 1):
            if start <= p * 2.0**-53 < start + share:
                here = index
            start += share
        expected.append(here)
    for index, share in enumerate(shares, 1):
        left = [i for i in range(count) if kept[i] and expected[i] == 0]
        if share > 0 and len(left) > 1 and index not in [expected[i] for i in np.flatnonzero(kept)]:
            expected[min(left, key=lambda i: point[i])] = index
    assert found.tolist() == expected


def test_held_out_splits() -> None:
    config = config_with(splits={"test": 0.001, "dev": 0.2})
    assert splits.held_out(config) == (("validation", 0.0017), ("test", 0.001), ("dev", 0.2))
    assert splits.names(config) == ("train", "validation", "test", "dev")
    config = config_with(splits={"test": 0.001, "validation": 0.2})
    assert splits.held_out(config) == (("validation", 0.2), ("test", 0.001))
