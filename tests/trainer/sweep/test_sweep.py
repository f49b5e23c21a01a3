"""`train sweep`: trials are ordinary runs, results survive, what diverges counts as such."""

import json
import os
import signal

import pytest
from typer.testing import CliRunner

from pipeline.core.errors import ConfigError, PrepError, ResourceError
from trainer.cli import app
from trainer.errors import StopSignal, catch_signals
from trainer.sweep import sweep as processes
from trainer.sweep.config import Trial

RUNNER = CliRunner()


def sweep(path, out, *more, code=0):
    result = RUNNER.invoke(app, ["sweep", str(path), "--out", str(out), *map(str, more)])
    assert result.exit_code == code, result.output
    return result.output


def lines(out):
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def test_a_random_sweep_names_the_best(trainer, in_process, write_sweep):
    out = trainer.root / "sweep"
    shown = sweep(write_sweep(), out)
    found = lines(out)
    assert [r["trial"] for r in found] == [0, 1, 2]
    least = min(found, key=lambda r: r["loss"])
    assert f"best: trial {least['trial']}, loss {least['loss']:.4f}" in shown
    for r in found:
        model_dir = out / "trials" / f"{r['trial']:04d}"
        (evaluation,) = map(json.loads, (model_dir / "eval.jsonl").read_text().splitlines())
        assert (evaluation["step"], evaluation["loss"]) == (2, r["loss"])
        kept = (model_dir / "checkpoints").exists()
        assert kept == (r["trial"] == least["trial"])
        rates = json.loads((model_dir / "run.json").read_text())["optimizer"]["learning_rate"]
        assert rates[0]["end_learning_rate"] == r["values"]["learning_rate"]
    page = (out / "report.html").read_text()
    assert page.count("<circle") == 3
    assert "<script" not in page
    assert "://" not in page


def test_ended_trials_are_skipped_and_more_samples_go_on(trainer, in_process, write_sweep):
    out = trainer.root / "sweep"
    sweep(write_sweep(), out)
    before = lines(out)
    assert "Already finished: 3 of 3 trials" in sweep(write_sweep(), out)
    assert len(in_process) == 3
    sweep(write_sweep(samples=4), out)
    assert len(in_process) == 4
    assert lines(out)[:3] == before


def test_an_interrupted_sweep_ends_as_one_that_was_not(
    trainer, in_process, write_sweep, monkeypatch
):
    whole, broken = trainer.root / "whole", trainer.root / "broken"
    sweep(write_sweep(), whole)
    path = write_sweep()
    run_all = processes.run_all

    def stopped(trials, jobs, command, ended, stop):
        run_all(list(trials)[:1], jobs, command, ended, stop)
        raise StopSignal(signal.SIGTERM)

    monkeypatch.setattr(processes, "run_all", stopped)
    assert "run the same command to resume" in sweep(path, broken, code=143)
    monkeypatch.setattr(processes, "run_all", run_all)
    half = broken / "trials" / "0001"  # a trial that was killed after its first step
    command = ["CPU", "--params", str(whole / "trials" / "0001.yaml"), "--max_steps", "1"]
    command += ["--model_dir", str(half), "--data", str(trainer.data)]
    assert RUNNER.invoke(app, command).exit_code == 0
    sweep(path, broken)
    assert lines(broken) == lines(whole)


def test_another_sweep_is_refused_by_field(trainer, in_process, write_sweep):
    out = trainer.root / "sweep"
    sweep(write_sweep(samples=1), out)
    assert "holds another sweep: steps" in sweep(write_sweep(samples=1, steps=3), out, code=2)
    trainer.configure(model={"num_heads": 4})
    assert "base.model.num_heads differ" in sweep(write_sweep(samples=1), out, code=2)


