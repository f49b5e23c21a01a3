"""`prep convert` as real processes: killed at random times, with workers and without."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pipeline.core.hashes import tree_hash
from pipeline.core.mirror.paths import TEMP_MARK
from tests.programs import Program
from tests.reliability.conftest import PREP, WORDS, prep_program
from tests.reliability.test_dask_faults import wait_until_gone

pytestmark = pytest.mark.crash
FORMS = {
    "hdf5": ("--msl", 128, "--samples-per-file", 300),
    "corpus": ("--shard-size", "100 KiB"),
    "bin": (),
    "jsonl": ("--shard-size", "200 KiB"),
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2 MB of text in two files, so that a conversion takes half a second beside its start."""
    directory, rng = tmp_path_factory.mktemp("texts"), random.Random(3)
    for name in ("a.jsonl", "b.jsonl"):
        lines = (json.dumps({"text": " ".join(rng.choices(WORDS, k=300))}) for _ in range(500))
        (directory / name).write_text("\n".join(lines) + "\n")
    return directory


def start(texts: Path, out: Path, form: str, workers: int) -> subprocess.Popen[str] | Program:
    """A fresh process with workers, else a fork, at the head of a group of its own."""
    command = ("convert", texts, "--to", form, "--out", out, "--workers", workers, *FORMS[form])
    if not workers:
        return prep_program(*command)
    return subprocess.Popen(
        [str(part) for part in (PREP, *command)], stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str] | Program) -> float:
    began = time.monotonic()
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return time.monotonic() - began


def killed_and_resumed(
    texts: Path, out: Path, form: str, workers: int, delay: float, rng: random.Random
) -> int:
    """Kill up to three attempts, each `delay` seconds at most after its first file; resume."""
    killed = 0
    for _ in range(rng.choice((1, 2, 3))):
        process = start(texts, out, form, workers)
        while not (out / "journal").is_dir() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, delay))
        killed += process.poll() is None
        os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
        process.communicate()
        wait_until_gone(process.pid)
    finish(start(texts, out, form, workers))
    assert not list(out.rglob(f"{TEMP_MARK}*"))
    return killed


@pytest.mark.parametrize(
    ("form", "workers", "rounds"),
    [
        ("hdf5", 0, 1),
        *(pytest.param(form, w, 4, marks=pytest.mark.slow) for form in FORMS for w in (0, 2)),
    ],
)  # fmt: skip
def test_killed_at_random_times(
    texts: Path, tmp_path: Path, rng: random.Random, form: str, workers: int, rounds: int
) -> None:
    """What it leaves in the end is that of an undisturbed conversion."""
    seconds = finish(start(texts, tmp_path / "whole", form, workers))
    whole, killed, tries = tree_hash(tmp_path / "whole"), 0, 0
    while killed < rounds:
        out = tmp_path / f"out{tries}"
        killed += killed_and_resumed(texts, out, form, workers, seconds / 2, rng)
        assert tree_hash(out) == whole
        tries += 1
