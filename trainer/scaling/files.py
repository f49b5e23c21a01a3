"""The points of a fit, from model directories or a CSV file; its law as a JSON file, as a plot and
for the terminal.

A run's FLOPs are those of P Table 13 for its model, times the samples of its steps; its loss is the
last line of its eval.jsonl. P: Cerebras-GPT (arXiv 2304.03208).
"""

import csv
import dataclasses
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from pipeline.core import storage
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.words import pluralise
from trainer.config import ModelConfig, model_parameters
from trainer.recipe import FITTED_FLOPS, loss_at, samples_in
from trainer.runs import metrics, record
from trainer.runs.record import read_json
from trainer.scaling.power_law import GROUPS, RUN_TO_RUN, Interval, Point, PowerLaw, loss_intervals

if TYPE_CHECKING:
    from matplotlib.axes import Axes


FORMAT = 1


def law_as_json(law: PowerLaw) -> dict[str, Any]:
    """JSON values: the fields of `PowerLaw`, with its points."""
    return {"format": FORMAT, "law": "loss = (flops / scale) ** -exponent + irreducible"} | (
        dataclasses.asdict(law)
    )


def read_law(path: Path) -> PowerLaw:
    """The law of a file. Raises InputError."""
    try:
        value = json.loads(path.read_bytes())
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']!r}, expected {FORMAT}")
        fields = {field.name: value[field.name] for field in dataclasses.fields(PowerLaw)}
        points = tuple(Point(**point) for point in fields.pop("points"))
        for name in ("scale_interval", "exponent_interval", "irreducible_interval"):
            low, high = fields[name]
            fields[name] = (low, high)
        return PowerLaw(**fields, points=points)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a law of `train scaling fit`: {error}") from error


_COLUMNS = ("flops", "loss")


def read_points(paths: Sequence[Path]) -> tuple[Point, ...]:
    """One point per model directory, or per line of a CSV file `flops,loss[,name]` with a
    header. Raises InputError naming the path and what is missing there."""
    points: list[Point] = []
    for path in paths:
        points += [read_run_point(path)] if path.is_dir() else read_csv_points(path)
    return tuple(points)


def read_run_point(model_dir: Path) -> Point:
    """The last evaluation of a run. Raises InputError."""
    recorded = read_json(model_dir / record.NAME, "model directory")
    evaluations = model_dir / metrics.EVALUATION
    if not evaluations.is_file() or not (lines := evaluations.read_bytes().splitlines()):
        raise InputError(
            f"{evaluations}: missing or empty; evaluate the run with --mode eval, or train with "
            "--mode train_and_eval"
        )
    try:
        last = json.loads(lines[-1])
        model = ModelConfig.model_validate_json(json.dumps(recorded["model"]))
        schedule = tuple((step, size) for step, size in recorded["batch_size_schedule"])
        samples = samples_in(last["step"], schedule)
        loss = float(last["loss"])
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise InputError(f"{model_dir}: not the records of a run: {error!r}") from error
    spent = model_parameters.count_training_flops(model) * samples
    if spent == 0:
        raise InputError(f"{evaluations}: step 0: a model that was not trained cannot be a point")
    return Point(model_dir.name, float(spent), loss)


def read_csv_points(path: Path) -> list[Point]:
    """Lines of a CSV file. Raises InputError naming the line."""
    if not path.is_file():
        raise InputError(f"{path}: neither a model directory nor a CSV file")
    with open(path, newline="", encoding="utf-8") as file:
        table = csv.DictReader(file)
        missing = [name for name in _COLUMNS if name not in (table.fieldnames or ())]
        if missing:
            raise InputError(f"{path}: no column {missing[0]}; expected flops,loss[,name]")
        points = []
        for row in table:
            try:
                spent, loss = float(row["flops"]), float(row["loss"])
            except (TypeError, ValueError):
                raise InputError(
                    f"{path}:{table.line_num}: expected numbers, got flops {row['flops']!r}, loss "
                    f"{row['loss']!r}"
                ) from None
            points.append(Point(row.get("name") or f"line {table.line_num}", spent, loss))
        return points


PLOT_FORMATS = (".svg", ".png")
_MARKERS = dict(zip(GROUPS, "osv^D", strict=True))
_WIDER = 4.0
_CURVE_POINTS = 60


