"""Sums of gradients on their way up the tree: which tensors are written to, and how many live."""

import pytest
import torch
from torch.utils.weak import WeakIdKeyDictionary

from wafer_backend.cluster.memoryx import MemoryX
from wafer_backend.cluster.tree import Partial, add_partials, merge_partials

NAMES = ["a", "b", "c"]


def leaf(seed: int, names: list[str]) -> Partial:
    generator = torch.Generator().manual_seed(seed)
    return Partial({name: torch.randn(5, 3, generator=generator) for name in names}, seed / 3, seed)


def pair(make, names: tuple[list[str], list[str]]):
    return make(leaf(1, names[0]), leaf(2, names[1]))


@pytest.mark.parametrize(
    "names", [(NAMES, NAMES), (NAMES, ["b"]), (["c"], ["a", "c"]), ([], NAMES)]
)
def test_merging_gives_the_bits_of_adding(names: tuple[list[str], list[str]]):
    """Two levels: what is added second may be a sum, or the only one of its name."""
    found, expected = (
        make(pair(make, names), make(leaf(3, names[1]), leaf(4, names[0])))
        for make in (merge_partials, add_partials)
    )
    assert list(found.gradients) == list(expected.gradients)
    assert all(torch.equal(found.gradients[n], expected.gradients[n]) for n in expected.gradients)
    assert (found.loss_sum, found.n_counted) == (expected.loss_sum, expected.n_counted)


def test_gradients_that_others_hold_are_never_written_to():
    memoryx = MemoryX(torch.nn.Linear(3, 2))
    memoryx.begin_step([range(4)], 4)
    sent = [torch.full((2, 3), float(leaf)) for leaf in range(4)]
    totals: list[Partial] = []
    for index, gradient in enumerate(sent):
        memoryx.receive_gradient(index, "weight", gradient)
        memoryx.receive_gradient(index, "weight", gradient)
        memoryx.finish_leaf(0, index, 0.0, 1, lambda node, partial: totals.append(partial))
    assert torch.equal(totals[0].gradients["weight"], torch.full((2, 3), 12.0))
    assert all(torch.equal(g, torch.full((2, 3), float(leaf))) for leaf, g in enumerate(sent))


def test_no_set_of_gradients_beyond_the_counter_is_alive(monkeypatch: pytest.MonkeyPatch):
    """Of eight leaves three sums wait while a leaf arrives; adding makes no fifth set."""
    leaves, weights = 8, 50
    module = torch.nn.ParameterList(torch.zeros(2, 2) for _ in range(weights))
    memoryx = MemoryX(module)
    memoryx.begin_step([range(leaves)], leaves)
    alive = WeakIdKeyDictionary()
    most = 0

    def born(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal most
        alive[tensor] = None
        most = max(most, len(alive))
        return tensor

    plain = torch.add
    monkeypatch.setattr(torch, "add", lambda *args, **kwargs: born(plain(*args, **kwargs)))
    for index in range(leaves):
        for name in memoryx.parameters:
            memoryx.receive_gradient(index, name, born(torch.ones(2, 2)))
        memoryx.finish_leaf(0, index, 0.0, 1, lambda node, partial: None)
    assert 4 * weights <= most <= 4 * weights + 1
