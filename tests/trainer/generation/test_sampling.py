"""One token from its logits, against counts and a plain rule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pipeline.core.errors import ConfigError
from trainer.generation.text import Sampling, choose_token

LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.3]))
EVEN = (np.arange(1000) + 0.5) / 1000


def shares(sampling: Sampling) -> list[float]:
    """How often every id is chosen over evenly spread numbers."""
    chosen = [choose_token(LOGITS, sampling, float(u)) for u in EVEN]
    return (np.bincount(chosen, minlength=4) / len(EVEN)).tolist()


def test_probabilities() -> None:
    assert shares(Sampling()) == pytest.approx([0.1, 0.4, 0.2, 0.3], abs=2e-3)


def test_temperature() -> None:
    squared = np.array([0.1, 0.4, 0.2, 0.3]) ** 2
    assert shares(Sampling(0.5)) == pytest.approx((squared / squared.sum()).tolist(), abs=2e-3)
    assert shares(Sampling(0.0)) == [0, 1, 0, 0]


def test_a_tiny_temperature_takes_the_likeliest() -> None:
    assert choose_token(np.array([92.0, -181.0]), Sampling(1.5e-306), 0.99) == 0


def test_top_k_and_top_p() -> None:
    assert shares(Sampling(top_k=2)) == pytest.approx([0, 4 / 7, 0, 3 / 7], abs=2e-3)
    assert shares(Sampling(top_p=0.65)) == pytest.approx([0, 4 / 7, 0, 3 / 7], abs=2e-3)
    assert shares(Sampling(top_p=0.75)) == pytest.approx([0, 4 / 9, 2 / 9, 3 / 9], abs=2e-3)
    assert shares(Sampling(top_p=0.01)) == [0, 1, 0, 0]
    assert shares(Sampling(top_k=99, top_p=1.0)) == shares(Sampling())


@given(
    arrays(np.float64, st.integers(1, 9), elements=st.floats(-800, 800)),
    st.floats(0, 50),
    st.one_of(st.none(), st.integers(1, 12)),
    st.one_of(st.none(), st.floats(0.01, 1)),
    st.floats(0, 1, exclude_max=True),
)
def test_always_one_of_the_likeliest(
    logits: np.ndarray, temperature: float, top_k: int | None, top_p: float | None, uniform: float
) -> None:
    token = choose_token(logits, Sampling(temperature, top_k, top_p), uniform)
    assert 0 <= token < len(logits)
    likelier = int((logits > logits[token]).sum())
    assert likelier < (top_k or len(logits))
    if temperature == 0:
        assert token == int(np.flatnonzero(logits == logits.max())[0])


def test_of_equals_the_first() -> None:
    assert choose_token(np.zeros(5), Sampling(0.0), 0.9) == 0
    assert choose_token(np.zeros(5), Sampling(top_k=1), 0.9) == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": -0.1}, "--temperature -0.1"),
        ({"temperature": float("nan")}, "--temperature nan"),
        ({"temperature": float("inf")}, "--temperature inf"),
        ({"top_k": 0}, "--top-k 0"),
        ({"top_p": 0.0}, "--top-p 0.0"),
        ({"top_p": 1.1}, "--top-p 1.1"),
    ],
)
def test_values_that_cannot_be_meant(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sampling(**wrong)  # type: ignore[arg-type]
