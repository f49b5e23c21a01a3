"""Comparison of checkpoints."""

from pathlib import Path

import pytest
import torch

from pipeline.core.errors import ConfigError
from tests.trainer.convert.models import make, state_of
from trainer.convert import lazy_tensors, targets
from trainer.convert.conversion import compare_checkpoints
from trainer.convert.lazy_tensors import wrap_tensors


def written(path: Path, **tensors: torch.Tensor) -> Path:
    lazy_tensors.write_safetensors(path, wrap_tensors(tensors))
    return path


@pytest.mark.parametrize(
    ("left", "right", "tolerance", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0, None),
        ([1.0, 2.0], [1.0, 2.5], 0.0, "largest difference 0.5"),
        ([1.0, 2.0], [1.0, 2.5], 0.5, None),
        ([float("nan"), 2.0], [float("nan"), 2.0], 0.0, None),
        ([float("nan"), 2.0], [1.0, 2.0], 1e9, "largest difference inf"),
        ([float("inf"), 2.0], [float("inf"), 2.0], 0.0, None),
        ([float("inf"), 2.0], [float("-inf"), 2.0], 1e9, "largest difference inf"),
    ],
)
def test_values(left, right, tolerance, expected, tmp_path: Path):
    a = written(tmp_path / "a.safetensors", x=torch.tensor(left))
    b = written(tmp_path / "b.safetensors", x=torch.tensor(right))
    found = compare_checkpoints(a, b, tolerance)
    assert [d.what for d in found.differences] == ([] if expected is None else [expected])
    assert found.tensors == 1


def test_names_shapes_and_dtypes(tmp_path: Path):
    a = written(
        tmp_path / "a.safetensors", only=torch.ones(1), shape=torch.ones(2, 3), kind=torch.ones(4)
    )
    b = written(
        tmp_path / "b.safetensors", shape=torch.ones(3, 2), other=torch.ones(1),
        kind=torch.ones(4).to(torch.bfloat16),
    )  # fmt: skip
    found = compare_checkpoints(a, b, tolerance=9.0)
    assert {d.name: d.what for d in found.differences} == {
        "only": "only in the left",
        "other": "only in the right",
        "shape": "shape (2, 3) and (3, 2)",
        "kind": "float32 and bfloat16, largest difference 0",
    }


def test_every_format_with_itself(tmp_path: Path):
    model, config = make()
    targets.write_wafermill(tmp_path / "ours", state_of(model), config)
    targets.write_mdl(tmp_path / "mdl", state_of(model), config, 3)
    file = tmp_path / "mdl" / "checkpoint_3.mdl"
    assert not compare_checkpoints(tmp_path / "ours", tmp_path / "ours").differences
    assert not compare_checkpoints(file, file).differences
    with pytest.raises(ConfigError, match="convert one of them first"):
        compare_checkpoints(tmp_path / "ours", file)


def test_checkpoints_of_two_models(tmp_path: Path):
    model, config = make()
    targets.write_wafermill(tmp_path / "a", state_of(model), config)
    with torch.no_grad():
        model.blocks[1].attention.qkv.bias[5] += 0.25
    targets.write_wafermill(tmp_path / "b", state_of(model), config)
    found = compare_checkpoints(tmp_path / "a", tmp_path / "b")
    assert [d.name for d in found.differences] == ["blocks.1.attention.qkv.bias"]
    assert found.largest == pytest.approx(0.25)


def test_a_tolerance_is_no_negative_number(tmp_path: Path):
    a = written(tmp_path / "a.safetensors", x=torch.ones(1))
    for tolerance in (-1.0, float("nan")):
        with pytest.raises(ConfigError, match="--tolerance"):
            compare_checkpoints(a, a, tolerance)
