"""Positions against closed forms: complex rotations, ALiBi's slopes, sinusoids."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.model.conftest import tiny_config
from trainer.data.batches import activation_bytes
from trainer.model import GPT, decoder
from trainer.model.attention import MaskRule, additive_mask
from trainer.model.positions import (
    Rotation,
    alibi_bias,
    alibi_slopes,
    rotary_frequencies,
    rotate,
    rotation,
    sinusoids,
)


def rotation_of(positions: torch.Tensor, dims: int, theta: float, *, interleaved: bool) -> Rotation:
    head = {"hidden_size": 4 * dims, "rotary_dim": dims, "rope_theta": theta}
    return rotation(positions, tiny_config("neox", **head, rotary_interleaved=interleaved))


def turned(x_E: torch.Tensor, position: int, dims: int, interleaved: bool) -> torch.Tensor:
    at = rotation_of(torch.tensor([position]), dims, 10000.0, interleaved=interleaved)
    return rotate(x_E.view(1, 1, 1, -1), at).flatten()


shapes = st.tuples(st.integers(1, 8), st.integers(0, 5)).map(lambda t: (2 * t[0], 2 * t[0] + t[1]))


@settings(max_examples=40)
@given(shape=shapes, near=st.integers(0, 40), far=st.integers(0, 40), shift=st.integers(0, 500),
       interleaved=st.booleans())  # fmt: skip
def test_rotated_products_depend_on_distance_alone(shape, near, far, shift, interleaved):
    dims, width = shape
    q_E, k_E = torch.randn(2, width, generator=torch.Generator().manual_seed(near + 41 * far))
    here = turned(q_E, near, dims, interleaved) @ turned(k_E, far, dims, interleaved)
    near, far = near + shift, far + shift
    there = turned(q_E, near, dims, interleaved) @ turned(k_E, far, dims, interleaved)
    torch.testing.assert_close(here, there, rtol=1e-3, atol=1e-3)
    assert torch.equal(turned(q_E, near, dims, interleaved)[dims:], q_E[dims:])


@settings(max_examples=40)
@given(shape=shapes, position=st.integers(0, 3000), interleaved=st.booleans())
def test_pairs_are_multiplied_by_a_complex_number_of_size_1(shape, position, interleaved):
    dims, width = shape
    x_E = torch.randn(width, generator=torch.Generator().manual_seed(position))
    found = turned(x_E, position, dims, interleaved).double()
    pairs = [(2 * i, 2 * i + 1) if interleaved else (i, i + dims // 2) for i in range(dims // 2)]
    for i, (a, b) in enumerate(pairs):
        angle = position * 10000.0 ** (-2 * i / dims)
        expected = complex(x_E[a], x_E[b]) * complex(math.cos(angle), math.sin(angle))
        assert complex(found[a], found[b]) == pytest.approx(expected, abs=2e-3)


def test_both_kinds_of_pairs_are_one_rotation_of_permuted_units():
    x_E = torch.randn(8, generator=torch.Generator().manual_seed(0))
    permuted = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
    halves, neighbours = turned(x_E, 7, 8, False), turned(x_E[permuted], 7, 8, True)
    assert torch.equal(halves[permuted], neighbours)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rotated_in_fp32_and_rounded_once(dtype):
    x = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    by = rotation_of(torch.arange(2000, 2005), 8, 10000.0, interleaved=False)
    found = rotate(x, by)
    assert found.dtype == dtype
    assert torch.equal(found, rotate(x.float(), by).to(dtype))


def test_rows_may_have_positions_of_their_own():
    x = torch.randn(2, 3, 4, 6, generator=torch.Generator().manual_seed(0))
    positions_BS = torch.tensor([[0, 1, 2, 3], [0, 1, 0, 1]])
    found = rotate(x, rotation_of(positions_BS, 6, 500.0, interleaved=True))
    for row in range(2):
        alone = rotate(x[row : row + 1], rotation_of(positions_BS[row], 6, 500.0, interleaved=True))
        assert torch.equal(found[row], alone[0])


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (1, [2**-8]),
        (2, [2**-4, 2**-8]),
        (8, [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
        (12, [*(2**-i for i in range(1, 9)), *(2 ** -(i + 0.5) for i in range(4))]),
    ],
)
def test_slopes_are_those_of_the_paper_and_its_authors(heads, slopes):
    assert alibi_slopes(heads) == pytest.approx(slopes)


@given(heads=st.integers(1, 130))
def test_every_head_has_a_slope_of_its_own(heads):
    slopes = alibi_slopes(heads)
    assert len(set(slopes)) == heads
    assert all(2**-8 <= slope < 1 for slope in slopes)


def test_biases_fall_with_distance():
    bias_HSS = alibi_bias(5, 2, torch.device("cpu"))
    for head, slope in enumerate((2**-4, 2**-8)):
        for i in range(5):
            assert bias_HSS[head, i, : i + 1].tolist() == [-slope * (i - j) for j in range(i + 1)]


@pytest.mark.parametrize("width", [2, 3, 8, 9])
def test_sinusoids_have_wavelengths_from_1_to_10000(width):
    found = sinusoids(torch.tensor([[0, 3], [5, 1]]), width)
    assert found.shape == (2, 2, width)
    pairs = width // 2
    for row, column, p in ((0, 0, 0), (0, 1, 3), (1, 0, 5), (1, 1, 1)):
        at = found[row, column]
        for i in range(pairs):
            frequency = 10000 ** (-i / max(pairs - 1, 1))
            assert float(at[2 * i]) == pytest.approx(math.sin(p * frequency), abs=1e-5)
            assert float(at[2 * i + 1]) == pytest.approx(math.cos(p * frequency), abs=1e-5)
        assert at[2 * pairs :].tolist() == [0.0] * (width % 2)


def test_alibi_has_a_bias_of_every_head_and_packed_row():
    x_BSD = torch.zeros(3, 16, 8)
    span_BS = torch.zeros(3, 16, dtype=torch.int64)
    for span, rows in ((None, 1), (span_BS, 3)):
        bias = additive_mask(x_BSD, span, torch.arange(x_BSD.shape[1]), MaskRule(alibi_heads=4))
        assert (tuple(bias.shape), bias.dtype) == ((rows, 4, 16, 16), torch.float32)


def test_alibi_is_rounded_in_half_precision(monkeypatch):
    """Slopes of 16 heads are no numbers of bfloat16: rounding them before changes no bit there."""
    alibi = {"position_embedding_type": "alibi", "num_heads": 16, "hidden_size": 32}
    model = GPT(tiny_config(**alibi), seed=1).eval()
    ids = torch.arange(16)[None]

    def logits(half: bool):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=half):
            return model.logits(ids)

    before = logits(True), logits(False)
    monkeypatch.setattr(
        decoder, "additive_mask", lambda *of: additive_mask(*of).to(torch.bfloat16).float()
    )
    assert torch.equal(before[0], logits(True))
    assert not torch.equal(before[1], logits(False))


def test_windows_and_capped_logits_hold_scores():
    plain = activation_bytes(tiny_config("llama"))
    window = activation_bytes(tiny_config("llama", attention_sliding_window_length=4))
    capped = activation_bytes(tiny_config("llama", attention_logit_softcapping=5.0))
    layers, length, heads = 2, 16, 4
    assert window - plain == layers * 4 * length**2  # a mask in fp32
    assert capped - plain == layers * 5 * 4 * heads * length**2


@pytest.mark.parametrize("kind", ["llama3", "yarn", "linear"])
def test_scaled_frequencies_are_those_of_transformers(kind: str):
    """Of Llama 3.1, whose wavelengths are on both sides of every limit."""
    transformers = pytest.importorskip("transformers", reason="the reference for scaled positions")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    args = {"original_max_position_embeddings": 8192}
    rule = {"rope_type": kind, "rope_theta": 500_000.0, "factor": 8.0, **args}
    if kind == "llama3":
        rule |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    theirs = transformers.LlamaConfig(
        hidden_size=256, num_attention_heads=2, max_position_embeddings=65536, rope_parameters=rule
    )
    expected, gain = ROPE_INIT_FUNCTIONS[kind](theirs, "cpu")
    config = tiny_config(
        "neox", hidden_size=256, num_heads=2, rotary_dim=None, rope_theta=500_000.0,
        pos_scaling_type=kind, pos_scaling_factor=8.0, pos_scaling_extra_args=args,
    )  # fmt: skip
    found, our_gain = rotary_frequencies(config, torch.device("cpu"))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    assert our_gain == pytest.approx(gain)
