"""Learning-rate schedulers together: sequences, chains, groups, resume, one's own, refusals."""

import copy
import inspect
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler as theirs

from trainer.config import CosineDecayScheduler, LinearScheduler
from trainer.model import optimizer as trainer_schedule
from wafer_backend import BackendConfigError, optim
from wafer_backend.optim import lr_scheduler as ours


def cosine(first: float, last: float, share: float) -> float:
    return last + (first - last) * math.cos(math.pi * share / 2) ** 2


def two(o: torch.optim.Optimizer) -> list[Any]:
    return [ours.LinearLR(o, 0.0, 0.6, 4), ours.CosineDecayLR(o, 0.6, 0.1, 8)]


def test_sequence(rates: Any) -> None:
    got = rates(lambda o: ours.SequentialLR(o, two(o), [4]), 14)
    expected = [0.15 * t for t in range(4)] + [cosine(0.6, 0.1, min(t, 8) / 8) for t in range(10)]
    assert got == pytest.approx(expected)


def test_sequence_equals_torch(rates: Any) -> None:
    def reference(o: torch.optim.Optimizer) -> Any:
        o.param_groups[0]["lr"] = 0.4
        parts = [theirs.LinearLR(o, 0.25, 1.0, 5), theirs.CosineAnnealingLR(o, 10, 0.1)]
        return theirs.SequentialLR(o, parts, [5])

    def mine(o: torch.optim.Optimizer) -> Any:
        parts = [ours.LinearLR(o, 0.1, 0.4, 5), ours.CosineAnnealingLR(o, 0.4, 10, 0.1)]
        return ours.SequentialLR(o, parts, [5])

    assert rates(mine, 15) == pytest.approx(rates(reference, 15), rel=1e-12)


def test_a_sequence_knows_its_end_and_skips_empty_parts(optimizer: Any) -> None:
    mine = optimizer()
    inner = ours.SequentialLR(mine, two(mine), [4])
    assert inner.total_iters == 12
    parts = [ours.ConstantLR(mine, 0.5, 2), ours.LinearLR(mine, 7.0, 7.0, 0), inner]
    outer = ours.SequentialLR(mine, parts, [2, 2])
    group = mine.param_groups[0]
    assert [outer.value(t, group) for t in (0, 1, 2, 3)] == pytest.approx([0.5, 0.5, 0.0, 0.15])
    assert ours.SequentialLR(mine, [ours.StepLR(mine, 1.0, 1, 1.0)], []).total_iters is None


def test_sequence_is_the_schedule_of_the_trainer_to_the_bit(rates: Any) -> None:
    warm_up = {"initial_learning_rate": 0.0, "end_learning_rate": 6e-4, "total_iters": 7}
    decay = {"initial_learning_rate": 6e-4, "end_learning_rate": 6e-5, "total_iters": 31}
    config = [
        LinearScheduler(scheduler="Linear", **warm_up),
        CosineDecayScheduler(scheduler="CosineDecay", **decay),
    ]
    got = rates(
        lambda o: ours.SequentialLR(
            o, [ours.LinearLR(o, **warm_up), ours.CosineDecayLR(o, **decay)], [7]
        ),
        45,
    )
    assert got == [trainer_schedule.learning_rate(step, config) for step in range(1, 46)]


def test_chain_equals_torch(rates: Any) -> None:
    def reference(o: torch.optim.Optimizer) -> Any:
        o.param_groups[0]["lr"] = 0.4
        return theirs.ChainedScheduler([theirs.ExponentialLR(o, 0.9), theirs.StepLR(o, 3, 0.5)])

    def mine(o: torch.optim.Optimizer) -> Any:
        return ours.ChainedLR([ours.ExponentialLR(o, 0.4, 1, 0.9), ours.StepLR(o, 0.7, 3, 0.5)])

    assert rates(mine, 12) == pytest.approx(rates(reference, 12), rel=1e-12)
    assert ours.ChainedScheduler is ours.ChainedLR


def test_scale_per_param(optimizer: Any) -> None:
    mine = optimizer(a={"adjust_learning_rate": 0.25}, b={}, c={"adjust_val": 2.0})
    scheduler = ours.ScalePerParamLR(mine, ours.SequentialLR(mine, two(mine), [4]))
    for _ in range(4):
        scheduler.step()
    assert scheduler.get_last_lr() == pytest.approx([0.15, 0.6, 1.2])
    assert scheduler.total_iters == 12


