"""Exact counts, ties by position, groups in balance."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wafer_backend.errors import BackendConfigError
from wafer_backend.sparse import init
from wafer_backend.sparse.selection import (
    EXCLUDED,
    Balance,
    keep_largest,
    kept_count,
    pruned_count,
    uniform,
)

SHAPES = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(torch.Size)


@given(st.lists(st.sampled_from([EXCLUDED, 0.0, 0.5, 1.0, 2.0]), min_size=1), st.integers(0, 30))
def test_the_largest_are_kept_and_of_equals_the_first(scores: list[float], k: int) -> None:
    keep = keep_largest(torch.tensor(scores), k)
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]
    assert keep.nonzero().flatten().tolist() == sorted(order)


@given(st.floats(0, 1), st.integers(1, 10**6))
def test_counts_add_up_and_are_nearest(sparsity: float, n: int) -> None:
    pruned = pruned_count(sparsity, n)
    assert pruned + kept_count(sparsity, n) == n
    assert 0 <= pruned <= n
    assert abs(pruned - sparsity * n) <= 0.5


@given(SHAPES, st.floats(0, 1), st.sampled_from(["random", "topk", "checkerboard"]))
def test_first_masks_have_the_exact_density(shape: torch.Size, level: float, method: str) -> None:
    weights = uniform(shape, 1, "weights", 0).float() - 0.5
    mask = init.make_init_method(method)("a", weights, level, 0)
    assert mask.shape == shape
    assert int(mask.sum()) == kept_count(level, shape.numel())


def test_half_a_checkerboard() -> None:
    for columns in (4, 5):
        mask = init.checkerboard("a", torch.ones(4, columns), 0.5, 0).int().numpy()
        parity = np.add.outer(np.arange(4), np.arange(columns)) % 2
        assert (mask == parity).all() or (mask == 1 - parity).all()


def test_topk_keeps_magnitudes() -> None:
    weights = torch.tensor([[-3.0, 1.0], [2.0, -0.5]])
    assert init.topk("a", weights, 0.5, 0).tolist() == [[True, False], [True, False]]


def test_zeros_and_nan_are_pruned_whatever_the_sparsity() -> None:
    weights = torch.tensor([0.0, torch.nan, 1.0, -1.0])
    assert init.from_zeros("a", weights, 0.9, 0).tolist() == [False, False, True, True]


def test_random_masks_follow_from_seed_and_name() -> None:
    weights = torch.ones(20, 20)
    first = init.random("a", weights, 0.5, 0)
    assert torch.equal(first, init.random("a", weights, 0.5, 0))
    assert not torch.equal(first, init.random("b", weights, 0.5, 0))
    assert not torch.equal(first, init.random("a", weights, 0.5, 1))


def test_random_numbers_of_an_identity_stay() -> None:
    # Golden: masks of SET depend on them, and a resumed run must draw what an unbroken one draws.
    drawn = uniform(torch.Size([3]), 0, "fc1.weight", 1)
    assert drawn.tolist() == pytest.approx(GOLDEN, abs=1e-15)


GOLDEN = [0.9263207691426502, 0.04689233127503489, 0.41380076530680354]


@given(st.integers(0, 48), st.sampled_from(["out", "in"]), st.sampled_from([1, 2, 4]))
def test_groups_are_in_balance(k: int, channels: str, groups: int) -> None:
    score = uniform(torch.Size([4, 4, 3]), 5, "score", k)
    keep = Balance(groups, channels).keep(score, k)  # type: ignore[arg-type]
    assert keep.shape == score.shape
    by_channel = keep if channels == "out" else keep.transpose(0, 1)
    counts = by_channel.reshape(groups, -1).sum(1).tolist()
    assert sum(counts) == k
    assert max(counts) - min(counts) <= 1
    best = score if channels == "out" else score.transpose(0, 1)
    for row, kept in zip(best.reshape(groups, -1), by_channel.reshape(groups, -1), strict=True):
        assert torch.equal(kept, keep_largest(row, int(kept.sum())))


def test_channels_that_do_not_divide() -> None:
    with pytest.raises(BackendConfigError, match=r"balance_in_groups=4 .* 'fc1', shape \(8, 6\)"):
        Balance(4, "in").check("fc1", torch.Size([8, 6]))


def test_an_unknown_method_is_named() -> None:
    with pytest.raises(BackendConfigError, match="did you mean 'topk'"):
        init.make_init_method("top_k")
