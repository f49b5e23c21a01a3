"""Bits do not depend on num_csx, target or where activations wait."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.wafer_backend.modules import (
    GPT2,
    Classifier,
    Llama,
    Mixed,
    Trained,
    tokens,
    train,
    train_outside,
)
from wafer_backend.cluster.outputs import LossRule
from wafer_backend.cluster.tree import Partial, add_partials
from wafer_backend.compiled import BackendConfig

CONFIG = BackendConfig(target="CSX", micro_batch_size=1, seed=3)
Train = Callable[..., Trained]
Make = Callable[[], nn.Module]

# (module, how it is trained, samples, micro-batch, steps): K = 8, 12 and 30 leaves, also short.
CASES = [
    pytest.param(GPT2, train, 12, 1, 3, id="gpt2-12"),
    pytest.param(Llama, train, 15, 2, 3, id="llama-8"),
    pytest.param(Mixed, train, 30, 1, 2, id="mixed-30"),
    pytest.param(Classifier, train_outside, 60, 5, 3, id="classifier-12"),
]
# (num_csx, target, activations), each against one streaming system that keeps its activations.
OTHERS = {
    "float32": [
        (2, "CSX", "keep"),
        (3, "CSX", "recompute"),
        (4, "CSX", "keep"),
        (5, "CSX", "evict"),
        (8, "CSX", "keep"),
        (1, "CPU", "keep"),
        (3, "CPU", "recompute"),
    ],
    "bfloat16": [(3, "CSX", "recompute"), (8, "CSX", "evict"), (1, "CPU", "keep")],
    "cbfloat16": [(4, "CSX", "recompute"), (1, "CPU", "keep")],
}


@pytest.mark.parametrize(("make", "run", "samples", "micro_batch", "steps"), CASES)
@pytest.mark.parametrize("precision", OTHERS)
def test_bits_are_the_same_however_a_module_runs(
    make: Make, run: Train, samples: int, micro_batch: int, steps: int, precision: str
):
    """In float32 each module runs in every second way, so that two run in each."""
    others = OTHERS[precision]
    if precision == "float32":
        others = others[make in (Llama, Classifier) :: 2]
    if precision == "cbfloat16":  # emulated operation by operation: a hundred times slower
        samples, steps = 4 * micro_batch + samples % micro_batch, 2
    changes = {"micro_batch_size": micro_batch, "precision": precision}
    one = run(make, CONFIG, samples, steps, **changes)
    assert len(set(one.losses)) == steps
    for num_csx, target, activations in others:
        other = {"num_csx": num_csx, "target": target, "activations": activations}
        assert run(make, CONFIG, samples, steps, **changes, **other) == one, other


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("leaves", [8, 12, 30])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("make", "run"),
    [(GPT2, train), (Llama, train), (Mixed, train), (Classifier, train_outside)],
)
def test_bits_are_equal_after_200_steps(make: Make, run: Train, leaves: int, precision: str):
    changes = {"micro_batch_size": 2, "precision": precision}
    samples = 2 * leaves - 1 if make is not Classifier else 2 * leaves
    one = run(make, CONFIG, samples, 200, **changes)
    rules = {2: "keep", 3: "recompute", 4: "evict", 5: "keep", 8: "recompute"}
    for num_csx, activations in rules.items():
        more = {**changes, "num_csx": num_csx, "activations": activations}
        assert run(make, CONFIG, samples, 200, **more) == one, more


class _PerSystem:
    """The mutant: a lane that adds its leaves up one after another, and sends the sum."""

    def __init__(self, leaves: int, span: range, add: Callable[[Partial, Partial], Partial]):
        self._span, self._add, self._sum = span, add, None

    def push(self, node: object, value: Partial) -> list[tuple[object, Partial]]:
        self._sum = value if self._sum is None else self._add(self._sum, value)
        whole = node.index == self._span.stop - 1  # type: ignore[attr-defined]
        return [(node, self._sum)] if whole else []


class _InOrder:
    """What takes the sums of systems: adds them in pairs, as a tree over systems does."""

    def __init__(self) -> None:
        self._sums: list[Partial] = []

    def begin_step(self, leaves: int) -> None:
        self._sums = []

    def reduce(self, node: object, partial: Partial) -> None:
        self._sums.append(partial)

    def total(self) -> Partial:
        sums = self._sums
        while len(sums) > 1:
            pairs = [sums[i : i + 2] for i in range(0, len(sums), 2)]
            sums = [add_partials(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
        return sums[0]

    def abandon(self) -> None:
        self._sums = []

    def broadcast(self, weight: torch.Tensor) -> torch.Tensor:
        return weight


def test_a_running_sum_per_system_gives_other_bits(monkeypatch: pytest.MonkeyPatch):
    """The mutant of the design: were its bits equal, the equalities above would prove nothing."""
    monkeypatch.setattr("wafer_backend.cluster.memoryx.Combiner", _PerSystem)
    monkeypatch.setattr("wafer_backend.cluster.transport.SwarmX", _InOrder)
    mutants = [train(GPT2, CONFIG, 12, 2, num_csx=num_csx) for num_csx in (1, 2, 3)]
    assert mutants[0] != mutants[1]
    assert mutants[0] != mutants[2]
    monkeypatch.undo()
    assert train(GPT2, CONFIG, 12, 2) not in mutants


def test_loss_scaling_by_batch_size_divides_by_b_over_loss_weight():
    rule = LossRule("batch_size", 1 / 8)
    assert rule.divisor(77, 12) == 96.0
    by_batch = train(Mixed, CONFIG, 12, 1, num_csx=2, loss=rule).losses
    by_tokens = train(Mixed, CONFIG, 12, 1, num_csx=2).losses
    assert by_batch[0][0] == by_tokens[0][0]
    counted = int(tokens(1, 12)["mask"].sum())
    assert by_batch[0][1] == pytest.approx(by_tokens[0][1] * counted / 96, rel=1e-5)