def test_tags_choose_groups(optimizer: Any) -> None:
    mine = optimizer(a={"tags": "big"}, b={"tags": ["small", "tied"]}, c={})

    def after(tags: Any) -> list[float]:
        for group in mine.param_groups:
            group["lr"] = 0.0
        scheduler = ours.ConstantLR(mine, 1.0, param_group_tags=tags)
        scheduler.step()
        assert scheduler.get() == [1.0] * int(sum(scheduler.get_last_value()))
        return scheduler.get_last_value()

    assert after(None) == [1.0, 1.0, 1.0]
    assert after("big") == [1.0, 0.0, 0.0]
    assert after(["tied", None]) == [0.0, 1.0, 1.0]


def test_lambda_is_a_product_in_both_spellings(optimizer: Any, rates: Any) -> None:
    class Both(ours.LambdaLR):
        def set_value_lambda(self) -> Any:
            return [lambda t: 0.9**t, lambda t: 1 + t]

    class Older(ours.LambdaLR):
        def set_lr_lambda(self) -> Any:
            return lambda t: 0.9**t

    assert rates(lambda o: Both(o, 0.5), 9) == pytest.approx(
        [0.5 * 0.9**t * (1 + t) for t in range(9)]
    )

    def reference(o: torch.optim.Optimizer) -> Any:
        o.param_groups[0]["lr"] = 0.5
        return theirs.LambdaLR(o, lambda t: 0.9**t)

    assert rates(lambda o: Older(o, 0.5), 9) == pytest.approx(rates(reference, 9))
    with pytest.raises(NotImplementedError, match="LambdaLR must define set_value_lambda"):
        ours.LambdaLR(optimizer(), 0.5)


class Tensors(ours.LRScheduler):
    """A user's schedule in the manner of cstorch: tensors, and no branch on their values."""

    def __init__(self, optimizer: torch.optim.Optimizer, peak: float, total_iters: int) -> None:
        self.peak = peak
        super().__init__(optimizer, total_iters=total_iters, last_epoch=-1)

    def _get_closed_form(self) -> torch.Tensor:
        end = torch.tensor(self.total_iters, dtype=torch.float32, device=self.device)
        return torch.where(
            self.last_epoch < self.total_iters,
            torch.mul(self.peak, torch.div(self.last_epoch.float(), end)),
            torch.tensor(self.peak),
        )


class Older(ours.LRScheduler):
    def _get_closed_form_lr(self) -> Any:
        return 0.5 / (1 + self.last_epoch)


def test_schedules_of_ones_own(optimizer: Any, rates: Any) -> None:
    assert rates(lambda o: Tensors(o, 0.5, 4), 6) == [0.0, 0.125, 0.25, 0.375, 0.5, 0.5]
    assert rates(lambda o: Older(o, 10), 3) == pytest.approx([0.5, 0.25, 0.5 / 3])
    mine = optimizer()
    sequence = ours.SequentialLR(mine, [Tensors(mine, 0.5, 4), Older(mine)], [4])
    assert sequence.value(5, {}) == 0.25
    assert sequence.schedulers[0].last_epoch == 0
    with pytest.raises(NotImplementedError, match="LRScheduler must define _get_closed_form"):
        ours.LRScheduler(mine)


EVERY: list[Any] = [
    lambda o: ours.SequentialLR(o, two(o), [4]),
    lambda o: ours.ChainedLR([ours.StepLR(o, 0.4, 3, 0.5), ours.ExponentialLR(o, 1.0, 1, 0.9)]),
    lambda o: ours.ScalePerParamLR(o, ours.SequentialLR(o, two(o), [4])),
    lambda o: Tensors(o, 0.5, 4),
]


@given(build=st.sampled_from(EVERY), stop=st.integers(0, 20), more=st.integers(0, 10))
@settings(max_examples=60, deadline=None)
def test_resumes_anywhere(build: Any, stop: int, more: int, check_resume: Any) -> None:
    check_resume(build, stop, more)


def test_pytorch_takes_them(optimizer: Any) -> None:
    mine = optimizer()
    assert isinstance(ours.LinearLR(mine, 1.0, 0.0, 5), torch.optim.lr_scheduler.LRScheduler)
    assert isinstance(ours.SequentialLR(mine, two(mine), [4]), ours.LRScheduler)


