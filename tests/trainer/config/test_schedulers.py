"""Schedulers as params files write them, in sections and in the trainer form."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.core.errors import ConfigError
from trainer.config import Params, load_params

DATA = Path(__file__).parent / "data"
FIRST = {"initial_learning_rate": 1e-3}
ALL: dict[str, dict[str, Any]] = {
    "Constant": {"learning_rate": 1e-3, "total_iters": 9},
    "Linear": {**FIRST, "end_learning_rate": 0, "total_iters": 9, "cycle": True},
    "Polynomial": {**FIRST, "end_learning_rate": 0.0, "total_iters": 9, "power": 2.0},
    "Exponential": {**FIRST, "total_iters": 9, "decay_rate": 0.5, "staircase": True},
    "InverseExponentialTimeDecay": {
        **FIRST, "step_exponent": 2, "total_iters": 9, "decay_rate": 0.5,
    },
    "InverseSquareRootDecay": {**FIRST, "scale": 2.0, "warmup_steps": 4},
    "CosineDecay": {**FIRST, "end_learning_rate": 0.0, "total_iters": 9},
    "PiecewiseConstant": {"learning_rates": [1e-3, 1e-4], "milestones": [5]},
    "MultiStep": {**FIRST, "gamma": 0.1, "milestones": [2, 5]},
    "Step": {**FIRST, "step_size": 3, "gamma": 0.5},
    "CosineAnnealing": {**FIRST, "T_max": 9},
    "CosineAnnealingWarmRestarts": {**FIRST, "T_0": 4, "T_mult": 2, "eta_min": 1e-5},
    "Multiplicative": {**FIRST, "coefficient": 0.5},
    "Cyclic": {"base_lr": 1e-4, "max_lr": 1e-3, "step_size_up": 3, "mode": "triangular2"},
    "OneCycle": {**FIRST, "max_lr": 1e-2, "total_steps": 9},
}  # fmt: skip


def read(name: str) -> Any:
    return yaml.safe_load((DATA / f"{name}.yaml").read_text())


def load(tmp_path: Path, value: Any) -> Params:
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(value, sort_keys=False))
    return load_params(path)


def in_sections(tmp_path: Path, *rates: dict[str, Any]) -> Params:
    file = read("111m_r2_2")
    file["optimizer"]["learning_rate"] = list(rates)
    return load(tmp_path, file)


def refused(tmp_path: Path, *rates: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        in_sections(tmp_path, *rates)
    return str(caught.value)


@pytest.mark.parametrize("name", ALL)
def test_each_in_both_forms(tmp_path, name):
    warm_up = {"initial_learning_rate": 0.0, "end_learning_rate": 1e-3, "total_iters": 4}
    flat = in_sections(
        tmp_path,
        {"scheduler": "linear", **warm_up},
        {"scheduler": name.upper(), "main_scheduler": "sequential", **ALL[name]},
    )
    file = read("111m_trainer")
    long_name = name if name.endswith("Restarts") else f"{name}LR"
    both = [{"LinearLR": warm_up}, {long_name: ALL[name]}]
    file["trainer"]["init"]["schedulers"] = [{"SequentialLR": {"schedulers": both}}]
    form = load(tmp_path, file)
    assert flat.optimizer.learning_rate == form.optimizer.learning_rate
    last = flat.optimizer.learning_rate[-1]
    given = {key: list(v) if isinstance(v, tuple) else v for key, v in last}
    assert given | ALL[name] == given
    assert last.scheduler == name


def test_older_names_of_keys(tmp_path):
    params = in_sections(
        tmp_path,
        {"scheduler": "Exponential", **FIRST, "decay_steps": 7, "decay_rate": 0.5},
        {"scheduler": "PiecewiseConstantLR", "values": [1e-3, 1e-4], "boundaries": [5]},
    )
    decay, pieces = params.optimizer.learning_rate
    assert decay.total_iters == 7
    assert (pieces.learning_rates, pieces.milestones) == ((1e-3, 1e-4), (5,))
    assert "optimizer.learning_rate.1.values: old spelling of learning_rates" in params.notes


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        (["Step", "Linear"], "learning_rate.0: Step has no end (total_iters), so no scheduler"),
        (["Cyclic", "Constant"], "learning_rate.0: Cyclic has no end"),
        (["Trapezoid"], "0.scheduler: 'Trapezoid' is unknown; expected one of Constant, Poly"),
        (["Lambda"], "learning_rate.0.scheduler: 'Lambda' is unknown"),
        (["Linaer"], "learning_rate.0.scheduler: 'Linaer' is unknown; did you mean 'Linear'?"),
    ],
)
def test_what_cannot_be_or_cannot_be_followed(tmp_path, rates, expected):
    assert expected in refused(tmp_path, *({"scheduler": n, **ALL.get(n, {})} for n in rates))


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("Step", {"main_scheduler": "chained"}, "main_scheduler: chained is not supported; expec"),
        ("Step", {"step_sise": 3}, "step_sise: unknown key"),
        ("Linear", {"steps": 3}, "steps: the same setting as total_iters; give only one"),
        (
            "PiecewiseConstant",
            {"milestones": [1, 2]},
            "2 values for 2 milestones; expected one value more",
        ),
        (
            "MultiStep",
            {"milestones": [5, 2]},
            "milestones are [5, 2]; expected strictly increasing steps",
        ),
        ("OneCycle", {"pct_start": 2}, "pct_start: expected less than or equal to 1"),
        ("Cyclic", {"mode": "square"}, "mode: expected 'triangular'"),
    ],
)
def test_mistakes(tmp_path, name, changes, expected):
    text = refused(tmp_path, {"scheduler": name, **ALL[name], **changes})
    assert expected in text.replace("should be", "")
    assert "optimizer.learning_rate.0" in text
