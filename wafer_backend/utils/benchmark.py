"""How fast a loader makes batches, without a model behind it: `benchmark_dataloader`.

Fields are named as those of `cerebras.pytorch.utils.benchmark`, R2.10. Times are of this machine.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree

from pipeline.core.words import did_you_mean_or_all, format_bytes
from wafer_backend.errors import BackendConfigError, LoaderError
from wafer_backend.utils.profiler import RateTracker

__all__ = [
    "BatchMetrics",
    "BatchSpec",
    "BatchSpecOccurence",
    "EpochMetrics",
    "Metrics",
    "TensorSpec",
    "benchmark_dataloader",
]


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of a tensor."""

    shape: torch.Size
    dtype: torch.dtype


@dataclass(frozen=True)
class BatchSpec:
    """What a batch is made of: its tensors in order, and the nesting as text."""

    tensors: tuple[TensorSpec, ...]
    spec: str

    @classmethod
    def of(cls, batch: Any) -> "BatchSpec":
        """That of a batch. Raises LoaderError for one without tensors."""
        leaves, spec = _pytree.tree_flatten(batch)
        tensors = [TensorSpec(t.shape, t.dtype) for t in leaves if isinstance(t, torch.Tensor)]
        if not tensors:
            raise LoaderError(f"the loader made a batch without tensors, {type(batch).__name__}")
        return cls(tuple(tensors), str(spec))


@dataclass
class BatchSpecOccurence:
    """Where batches of one kind were seen first, counted from 1, and how many there were."""

    epoch_step: int
    epoch: int
    count: int = 1


@dataclass
class BatchMetrics:
    """A sample of the run. Rates are batches a second: since the sample before, and of the run."""

    epoch_step: int
    global_step: int
    local_rate: float
    global_rate: float
    profile_activities: dict[str, int] = field(default_factory=dict)


@dataclass
class EpochMetrics:
    """One pass: how long its iterator took to make, how long it ran, and its samples."""

    iterator_creation: timedelta = timedelta(0)
    iteration_time: timedelta = timedelta(0)
    total_steps: int = 0
    batch_metrics: list[BatchMetrics] = field(default_factory=list)


@dataclass(kw_only=True)
class Metrics:
    """The whole run. `global_rate`: batches a second of all passes. `is_partial`: it was cut short,
    by an error or from the keyboard."""

    dataloader_build_time: timedelta = timedelta(0)
    epoch_metrics: list[EpochMetrics] = field(default_factory=list)
    batch_specs: dict[BatchSpec, BatchSpecOccurence] = field(default_factory=dict)
    total_time: timedelta = timedelta(0)
    global_rate: float = 0.0
    is_partial: bool = True

    def __str__(self) -> str:
        """A line for each pass, kind of batch and sampled activity."""
        steps = sum(epoch.total_steps for epoch in self.epoch_metrics)
        lines = [
            f"loader made in {_seconds(self.dataloader_build_time)}; {steps:,} batches in "
            f"{_seconds(self.total_time)}, {self.global_rate:,.1f} a second"
            + (" (cut short)" if self.is_partial else "")
        ]
        for number, epoch in enumerate(self.epoch_metrics, start=1):
            lines.append(
                f"epoch {number}: {epoch.total_steps:,} batches in "
                f"{_seconds(epoch.iteration_time)}, iterator in {_seconds(epoch.iterator_creation)}"
            )
            samples = [each.profile_activities for each in epoch.batch_metrics]
            for name in samples[0] if samples else ():
                most = max(each[name] for each in samples)
                lines.append(f"epoch {number}: {name} at most {format_bytes(most)}")
        for spec, seen in self.batch_specs.items():
            shapes = ", ".join(f"{tuple(t.shape)} {t.dtype}" for t in spec.tensors)
            lines.append(f"{seen.count:,} batches of {shapes}; first at epoch {seen.epoch}, ")
            lines[-1] += f"step {seen.epoch_step}"
        return "\n".join(lines)


