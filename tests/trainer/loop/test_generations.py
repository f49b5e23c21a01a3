"""A run whose data grows by a generation: which rows it reads, and that it is the unbroken run."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.core.errors import ConfigError
from pipeline.hdf5.read import open_dataset
from pipeline.lineage.training import read_training
from tests.trainer.conftest import Trainer, rows, write_split

ROWS, ADDED, BATCH = 50, 20, 7


def append(data: Path, number: int = 1, seed: int = 3) -> Path:
    """Another generation of rows."""
    run = data / "generations" / f"{number:06d}"
    write_split(run / "hdf5" / "train", rows(ADDED, seed))
    (run / "manifest.json").write_text("{}")
    return run


def losses(trainer: Trainer, out: str) -> list[tuple[Any, ...]]:
    return [(m["step"], m["loss_hex"], m["grad_norm"]) for m in trainer.metrics(out)]


def last_weights(trainer: Trainer, out: str) -> dict[str, str]:
    last = sorted((trainer.root / out / "checkpoints").iterdir())[-1]
    files = json.loads((last / "manifest.json").read_text())["files"]
    return {str(f): files[f] for f in files if str(f).endswith(".safetensors")}


def joins(trainer: Trainer, out: str) -> list[tuple[int, int, int]]:
    record = json.loads((trainer.root / out / "run.json").read_text())
    return [(e["part"], e["from_step"], e["joined"]) for e in record["datasets"]]


def read_rows(trainer: Trainer, out: str, step: int) -> list[tuple[int, int]]:
    """(generation, row) of every sample of a step, as `prep trace` finds them."""
    training = read_training(trainer.root / out)
    dataset = open_dataset(trainer.data / "hdf5" / "train")
    parts = training.rows_by_part(dataset, step)
    return [(part, row) for part, mine in parts for row in mine.tolist()]


def test_joined_in_the_first_round_it_is_the_run_that_had_it_from_the_start(
    trainer: Trainer,
) -> None:
    trainer.train("grown", num_steps=4)
    append(trainer.data)
    trainer.train("grown", num_steps=12)
    trainer.train("whole", num_steps=12)
    assert losses(trainer, "grown") == losses(trainer, "whole")
    assert last_weights(trainer, "grown") == last_weights(trainer, "whole")
    assert joins(trainer, "grown") == [(0, 1, 0), (1, 5, ROWS)]
    assert joins(trainer, "whole") == [(0, 1, 0), (1, 1, 0)]
    assert any(f"20 rows: read from step 8 on, after sample {ROWS}" in s for s in trainer.said)
    for out in ("grown", "whole"):
        read = [row for step in range(1, 11) for row in read_rows(trainer, out, step)]
        assert read == [(0, row) for row in range(ROWS)] + [(1, row) for row in range(ADDED)]


def test_joined_later_it_waits_for_the_end_of_the_round(trainer: Trainer) -> None:
    trainer.train("out", num_steps=9)
    before = losses(trainer, "out")
    earlier = [read_rows(trainer, "out", step) for step in range(1, 10)]
    append(trainer.data)
    shutil.copytree(trainer.root / "out", trainer.root / "killed")
    trainer.train("out", num_steps=28)
    assert losses(trainer, "out")[:9] == before
    assert [read_rows(trainer, "out", step) for step in range(1, 10)] == earlier
    assert joins(trainer, "out") == [(0, 1, 0), (1, 10, 2 * ROWS)]
    read = [row for step in range(1, 29) for row in read_rows(trainer, "out", step)]
    both = [(0, row) for row in range(ROWS)] + [(1, row) for row in range(ADDED)]
    rounds = np.cumsum([0, ROWS, ROWS, ADDED, ROWS + ADDED])
    epochs = [read[a:b] for a, b in itertools.pairwise(rounds)]
    assert [sorted(epoch) for epoch in epochs] == [both[:ROWS], both[:ROWS], both[ROWS:], both]
    assert epochs[2] == both[ROWS:] and epochs[3] != both
    for steps in (11, 17, 28):
        trainer.train("killed", num_steps=steps)
    assert losses(trainer, "killed") == losses(trainer, "out")
    assert last_weights(trainer, "killed") == last_weights(trainer, "out")


def test_two_join_one_after_the_other(trainer: Trainer) -> None:
    trainer.train("out", num_steps=4)
    append(trainer.data)
    trainer.train("out", num_steps=5)
    append(trainer.data, 2, seed=4)
    trainer.train("out", num_steps=14)
    assert [joined for *_, joined in joins(trainer, "out")] == [0, ROWS, ROWS]
    read = [row for step in range(1, 15) for row in read_rows(trainer, "out", step)]
    both = [(part, row) for part in (1, 2) for row in range(ADDED)]
    assert read[ROWS : ROWS + 2 * ADDED] == both


def test_a_generation_that_is_gone_or_another_is_refused(trainer: Trainer) -> None:
    made = append(trainer.data)
    trainer.train("out", num_steps=2)
    shutil.rmtree(trainer.data / "generations")
    with pytest.raises(ConfigError, match=r"has read 2 generations of its data.* has 1 now"):
        trainer.train("out", num_steps=4)
    assert made == append(trainer.data, seed=9)
    with pytest.raises(ConfigError, match=r"datasets\.1\.dataset_hash"):
        trainer.train("out", num_steps=4)


def test_one_that_is_being_made_is_not_read(trainer: Trainer) -> None:
    (append(trainer.data) / "manifest.json").unlink()
    trainer.train("out", num_steps=1)
    record = json.loads((trainer.root / "out" / "run.json").read_text())
    assert [entry["rows"] for entry in record["datasets"]] == [ROWS]
