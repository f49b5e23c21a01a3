"""The learning rate at every step equals the closed form, to the bit."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import Constant, CosineDecay, Linear
from trainer.schedule import learning_rate

PEAK = 6e-4


def scheduler(kind, first, last, length):
    if kind is Constant:
        return Constant(scheduler="Constant", learning_rate=first, total_iters=length)
    return kind(
        scheduler=kind.__name__,
        initial_learning_rate=first,
        end_learning_rate=last,
        total_iters=length,
    )


@pytest.mark.parametrize("decay", [Linear, CosineDecay])
def test_every_step_of_the_111m_run(decay):
    """Warm-up over 375M tokens of 120 x 2048 (1,525 steps), then down to a tenth at step 9,037."""
    warm, total = 1525, 9037
    rates = (
        scheduler(Linear, 0.0, PEAK, warm),
        scheduler(decay, PEAK, PEAK / 10, total - warm),
    )
    for step in range(1, total + 20):
        done = min(step - 1, total)
        share = (done - warm) / (total - warm)
        if done < warm:
            expected = PEAK * (done / warm)
        elif decay is Linear:
            expected = PEAK + (PEAK / 10 - PEAK) * share
        else:
            expected = PEAK / 10 + (PEAK - PEAK / 10) * (1 + math.cos(math.pi * share)) / 2
        assert learning_rate(step, rates) == expected
    assert learning_rate(10**9, rates) == pytest.approx(PEAK / 10)


pieces = st.tuples(
    st.sampled_from([Constant, Linear, CosineDecay]),
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
        low, high = sorted((first, first if kind is Constant else last))
        for within in range(length):
            assert low - 1e-12 <= learning_rate(step + within, rates) <= high + 1e-12
        step += length
    kind, first, last, _ = parts[-1]
    for later in (step, step + 1000):
        assert learning_rate(later, rates) == pytest.approx(first if kind is Constant else last)


def test_a_number_is_the_rate_of_every_step():
    assert [learning_rate(step, 1) for step in (1, 100)] == [1.0, 1.0]
