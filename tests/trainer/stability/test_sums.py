"""Sums and figures against NumPy in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.stability import measure
from trainer.stability.measure import KINDS, Sums, find_kind
from trainer.stability.rules import figures, of_kind


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(measure, "CHUNK", 7)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (5, 3), (4, 7, 3)])
def test_sums_of_every_shape(small_chunks, shape):
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    values = tensor.numpy().astype(np.float64)
    assert measure.total(tensor) == pytest.approx(values.sum(), rel=1e-14)
    assert measure.squares(tensor) == pytest.approx((values**2).sum(), rel=1e-14)
    assert measure.count_zeros(tensor) == 0


@given(st.lists(st.floats(-1.0, 1.0, width=32), max_size=40), st.floats(2.0**-149, 1.0, width=32))
def test_underflow_is_that_of_numpy(values, scale):
    tensor = torch.tensor(values, dtype=torch.float32) * scale
    array = tensor.numpy()
    half = array.astype(np.float16)
    assert measure.count_lost(tensor, "float16") == int(((array != 0) & (half == 0)).sum())
    assert measure.count_zeros(tensor) == int((array == 0).sum())


def test_what_bfloat16_loses_is_far_smaller():
    tensor = torch.tensor([1e-8, 1e-38, 1e-42])
    lost = [measure.count_lost(tensor, half) for half in ("float16", "bfloat16")]
    assert lost == [3, 1]


def test_a_kind_is_taken_together():
    """Two tensors of a kind have the figures of one with all their values."""
    generator = np.random.default_rng(1)
    parts = [generator.normal(0.5, scale, 50) for scale in (1.0, 3.0)]
    group = [
        Sums(
            values=50, total=x.sum(), squares=(x**2).sum(), moments=50, moment_total=50 * v,
            cast=50, lost=k, gradients=50, gradient_zeros=2 * k, gradient_lost=3 * k,
        )
        for x, v, k in zip(parts, (4e-6, 1e-8), (1, 4), strict=True)
    ]  # fmt: skip
    found, all_values = of_kind(group, 1e-6), np.concatenate(parts)
    assert found["std"] == pytest.approx(all_values.std(), rel=1e-12)
    assert found["norm"] == pytest.approx(np.linalg.norm(all_values), rel=1e-12)
    shares = [found[name] for name in ("underflow", "gradient_zeros", "gradient_underflow")]
    assert shares == [0.05, 0.1, 0.15]
    assert found["eps_limit"] == pytest.approx(1e-7)
    assert found["eps_share"] == 0.5
    assert of_kind(group, 1e-8)["eps_share"] == 0.0


def test_what_is_not_known_is_left_out():
    plain = of_kind([Sums(values=4, total=4.0, squares=4.0)], 1e-8)
    assert plain == {"std": 0.0, "norm": 2.0}
    broken = of_kind([Sums(values=4, total=np.nan, squares=np.inf)], 1e-8)
    assert broken == {}


def test_growth_refers_to_the_first_measure():
    def measured(scale: float) -> dict[str, Sums]:
        return {
            "blocks.0.attention.qkv.weight": Sums(values=4, squares=4 * scale**2),
            "blocks.0.attention.qkv.bias": Sums(
                values=3, squares=3.0, key_values=1, key_squares=scale**2, other_squares=2.0
            ),
        }

    first = figures(measured(1.0), 1e-8, None)
    assert first["kinds"]["qkv"]["std_growth"] == 1.0
    later = figures(measured(8.0), 1e-8, first)
    assert later["kinds"]["qkv"]["std_growth"] == later["kinds"]["qkv"]["norm_growth"] == 8.0
    assert later["key_bias"] == {"norm": 8.0, "ratio": 8.0, "norm_growth": 8.0}
    assert "key_bias" not in figures({"read_out.weight": Sums(values=1)}, 1e-8, None)


def test_every_parameter_of_every_model_has_a_kind():
    from trainer.config import ModelConfig
    from trainer.model import GPT

    base = {
        "vocab_size": 11, "max_position_embeddings": 4, "hidden_size": 8, "num_hidden_layers": 1,
        "num_heads": 2, "filter_size": 8,
    }  # fmt: skip
    seen = set()
    for more in ({}, {"nonlinearity": "swiglu", "share_embedding_weights": False,
                      "use_bias_in_output": True, "norm_type": "rmsnorm"}):  # fmt: skip
        model = GPT(ModelConfig(**base, **more), seed=1)
        for name, parameter in model.named_parameters():
            kind = find_kind(name)
            seen.add(kind)
            assert (kind in ("norm", "bias")) == (parameter.ndim == 1), name
    assert seen == set(KINDS)
