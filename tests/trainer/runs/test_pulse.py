"""What a user sees while `train` works: a line at a steady pace, no wider than the terminal."""

import fcntl
import functools
import os
import pty
import re
import struct
import termios
import time
from itertools import pairwise
from typing import Any

import pytest

from tests.programs import Program
from trainer import cli
from trainer.runs import console
from trainer.runs.console import Pulse, fit_line


def test_silence_is_broken_and_speech_is_not() -> None:
    said: list[tuple[float, str]] = []
    with Pulse(lambda line: said.append((time.monotonic(), line)), seconds=0.4) as now:
        console.doing("waiting")
        time.sleep(2)
        alone = len(said)
        for _ in range(20):
            time.sleep(0.05)
            now("a line")
    assert 2 <= alone <= 5
    assert re.fullmatch(r"… waiting, [\d.]+s since the start", said[0][1])
    assert [line for _, line in said].count("a line") == 20
    broken = [b - a for (a, _), (b, line) in pairwise(said) if line != "a line"]
    assert min(broken) > 0.35
    count = len(said)
    console.doing("nothing")
    time.sleep(0.4)
    assert len(said) == count and not console.is_due(99)


def test_others_speak() -> None:
    said: list[str] = []
    with Pulse(said.append, seconds=0.05):
        console.rest_pulse()
        time.sleep(0.2)
    assert not said


def stamped(trainer: Any, seconds: float, **sections: Any) -> list[str]:
    """The lines of a `train` whose pulse beats so often, in a process of its own."""
    params = trainer.configure(**sections)
    words = ["CPU", "--params", params, "--data", trainer.data, "--num_steps", "6", "--mode",
             "train", "--model_dir", trainer.root / "out"]  # fmt: skip

    def call() -> None:
        cli.Pulse = functools.partial(Pulse, seconds=seconds)  # type: ignore[assignment,misc]
        cli.app([*map(str, words)])

    done = Program(call)
    assert done.wait() == 0, done.err
    return done.out.splitlines()


def test_long_steps_say_how_far_they_are(trainer: Any) -> None:
    """Nothing is said of most steps (`log_steps`), and then a step takes long."""
    model = {"hidden_size": 128, "num_hidden_layers": 2, "num_heads": 4, "filter_size": 512}
    size = {"batch_size": 24, "micro_batch_size": 1}
    lines = stamped(trainer, 0.01, model=model, train_input=size, runconfig={"log_steps": 100})
    leaves = [line for line in lines if re.match(r"… step \d of 6, leaf \d+ of 24, [\d.]+s ", line)]
    assert len(leaves) > 3
    log = (trainer.root / "out" / "latest_run.log").read_text()
    assert all(line in log for line in leaves)


def test_steps_are_said_at_the_pace_too(trainer: Any) -> None:
    """Steps that are due are said with their loss, though `log_steps` would not."""
    shown = [
        line for line in stamped(trainer, 1e-6, runconfig={"log_steps": 100}) if "Step=" in line
    ]
    assert [int(re.findall(r"Step=(\d+)", line)[0]) for line in shown] == [1, 2, 3, 4, 5, 6]
    assert all("Loss=" in line for line in shown)


@pytest.mark.parametrize(
    "columns", [40, *(pytest.param(n, marks=pytest.mark.slow) for n in (60, 80, 200))]
)
def test_no_wider_than_the_terminal(trainer: Any, columns: int) -> None:
    """In a terminal of so many columns; only a path may be longer."""
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    words = ["CPU", "--params", trainer.params, "--data", trainer.data, "--num_steps", "2",
             "--model_dir", "o"]  # fmt: skip

    def call() -> None:
        for handle in (1, 2):
            os.dup2(there, handle)
        for name in ("COLUMNS", "LINES"):
            os.environ.pop(name, None)
        os.chdir(trainer.root)
        cli.app([*map(str, words)])

    process = Program(call)
    os.close(there)
    text = b""
    try:
        while block := os.read(here, 1 << 16):
            text += block
    except OSError:  # the terminal is closed by its last user
        pass
    assert process.wait() == 0, text.decode()
    lines = text.decode().splitlines()
    assert sum(line.startswith("| Train") for line in lines) == 2
    assert all("Step=" in line for line in lines if line.startswith("| Train"))
    for line in lines:
        assert len(line) <= columns or (line[0] != "|" and " " not in line.strip()), line


def test_in_a_file_lines_are_whole() -> None:
    line = "| Train Device=CPU, Step=1, Loss=2.5, Rate=9.1 samples/sec, LoopTimeRemaining=0:00:01"
    assert fit_line(line, 500) == line and len(fit_line(line, 30)) <= 30
    assert (
        fit_line("Saved a/very/long/path/of/a/checkpoint", 12).splitlines()[1].strip()[:2] == "a/"
    )
