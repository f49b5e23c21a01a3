"""SIGINT and SIGTERM: the run stops within seconds, says how to go on, and goes on."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.crash
HINT = "stopped; finished work is kept, run the same command again to resume"


@pytest.mark.parametrize(
    ("number", "workers", "group"),
    [
        (signal.SIGINT, 0, False),
        pytest.param(signal.SIGTERM, 2, False, marks=pytest.mark.slow),
        (signal.SIGTERM, 0, False),
        pytest.param(signal.SIGINT, 2, False, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 2, True, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 2, True, marks=pytest.mark.slow),
    ],
)
def test_a_signal_stops_the_run(
    collection: Any, tmp_path: Path, start: Any, prep: Any, undamaged: Any,
    number: signal.Signals, workers: int, group: bool,
) -> None:  # fmt: skip
    """`group` is what a terminal does on control-C: everyone gets the signal."""
    out = tmp_path / "run"
    run = start(out, workers, "task.start.signatures@1=sleep:60")
    run.wait_for("manifests/clean.json")
    time.sleep(2 if workers else 0.3)
    sent = time.monotonic()
    if group:
        os.killpg(run.process.pid, number)
    else:
        run.process.send_signal(number)
    outcome = run.finish()
    assert time.monotonic() - sent < 5
    assert outcome.code == 128 + number
    assert outcome.err.splitlines()[-1].startswith(f"prep: {HINT}")
    assert "Traceback" not in outcome.err
    assert prep("run", collection.config, "--out", out, "--workers", 0).code == 0
    undamaged(out)