def test_a_diverged_trial_counts_as_such(trainer, in_process, write_sweep):
    out = trainer.root / "sweep"
    grid = {"embeddings_scale": {"values": [1.0, 1e38]}}
    shown = sweep(write_sweep(method="grid", samples=None, parameters=grid), out)
    good, bad = lines(out)
    assert (good["state"], bad["state"], bad["loss"]) == ("done", "diverged", None)
    assert "step 1" in bad["reason"]
    assert "1 of 2 trials diverged" in shown
    assert "best: trial 0" in shown
    assert 'class="lost"' in (out / "report.html").read_text()


def test_no_trial_with_a_loss(trainer, in_process, write_sweep):
    out = trainer.root / "sweep"
    grid = {"embeddings_scale": {"values": [1e38]}}
    path = write_sweep(method="grid", samples=None, parameters=grid)
    assert "no trial has a loss" in sweep(path, out)
    assert "No trial has a loss yet" in (out / "report.html").read_text()


def test_any_other_failure_ends_the_sweep(trainer, in_process, write_sweep):
    out = trainer.root / "sweep"
    path = write_sweep(set={"model.max_position_embeddings": 32})
    assert "trial 0: model.max_position_embeddings is 32" in sweep(path, out, code=2)
    assert not (out / "results.jsonl").exists()


def test_a_grid_over_any_key_with_words(trainer, in_process, write_sweep):
    out = trainer.root / "sweep"
    grid = {"model.nonlinearity": {"values": ["gelu", "relu"]}}
    sweep(write_sweep(method="grid", samples=None, keep_checkpoints="all", parameters=grid), out)
    assert [r["values"]["model.nonlinearity"] for r in lines(out)] == ["gelu", "relu"]
    assert "0: gelu, 1: relu" in (out / "report.html").read_text()
    assert all((out / "trials" / name / "checkpoints").exists() for name in ("0000", "0001"))


def test_a_dry_run_writes_nothing(trainer, write_sweep):
    out = trainer.root / "sweep"
    shown = sweep(write_sweep(), out, "--dry-run")
    assert "3 trials (random) of 2 steps, 224 tokens each" in shown
    assert shown.count("\ntrial ") == 3
    assert "the learning rate schedule has 23 steps, but a trial has 2" in shown
    assert not out.exists()
    shown = sweep(write_sweep(), out, "--transfer", "tiny_mup", code=2)
    assert "give --transfer and --write together" in shown


def test_a_child_process_tells_how_it_ended():
    """A real one, whose command is none."""
    ended = {}
    with catch_signals() as stop:
        processes.run_all(
            [Trial(1, {})],
            2,
            lambda trial: ["sweep", "nothing", "--out", "x"],
            lambda trial, code, said: ended.update({trial.index: (code, said)}),
            stop,
        )
    assert ended[1][0] == 2
    assert ended[1][1].startswith("error: nothing: no such config")


def test_a_signal_stops_what_runs(monkeypatch):
    """Two children at a time, which would sleep for a minute, are gone at once."""
    popen, started = processes.subprocess.Popen, []

    def sleeping(words, **options):
        started.append(popen(["/bin/sleep", "60"], **options))
        if len(started) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return started[-1]

    monkeypatch.setattr(processes.subprocess, "Popen", sleeping)
    with catch_signals() as stop, pytest.raises(StopSignal):
        processes.run_all(
            [Trial(k, {}) for k in range(3)], 2, lambda trial: [], lambda *ended: None, stop
        )
    assert [process.returncode for process in started] == [-signal.SIGTERM] * 2


@pytest.mark.parametrize(
    ("code", "said", "kind", "message"),
    [
        (2, "error: model.x: bad", ConfigError, "trial 4: model.x: bad"),
        (-9, "", ResourceError, "killed by signal 9"),
        (1, "ZeroDivisionError: x", PrepError, "trial 4: ZeroDivisionError: x"),
        (143, "", StopSignal, "SIGTERM"),
    ],
)
def test_what_the_end_of_a_trial_is(code, said, kind, message):
    from trainer.sweep.sweep import _trouble

    error = _trouble(Trial(4, {}), code, said)
    assert type(error) is kind
    assert message in str(error)