def benchmark_dataloader(
    input_fn: Callable[..., Iterable[Any]],
    num_epochs: int | None = None,
    steps_per_epoch: int | None = None,
    sampling_frequency: int | None = None,
    profile_activities: Sequence[str] | None = None,
    print_metrics: bool = True,
) -> Metrics:
    """Run the loader that `input_fn` makes: `num_epochs` passes (1) of `steps_per_epoch` batches
    (all), with a sample at the first and after every `sampling_frequency` (100).

    `profile_activities`: `memory_uss`, `memory_pss`, `memory_swap` and `io_read_chars` of this
    process, in bytes, at each sample. Raises BackendConfigError for other names and for numbers
    below 1, LoaderError for a batch without tensors.
    """
    counts = {"num_epochs": num_epochs, "steps_per_epoch": steps_per_epoch}
    counts["sampling_frequency"] = sampling_frequency
    for name, value in counts.items():
        if value is not None and value < 1:
            raise BackendConfigError(f"benchmark_dataloader: {name} is {value}; expected 1 or more")
    activities = list(profile_activities or ())
    for name in activities:
        if name not in _ACTIVITIES:
            near = did_you_mean_or_all(name, _ACTIVITIES)
            raise BackendConfigError(f"benchmark_dataloader: unknown activity {name!r}{near}")
    metrics = Metrics()
    start = time.perf_counter()
    try:
        loader = input_fn()
        metrics.dataloader_build_time = _since(start)
        tracker = RateTracker()
        for epoch in range(1, (num_epochs or 1) + 1):
            _run_epoch(
                metrics,
                loader,
                epoch,
                steps=steps_per_epoch,
                frequency=sampling_frequency or 100,
                activities=activities,
                tracker=tracker,
            )
        metrics.is_partial = False
    finally:
        metrics.total_time = _since(start)
        if print_metrics:
            print(metrics)
    return metrics


def _run_epoch(
    metrics: Metrics,
    loader: Iterable[Any],
    epoch: int,
    steps: int | None,
    frequency: int,
    activities: list[str],
    tracker: RateTracker,
) -> None:
    done = EpochMetrics()
    metrics.epoch_metrics.append(done)
    start = time.perf_counter()
    iterator = iter(loader)
    done.iterator_creation = _since(start)
    start = sampled = time.perf_counter()
    waiting = 0
    for step, batch in enumerate(islice(iterator, steps), start=1):
        tracker.add(1)
        done.total_steps, waiting = step, waiting + 1
        spec = BatchSpec.of(batch)
        if spec in metrics.batch_specs:
            metrics.batch_specs[spec].count += 1
        else:
            metrics.batch_specs[spec] = BatchSpecOccurence(step, epoch)
        if step == 1 or step % frequency == 0:
            now = time.perf_counter()
            rate = waiting / (now - sampled)
            values = {name: _ACTIVITIES[name]() for name in activities}
            number = int(tracker.total_count)
            done.batch_metrics.append(
                BatchMetrics(step, number, rate, float(tracker.global_rate), values)
            )
            sampled, waiting = now, 0
    done.iteration_time = _since(start)
    metrics.global_rate = float(tracker.global_rate)


def _since(start: float) -> timedelta:
    return timedelta(seconds=time.perf_counter() - start)


def _seconds(time: timedelta) -> str:
    return f"{time.total_seconds():.3f} s"


def _read_kib(names: Sequence[str]) -> int:
    """Bytes of fields of this process's memory."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    fields = {name: int(rest.split()[0]) << 10 for name, _, rest in map(_at_colon, lines)}
    return sum(fields[name] for name in names)


def _at_colon(line: str) -> tuple[str, str, str]:
    return line.partition(":")


def _read_chars() -> int:
    for line in Path("/proc/self/io").read_text().splitlines():
        name, _, value = _at_colon(line)
        if name == "rchar":
            return int(value)
    raise BackendConfigError("this system does not count the bytes that a process reads")


_ACTIVITIES: dict[str, Callable[[], int]] = {
    "memory_uss": lambda: _read_kib(["Private_Clean", "Private_Dirty"]),
    "memory_pss": lambda: _read_kib(["Pss"]),
    "memory_swap": lambda: _read_kib(["Swap"]),
    "io_read_chars": _read_chars,
}
