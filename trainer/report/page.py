"""The report of a run as one HTML page: charts, data, config, hashes; and what all pages of the
trainer share: one file each, no script, no request, and their number formats.

What every value passes on its way into a page is in `pipeline.core.page`.
"""

import functools
import itertools
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment

from pipeline.core import words
from pipeline.core.page import page_environment
from trainer.report.charts import WIDE, WIDTH, Chart, Curve, curves
from trainer.report.data import ReportedDataSet
from trainer.report.facts import STABILITY, STALL_SHARE, TOKENS_PER_SECOND, Curves, RunFacts

_SHARED = "trainer.report"


def render_template(package: str, template: str, **values: Any) -> bytes:
    """The page, in UTF-8, that a template of `package` makes of `values`."""
    return _environment(package).get_template(template).render(values).encode()


@functools.cache
def _environment(package: str) -> Environment:
    return page_environment(
        (package, _SHARED),
        {
            "n": words.format_count,
            "g": format_number,
            "short": words.abbreviate_count,
            "size": words.format_bytes,
            "percent": words.format_percent,
        },
    )


def format_number(value: float | None, digits: int = 4) -> str:
    """A measured number; a dash for one that is not known.

    >>> format_number(2.5863214), format_number(None)
    ('2.586', '-')
    """
    return "-" if value is None else f"{value:.{digits}g}"


_MOST_SOURCES = 12
_SPIKES, _SHORT = 3, 20
_FIGURES = {
    "std": "Standard deviation",
    "norm": "Norm",
    "std_growth": "Growth of the standard deviation",
    "norm_growth": "Growth of the norm",
    "underflow": "Weights lost at the cast, share",
    "gradient_zeros": "Exact zeros in gradients, share",
    "gradient_underflow": "Gradients that half precision would lose, share",
    "eps_limit": "Limit of AdamW's eps",
    "eps_share": "Parameters over that limit, share",
    "ratio": "K bias over the other biases, root mean square",
}
_NOT_STABILITY = {
    "loss",
    "learning_rate",
    "grad_norm",
    "samples_per_second",
    "stall_seconds",
    "num_csx",
    "loss_scale",
    TOKENS_PER_SECOND,
    STALL_SHARE,
}


@dataclass(frozen=True)
class Panel:
    """A chart with its title; `log`: the same with a logarithmic axis, None where there is none."""

    title: str
    unit: str
    chart: Chart | None
    log: Chart | None = None
    note: str = ""


def render_training_report(facts: RunFacts, data: Sequence[ReportedDataSet]) -> bytes:
    """The page in UTF-8; a pure function of what was read."""
    numbers = facts.curves
    loss = _panel(
        "Training and validation",
        "nats per token",
        Curve("training", numbers.training.get("loss", [])),
        Curve("validation", numbers.validation.get("loss", []), dots=True),
        log=True,
        width=WIDE,
    )
    return render_template(
        "trainer.report",
        "report.html.j2",
        facts=facts,
        data=data,
        loss=loss,
        sources=_by_source(numbers),
        steps=[panel for panel in _steps(numbers) if panel.chart],
        stability=_stability(numbers),
        traces=_traces(facts, data),
        software=facts.software,
    )


def _panel(
    title: str,
    unit: str,
    *given: Curve,
    log: bool = False,
    note: str = "",
    width: int = WIDTH,
) -> Panel:
    logarithmic = curves(given, scale="log", width=width) if log else None
    return Panel(title, unit, curves(given, width=width), logarithmic, note)


def _by_source(numbers: Curves) -> Panel | None:
    names = sorted(numbers.per_source, key=lambda name: -numbers.per_source[name][-1][1])
    if not names:
        return None
    note = f"The {_MOST_SOURCES} sources with the largest last loss, out of {len(names)}."
    lines = [Curve(name, numbers.per_source[name], dots=True) for name in names[:_MOST_SOURCES]]
    return _panel(
        "Validation loss by source",
        "nats per token",
        *lines,
        log=True,
        note=note if len(names) > _MOST_SOURCES else "",
        width=WIDE,
    )


def _steps(numbers: Curves) -> Iterator[Panel]:
    note = (
        f"{words.pluralise(numbers.skipped, 'step')} skipped after an overflow."
        if numbers.skipped
        else ""
    )
    waiting = [(x, 100 * y) for x, y in numbers.training.get(STALL_SHARE, [])]
    yield _panel("Learning rate", "", _one(numbers, "learning_rate"))
    yield _panel("Gradient norm", "before clipping", _one(numbers, "grad_norm"), log=True)
    yield _panel("Throughput", "tokens per second", _one(numbers, TOKENS_PER_SECOND))
    yield _panel("Waiting for data", "percent of a step", Curve("waiting", waiting))
    yield _panel("Loss scale", "float16", _one(numbers, "loss_scale"), log=True, note=note)


def _one(numbers: Curves, name: str) -> Curve:
    return Curve(name.replace("_", " "), numbers.training.get(name, []))


def _stability(numbers: Curves) -> list[Panel]:
    """Whatever else the lines of metrics.jsonl hold: a chart for every figure, with a curve for
    each of what it was measured of (`stability.kinds.qkv.std`: figure std, of qkv)."""
    figures: dict[str, list[Curve]] = {}
    for name in sorted(set(numbers.training) - _NOT_STABILITY):
        owner, _, figure = name.removeprefix(f"{STABILITY}.").rpartition(".")
        label = owner.removeprefix("kinds.").replace("_", " ") or figure
        figures.setdefault(figure, []).append(Curve(label, numbers.training[name], dots=True))
    return [
        _panel(
            _FIGURES.get(figure, figure.replace("_", " ")),
            given[0].label if len(given) == 1 and given[0].label != figure else "",
            *given,
            log=True,
        )
        for figure, given in figures.items()
    ]


def _traces(facts: RunFacts, data: Sequence[ReportedDataSet]) -> list[tuple[str, str]]:
    """(why, command): what asks which documents a step read."""
    if not facts.step:
        return []
    run = next((d.run_argument for d in reversed(data) if d.run_argument != "RUN"), "RUN")
    model_dir = shlex.quote(str(facts.model_dir))
    about = f"prep trace {run if run == 'RUN' else shlex.quote(run)} --train {model_dir}"
    questions = [("the last step", f"--step {facts.step}")]
    questions += [(why, f"--step {step}") for why, step in _asked(facts.curves)]
    if facts.checkpoints:
        newest = facts.checkpoints[-1].name
        questions.append(
            ("everything the newest checkpoint was trained on", f"--checkpoint {newest}")
        )
    return [(why, f"{about} {what}") for why, what in questions]


def _asked(numbers: Curves) -> list[tuple[str, int]]:
    """(why, step): spikes that the stability watch told of, else the steps at which the loss of a
    run of some length rose most."""
    if numbers.spikes:
        return [("a spike of the loss", step) for step in numbers.spikes[-_SPIKES:]]
    losses = numbers.training.get("loss", [])
    if len(losses) <= _SHORT:
        return []
    rises = [(b[1] - a[1], int(b[0])) for a, b in itertools.pairwise(losses)]
    largest = sorted((rise for rise in rises if rise[0] > 0), reverse=True)[:_SPIKES]
    return [(f"the loss rose by {rise:.3g}", step) for rise, step in largest]
