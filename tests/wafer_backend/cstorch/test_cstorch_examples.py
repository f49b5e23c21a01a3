"""The scripts of examples/cstorch: they learn, and the losses are equal for any num_csx."""

import shutil
import subprocess
import sys
from pathlib import Path
from statistics import mean
from types import ModuleType
from typing import Any

import pytest

import wafer_backend
from tests.scripts import load

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "cstorch"


def example(name: str) -> ModuleType:
    return load(EXAMPLES / f"{name}.py")


def run(name: str, *args: Any, **settings: Any) -> Any:
    """main(...) of a script as in a process of its own."""
    wafer_backend.reset()
    return example(name).main(*args, **settings)


def r1(directory: Path, num_csx: int, **options: Any) -> list[float]:
    """The script of the oldest style, with a command line."""
    wafer_backend.reset()
    script = example("r1_fc_mnist")
    words = ["CSX", "--params", EXAMPLES / "r1_fc_mnist.yaml", "--model_dir", directory]
    words += ["--num_csx", num_csx]
    for name, value in options.items():
        words += [f"--{name}", value]
    return script.run(
        script.MNISTModel,
        script.get_train_dataloader,
        script.get_eval_dataloader,
        arguments=[str(word) for word in words],
    )


def test_all_scripts_are_tested():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    text = Path(__file__).read_text(encoding="utf-8")
    assert names == {name for name in names if f'"{name}"' in text}


def test_r1_fc_mnist(tmp_path, capsys):
    losses = r1(tmp_path / "one", 1, mode="train_and_eval")
    assert len(losses) == 20 + 4
    assert losses[19] < losses[0] / 2
    said = capsys.readouterr().out
    assert "| Train Device=CSX, Step=20, Loss=" in said
    assert "| Eval Device=CSX, GlobalStep=20, Batch=4, Loss=" in said
    assert losses == r1(tmp_path / "two", 2, mode="train_and_eval")
    assert (tmp_path / "two" / "checkpoint_20.mdl").is_file()

    shutil.copytree(tmp_path / "one", tmp_path / "resumed")
    (tmp_path / "resumed" / "checkpoint_20.mdl").unlink()
    resumed = r1(tmp_path / "resumed", 2, mode="eval", eval_steps=2)
    assert "step 10" in capsys.readouterr().out
    assert len(resumed) == 2


@pytest.mark.parametrize(
    ("name", "steps"), [("r19_compile_step", 20), ("r20_trace", 25), ("sparsity_rigl", 12)]
)
def test_equal_losses_for_one_and_two_systems(name, steps):
    one, two = run(name, num_csx=1), run(name, num_csx=2)
    assert one == two
    losses = one[0] if name == "sparsity_rigl" else one
    assert len(losses) == steps
    assert losses[-1] < losses[0]


def test_rigl_keeps_its_sparsity():
    _, zeros = run("sparsity_rigl", num_csx=2)
    assert zeros == pytest.approx(0.75, abs=0.01)


def test_gpt_resumes_exactly_with_another_number_of_systems(tmp_path):
    steps = {"num_steps": 24}
    unbroken = run("r22_gpt", num_csx=2, out_dir=tmp_path / "a", **steps)
    assert len(unbroken) == 24
    assert mean(unbroken[-6:]) < mean(unbroken[:6]) - 0.02
    assert unbroken == run("r22_gpt", num_csx=1, out_dir=tmp_path / "b", **steps)
    checkpoint = tmp_path / "a" / "checkpoint_6.mdl"
    resumed = run("r22_gpt", num_csx=1, out_dir=tmp_path / "c", checkpoint_path=checkpoint, **steps)
    assert resumed == unbroken[6:]


def test_gigagpt_like(tmp_path):
    one = run("gigagpt_like", "CSX", 1, tmp_path / "one")
    assert one == run("gigagpt_like", "CSX", 2, tmp_path / "two")
    assert one[-1] < one[0]
    assert (tmp_path / "two" / "checkpoint_10.mdl").is_file()
    cpu = run("gigagpt_like", "CPU", 16, tmp_path / "cpu")
    assert cpu == pytest.approx(one, rel=0.05), "bf16 against fp32"


def test_a_script_runs_as_a_program():
    command = [sys.executable, str(EXAMPLES / "r20_trace.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "| Eval Step=5, Loss=" in done.stdout
