"""Console lines in Model Zoo's form, latest_run.log, and what `--logging` leaves out."""

import re

import pytest
from typer.testing import CliRunner

from pipeline.core.errors import ConfigError
from trainer.cli import app
from trainer.runs.console import LATEST, Rate, RunLog

RUNNER = CliRunner()
TRAIN = re.compile(
    r"\| Train Device=CSX, Step=(\d+), Loss=\d+\.\d{5}, Rate=[\d.]+ samples/sec, "
    r"GlobalRate=[\d.]+ samples/sec, LoopTimeRemaining=\d+:\d\d:\d\d, "
    r"TimeRemaining>\d+:\d\d:\d\d$"
)
STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|ERROR):   (.*)")


def log_lines(trainer, out: str = "out") -> list[tuple[str, str]]:
    """(level, line) of the latest log."""
    text = (trainer.root / out / LATEST).read_text()
    found = [STAMP.fullmatch(line) for line in text.splitlines()]
    assert all(found)
    return [(match[1], match[2]) for match in found if match]


def test_the_lines_of_a_run(trainer):
    trainer.train("out", mode="train_and_eval")
    steps = [int(match[1]) for line in trainer.said if (match := TRAIN.match(line))]
    assert steps == [1, 2, 3, 4, 5, 6]
    last = next(line for line in trainer.said if "Step=6," in line)
    assert "LoopTimeRemaining=0:00:00, TimeRemaining>0:00:00" in last
    for start in (
        "Checkpoints: ", "Model: ",
        "Data: 50 rows of 16 tokens; 42 rows read by step 6 (epochs: 0.84)",
        "Beginning run: steps 1 to 6", "Waited for data: ", "Training completed successfully!",
        "Processed 42 training sample(s) in ",
    ):  # fmt: skip
        assert sum(line.startswith(start) for line in trainer.said) == 1, start


def test_remaining_times_are_of_samples_at_the_rate_so_far(trainer):
    """The batch size doubles at step 4, and so does the time of a step."""
    params = trainer.configure(
        train_input={
            "batch_size_schedule": [
                {"from_step": 1, "batch_size": 7},
                {"from_step": 4, "batch_size": 14},
            ]
        }
    )
    assert Rate(samples=7, seconds=3.5).time_for(100) == "0:00:50"
    trainer.train("out", params=params, mode="train_and_eval")
    assert any("63 rows read by step 6" in line for line in trainer.said)
    assert any(line.startswith("Processed 63 training") for line in trainer.said)


def test_remaining_times_are_of_steps_alone(trainer):
    """The rate that they are counted with knows no evaluation and no checkpoint."""
    params = trainer.configure(runconfig={"eval_frequency": 2, "checkpoint_steps": 2})
    trainer.train("out", params=params, mode="train_and_eval")
    assert len((trainer.root / "out" / "eval.jsonl").read_text().splitlines()) == 3
    seconds = [7 / line["samples_per_second"] for line in trainer.metrics("out")]
    said = [float(rate) for line in trainer.said for rate in re.findall(r"GlobalRate=(\S+)", line)]
    expected = [7 * step / sum(seconds[:step]) for step in range(1, 7)]
    assert said == pytest.approx(expected, abs=0.006)


def test_the_latest_log_holds_all_lines_of_the_last_start(trainer):
    trainer.train("out", num_steps=4)
    first = list(trainer.said)
    (command, *lines) = [line for _, line in log_lines(trainer)]
    assert command.startswith("Command: ")
    assert lines == first
    trainer.said.clear()
    trainer.train("out", num_steps=6)
    assert [line for _, line in log_lines(trainer)][1:] == trainer.said
    logs = sorted((trainer.root / "out" / "logs").iterdir())
    assert len(logs) == 2
    assert (trainer.root / "out" / LATEST).resolve() in [path.resolve() for path in logs]
    assert not (trainer.root / "out" / LATEST).readlink().is_absolute()


def test_the_error_that_ends_a_run_is_in_the_log(trainer):
    trainer.train("out", num_steps=2)
    with pytest.raises(ConfigError):
        trainer.train("out", seed=6)
    level, line = log_lines(trainer)[-1]
    assert level == "ERROR"
    assert "seed was 5, now 6" in line


def test_lines_said_before_the_directory_is_held_come_first(tmp_path):
    said: list[str] = []
    log = RunLog(said.append)
    log("Job id: wsjob-000001")
    log.open(tmp_path)
    log("more")
    assert said == ["Job id: wsjob-000001", "more"]
    text = (tmp_path / LATEST).read_text()
    assert [line.split(":   ")[1] for line in text.splitlines()][::2] == [
        "Job id: wsjob-000001", "more",
    ]  # fmt: skip


def arguments(trainer, *more: str) -> list[str]:
    return [
        "CSX", "--params", str(trainer.params), "--num_steps", "2", "--model_dir",
        str(trainer.root / "out"), "--data", str(trainer.data), *more,
    ]  # fmt: skip


@pytest.mark.parametrize(("level", "quiet"), [("INFO", False), ("DEBUG", False), ("ERROR", True)])
def test_logging_leaves_out_lines_on_the_console_only(trainer, level, quiet):
    result = RUNNER.invoke(app, arguments(trainer, "--logging", level))
    assert result.exit_code == 0, result.output
    assert (result.output == "") is quiet
    assert any("Step=2," in line for _, line in log_lines(trainer))
    result = RUNNER.invoke(app, arguments(trainer, "--logging", level, "--seed", "8"))
    assert result.exit_code == 2
    assert "error: " in result.stderr


def test_options_without_effect_are_named_once(trainer):
    result = RUNNER.invoke(
        app,
        arguments(
            trainer, "--mount_dirs", "/a", "/b", "--python_paths", "/c", "--job_priority", "p1",
            "--num_workers_per_csx", "2", "--num_act_servers", "1", "--compile_dir", "x",
            "--job_time_sec", "60",
        ),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    named = [line for line in result.output.splitlines() if line.startswith("Without effect here")]
    assert named == [
        "Without effect here: --num_workers_per_csx, --num_act_servers, --compile_dir, "
        "--job_priority, --job_time_sec, --mount_dirs, --python_paths"
    ]
