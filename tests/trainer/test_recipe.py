"""The recipe against the paper's figures, and its rules between them."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer import recipe
from trainer.config import load_params
from trainer.recipe import FAMILY, settings_for

STEPS = {
    "111M": 9037, "256M": 9468, "590M": 21836, "1.3B": 24334, "2.7B": 49041, "6.7B": 62522,
    "13B": 135_237,
}  # fmt: skip
SHIPPED = [(name, "") for name in FAMILY] + [(name, "_mup") for name in list(FAMILY)[:5]]


@pytest.mark.parametrize("name", FAMILY)
def test_run_lengths(name):
    member = FAMILY[name]
    settings = settings_for(member.shape.parameters)
    assert settings.steps == member.steps == STEPS[name]
    tokens = recipe.samples_in(settings.steps, settings.schedule) * 2048
    assert tokens == pytest.approx(member.tokens, rel=0.01)
    assert round(tokens / member.shape.parameters, 1) == 20


def test_the_ramp_of_13b():
    schedule = FAMILY["13B"].schedule
    assert recipe.samples_in(57_000, schedule) * 2048 == pytest.approx(84.05e9, rel=1e-4)
    assert round(recipe.samples_in(135_237, schedule) * 2048 / 1e9, 1) == 257.1
    assert recipe.steps_for(257_097_646_080, schedule, 2048) == 135_237


@pytest.mark.parametrize(("name", "suffix"), SHIPPED)
def test_shipped_configs_follow_the_recipe(name, suffix):
    params = load_params(Path(f"cerebras_gpt/{name.lower()}{suffix}"))
    settings = settings_for(FAMILY[name].shape.parameters, mup=bool(suffix))
    assert params.train_input.schedule == settings.schedule
    assert params.runconfig.max_steps == settings.steps
    up, down = params.optimizer.learning_rate
    assert up.total_iters == settings.warmup_steps
    assert up.total_iters + down.total_iters == settings.steps
    assert up.end_learning_rate == down.initial_learning_rate == settings.learning_rate
    assert down.end_learning_rate == pytest.approx(recipe.END_SHARE * settings.learning_rate)
    assert down.scheduler == {"linear": "Linear", "cosine": "CosineDecay"}[settings.decay]
    assert params.optimizer.eps == settings.eps
    assert params.optimizer.betas == recipe.BETAS


@given(st.floats(5e6, 2e11))
def test_settings_between_rows_stay_between_rows(parameters):
    settings = settings_for(round(parameters))
    rates = [m.learning_rate for m in FAMILY.values()]
    assert min(rates) <= settings.learning_rate <= max(rates)
    assert 1 <= settings.schedule[0][1] <= 1080
    assert 0 < settings.warmup_steps < settings.steps
    tokens = recipe.samples_in(settings.steps, settings.schedule) * 2048
    batch = settings.schedule[-1][1] * 2048
    assert 0 <= 20 * round(parameters) - tokens < batch or tokens >= 257e9


@given(st.floats(1.2e8, 1.2e10), st.floats(1.01, 2))
def test_batches_grow_and_rates_fall_with_size(parameters, factor):
    small, large = settings_for(round(parameters)), settings_for(round(parameters * factor))
    assert small.schedule[-1][1] <= large.schedule[-1][1]
    assert small.learning_rate >= large.learning_rate


@given(
    st.integers(10**6, 10**13),
    st.lists(st.integers(1, 100), min_size=1, max_size=3),
    st.sampled_from([64, 2048]),
)
def test_steps_and_samples_are_inverse(tokens, sizes, length):
    schedule = tuple((1 + 50 * i, size) for i, size in enumerate(sizes))
    steps = recipe.steps_for(tokens, schedule, length)
    spent = recipe.samples_in(steps, schedule) * length
    following = recipe.samples_in(steps + 1, schedule) * length
    assert spent <= tokens < following or steps == 1


def test_a_batch_keeps_its_tokens_at_another_length():
    settings = settings_for(FAMILY["1.3B"].shape.parameters, sequence_length=10_240)
    assert settings.schedule[0][1] * 10_240 == pytest.approx(528 * 2048, rel=0.05)


def test_the_laws():
    assert recipe.loss_at(5.984e22) == pytest.approx(1.5066)
    assert recipe.flops_for(recipe.loss_at(3e20)) == pytest.approx(3e20)
    assert recipe.flops_for(0.5066) == math.inf
    assert recipe.degradation(4284) == pytest.approx(0.166, abs=5e-4)
    assert recipe.degradation(20) == 0
    assert recipe.degradation(2) == pytest.approx(recipe.degradation(200))
    assert recipe.total_flops(2.0, 3.0, 4.0) == 14.0


PYTHIA = [
    (4.1e20, 160e6, 2.186),
    (1.1e21, 410e6, 1.971),
    (2.2e21, 1e9, 1.845),
    (6.1e21, 2.8e9, 1.720),
]


@pytest.mark.parametrize(("flops", "parameters", "loss"), PYTHIA)
def test_over_training_as_pythia_did_it(flops, parameters, loss):
    """Eq 4 is about the same FLOPs, spent on a smaller model: Pythia's losses bear that out."""
    assert recipe.predicted_loss(flops, 299.9e9 / parameters) == pytest.approx(loss, rel=0.01)
