"""Draws from the highest probabilities, next to a plain loop and to their own distribution.

Legend: B rows, V vocabulary.
"""

import numpy as np
import pytest
import torch

import wafer_backend as cstorch
from wafer_backend.cstorch import cirh


def draw(
    probabilities: torch.Tensor, u: torch.Tensor, *, k: int, p: float, most: int | None = None
) -> torch.Tensor:
    column = torch.full_like(u, p)
    highest = cirh.FusedTopK(probabilities, k=k, dimension=1)
    limits = torch.full_like(u, most or k, dtype=torch.int32)
    return cirh.FusedTopP(highest, p=column, u=u, k=limits)


def plain_draw(row: np.ndarray, u: float, k: int, p: float) -> int:
    order = np.argsort(-row, kind="stable")[:k]
    nucleus, total = [], np.float32(0)
    for index in order:
        if nucleus and total >= p:
            break
        nucleus.append(index)
        total += row[index]
    reached = np.float32(0)
    for index in nucleus:
        reached += row[index]
        if reached > np.float32(u) * total:
            return int(index)
    return int(nucleus[-1])


@pytest.mark.parametrize("k", [1, 5, 40])
@pytest.mark.parametrize("p", [0.0, 0.3, 0.9, 1.0])
def test_draws_are_those_of_a_plain_loop(k: int, p: float) -> None:
    torch.manual_seed(k)
    probabilities = torch.softmax(torch.randn(300, 40) * 2, 1)
    u = torch.rand(300, 1)
    drawn = draw(probabilities, u, k=k, p=p)
    assert drawn.shape == (300, 1)
    assert drawn.dtype == torch.int32
    rows = zip(probabilities.numpy(), u[:, 0].tolist(), strict=True)
    assert drawn[:, 0].tolist() == [plain_draw(row, each, k, p) for row, each in rows]


def test_the_share_of_a_token_is_its_probability_within_the_nucleus() -> None:
    row = torch.tensor([0.1, 0.4, 0.05, 0.25, 0.2])
    count = 100_000
    u = ((torch.arange(count) + 0.5) / count)[:, None]
    drawn = draw(row.expand(count, -1), u, k=5, p=0.8)[:, 0]
    shares = torch.bincount(drawn, minlength=5) / count
    torch.testing.assert_close(
        shares, torch.tensor([0.0, 0.4, 0.0, 0.25, 0.2]) / 0.85, atol=2e-5, rtol=0
    )


def test_fewer_than_were_found_and_equal_ones() -> None:
    even = torch.full((4, 8), 0.125)
    u = torch.tensor([[0.0], [0.3], [0.6], [0.999]])
    assert draw(even, u, k=8, p=1.0, most=3)[:, 0].tolist() == [0, 0, 1, 2]
    assert cirh.FusedTopK(even, k=3, dimension=1).indices.tolist() == [[0, 1, 2]] * 4


def test_wrong_calls_and_other_operators() -> None:
    with pytest.raises(cstorch.BackendConfigError, match="dimension 1, got"):
        cirh.FusedTopK(torch.zeros(2, 3), k=1, dimension=0)
    with pytest.raises(cstorch.BackendConfigError, match="k is 4, of 3"):
        cirh.FusedTopK(torch.zeros(2, 3), k=4)
    with pytest.raises(AttributeError, match=r"cirh\.ScopeBoundary: there is no compiler dialect"):
        cirh.ScopeBoundary  # type: ignore[attr-defined] # noqa: B018
