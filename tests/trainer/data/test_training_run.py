"""Whole runs of `train` on mixtures, lists, corpora and VSL: resumed they are what they are
unbroken, and run.json says what `prep trace` needs."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.core.errors import ConfigError
from pipeline.core.order import batch_size_at
from pipeline.hdf5.read import open_dataset
from pipeline.lineage.training import read_training
from tests.trainer.data.test_masked_data import mask

from ..conftest import MSL, VOCABULARY, Trainer
from .conftest import write

SCHEDULE = [{"from_step": 1, "batch_size": 4}, {"from_step": 3, "batch_size": 7}]
Rows = Callable[..., np.ndarray]


def parts(trainer: Trainer, make_split: Any, make_rows: Rows) -> list[Path]:
    """Two data sets; each stands where a takedown looks for it."""
    found = []
    for seed, count in ((3, 11), (4, 20)):
        place = trainer.root / f"part{seed}" / "hdf5" / "train"
        make_split(place, make_rows(count, seed=seed))
        found.append(place)
    return found


def configured(trainer: Trainer, **train_input: Any) -> None:
    size = None if "batch_size_schedule" in train_input else 4
    trainer.configure(train_input={"batch_size": size, **train_input})


def record(trainer: Trainer, out: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((trainer.root / out / "run.json").read_bytes())
    return value


def unbroken_and_resumed(trainer: Trainer, **changes: Any) -> None:
    """A run of 6 steps against one that is resumed twice, on another number of systems."""
    trainer.train("whole", num_steps=6, data=None, **changes)
    trainer.train("out", num_steps=2, data=None, **changes)
    trainer.train("out", num_steps=5, data=None, **changes | {"num_csx": 1})
    trainer.train("out", num_steps=6, data=None, **changes)
    assert trainer.bits("out")[:2] == trainer.bits("whole")[:2]


@pytest.mark.parametrize("order", ["keyed", "modelzoo"])
def test_a_mixture(trainer: Trainer, make_split: Any, make_rows: Rows, order: str) -> None:
    """Over the ends of epochs (15 samples) and the step of the batch size."""
    first, second = parts(trainer, make_split, make_rows)
    mixture = [{"data_dir": str(first), "weight": 0.5}, {"data_dir": str(second), "weight": 0.45}]
    configured(trainer, mixture=mixture, batch_size_schedule=SCHEDULE, order=order)
    unbroken_and_resumed(trainer)
    entries = record(trainer, "out")["datasets"]
    assert [(e["part"], e["rows"], e["rows_per_epoch"]) for e in entries] == [
        (0, 11, 6),
        (1, 20, 9),
    ]
    assert record(trainer, "out").get("order", "keyed") == order
    training, read = read_training(trainer.root / "out"), 0
    for step in range(1, 7):
        for place in (first, second):
            read += len(training.rows_of_step(open_dataset(place), step))
    assert read == sum(batch_size_at(step, training.schedule) for step in range(1, 7)) == 36


def test_a_list_in_another_order_is_another_run(
    trainer: Trainer, make_split: Any, make_rows: Rows
) -> None:
    places = [str(place) for place in parts(trainer, make_split, make_rows)]
    configured(trainer, data_dir=places)
    trainer.train("out", num_steps=1, data=None)
    configured(trainer, data_dir=places[::-1])
    with pytest.raises(ConfigError, match=r"datasets\.0\.dataset_hash was"):
        trainer.train("out", num_steps=2, data=None)
    configured(trainer, data_dir=places, order="modelzoo")
    with pytest.raises(ConfigError, match="order was None, now 'modelzoo'"):
        trainer.train("out", num_steps=2, data=None)


def test_one_part_is_masked_between_two_steps(
    trainer: Trainer, make_split: Any, make_rows: Rows
) -> None:
    """The other goes on as it was, and steps before the takedown stay those of the old data."""
    first, second = parts(trainer, make_split, make_rows)
    configured(trainer, data_dir=[str(first), str(second)])
    trainer.train("out", num_steps=3, data=None)
    before = record(trainer, "out")["datasets"]
    new = mask(SimpleNamespace(data=second.parent.parent), "c1", range(0, 20, 3))
    trainer.train("out", num_steps=5, data=None)
    now = record(trainer, "out")["datasets"]
    assert now[:2] == before
    assert [(e["from_step"], e["part"], e["dataset_hash"]) for e in now[2:]] == [(4, 1, new)]
    assert f"From step 4 on, documents of data set {new} are masked (takedowns c1)" in trainer.said
    training, dataset = read_training(trainer.root / "out"), open_dataset(second)
    versions = [training.version_at(dataset, step) for step in (1, 3, 4, 5)]
    assert versions == [0, 0, 1, 1]
    assert {training.version_at(open_dataset(first), step) for step in (1, 5)} == {0}


def corpus_and_vsl(trainer: Trainer) -> tuple[Path, Path]:
    generator = np.random.default_rng(1)
    tokens = generator.integers(1, VOCABULARY, 30 * MSL + 1)
    known: Any = {"vocab_size": VOCABULARY, "max_sequence_length": MSL}
    corpus = write(trainer.root / "corpus", tokens.astype(np.uint16), "corpus", **known)
    rows = np.zeros((30, 5, MSL), np.int32)
    rows[:, 0], rows[:, 2] = tokens[:-1].reshape(30, MSL), tokens[1:].reshape(30, MSL)
    rows[:, 1, :-1] = 1
    span = [*range(5, -1, -1), *range(MSL - 8, -1, -1), 0]
    position = [*range(6), *range(MSL - 7), 0]
    rows[:, 3], rows[:, 4] = span, position
    return corpus, write(trainer.root / "vsl", rows, "vsl", **known)


def test_a_corpus_and_vsl(trainer: Trainer) -> None:
    corpus, vsl = corpus_and_vsl(trainer)
    losses = []
    for place, use_vsl in ((corpus, False), (vsl, True)):
        configured(trainer, data_dir=str(place), use_vsl=use_vsl, batch_size_schedule=SCHEDULE)
        unbroken_and_resumed(trainer)
        losses.append([line["loss"] for line in trainer.metrics("out")])
        assert record(trainer, "out")["max_sequence_length"] == MSL
        for name in ("out", "whole"):
            (trainer.root / name).rename(trainer.root / f"{name}-{place.name}")
    assert losses[0] != losses[1]
