"""What is warned of, and what is not."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import StabilityConfig
from trainer.stability.rules import spike, warnings

RULE = StabilityConfig()
HEALTHY = {
    "std": 0.02, "norm": 3.0, "underflow": 0.0, "gradient_zeros": 0.0, "gradient_underflow": 0.04,
    "eps_limit": 1e-7, "eps_share": 0.0, "std_growth": 2.0, "norm_growth": 2.0,
}  # fmt: skip


def told(kind: str = "qkv", key_bias: dict | None = None, **values: float) -> set[str]:
    figures = {"kinds": {kind: {**HEALTHY, **values}}}
    return set(warnings(figures if key_bias is None else {**figures, "key_bias": key_bias}, RULE,
                        1e-8))  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "values", "cause"),
    [
        ("ffn_in", {"underflow": 0.06}, "underflow.ffn_in"),
        ("ffn_in", {"gradient_zeros": 0.06}, "gradient_zeros.ffn_in"),
        ("embedding", {"gradient_underflow": 0.06}, "gradient_underflow.embedding"),
        ("read_out", {"std_growth": 20.1}, "growth.read_out"),
        ("norm", {"eps_share": 0.01}, "eps.norm"),
    ],
)
def test_each_sign_is_told_by_name(kind, values, cause):
    assert told(kind) == set()
    assert told(kind, **values) == {cause}


def test_what_is_so_by_nature_is_not_told():
    """Embeddings of tokens that a batch does not hold; norms and biases that grow from nothing."""
    assert told("embedding", gradient_zeros=0.9) == set()
    assert told("bias", std_growth=1e6) == told("norm", std_growth=1e6) == set()


def test_large_key_biases_are_told():
    assert told(key_bias={"norm": 1.0, "ratio": 2.9}) == told(key_bias={"norm": 0.0}) == set()
    assert told(key_bias={"norm": 1.0, "ratio": 3.1}) == {"key_bias"}


LOSSES = st.lists(st.floats(0.1, 12.0), min_size=2, max_size=30)


@given(LOSSES, st.floats(0.1, 50.0), st.floats(0.5, 9.0))
def test_a_spike_is_one_by_the_statistics_of_the_window(losses, loss, sigma):
    window = len(losses)
    rule = StabilityConfig(spike_window=window, spike_sigma=sigma)
    mean, deviation = statistics.fmean(losses), statistics.pstdev(losses)
    limit = mean + sigma * deviation
    found = spike([99.0, *losses], loss, rule)
    if abs(loss - limit) > 1e-9:
        assert (found is not None) == (loss > limit)
    assert spike(losses[1:], 99.0, rule) is None
    assert spike(losses, 99.0, StabilityConfig(spike_window=window, spike_sigma=None)) is None
