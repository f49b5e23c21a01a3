"""Weight-decay schedulers: the values of the learning-rate schedulers, in another field."""

import inspect
from typing import Any

import pytest
import torch
from torch import nn

from wafer_backend import BackendConfigError, optim

SAME: list[tuple[str, str, tuple[Any, ...]]] = [
    ("ConstantWD", "ConstantLR", (0.3, 5)),
    ("PolynomialWD", "PolynomialLR", (0.9, 0.1, 10, 2.0)),
    ("LinearWD", "LinearLR", (0.0, 0.8, 8)),
    ("ExponentialWD", "ExponentialLR", (0.4, 5, 0.5)),
    ("InverseExponentialTimeDecayWD", "InverseExponentialTimeDecayLR", (0.4, 2, 3, 0.7)),
    ("InverseSquareRootDecayWD", "InverseSquareRootDecayLR", (0.5, 2.0, 4)),
    ("CosineDecayWD", "CosineDecayLR", (0.9, 0.1, 10)),
    ("PiecewiseConstantWD", "PiecewiseConstantLR", ([0.3, 0.2], [4])),
    ("MultiStepWD", "MultiStepLR", (0.3, 0.1, [2, 9])),
    ("StepWD", "StepLR", (0.3, 4, 0.5)),
    ("CosineAnnealingWD", "CosineAnnealingLR", (0.9, 5, 0.1)),
    ("CosineAnnealingWarmRestartsWD", "CosineAnnealingWarmRestarts", (0.9, 3, 2)),
    ("MultiplicativeWD", "MultiplicativeLR", (0.9, 0.8)),
    ("CyclicWD", "CyclicLR", (0.1, 0.5, 4)),
    ("OneCycleWD", "OneCycleLR", (0.1, 0.5, 12)),
]


@pytest.mark.parametrize(("decay", "rate", "arguments"), SAME)
def test_same_values_as_learning_rates(
    decay: str, rate: str, arguments: tuple[Any, ...], rates: Any
) -> None:
    got = rates(lambda o: getattr(optim, decay)(o, *arguments), 14, "weight_decay")
    assert got == rates(lambda o: getattr(optim, rate)(o, *arguments), 14)


@pytest.mark.parametrize(("decay", "rate", "arguments"), SAME)
def test_learning_rate_stays(decay: str, rate: str, arguments: tuple[Any, ...], rates: Any) -> None:
    assert set(rates(lambda o: getattr(optim, decay)(o, *arguments), 3)) == {9.0}


def test_names_of_arguments_name_no_learning_rate() -> None:
    for decay, _, _ in SAME:
        names = inspect.signature(getattr(optim, decay)).parameters
        assert not [name for name in names if "learning_rate" in name or name.endswith("_lr")]
    assert list(inspect.signature(optim.LinearWD).parameters)[1:4] == [
        *("initial_val", "end_val", "total_iters")
    ]


def test_combined_and_lambda(optimizer: Any, rates: Any) -> None:
    class Halved(optim.LambdaWD):
        def set_value_lambda(self) -> Any:
            return lambda t: 0.5**t

    def sequence(o: torch.optim.Optimizer) -> Any:
        return optim.SequentialWD(o, [optim.ConstantWD(o, 0.2, 2), Halved(o, 0.4)], [2])

    got = rates(sequence, 5, "weight_decay")
    assert got == pytest.approx([0.2, 0.2, 0.4, 0.2, 0.1])
    chained = rates(
        lambda o: optim.ChainedWD([Halved(o, 0.4), optim.StepWD(o, 3.0, 2, 0.5)]), 4, "weight_decay"
    )
    assert chained == pytest.approx([0.4, 0.2, 0.05, 0.025])
    mine = optimizer(a={"adjust_val": 0.5}, b={})
    optim.ScalePerParamWD(mine, sequence(mine))
    assert [group["weight_decay"] for group in mine.param_groups] == [0.1, 0.2]


def test_an_optimizer_without_weight_decay() -> None:
    with pytest.raises(BackendConfigError, match="of Rprop have no weight_decay"):
        optim.ConstantWD(optim.Rprop([nn.Parameter(torch.zeros(1))]), 0.1)
