"""Optimizers and schedulers of other packages, by the example of docs/extending.md."""

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import ConfigError
from tests.programs import Program
from trainer import cli
from trainer.config import load_params
from wafer_backend.optim import registry

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
OPTIMIZER = {
    "optimizer_type": "signum",
    "momentum": 0.5,
    "learning_rate": [{"scheduler": "Trapezoid", "peak": 1e-2, "ramp_steps": 2, "total_iters": 4},
                      {"scheduler": "Constant", "learning_rate": 1e-3}],
}  # fmt: skip


def read_example() -> tuple[str, str]:
    """The entry points and the module of the page, as files of an installed package."""
    section = PAGE.read_text("utf-8").partition("## An optimizer\n")[2]
    toml, module = re.findall(r"^```(?:toml|python)\n(.*?)^```$", section, re.M | re.S)[:2]
    header = re.compile(r'\[project.entry-points."(.*)"\]')
    return header.sub(r"[\1]", toml).replace('"', ""), module


@pytest.fixture
def install(tmp_path):
    """Install a package of entry points and a module; returns the directory it is in."""

    def put(entry_points: str, module: str, version: str = "1.2.3") -> Path:
        site = tmp_path / "site"
        information = site / "my_package-1.dist-info"
        information.mkdir(parents=True, exist_ok=True)
        (information / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: my-package\nVersion: {version}\n"
        )
        (information / "entry_points.txt").write_text(entry_points)
        (site / "my_package.py").write_text(module)
        return site

    return put


def arguments(trainer, steps: int) -> list[str]:
    words = ("CSX", "--params", trainer.params, "--num_csx", 2, "--mode", "train", "--model_dir",
             trainer.root / "out", "--data", trainer.data, "--num_steps", steps)  # fmt: skip
    return [*map(str, words)]


def find_plug_ins(site: Path) -> None:
    """In a fork, which has asked for plug-ins before: those of `site` are there from now on."""
    sys.path.insert(0, str(site))
    importlib.invalidate_caches()
    registry.list_optimizers.cache_clear()
    registry.list_schedulers.cache_clear()


def run_forked(trainer, site: Path, steps: int) -> Program:
    """`train` in a fork that finds the package."""

    def call() -> None:
        find_plug_ins(site)
        cli.app(arguments(trainer, steps))

    ended = Program(call)
    ended.wait()
    return ended


def test_a_package_adds_an_optimizer_and_a_scheduler(trainer, install):
    trainer.configure(optimizer=OPTIMIZER)
    entry_points, module = read_example()
    ended = run_forked(trainer, install(entry_points, module), 5)
    assert ended.returncode == 0, ended.err
    rates = [line["learning_rate"] for line in trainer.metrics("out")]
    assert rates == [0.0, 5e-3, 1e-2, 5e-3, 1e-3]
    losses = [line["loss"] for line in trainer.metrics("out")]
    assert losses[-1] < losses[0]
    recorded = json.loads((trainer.root / "out/run.json").read_text())
    assert recorded["optimizer"]["momentum"] == 0.5
    assert recorded["plug_ins"].keys() == {"Signum", "Trapezoid"}
    assert recorded["plug_ins"]["Signum"].startswith("my-package 1.2.3, code ")
    (checkpoint,) = (trainer.root / "out/checkpoints").glob("step_0*5")
    state = json.loads((checkpoint / "state.json").read_text())
    assert state["plug_ins"] == recorded["plug_ins"]

    again = run_forked(trainer, install(entry_points, module, version="1.2.4"), 6)
    assert again.returncode == 2
    assert "plug_ins.Signum was 'my-package 1.2.3, code" in again.err
    assert run_forked(trainer, install(entry_points, module), 6).returncode == 0


def explain(site: Path, params: Any, *changes: dict[str, Any]) -> list[str]:
    """What is said of params with each of these changes of section optimizer."""

    def call() -> None:
        find_plug_ins(site)
        for change in changes:
            try:
                load_params({**params, "optimizer": {**params["optimizer"], **change}})
                print("read")
            except ConfigError as error:
                print(error)

    ended = Program(call)
    assert ended.wait() == 0, ended.err
    return ended.out.splitlines()


def params_of(trainer) -> Any:
    import yaml

    return yaml.safe_load(trainer.params.read_text())


def test_mistakes_in_settings_of_a_plug_in_are_one_line(trainer, install):
    trainer.configure(optimizer=OPTIMIZER)
    said = explain(
        install(*read_example()),
        params_of(trainer),
        {},
        {"optimizer_type": "Sigmun"},
        {"momentum": 1.0},
        {"momentun": 0.5},
        {"weight_decay": -1.0},
        {"learning_rate": [{"scheduler": "Trapezod"}]},
        {"learning_rate": [{"scheduler": "Trapezoid", "peak": 1.0, "total_iters": 3}]},
        {"learning_rate": [{**OPTIMIZER["learning_rate"][0], "ramp_steps": 0}]},
    )
    expected = [
        "read",
        "optimizer_type: 'Sigmun' is unknown; did you mean 'Signum'?",
        "optimizer.momentum: expected less than 1; got 1.0",
        "optimizer.momentun: unknown key; did you mean 'momentum'?",
        "Signum: weight_decay is -1.0; expected 0 or more",
        "'Trapezod' is unknown; did you mean 'Trapezoid'?",
        "ramp_steps: missing",
        "its first step fails: ZeroDivisionError",
    ]
    for line, part in zip(said, expected, strict=True):
        assert part in line


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        ("import no_such_module\n", "does not load: "),
        ("Signum = trapezoid = 1\n", "expected a class"),
        ("class Signum: pass\n", "is no subclass of wafer_backend.optim.Optimizer"),
        ("Signum = None\n", "expected a class"),
    ],
)
def test_a_broken_package_is_named_in_one_line(trainer, install, module, problem):
    entry_points, _ = read_example()
    (line,) = explain(install(entry_points, module), params_of(trainer), {})
    assert "my-package 1.2.3: its wafermill." in line
    assert problem in line


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ("[wafermill.optimizers]\nLion = my_package:Signum\n", "has the name of a built-in"),
        ("[wafermill.optimizers]\nA = my_package:Untyped\n", "argument beta has no type"),
        ("[wafermill.optimizers]\nA = my_package:NoRate\n", "NoRate has no argument lr"),
        ("[wafermill.schedulers]\nA = my_package:no_rate\n", "no argument of type Value"),
    ],
)
def test_what_a_package_must_declare(trainer, install, declared, problem):
    _, module = read_example()
    module += (
        "\n\nclass Untyped(ParameterwiseOptimizer):\n"
        "    def __init__(self, params, lr: float, beta=0.5): ...\n"
        "\n\nclass NoRate(ParameterwiseOptimizer):\n"
        "    def __init__(self, params, beta: float = 0.5): ...\n"
        "\n\ndef no_rate(step, steps: int): return 1.0\n"
    )
    trainer.configure(optimizer={"learning_rate": [{"scheduler": "Constant", "learning_rate": 1}]})
    (line,) = explain(install(declared, module), params_of(trainer), {})
    assert "my-package 1.2.3: its wafermill." in line
    assert problem in line
