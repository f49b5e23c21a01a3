"""A sweep over the tiny trainer of tests/trainer, with trials run in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from trainer.cli import app
from trainer.sweep import sweep


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Trials run here, by the same command line; returns the command lines that were run."""
    commands: list[list[str]] = []

    def run_all(trials, jobs, command, ended, stop):
        for trial in trials:
            stop.check()
            words = list(command(trial))
            commands.append(words)
            done = CliRunner().invoke(app, words)
            ended(trial, done.exit_code, (done.stderr.splitlines() or [""])[-1])

    monkeypatch.setattr(sweep, "run_all", run_all)
    return commands


@pytest.fixture
def write_sweep(trainer: Any) -> Callable[..., Path]:
    """Write a sweep file over the trainer's params, with changed keys; returns its path."""

    def write(name: str = "sweep.yaml", **changes: Any) -> Path:
        value = {
            "params": "params.yaml",
            "target": "CPU",
            "data": str(trainer.data),
            "steps": 2,
            "method": "random",
            "samples": 3,
            "parameters": {"learning_rate": {"log_uniform": [1e-3, 1e-1]}},
        }
        path = trainer.root / name
        merged = {k: v for k, v in (value | changes).items() if v is not None}
        path.write_text(yaml.safe_dump(merged, sort_keys=False))
        return path

    return write
