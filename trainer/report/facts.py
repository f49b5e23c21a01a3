"""What a run is and how far it has come, from the files of its model_dir alone; metrics.jsonl
and eval.jsonl as series of numbers by name."""

import contextlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.core.errors import InputError
from pipeline.core.order import Schedule, batch_size_at, samples_before_step
from trainer.config import ModelConfig, Optimizer, model_parameters
from trainer.config.optimizer import ANY_OPTIMIZER
from trainer.recipe import FITTED_FLOPS, loss_at, predicted_loss
from trainer.report.charts import Point
from trainer.runs import checkpoint, metrics, record

STEP = "step"
STALL_SHARE, TOKENS_PER_SECOND = "stall_share", "tokens_per_second"
STABILITY = "stability"
_PER_SOURCE, _SPIKE = "per_source", "spike"

Series = dict[str, list[Point]]


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Numbers by step: of metrics.jsonl, of eval.jsonl, and its loss by source. `skipped`: steps
    without an update (an overflow of float16). `spikes` and `warnings` of the stability watch: a
    step each, and what it warned of."""

    training: Series
    validation: Series
    per_source: Series
    skipped: int
    spikes: tuple[int, ...]
    warnings: tuple[tuple[int, str], ...]

    @property
    def last_step(self) -> int:
        """The last step with a loss; 0 for none."""
        losses = self.training.get("loss")
        return int(losses[-1][0]) if losses else 0


def read_curves(
    training: Path, validation: Path, schedule: Schedule, sequence_length: int
) -> Curves:
    """Both files; one that is missing has no series, a line that a kill has cut off is left out.
    Raises InputError for a line that is none."""
    series: Series = {}
    skipped, spikes, warnings = 0, [], []
    for line in _lines(training):
        skipped += line.get("skipped") is True
        if line.pop(_SPIKE, None) is not None:
            spikes.append(line[STEP])
        causes = line.get(STABILITY, {}).get("warnings", ())
        warnings += [(line[STEP], str(cause)) for cause in causes]
        rate, stalled = line.get("samples_per_second"), line.get("stall_seconds")
        if rate:
            line[TOKENS_PER_SECOND] = rate * sequence_length
            if stalled is not None:
                line[STALL_SHARE] = stalled * rate / batch_size_at(line[STEP], schedule)
        _add(series, line)
    evaluations: Series = {}
    per_source: Series = {}
    for line in _lines(validation):
        sources = line.pop(_PER_SOURCE, {})
        _add(evaluations, line)
        _add(per_source, {STEP: line[STEP]} | {n: each.get("loss") for n, each in sources.items()})
    return Curves(
        training=series,
        validation=evaluations,
        per_source=per_source,
        skipped=skipped,
        spikes=tuple(spikes),
        warnings=tuple(warnings),
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                value = json.loads(line)
                value[STEP] = int(value[STEP])
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"{path}:{number}: not a line of a run: {error!r}") from error
            yield value


def _add(series: Series, line: dict[str, Any]) -> None:
    for name, value in _numbers(line):
        if name != STEP:
            series.setdefault(name, []).append((float(line[STEP]), value))


def _numbers(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """All finite numbers, those of nested mappings by dotted name."""
    for name, item in value.items():
        dotted = f"{prefix}{name}"
        if isinstance(item, dict):
            yield from _numbers(item, f"{dotted}.")
        elif isinstance(item, int | float) and not isinstance(item, bool) and math.isfinite(item):
            yield dotted, float(item)


SOFTWARE = ("wafermill", "torch", "numpy", "safetensors", "tokenizers", "h5py")


@dataclass(frozen=True)
class SavedCheckpoint:
    """A committed checkpoint. `hash`: of its manifest, which stands for all its `bytes`."""

    step: int
    name: str
    hash: str
    bytes: int


@dataclass(frozen=True)
class LossPrediction:
    """The paper's law for what a run has spent. `optimal`: eq 1; `expected`: with eq 4 for its
    tokens per parameter; `measured`: if anything was. `beyond`: how many times outside the
    fitted FLOPs."""

    optimal: float
    expected: float
    measured: float | None
    beyond: float


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A run. `record`: run.json; `settings`: its sections as dotted keys and values; `curves`: its
    metrics."""

    model_dir: Path
    record: dict[str, Any]
    model: ModelConfig
    optimizer: Optimizer
    schedule: Schedule
    curves: Curves
    checkpoints: tuple[SavedCheckpoint, ...]
    software: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """That of the directory."""
        return self.model_dir.resolve().name

    @property
    def step(self) -> int:
        """The last step that is done."""
        return max(self.curves.last_step, *(c.step for c in self.checkpoints), 0)

    @property
    def sparse(self) -> list[dict[str, Any]]:
        """The groups of pruned weights; none in a dense run."""
        groups: list[dict[str, Any]] = self.record.get(record.SPARSITY, [])
        return groups

    @property
    def parameters(self) -> int:
        """Trained parameters, a tied matrix once."""
        return model_parameters.parameter_count(self.model)

    @property
    def samples(self) -> int:
        """Sequences read by all steps."""
        return samples_before_step(self.step + 1, self.schedule)

    @property
    def tokens(self) -> int:
        """Positions of these sequences."""
        return self.samples * self.model.positions

    @property
    def flops(self) -> float:
        """Training FLOPs of these sequences (Cerebras-GPT, Table 13)."""
        return float(model_parameters.count_training_flops(self.model) * self.samples)

    @property
    def validation_loss(self) -> float | None:
        """That of the last evaluation, in nats per token."""
        losses = self.curves.validation.get("loss")
        return losses[-1][1] if losses else None

    @property
    def training_loss(self) -> float | None:
        """That of the last step, in nats per token."""
        losses = self.curves.training.get("loss")
        return losses[-1][1] if losses else None

    @property
    def prediction(self) -> LossPrediction | None:
        """None for a run without a step, and for an encoder, whose loss is of hidden tokens."""
        if not self.samples or self.model.bidirectional:
            return None
        low, high = FITTED_FLOPS
        return LossPrediction(
            loss_at(self.flops),
            predicted_loss(self.flops, self.tokens / self.parameters),
            self.validation_loss,
            max(1.0, self.flops / high, low / self.flops),
        )

    @property
    def settings(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """Sections of run.json with their keys and values, those at their defaults too."""
        own = {k: v for k, v in self.record.items() if k not in ("model", "optimizer", "datasets")}
        sections = {
            "run": own,
            "model": self.record["model"],
            "optimizer": self.record["optimizer"],
        }
        return [(name, _flat(section)) for name, section in sections.items()]


def read_run_facts(model_dir: Path) -> RunFacts:
    """All facts of a run. Raises InputError for a directory without one, IntegrityError for
    damage."""
    recorded = record.read_run_record(model_dir)
    if recorded is None:
        raise InputError(f"{model_dir}: not a model directory: no {record.NAME}")
    recorded = record.complete_record(recorded)
    try:
        model = ModelConfig.model_validate_json(json.dumps(recorded["model"]))
        optimizer = ANY_OPTIMIZER.validate_json(json.dumps(recorded["optimizer"]))
        schedule = tuple((int(step), int(size)) for step, size in recorded["batch_size_schedule"])
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        raise InputError(
            f"{model_dir / record.NAME}: not the record of a run: {error!r}"
        ) from error
    curves = read_curves(
        model_dir / metrics.TRAINING,
        model_dir / metrics.EVALUATION,
        schedule,
        model.positions,
    )
    opened = [checkpoint.open_checkpoint(path) for path in checkpoint.list_committed(model_dir)]
    saved = [SavedCheckpoint(each.step, each.path.name, each.hash, _size(each)) for each in opened]
    software = []
    for name in SOFTWARE:
        with contextlib.suppress(PackageNotFoundError):  # a source tree that is not installed
            software.append((name, version(name)))
    return RunFacts(
        model_dir=model_dir,
        record=recorded,
        model=model,
        optimizer=optimizer,
        schedule=schedule,
        curves=curves,
        checkpoints=tuple(saved),
        software=tuple(software),
    )


def _size(saved: checkpoint.Checkpoint) -> int:
    return sum(int(entry["size"]) for entry in saved.files.values())


def _flat(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Nested values as (dotted key, text).

    >>> _flat({"a": {"b": 1}, "c": [0.9, None]})
    [('a.b', '1'), ('c', '0.9, null')]
    """
    if isinstance(value, dict):
        lines = [_flat(item, f"{prefix}.{key}" if prefix else key) for key, item in value.items()]
        return [line for part in lines for line in part]
    if isinstance(value, list):
        if any(isinstance(item, dict) for item in value):
            lines = [_flat(item, f"{prefix}.{index}") for index, item in enumerate(value)]
            return [line for part in lines for line in part]
        return [(prefix, ", ".join(map(_text, value)))]
    return [(prefix, _text(value))]


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return str(value)
