"""Points of a scaling law from model directories, or from a CSV file.

A run's FLOPs are those of P Table 13 for its model, times the samples of its steps; its loss is the
last line of its eval.jsonl.
"""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.core.errors import InputError
from trainer import flops, metrics, record
from trainer.config import ModelConfig
from trainer.json_file import read_json
from trainer.recipe import samples_in
from trainer.scaling.paper_points import Point

_COLUMNS = ("flops", "loss")


def read_points(paths: Sequence[Path]) -> tuple[Point, ...]:
    """One point per model directory, or per line of a CSV file `flops,loss[,name]` with a header.

    Raises InputError naming the path and what is missing there.
    """
    points: list[Point] = []
    for path in paths:
        points += [point_of_run(path)] if path.is_dir() else points_of_csv(path)
    return tuple(points)


def point_of_run(model_dir: Path) -> Point:
    """The last evaluation of a run. Raises InputError."""
    known = read_json(model_dir / record.NAME, "model directory")
    evaluations = model_dir / metrics.EVALUATION
    if not evaluations.is_file() or not (lines := evaluations.read_bytes().splitlines()):
        raise InputError(
            f"{evaluations}: missing or empty; evaluate the run with --mode eval, or train with "
            "--mode train_and_eval"
        )
    try:
        last = json.loads(lines[-1])
        model = ModelConfig.model_validate_json(json.dumps(known["model"]))
        schedule = tuple((step, size) for step, size in known["batch_size_schedule"])
        samples = samples_in(last["step"], schedule)
        loss = float(last["loss"])
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise InputError(f"{model_dir}: not the records of a run: {error!r}") from error
    spent = flops.training_flops_per_sequence(model) * samples
    if spent == 0:
        raise InputError(f"{evaluations}: step 0: a model that was not trained cannot be a point")
    return Point(model_dir.name, float(spent), loss)


def points_of_csv(path: Path) -> list[Point]:
    """Lines of a CSV file. Raises InputError naming the line."""
    if not path.is_file():
        raise InputError(f"{path}: neither a model directory nor a CSV file")
    with open(path, newline="", encoding="utf-8") as file:
        table = csv.DictReader(file)
        missing = [name for name in _COLUMNS if name not in (table.fieldnames or ())]
        if missing:
            raise InputError(f"{path}: no column {missing[0]}; expected flops,loss[,name]")
        return [_point(path, table.line_num, row) for row in table]


def _point(path: Path, line: int, row: dict[str, Any]) -> Point:
    try:
        spent, loss = float(row["flops"]), float(row["loss"])
    except (TypeError, ValueError):
        raise InputError(
            f"{path}:{line}: expected numbers, got flops {row['flops']!r}, loss {row['loss']!r}"
        ) from None
    return Point(row.get("name") or f"line {line}", spent, loss)
