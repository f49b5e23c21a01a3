"""Parameters and FLOPs against the paper's tables and against counted modules."""

from decimal import Decimal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from wafer_backend.errors import BackendConfigError
from wafer_backend.performance_model import (
    GPTShape,
    shape_of,
    training_flops_per_sequence,
)
from wafer_backend.performance_model.calibration import SHAPES, TOKENS, TRAINING_FLOPS
from wafer_backend.performance_model.shape import list_layers

DIMENSIONS = st.integers(1, 300)


@pytest.mark.parametrize("name", SHAPES)
def test_training_flops_are_those_of_table_8(name):
    total = training_flops_per_sequence(SHAPES[name]) * TOKENS[name] / 2048
    assert Decimal(f"{total:.1e}") == Decimal(f"{TRAINING_FLOPS[name]:.1e}")


@pytest.mark.parametrize(("name", "ratio"), [("111M", 1.79), ("1.3B", 1.36), ("13B", 1.14)])
def test_ratio_to_six_flops_per_parameter_and_token(name, ratio):
    shape = SHAPES[name]
    six = 6 * shape.parameters * shape.sequence_length
    assert training_flops_per_sequence(shape) / six == pytest.approx(ratio, abs=0.005)


def table_13(shape: GPTShape) -> int:
    """Written out line by line from the paper, for a filter of 4 d."""
    s, v, d = shape.sequence_length, shape.vocabulary, shape.width
    embeddings, positions = 2 * s * v * d, 2 * d * s
    block = [
        2 * 3 * s * d * d, 2 * s * s * d, 3 * d * s * s, s * s * d, 2 * s * s * d, 2 * s * d * d,
        16 * s * d * d, 2 * 7 * s * d, 20 * 4 * s * d,
    ]  # fmt: skip
    inference = embeddings + positions + shape.layers * sum(block) + 2 * s * d * v
    return 3 * inference - embeddings - positions


@given(DIMENSIONS, DIMENSIONS, DIMENSIONS, DIMENSIONS)
def test_flops_are_table_13(layers, width, vocabulary, length):
    shape = GPTShape(
        layers=layers,
        width=width,
        heads=1,
        filter=4 * width,
        vocabulary=vocabulary,
        sequence_length=length,
    )
    assert training_flops_per_sequence(shape) == table_13(shape)


@given(DIMENSIONS, DIMENSIONS, DIMENSIONS, DIMENSIONS, st.none() | st.integers(1, 10**9))
def test_layers_hold_every_parameter(layers, width, vocabulary, length, counted):
    shape = GPTShape(
        layers=layers,
        width=width,
        heads=1,
        filter=3 * width,
        vocabulary=vocabulary,
        sequence_length=length,
        counted_parameters=counted,
    )
    held = sum(layer.count * layer.parameters for layer in list_layers(shape))
    assert held == pytest.approx(shape.parameters)
    assert all(layer.parameters >= 0 for layer in list_layers(shape))


class Own(nn.Module):
    """A module with Hugging Face's names in a config."""

    def __init__(self, **config: int | None) -> None:
        super().__init__()
        self.config = type("Config", (), config)()
        self.weight = nn.Parameter(torch.empty(7, 3))
        self.tied = self.weight


def test_shape_of_a_module_on_meta():
    names = {"n_layer": 2, "n_embd": 8, "n_head": 2, "n_inner": None, "vocab_size": 11}
    with torch.device("meta"):
        module = Own(**names, n_positions=5)
    assert shape_of(module) == GPTShape(
        layers=2,
        width=8,
        heads=2,
        filter=32,
        vocabulary=11,
        sequence_length=5,
        counted_parameters=21,
    )
    module.gpt_shape = SHAPES["111M"]
    assert shape_of(module).layers == 10
    assert shape_of(module).parameters == 21


def test_a_module_that_cannot_be_read_says_how_to_help():
    with pytest.raises(BackendConfigError, match=r"cannot read layers, .*gpt_shape"):
        shape_of(nn.Linear(2, 2))


def test_a_shape_has_positive_dimensions():
    with pytest.raises(BackendConfigError, match="width is 0; expected at least 1"):
        GPTShape(layers=1, width=0, heads=1, filter=1, vocabulary=1, sequence_length=1)
