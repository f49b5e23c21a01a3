"""OUT/report.html: loss against every parameter, and all trials."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.core import storage
from trainer.report import page as pages
from trainer.report.charts import Chart, Scale, ScatterPoint, scatter
from trainer.sweep import results
from trainer.sweep.config import LEARNING_RATE, NAMED, Parameter
from trainer.sweep.plan import SweepPlan
from trainer.sweep.results import TrialResult

REPORT = "report.html"


@dataclass(frozen=True)
class _Panel:
    """A scatter, in the form of `chart.html.j2`."""

    title: str
    unit: str
    chart: Chart | None
    log: None = None
    note: str = ""


def write(out: Path, plan: SweepPlan, found: Mapping[int, TrialResult]) -> None:
    """Publish the page of the trials that have ended."""
    ranked = results.rank_results(found)
    content = pages.render(
        "trainer.sweep",
        "sweep.html.j2",
        plan=plan,
        names=list(plan.config.parameters),
        ranges={name: _range(p) for name, p in plan.config.parameters.items()},
        described=NAMED,
        ranked=ranked,
        best=results.best(found),
        diverged=sum(result.loss is None for result in ranked),
        panels=[_panel(name, p, ranked) for name, p in plan.config.parameters.items()],
        learning_rate=LEARNING_RATE,
    )
    storage.publish(out / REPORT, content)


def _range(parameter: Parameter) -> str:
    if parameter.values is not None:
        return ", ".join(str(value) for value in parameter.values)
    low, high = parameter.uniform or parameter.log_uniform or (0.0, 0.0)
    return f"{low:g} to {high:g}, {'log-' if parameter.log_uniform else ''}uniform"


def _panel(name: str, parameter: Parameter, ranked: Sequence[TrialResult]) -> _Panel:
    """Loss against one parameter. Values that are no numbers stand at their place in the list."""
    places = {value: float(index) for index, value in enumerate(parameter.values or ())}
    words = any(isinstance(value, str | bool) for value in places)
    note = ", ".join(f"{place:.0f}: {value}" for value, place in places.items()) if words else ""

    def marked(result: TrialResult, kind: str) -> ScatterPoint:
        value = result.values[name]
        at = places[value] if words else float(value)
        loss = "diverged" if result.loss is None else f"loss {result.loss:.4f}"
        return ScatterPoint(at, result.loss or 0.0, f"trial {result.trial}: {value}, {loss}", kind)

    known = [result for result in ranked if result.loss is not None]
    points = [marked(result, "c0" if index else "c1 best") for index, result in enumerate(known)]
    lost = [marked(result, "lost") for result in ranked if result.loss is None]
    scale: Scale = "log" if parameter.is_logarithmic else "linear"
    chart = scatter(points[::-1], lost, scale=scale, x_label=name)
    return _Panel(name, "validation loss, nats per token", chart, note=note)
