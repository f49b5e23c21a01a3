"""The learning rate at every step equals the closed form, to the bit."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import (
    ConstantScheduler,
    CosineAnnealingScheduler,
    CosineAnnealingWarmRestartsScheduler,
    CosineDecayScheduler,
    CyclicScheduler,
    ExponentialScheduler,
    InverseExponentialTimeDecayScheduler,
    InverseSquareRootDecayScheduler,
    LinearScheduler,
    MultiStepScheduler,
    OneCycleScheduler,
    PiecewiseConstantScheduler,
    PolynomialScheduler,
    StepScheduler,
)
from trainer.model.optimizer import find_peak_rate, learning_rate
from wafer_backend.optim import lr_scheduler

PEAK = 6e-4


def scheduler(kind, first, last, length):
    if kind is ConstantScheduler:
        return ConstantScheduler(scheduler="Constant", learning_rate=first, total_iters=length)
    return kind(
        scheduler=kind.__name__.removesuffix("Scheduler"),
        initial_learning_rate=first,
        end_learning_rate=last,
        total_iters=length,
    )


@pytest.mark.parametrize("decay", [LinearScheduler, CosineDecayScheduler])
def test_every_step_of_the_111m_run(decay):
    """Warm-up over 375M tokens of 120 x 2048 (1,525 steps), then down to a tenth at step 9,037."""
    warm, total = 1525, 9037
    rates = (
        scheduler(LinearScheduler, 0.0, PEAK, warm),
        scheduler(decay, PEAK, PEAK / 10, total - warm),
    )
    for step in range(1, total + 20):
        done = min(step - 1, total)
        share = (done - warm) / (total - warm)
        if done < warm:
            expected = PEAK * (done / warm)
        elif decay is LinearScheduler:
            expected = PEAK + (PEAK / 10 - PEAK) * share
        else:
            expected = PEAK / 10 + (PEAK - PEAK / 10) * (1 + math.cos(math.pi * share)) / 2
        assert learning_rate(step, rates) == expected
    assert learning_rate(10**9, rates) == pytest.approx(PEAK / 10)


pieces = st.tuples(
    st.sampled_from([ConstantScheduler, LinearScheduler, CosineDecayScheduler]),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(1, 9),
)


@given(st.lists(pieces, min_size=1, max_size=4))
def test_schedulers_follow_one_another(parts):
    rates = [scheduler(*part) for part in parts]
    step = 1
    for kind, first, last, length in parts:
        assert learning_rate(step, rates) == pytest.approx(first)
        low, high = sorted((first, first if kind is ConstantScheduler else last))
        for within in range(length):
            assert low - 1e-12 <= learning_rate(step + within, rates) <= high + 1e-12
        step += length
    kind, first, last, _ = parts[-1]
    for later in (step, step + 1000):
        assert learning_rate(later, rates) == pytest.approx(
            first if kind is ConstantScheduler else last
        )


FIRST = {"initial_learning_rate": 1e-3}
FORMS = [
    LinearScheduler(scheduler="Linear", **FIRST, end_learning_rate=1e-4, total_iters=7, cycle=True),
    PolynomialScheduler(
        scheduler="Polynomial", **FIRST, end_learning_rate=1e-4, total_iters=7, power=2.0
    ),
    ExponentialScheduler(scheduler="Exponential", **FIRST, total_iters=3, decay_rate=0.5),
    ExponentialScheduler(
        scheduler="Exponential", **FIRST, total_iters=3, decay_rate=0.5, staircase=True
    ),
    InverseExponentialTimeDecayScheduler(
        scheduler="InverseExponentialTimeDecay",
        **FIRST,
        step_exponent=2,
        total_iters=5,
        decay_rate=0.5,
    ),
    InverseSquareRootDecayScheduler(
        scheduler="InverseSquareRootDecay", **FIRST, scale=2.0, warmup_steps=4.0
    ),
    PiecewiseConstantScheduler(
        scheduler="PiecewiseConstant", learning_rates=(1e-3, 5e-4, 1e-4), milestones=(3, 8)
    ),
    MultiStepScheduler(scheduler="MultiStep", **FIRST, gamma=0.1, milestones=(3, 8)),
    StepScheduler(scheduler="Step", **FIRST, step_size=4, gamma=0.5),
    CosineAnnealingScheduler(scheduler="CosineAnnealing", **FIRST, T_max=6, eta_min=1e-5),
    CosineAnnealingWarmRestartsScheduler(
        scheduler="CosineAnnealingWarmRestarts", **FIRST, T_0=3, T_mult=2
    ),
    CyclicScheduler(
        scheduler="Cyclic", base_lr=1e-4, max_lr=1e-3, step_size_up=3, mode="exp_range"
    ),
    OneCycleScheduler(scheduler="OneCycle", **FIRST, max_lr=1e-2, total_steps=12, three_phase=True),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.scheduler)
def test_rates_are_those_of_the_class_of_the_backend(form):
    """Stepped with a dummy optimizer, far past its end."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    arguments = {key: value for key, value in form if key != "scheduler"}
    named = getattr(lr_scheduler, f"{form.scheduler}LR", None)
    stepped = (named or getattr(lr_scheduler, form.scheduler))(optimizer, **arguments)
    for step in range(1, 30):
        assert learning_rate(step, [form]) == optimizer.param_groups[0]["lr"]
        stepped.step()


def test_any_of_them_follows_a_warm_up():
    warm = scheduler(LinearScheduler, 0.0, 1e-3, 5)
    for form in FORMS:
        assert learning_rate(3, (warm, form)) == pytest.approx(4e-4)
        assert learning_rate(9, (warm, form)) == learning_rate(4, (form,))


def test_peaks():
    warm = scheduler(LinearScheduler, 0.0, 1e-3, 5)
    decay = InverseSquareRootDecayScheduler(
        scheduler="InverseSquareRootDecay", **FIRST, warmup_steps=4.0
    )
    assert find_peak_rate(2e-3) == 2e-3
    assert find_peak_rate([warm, scheduler(CosineDecayScheduler, 1e-3, 0.0, 5)]) == 1e-3
    assert find_peak_rate([decay]) == 5e-4
    assert [find_peak_rate([form]) for form in FORMS[6:]] == [1e-3] * 6 + [1e-2]


def test_a_number_is_the_rate_of_every_step():
    assert [learning_rate(step, 1) for step in (1, 100)] == [1.0, 1.0]
