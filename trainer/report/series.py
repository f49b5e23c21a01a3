"""metrics.jsonl and eval.jsonl as series of numbers by name; whatever numbers the lines hold."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.order import Schedule, batch_size_at
from trainer.report.charts import Point

STEP = "step"
STALL_SHARE, TOKENS_PER_SECOND = "stall_share", "tokens_per_second"
STABILITY = "stability"
_PER_SOURCE, _SPIKE = "per_source", "spike"

Series = dict[str, list[Point]]


@dataclass(frozen=True)
class Curves:
    """Numbers by step. `training`: of metrics.jsonl, `validation`: of eval.jsonl; `per_source`: its
    loss by source. `skipped`: steps without an update (an overflow of float16). `spikes` and
    `warnings` of the stability watch: a step each, and what it warned of."""

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
    """Both files; one that is missing has no series. Raises InputError for a line that is none.

    A line that a kill has cut off is left out, as a resume would.
    """
    found: Series = {}
    skipped, spikes, warnings = 0, [], []
    for line in _lines(training):
        skipped += line.get("skipped") is True
        if line.pop(_SPIKE, None) is not None:
            spikes.append(line[STEP])
        causes = line.get(STABILITY, {}).get("warnings", ())
        warnings += [(line[STEP], str(cause)) for cause in causes]
        _add(found, line | _derived(line, schedule, sequence_length))
    evaluations: Series = {}
    per_source: Series = {}
    for line in _lines(validation):
        sources = line.pop(_PER_SOURCE, {})
        _add(evaluations, line)
        _add(per_source, {STEP: line[STEP]} | {n: each.get("loss") for n, each in sources.items()})
    return Curves(found, evaluations, per_source, skipped, tuple(spikes), tuple(warnings))


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


def _derived(line: dict[str, Any], schedule: Schedule, sequence_length: int) -> dict[str, float]:
    """Rates that the line has in other units."""
    rate, stalled = line.get("samples_per_second"), line.get("stall_seconds")
    if not rate:
        return {}
    found = {TOKENS_PER_SECOND: rate * sequence_length}
    if stalled is not None:
        found[STALL_SHARE] = stalled * rate / batch_size_at(line[STEP], schedule)
    return found


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
