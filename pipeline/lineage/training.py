"""What a training run left behind that tells which rows a step read: run.json, metrics.jsonl and
the checkpoints of its model_dir. The rows themselves follow from `pipeline.core.order`."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dedup.arrays import I64
from pipeline.core.errors import ConfigError, InputError, IntegrityError
from pipeline.core.growth import GrownOrder
from pipeline.core.order import (
    OrderPart,
    Schedule,
    TrainingOrder,
    batch_size_at,
    samples_before_step,
    steps_of_samples,
)
from pipeline.hdf5.read import SampleDataset, open_dataset
from pipeline.hdf5.sampler import OrderName, training_order
from pipeline.runs.splits import TRAIN

RECORD = "run.json"
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
_CHECKPOINT = re.compile(r"step_(\d{7,})\Z")
_LINE_BYTES = 1 << 16


@dataclass(frozen=True)
class TrainingCheckpoint:
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
class TrainedPart:
    """One data set of a training run, the only one or one of a mixture, and what it became as
    documents were masked in it: `versions` is (first step, hash), ascending. `part` is None where
    the record leaves its rows to the data set: all of them, once in an epoch. `joined`: of
    generations of one data set, the sample from which on it is read (`pipeline.core.growth`)."""

    versions: tuple[tuple[int, str], ...]
    part: OrderPart | None
    rows_globally_shuffled: bool
    joined: int | None = None

    def hash_at(self, step: int) -> str:
        """The data set that a step reads, or, before a generation joined, that it will be."""
        versions = [name for first, name in self.versions if first <= step]
        return versions[-1] if versions else self.versions[0][1]


@dataclass(frozen=True, kw_only=True)
class TrainingRecord:
    """A training run. `parts`: its data sets, in the order of the mixture; `last_step`: the last
    one that was logged or is in a checkpoint, 0 when none does; `max_sequence_length`: None in
    a record that does not tell."""

    model_dir: Path
    seed: int
    schedule: Schedule
    parts: tuple[TrainedPart, ...]
    last_step: int
    checkpoints: tuple[TrainingCheckpoint, ...]
    order_name: OrderName = "keyed"
    max_sequence_length: int | None = None

    def open(self, directory: Path) -> SampleDataset:
        """The training split of a run directory, with rows as this training run reads them."""
        return open_dataset(directory / "hdf5" / TRAIN, self.max_sequence_length)

    def part_of(self, dataset: SampleDataset) -> int | None:
        """Which of the parts a data set is, by its hash or one of its ancestors; None of them."""
        hashes = {*dataset.ancestors, dataset.dataset_hash}
        for index, part in enumerate(self.parts):
            if any(name in hashes for _, name in part.versions):
                return index
        return None

    def order(self, dataset: SampleDataset) -> TrainingOrder | GrownOrder:
        """The order over all parts; `dataset` is the one that leaves its rows to it."""
        parts = [p.part or OrderPart(dataset.rows, dataset.rows) for p in self.parts]
        joins = tuple(p.joined for p in self.parts if p.joined is not None)
        if joins:
            return GrownOrder(tuple(parts), joins, self.seed)
        shuffled = [
            p.rows_globally_shuffled if p.part else dataset.rows_globally_shuffled
            for p in self.parts
        ]
        return training_order(self.order_name, parts, self.seed, shuffled)

    def periods(self, dataset: SampleDataset) -> Iterator[Period]:
        """Which steps up to the last read which version of a data set; where it is none of the
        parts, which data sets they read instead."""
        index = self.part_of(dataset)
        versions = [*dataset.ancestors, dataset.dataset_hash]
        for part in self.parts if index is None else [self.parts[index]]:
            ends = [first for first, _ in part.versions[1:]] + [self.last_step + 1]
            for (first, name), end in zip(part.versions, ends, strict=True):
                stop = min(end, self.last_step + 1)
                if first < stop:
                    version = versions.index(name) if name in versions else None
                    yield Period(first, stop, name, version)

    def version_at(self, dataset: SampleDataset, step: int) -> int:
        """The place among its ancestors of the data set that a step read; raises as
        `rows_of_step`."""
        return self._read_at(dataset, step)[1]

    def _read_at(self, dataset: SampleDataset, step: int) -> tuple[int, int]:
        """Part and version of a data set at a 1-based step."""
        if step < 1:
            raise ConfigError(f"--step {step}: expected 1 or more")
        index = self.part_of(dataset)
        parts = self.parts if index is None else [self.parts[index]]
        names = [part.hash_at(step) for part in parts]
        versions = [*dataset.ancestors, dataset.dataset_hash]
        if index is None or names[0] not in versions:
            raise IntegrityError(
                f"{self.model_dir}: step {step} was trained on data set {', '.join(names)}, "
                f"{dataset.directory} holds {dataset.dataset_hash}"
            )
        return index, versions.index(names[0])

    def rows_of_step(self, dataset: SampleDataset, step: int) -> I64:
        """Rows of the data set that a 1-based step reads, in the order of its batch; those of other
        parts of a mixture are left out. Raises ConfigError for a step below 1, IntegrityError when
        it reads another data set."""
        index, _ = self._read_at(dataset, step)
        rows = self._all_rows(dataset, step) - self.order(dataset).first_row(index)
        return rows[(rows >= 0) & (rows < dataset.rows)]

    def rows_by_part(self, dataset: SampleDataset, step: int) -> Iterator[tuple[int, I64]]:
        """The batch of a step in its order, cut where the next row is of another part: that part,
        and rows of its data set."""
        order, rows = self.order(dataset), self._all_rows(dataset, step)
        starts = np.array([order.first_row(part) for part in range(len(order.parts))])
        part = np.searchsorted(starts, rows, side="right") - 1
        cuts = np.flatnonzero(np.diff(part)) + 1
        for of_run, mine in zip(np.split(part, cuts), np.split(rows, cuts), strict=True):
            yield int(of_run[0]), mine - starts[of_run[0]]

    def _all_rows(self, dataset: SampleDataset, step: int) -> I64:
        first, size = samples_before_step(step, self.schedule), batch_size_at(step, self.schedule)
        return self.order(dataset).rows(first, size)

    def read_elsewhere(
        self, dataset: SampleDataset, step: int, known: Collection[int] = ()
    ) -> list[tuple[str, int]]:
        """The other data sets of a mixture that a step reads, apart from the parts that are
        `known`: hash and rows. Raises as `rows_of_step`."""
        mine, _ = self._read_at(dataset, step)
        order, rows = self.order(dataset), self._all_rows(dataset, step)
        elsewhere = []
        for index, part in enumerate(self.parts):
            first = order.first_row(index)
            count = int(((rows >= first) & (rows < first + order.parts[index].rows)).sum())
            if count and index != mine and index not in known:
                elsewhere.append((part.hash_at(step), count))
        return elsewhere

    def sample_ranges(
        self, dataset: SampleDataset, last_step: int
    ) -> Iterator[tuple[int, int, int, int]]:
        """Which part a data set is, its versions, and the samples [low, high) of the run that steps
        up to `last_step` read of each."""
        index = self.part_of(dataset)
        if index is None:
            return
        for period in self.periods(dataset):
            stop = min(period.stop, last_step + 1)
            if period.version is not None and period.first < stop:
                low, high = (samples_before_step(s, self.schedule) for s in (period.first, stop))
                yield index, period.version, low, high

    def readings(self, dataset: SampleDataset, rows_N: I64, last_step: int) -> Readings:
        """Every time that a step up to `last_step` read one of these rows."""
        order = self.order(dataset)
        none = np.zeros(0, np.int64)
        readings = [(none, none, none)]
        for index, version, low, high in self.sample_ranges(dataset, last_step):
            for number in order.rounds(low, high):
                which, sample = order.samples(index, rows_N, number)
                here = (sample >= low) & (sample < high)
                step = steps_of_samples(sample[here], self.schedule)
                readings.append((which[here], step, np.full(len(step), version)))
        columns = [np.concatenate(column) for column in zip(*readings, strict=True)]
        by_step = np.argsort(columns[1], kind="stable")
        return Readings(*(column[by_step] for column in columns))

    def next_step(self, dataset: SampleDataset, rows_N: I64) -> int | None:
        """The first step after the last that will read one of these rows, should the run go on."""
        index, order = self.part_of(dataset), self.order(dataset)
        if index is None or not len(rows_N):
            return None
        read_so_far = samples_before_step(self.last_step + 1, self.schedule)
        epoch = order.rounds(read_so_far, read_so_far + 1).start
        for later in range(epoch, epoch + order.epochs_to_meet(index) + 1):
            samples = order.samples(index, rows_N, later)[1]
            if (samples >= read_so_far).any():
                first = samples[samples >= read_so_far].min(keepdims=True)
                return int(steps_of_samples(first, self.schedule)[0])
        raise AssertionError("within that many epochs every row is read")

    def first_exposed(self, step: int) -> TrainingCheckpoint | None:
        """The first checkpoint there is that has learned from `step`."""
        return next((c for c in self.checkpoints if c.step >= step), None)

    def last_unexposed(self, step: int) -> TrainingCheckpoint | None:
        """The last checkpoint there is that has not learned from `step`."""
        return next((c for c in reversed(self.checkpoints) if c.step < step), None)


def read_training(model_dir: Path) -> TrainingRecord:
    """Raises InputError when `model_dir` is that of no training run."""
    path = model_dir / RECORD
    try:
        record = json.loads(path.read_bytes())
        schedule = tuple((int(first), int(size)) for first, size in record["batch_size_schedule"])
        parts = _read_parts(record["datasets"])
        seed, length = int(record["seed"]), record.get("max_sequence_length")
        order: OrderName = "modelzoo" if record.get("order") == "modelzoo" else "keyed"
        if not schedule or not parts or not isinstance(length, int | None):
            raise ValueError("no batch size or no data set")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: cannot read; give the model_dir of a training run") from error
    checkpoints = tuple(_list_checkpoints(model_dir))
    last = max([_read_last_step(model_dir / METRICS), *(c.step for c in checkpoints)])
    return TrainingRecord(
        model_dir=model_dir,
        seed=seed,
        schedule=schedule,
        parts=parts,
        last_step=last,
        checkpoints=checkpoints,
        order_name=order,
        max_sequence_length=length,
    )


def _read_parts(entries: Sequence[Mapping[str, Any]]) -> tuple[TrainedPart, ...]:
    """The data sets of a record, part by part. Raises ValueError, KeyError or TypeError for what is
    no such list."""
    by_part: dict[int, list[Mapping[str, Any]]] = {}
    for entry in entries:
        by_part.setdefault(int(entry.get("part", 0)), []).append(entry)
    parts = []
    for number, (place, mine) in enumerate(sorted(by_part.items())):
        rows, per_epoch = mine[0].get("rows"), mine[0].get("rows_per_epoch")
        if place != number or (len(by_part) > 1 and per_epoch is None):
            raise ValueError(f"part {place} of the data sets")
        part = OrderPart(int(rows), int(per_epoch)) if rows and per_epoch else None
        versions = sorted((int(entry["from_step"]), str(entry["dataset_hash"])) for entry in mine)
        shuffled = bool(mine[0].get("rows_globally_shuffled"))
        joined = mine[0].get("joined")
        parts.append(TrainedPart(tuple(versions), part, shuffled, joined))
    joins = tuple(part.joined for part in parts if part.joined is not None)
    if joins:
        GrownOrder(tuple(part.part for part in parts if part.part is not None), joins, 0)
    return tuple(parts)


def checkpoint_at(training: TrainingRecord, reference: Path) -> TrainingCheckpoint:
    """The checkpoint of this training run that `reference` names: its directory, or the directory's
    name. Raises InputError when it is none of them."""
    for checkpoint in training.checkpoints:
        if reference.name == checkpoint.path.name and (
            reference.parent == Path(".") or reference.resolve() == checkpoint.path.resolve()
        ):
            return checkpoint
    names = ", ".join(c.path.name for c in training.checkpoints) or "none"
    raise InputError(
        f"{reference}: no checkpoint of {training.model_dir}; committed there: {names}"
    )


def _list_checkpoints(model_dir: Path) -> list[TrainingCheckpoint]:
    root = model_dir / CHECKPOINTS
    checkpoints = []
    for path in root.iterdir() if root.is_dir() else ():
        match = _CHECKPOINT.match(path.name)
        if match and (path / "manifest.json").is_file():
            checkpoints.append(TrainingCheckpoint(int(match[1]), path))
    return sorted(checkpoints, key=lambda checkpoint: checkpoint.step)


def _read_last_step(path: Path) -> int:
    """The step of the last whole line; 0 when there is none."""
    if not path.is_file():
        return 0
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - _LINE_BYTES))
        lines = file.read().splitlines(keepends=True)
    return next((s for line in reversed(lines) if (s := _read_step(line)) is not None), 0)


def _read_step(line: bytes) -> int | None:
    try:
        value: Any = json.loads(line) if line.endswith(b"\n") else None
        return int(value["step"])
    except (ValueError, KeyError, TypeError):
        return None