def draw_law(path: Path, law: PowerLaw) -> None:
    """Publish the plot as SVG or PNG, by the suffix of `path`; the same law gives the same
    bytes. Raises ConfigError for another suffix, or when matplotlib is not installed."""
    if path.suffix not in PLOT_FORMATS:
        raise ConfigError(
            f"--plot {path}: expected a name that ends in {' or '.join(PLOT_FORMATS)}"
        )
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator, NullLocator, StrMethodFormatter
    except ImportError as error:
        raise ConfigError(
            "a plot needs matplotlib: pip install 'wafermill[plot]', or leave out --plot"
        ) from error
    with mpl.rc_context({"svg.hashsalt": "wafermill"}):
        figure = Figure(figsize=(8, 5.5), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        _curves(axes, law)
        _points(axes, law)
        axes.set(xscale="log", yscale="log", xlabel="training FLOPs", ylabel="loss, nats per token")
        axes.yaxis.set_major_locator(MaxNLocator(8))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.set_title("Loss against training FLOPs; the paper's losses are of the Pile test set")
        axes.grid(visible=True, which="both", alpha=0.3)
        axes.legend(fontsize=8)
        image = io.BytesIO()
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        figure.savefig(image, format=path.suffix[1:], dpi=150, metadata=metadata)
    storage.publish(path, image.getvalue())


def _curves(axes: "Axes", law: PowerLaw) -> None:
    """The fit over its own FLOPs and some more, with its band; the paper's law over its own."""
    seen = [point.flops for point in law.points]
    own = np.geomspace(min(seen) / _WIDER, max(seen) * _WIDER, _CURVE_POINTS).tolist()
    label = f"fit: (f / {law.scale:.3g})^-{law.exponent:.4g} + {law.irreducible:.4g}"
    axes.plot(own, [law.loss(flops) for flops in own], color="C3", label=label)
    low, high = zip(*loss_intervals(law, own), strict=True)
    axes.fill_between(own, low, high, color="C3", alpha=0.15, label="95 % of the fit", linewidth=0)
    paper = [point.flops for group in GROUPS.values() for point in group]
    wide = np.geomspace(min(paper) / 2, max(paper) * 2, _CURVE_POINTS).tolist()
    axes.plot(wide, [loss_at(f) for f in wide], "k--", linewidth=1, label="Cerebras-GPT, eq 1")


def _points(axes: "Axes", law: PowerLaw) -> None:
    for name, group in GROUPS.items():
        flops, losses = [p.flops for p in group], [p.loss for p in group]
        axes.plot(
            flops, losses, _MARKERS[name], color="0.45", markersize=4, fillstyle="none", label=name
        )
    flops, losses = [p.flops for p in law.points], [p.loss for p in law.points]
    axes.plot(flops, losses, "o", color="C3", markersize=6, label="fitted runs")


def describe_fit(law: PowerLaw) -> Iterator[str]:
    """The law, its intervals and each point's residual."""
    yield f"loss = (flops / a) ** -b + c, fitted to {pluralise(len(law.points), 'point')}"
    yield f"a  {law.scale:<10.4g}  95 %: {_range(law.scale_interval)}"
    yield f"b  {law.exponent:<10.4g}  95 %: {_range(law.exponent_interval)}"
    given = "given" if law.fixed_irreducible else f"95 %: {_range(law.irreducible_interval)}"
    yield f"c  {law.irreducible:<10.4g}  {given}"
    freedom = law.degrees_of_freedom
    degrees = pluralise(freedom, "degree")
    yield f"deviation of points {law.relative_deviation:.2%}, {degrees} of freedom"
    if freedom == 1:
        yield "with one degree of freedom the intervals say little"
    for point in sorted(law.points, key=lambda point: point.flops):
        residual = point.loss / law.loss(point.flops) - 1
        yield f"  {point.flops:.3e} FLOPs  loss {point.loss:.4f}  {residual:+.2%}  {point.name}"


def prediction(law: PowerLaw | None, flops: float) -> dict[str, Any]:
    """JSON values: the loss at `flops` by a law, or by the paper's equation 1 (None).
    `interval`: 95 % of the law; `run_interval`: of a run; null for the paper's law, of which
    only the scatter between seeds is known. `extrapolation`: FLOPs beyond the fitted ones, as a
    factor."""
    if law is None:
        low, high = FITTED_FLOPS
        beyond = max(1.0, flops / high, low / flops)
        return {
            "law": "Cerebras-GPT, eq 1 (Pile test, nats per GPT-2 token)",
            "flops": flops,
            "loss": loss_at(flops),
            "interval": None,
            "run_interval": None,
            "run_to_run": RUN_TO_RUN,
            "extrapolation": beyond,
        }
    return {
        "law": f"(f / {law.scale:.4g}) ** -{law.exponent:.4g} + {law.irreducible:.4g}",
        "flops": flops,
        "loss": law.loss(flops),
        "interval": loss_intervals(law, [flops])[0],
        "run_interval": loss_intervals(law, [flops], of_a_run=True)[0],
        "run_to_run": None,
        "extrapolation": law.extrapolation(flops),
    }


def describe_prediction(values: dict[str, Any]) -> Iterator[str]:
    """Lines for `prediction`."""
    yield f"law   {values['law']}"
    yield f"loss  {values['loss']:.4f} at {values['flops']:.4g} FLOPs"
    if values["interval"] is None:
        yield f"runs that differ only in the seed scatter by {values['run_to_run']:.2%} (paper)"
    else:
        yield f"95 %  {_range(values['interval'])} for the law"
        yield f"      {_range(values['run_interval'])} for a single run"
    if values["extrapolation"] > 1.05:
        yield f"{values['extrapolation']:.3g} times beyond the fitted FLOPs: an extrapolation"


def _range(interval: Interval) -> str:
    low, high = interval
    return f"{low:.4g} to {high:.4g}"
