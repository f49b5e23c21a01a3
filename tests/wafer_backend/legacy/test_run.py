"""The oldest style of script, over a params file and a command line."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import wafer_backend
from wafer_backend import legacy
from wafer_backend.errors import BackendConfigError
from wafer_backend.metrics import Accuracy

PARAMS: dict[str, Any] = {
    "train_input": {"batch_size": 8},
    "eval_input": {"batch_size": 8},
    "model": {"width": 6},
    "optimizer": {
        "optimizer_type": "AdamW",
        "beta1": 0.9,
        "beta2": 0.95,
        "weight_decay_rate": 0.1,
        "max_gradient_norm": 1.0,
        "loss_scaling_factor": "dynamic",
        "learning_rate": [
            {
                "scheduler": "Linear",
                "initial_learning_rate": 0.0,
                "end_learning_rate": 0.05,
                "steps": 3,
            },
            {"scheduler": "Constant", "val": 0.05},
        ],
    },
    "runconfig": {"max_steps": 6, "checkpoint_steps": 3, "log_steps": 2, "seed": 3},
}


class Network(nn.Module):
    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, params["model"]["width"]),
            nn.ReLU(),
            nn.Linear(params["model"]["width"], 2),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Old(legacy.PyTorchBaseModel):
    """A model of R1.x: not a module; the loss is computed around the module."""

    def __init__(self, params: dict[str, Any], device: Any = None) -> None:
        self.model = Network(params)
        self.accuracy = Accuracy("accuracy")
        super().__init__(params=params, model=self.model, device=device)

    def __call__(self, data: Any) -> torch.Tensor:
        x, labels = data
        logits = self.model(x)
        self.accuracy(labels=labels, predictions=logits.argmax(-1))
        return nn.functional.cross_entropy(logits, labels)


class New(nn.Module):
    """A model of R1.8: a module whose call takes a batch and returns the loss."""

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__()
        self.model = Network(params)
        self.loss_fn = nn.CrossEntropyLoss()

    def __call__(self, data: Any) -> torch.Tensor:
        x, labels = data
        return self.loss_fn(self.model(x), labels)


def loader(params: dict[str, Any]) -> DataLoader:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    size = params["train_input"]["batch_size"]
    return DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=size)


@pytest.fixture
def run(tmp_path):
    def call(model: Any = Old, *words: Any, change: Any = None, **settings: Any) -> list[float]:
        wafer_backend.reset()
        params = yaml.safe_load(yaml.safe_dump(PARAMS))
        for section, values in (change or {}).items():
            params[section] |= values
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
        fixed = ["--params", tmp_path / "params.yaml", "--model_dir", tmp_path / "model"]
        arguments = [str(word) for word in (*words, *fixed)]
        return legacy.run(model, loader, loader, arguments=arguments, **settings)

    return call


def checkpoints(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "model").glob("*.mdl"))


def test_both_kinds_of_model_learn_the_same(run, tmp_path):
    old = run(Old)
    assert len(old) == 6
    assert checkpoints(tmp_path) == ["checkpoint_3.mdl", "checkpoint_6.mdl"]
    for path in (tmp_path / "model").glob("*.mdl"):
        path.unlink()
    assert run(New) == pytest.approx(old, rel=1e-5)


def test_max_steps_counts_all_runs(run, tmp_path, capsys):
    unbroken = run(Old, "CSX", "--num_csx", 2)
    for path in (tmp_path / "model").glob("*.mdl"):
        path.unlink()
    first = run(Old, "--num_steps", 3)
    assert first == unbroken[:3]
    assert len(run(Old)) == 3
    assert run(Old) == []
    assert "step 6 is the last" in capsys.readouterr().out


def test_train_and_eval_prints_like_run_py(run, capsys):
    losses = run(Old, "--mode", "train_and_eval", "--eval_steps", 2)
    assert len(losses) == 8
    said = capsys.readouterr().out
    training = [line for line in said.splitlines() if "Train" in line]
    assert training[0].startswith("| Train Device=CSX, Step=2, Loss=")
    assert "Rate=" in said
    assert "| Eval Device=CSX, GlobalStep=6, Batch=2, Loss=" in said
    assert "accuracy=" in said


def test_evaluation_of_a_checkpoint(run, tmp_path, capsys):
    run(Old)
    path = tmp_path / "model" / "checkpoint_3.mdl"
    assert len(run(Old, "--mode", "eval", "--checkpoint_path", path)) == 8
    assert f"Loaded checkpoint {path}: step 3" in capsys.readouterr().out
    assert len(run(Old, "CPU", "--mode", "eval")) == 8


def test_mixed_precision_chooses_the_half_dtype(run):
    run(Old, "--num_steps", 1, change={"model": {"mixed_precision": True}})
    assert wafer_backend.amp.get_half_dtype_str() == "float16"
    assert wafer_backend.amp.mixed_precision()


def test_plans_and_checks(run, capsys, tmp_path):
    assert run(Old, "--compile_only", "--num_csx", 2) == []
    assert "num_csx 2" in capsys.readouterr().out
    assert run(New, "--validate_only") == []
    assert "one sample ran forward" in capsys.readouterr().out
    assert checkpoints(tmp_path) == []


def test_default_params_may_change_params(run):
    def fill(params: dict[str, Any]) -> None:
        params["runconfig"]["max_steps"] = 2

    assert len(run(Old, default_params_fn=fill)) == 2


def test_wrong_params_files(tmp_path):
    with pytest.raises(BackendConfigError, match="No such file"):
        legacy.run(Old, loader, arguments=["--params", str(tmp_path / "none.yaml")])
    path = tmp_path / "params.yaml"
    path.write_text("model: {}\n", encoding="utf-8")
    with pytest.raises(BackendConfigError, match="no section optimizer"):
        legacy.run(Old, loader, arguments=["--params", str(path)])
    path.write_text("- 1\n", encoding="utf-8")
    with pytest.raises(BackendConfigError, match="expected sections"):
        legacy.run(Old, loader, arguments=["--params", str(path)])


def test_a_mode_needs_its_loader(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(PARAMS), encoding="utf-8")
    words = ["--params", str(path), "--mode", "eval", "--model_dir", str(tmp_path)]
    with pytest.raises(BackendConfigError, match="--mode eval needs eval_data_fn"):
        legacy.run(Old, loader, arguments=words)


def test_one_task():
    answers = (legacy.num_tasks(), legacy.task_id(), legacy.num_streamers())
    assert answers == (1, 0, 1)
    assert legacy.is_streamer()


def test_abstract_methods_say_so():
    wafer_backend.backend("CSX")
    params = PARAMS | {"runconfig": {"mode": "eval"}}
    model = legacy.PyTorchBaseModel(params, Network(PARAMS))
    assert model.get_optimizer() is None
    assert model.get_lr_scheduler() is None
    with pytest.raises(NotImplementedError, match="PyTorchBaseModel must define __call__"):
        model(None)
    with pytest.raises(NotImplementedError, match="must define build_model"):
        model.build_model({})
