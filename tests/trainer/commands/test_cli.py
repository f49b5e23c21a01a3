"""The `train` command as a user types it."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from pipeline import __version__
from trainer.cli import app

RUNNER = CliRunner()


def arguments(trainer, *more: str) -> list[str]:
    return [
        "CSX", "--params", str(trainer.params), "--num_csx", "2", "--num_steps", "2",
        "--model_dir", str(trainer.root / "out"), "--mode", "train", "--data", str(trainer.data),
        *more,
    ]  # fmt: skip


def test_help_has_examples():
    result = RUNNER.invoke(app, ["--help"])
    assert result.exit_code == 0
    for text in (
        "--num_csx",
        "--compile_only",
        "train jobs",
        "--model_dir",
        "--checkpoint_path",
        "Examples:",
        "train CSX --params",
        "Length:",
        "Starting point:",
        "Cluster:",
        "without effect here:",
    ):
        assert text in result.output
    assert result.output.index("Length:") < result.output.index("--num_steps")


def test_nothing_is_written_for_a_config_error_or_without_a_checkpoint(trainer):
    for more in (("--mode", "eval"), ("--mode", "eval_all")):
        result = RUNNER.invoke(app, [*arguments(trainer), *more])
        assert result.exit_code == 3
        assert "no checkpoint to evaluate" in result.stderr
    params = trainer.configure("longer.yaml", model={"max_position_embeddings": 32})
    result = RUNNER.invoke(app, [*arguments(trainer), "--params", str(params)])
    assert result.exit_code == 2
    assert "model.max_position_embeddings is 32" in result.stderr
    assert not (trainer.root / "out").exists()


@pytest.mark.parametrize(
    ("length", "steps"),
    [(("--max_steps", "3"), 3), (("--num_epochs", "1"), 8), (("--num_steps", "2"), 2)],
)
def test_one_length_is_given_at_most(trainer, length, steps):
    others = arguments(trainer)
    place = others.index("--num_steps")
    del others[place : place + 2]
    result = RUNNER.invoke(app, [*others, *length, "--num_wgt_servers", "3"])
    assert result.exit_code == 0, result.output
    assert len(trainer.metrics("out")) == steps
    result = RUNNER.invoke(app, [*others, *length, "--max_steps", "9", "--num_epochs", "2"])
    assert result.exit_code == 2
    assert "give only one of" in result.stderr


def test_eval_steps_and_negative_counts(trainer):
    result = RUNNER.invoke(
        app, [*arguments(trainer), "--mode", "train_and_eval", "--eval_steps", "1"]
    )
    assert result.exit_code == 0, result.output
    assert '"samples": 4' in (trainer.root / "out" / "eval.jsonl").read_text()
    for option in ("--eval_steps", "--num_wgt_servers", "--max_steps"):
        result = RUNNER.invoke(app, [*arguments(trainer), option, "-1"])
        assert result.exit_code == 2
        assert f"{option} -1: expected an integer of at least" in result.stderr


def test_a_run_and_an_evaluation(trainer):
    result = RUNNER.invoke(app, arguments(trainer, "--seed", "9"))
    assert result.exit_code == 0, result.output
    assert "| Train Device=CSX, Step=2, Loss=" in result.output
    result = RUNNER.invoke(
        app, [*arguments(trainer), "--mode", "eval"]
    )  # another seed is no matter
    assert result.exit_code == 0, result.output
    assert "| Eval Device=CSX, GlobalStep=2, Loss=" in result.output
    assert (trainer.root / "out" / "eval.jsonl").read_text().count("\n") == 1


@pytest.mark.parametrize(
    ("more", "code", "text"),
    [
        (("--num_csx", "9"), 2, "num_csx = 9"),
        (("--data", "nowhere"), 2, "nowhere"),
        (("--params", "absent.yaml"), 2, "absent.yaml"),
    ],
)
def test_an_error_is_one_line_with_its_exit_code(trainer, more, code, text):
    result = RUNNER.invoke(app, [*arguments(trainer), *more])
    assert result.exit_code == code
    assert result.stderr.startswith("error: ")
    assert text in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_locked_directory_names_its_holder(trainer):
    from pipeline.core.journal import hold_lock

    with hold_lock(trainer.root / "out"):
        result = RUNNER.invoke(app, arguments(trainer))
    assert result.exit_code == 5
    assert "in use by pid" in result.stderr


def test_the_module_runs_from_another_directory(trainer, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    code = "import sys; from trainer.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments(trainer)],
        cwd=elsewhere, capture_output=True, text=True, check=False,
        env={
            "PYTHONPATH": ":".join(p for p in sys.path if p), "PATH": "",
            "WAFERMILL_JOBS": str(tmp_path / "jobs"),
        },
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert list(elsewhere.iterdir()) == []


def test_no_target_means_csx(trainer):
    result = RUNNER.invoke(app, arguments(trainer)[1:])
    assert result.exit_code == 0, result.output
    assert "| Train Device=CSX, Step=2" in result.output


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--params", "x", "--no_such"), "No such option"),
        (("TPU", "--params", "x"), "TPU"),
        (("jobs", "frob"), "No such command"),
        (("run", "--params", "x"), "run"),
    ],
)
def test_what_does_not_parse_is_a_usage_error(words, text):
    result = RUNNER.invoke(app, list(words))
    assert result.exit_code == 2
    assert "Usage: " in result.stderr
    assert text in result.stderr


def test_version_and_module():
    assert RUNNER.invoke(app, ["--version"]).output == f"wafermill {__version__}\n"
    done = subprocess.run(
        [sys.executable, "-m", "trainer", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"wafermill {__version__}\n"


@pytest.mark.parametrize(
    ("line", "offered", "never"),
    [
        ("train ", {"jobs", "convert", "plan", "CSX", "CPU", "GPU"}, {"run"}),
        ("train jo", {"jobs"}, {"CSX"}),
        ("train --num_c", {"--num_csx"}, {"--num_steps"}),
        ("train CSX --load", {"--load_checkpoint_states"}, {"--num_steps"}),
        ("train jobs ", {"get", "cancel", "label"}, {"jobs"}),
        ("train convert ", {"diff"}, {"run"}),
    ],
)
def test_completion_of_the_shell(line, offered, never):
    """What bash is offered, through the variables that its script sets."""
    place = len(line.split()) - (not line.endswith(" "))
    done = subprocess.run(
        [sys.executable, "-c", "from trainer.cli import app; app(prog_name='train')"],
        capture_output=True, text=True, check=False,
        env={**os.environ, "_TRAIN_COMPLETE": "complete_bash", "COMP_WORDS": line,
             "COMP_CWORD": str(place)},
    )  # fmt: skip
    found = set(done.stdout.split())
    assert offered <= found and not never & found
