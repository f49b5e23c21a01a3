"""What a training run left behind that tells which rows a step read: run.json, metrics.jsonl and
the checkpoints of its model_dir. The rows themselves follow from `pipeline.core.order`."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.core.errors import ConfigError, InputError, IntegrityError
from pipeline.core.order import (
    Schedule,
    batch_size_at,
    rows_of_samples,
    samples_before_step,
    samples_of_rows,
    steps_of_samples,
)
from pipeline.hdf5.read import SampleDataset

RECORD = "run.json"
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
_CHECKPOINT = re.compile(r"step_(\d{7,})\Z")
_LINE_BYTES = 1 << 16

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint: it holds what steps 1 to `step` learned."""

    step: int
    path: Path


@dataclass(frozen=True)
class Period:
    """Steps [first, stop) read the data set `dataset_hash`; `version` is its place among the
    ancestors of the data set that is asked about, None when it is none of them."""

    first: int
    stop: int
    dataset_hash: str
    version: int | None


@dataclass(frozen=True)
class Readings:
    """Who read what: indices of the rows asked about, the step that read each, and the version of
    the data set it was read from, (N,) each, by step."""

    index: I64
    step: I64
    version: I64


@dataclass(frozen=True)
class Training:
    """A training run. `datasets`: (first step, hash), ascending; `last_step`: the last one that was
    logged or stands in a checkpoint, 0 when none does."""

    model_dir: Path
    seed: int
    schedule: Schedule
    datasets: tuple[tuple[int, str], ...]
    last_step: int
    checkpoints: tuple[Checkpoint, ...]

    def hash_at(self, step: int) -> str:
        """The data set that a step reads."""
        return [name for first, name in self.datasets if first <= step][-1]

    def periods(self, dataset: SampleDataset) -> Iterator[Period]:
        """Which steps up to the last read which data set."""
        versions = [*dataset.ancestors, dataset.dataset_hash]
        ends = [first for first, _ in self.datasets[1:]] + [self.last_step + 1]
        for (first, name), stop in zip(self.datasets, ends, strict=True):
            stop = min(stop, self.last_step + 1)
            if first < stop:
                version = versions.index(name) if name in versions else None
                yield Period(first, stop, name, version)

    def rows_of_step(self, dataset: SampleDataset, step: int) -> I64:
        """Rows of the data set that a 1-based step reads, in the order of its batch. Raises
        ConfigError for a step below 1, IntegrityError when it reads another data set."""
        if step < 1:
            raise ConfigError(f"--step {step}: expected 1 or more")
        name = self.hash_at(step)
        if name not in (*dataset.ancestors, dataset.dataset_hash):
            raise IntegrityError(
                f"{self.model_dir}: step {step} was trained on data set {name}, "
                f"{dataset.directory} holds {dataset.dataset_hash}"
            )
        return rows_of_samples(
            samples_before_step(step, self.schedule), batch_size_at(step, self.schedule),
            rows=dataset.rows, seed=self.seed,
            file_order_first_epoch=dataset.rows_globally_shuffled,
        )  # fmt: skip

    def readings(self, dataset: SampleDataset, rows_N: I64, last_step: int) -> Readings:
        """Every time that a step up to `last_step` read one of these rows."""
        found = []
        for period in self.periods(dataset):
            stop = min(period.stop, last_step + 1)
            if period.version is None or stop <= period.first:
                continue
            low, high = (samples_before_step(step, self.schedule) for step in (period.first, stop))
            for epoch in range(low // dataset.rows, -(-high // dataset.rows)):
                sample = self._samples(dataset, rows_N, epoch)
                index = np.flatnonzero((sample >= low) & (sample < high))
                step = steps_of_samples(sample[index], self.schedule)
                found.append((index, step, np.full(len(index), period.version)))
        none = np.zeros(0, np.int64)
        columns = [np.concatenate(c) for c in zip(*found, (none, none, none), strict=False)]
        order = np.argsort(columns[1], kind="stable")
        return Readings(*(column[order] for column in columns))

    def next_step(self, dataset: SampleDataset, rows_N: I64) -> int | None:
        """The first step after the last that will read one of these rows, should the run go on."""
        if not len(rows_N):
            return None
        done = samples_before_step(self.last_step + 1, self.schedule)
        epoch = done // dataset.rows
        samples = np.concatenate([self._samples(dataset, rows_N, e) for e in (epoch, epoch + 1)])
        return int(steps_of_samples(samples[samples >= done].min(keepdims=True), self.schedule)[0])

    def _samples(self, dataset: SampleDataset, rows_N: I64, epoch: int) -> I64:
        return samples_of_rows(
            rows_N, epoch, rows=dataset.rows, seed=self.seed,
            file_order_first_epoch=dataset.rows_globally_shuffled,
        )  # fmt: skip

    def first_exposed(self, step: int) -> Checkpoint | None:
        """The first checkpoint there is that has learned from `step`."""
        return next((c for c in self.checkpoints if c.step >= step), None)

    def last_unexposed(self, step: int) -> Checkpoint | None:
        """The last checkpoint there is that has not learned from `step`."""
        return next((c for c in reversed(self.checkpoints) if c.step < step), None)


def read_training(model_dir: Path) -> Training:
    """Raises InputError when `model_dir` is that of no training run."""
    path = model_dir / RECORD
    try:
        record = json.loads(path.read_bytes())
        schedule = tuple((int(first), int(size)) for first, size in record["batch_size_schedule"])
        datasets = tuple((int(d["from_step"]), str(d["dataset_hash"])) for d in record["datasets"])
        seed = int(record["seed"])
        if not schedule or not datasets:
            raise ValueError("no batch size or no data set")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: cannot read; give the model_dir of a training run") from error
    checkpoints = tuple(_checkpoints(model_dir))
    last = max([_last_logged(model_dir / METRICS), *(c.step for c in checkpoints)])
    return Training(model_dir, seed, schedule, tuple(sorted(datasets)), last, checkpoints)


def checkpoint_at(training: Training, wanted: Path) -> Checkpoint:
    """The checkpoint of this training run that `wanted` names: its directory, or the directory's
    name. Raises InputError when it is none of them."""
    for found in training.checkpoints:
        if wanted.name == found.path.name and (
            wanted.parent == Path(".") or wanted.resolve() == found.path.resolve()
        ):
            return found
    names = ", ".join(c.path.name for c in training.checkpoints) or "none"
    raise InputError(f"{wanted}: no checkpoint of {training.model_dir}; committed there: {names}")


def _checkpoints(model_dir: Path) -> list[Checkpoint]:
    root = model_dir / CHECKPOINTS
    found = []
    for path in root.iterdir() if root.is_dir() else ():
        match = _CHECKPOINT.match(path.name)
        if match and (path / "manifest.json").is_file():
            found.append(Checkpoint(int(match[1]), path))
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def _last_logged(path: Path) -> int:
    """The step of the last whole line; 0 when there is none."""
    if not path.is_file():
        return 0
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - _LINE_BYTES))
        lines = file.read().splitlines(keepends=True)
    return next((s for line in reversed(lines) if (s := _step_of(line)) is not None), 0)


def _step_of(line: bytes) -> int | None:
    try:
        value: Any = json.loads(line) if line.endswith(b"\n") else None
        return int(value["step"])
    except (ValueError, KeyError, TypeError):
        return None