SIGNATURES = {
    "ConstantLR": "learning_rate, total_iters",
    "PolynomialLR": "initial_learning_rate, end_learning_rate, total_iters, power, cycle",
    "LinearLR": "initial_learning_rate, end_learning_rate, total_iters, cycle",
    "ExponentialLR": "initial_learning_rate, total_iters, decay_rate, staircase",
    "InverseExponentialTimeDecayLR": "initial_learning_rate, step_exponent, total_iters, "
    "decay_rate, staircase",
    "InverseSquareRootDecayLR": "initial_learning_rate, scale, warmup_steps",
    "CosineDecayLR": "initial_learning_rate, end_learning_rate, total_iters",
    "SequentialLR": "schedulers, milestones, last_epoch",
    "PiecewiseConstantLR": "learning_rates, milestones",
    "MultiStepLR": "initial_learning_rate, gamma, milestones",
    "StepLR": "initial_learning_rate, step_size, gamma",
    "CosineAnnealingLR": "initial_learning_rate, T_max, eta_min",
    "LambdaLR": "initial_learning_rate",
    "CosineAnnealingWarmRestarts": "initial_learning_rate, T_0, T_mult, eta_min",
    "MultiplicativeLR": "initial_learning_rate, coefficient",
    "CyclicLR": "base_lr, max_lr, step_size_up, step_size_down, mode, gamma, scale_mode",
    "OneCycleLR": "initial_learning_rate, max_lr, total_steps, pct_start, final_div_factor, "
    "three_phase, anneal_strategy",
    "ScalePerParamLR": "scheduler",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_positional_arguments(name: str) -> None:
    parameters = inspect.signature(getattr(optim, name)).parameters.values()
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == ["optimizer", *SIGNATURES[name].split(", "), "param_group_tags"]


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda o: ours.LinearLR(o, 0, 1, -1), "total_iters is -1; expected at least 0"),
        (lambda o: ours.StepLR(o, 1, 0, 1), "step_size is 0; expected at least 1"),
        (lambda o: ours.ExponentialLR(o, 1, 0, 1), "total_iters is 0; expected at least 1"),
        (lambda o: ours.CosineAnnealingWarmRestarts(o, 1, 2, 0), "T_mult is 0"),
        (lambda o: ours.PiecewiseConstantLR(o, [1, 2], []), "2 values for 0 milestones"),
        (lambda o: ours.MultiStepLR(o, 1, 1, [3, 3]), r"milestones are \[3, 3\]"),
        (lambda o: ours.CyclicLR(o, 0, 1, mode="up"), "mode is 'up'; expected one of triangular"),
        (lambda o: ours.CyclicLR(o, 0, 1, scale_mode="x"), "expected one of cycle, iterations"),
        (lambda o: ours.OneCycleLR(o, 0, 1, anneal_strategy="x"), "expected one of cos, linear"),
        (lambda o: ours.InverseSquareRootDecayLR(o, warmup_steps=0), "warmup_steps is 0"),
        (lambda o: ours.SequentialLR(o, two(o), [4, 8]), "2 schedulers for 2 milestones"),
        (lambda o: ours.SequentialLR(o, [*two(o), *two(o)], [4, 2, 9]), r"\[4, 2, 9\]"),
        (
            lambda o: ours.SequentialLR(copy.deepcopy(o), two(o), [4]),
            "belongs to another optimizer",
        ),
        (lambda o: ours.SequentialLR(o, two(o), [4], param_group_tags="x"), "make them equal"),
        (lambda o: ours.ChainedLR([]), "no schedulers"),
        (lambda o: ours.ChainedLR(two(o)[::-1]), "scheduler 1 starts at 0"),
        (lambda o: ours.ScalePerParamLR(o, ours.ChainedLR(two(o)[1:])), "chained"),
        (lambda o: ours.ConstantLR(o, 1).load_state_dict({"step": 3}), "has no last_epoch"),
    ],
)
def test_refused(build: Any, text: str, optimizer: Any) -> None:
    with pytest.raises(BackendConfigError, match=text):
        build(optimizer())


def test_an_argument_that_is_not_there(optimizer: Any) -> None:
    with pytest.raises(TypeError, match="learning_rat"):
        ours.ConstantLR(optimizer(), learning_rat=0.1)
