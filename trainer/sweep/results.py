"""What a sweep has found: OUT/results.jsonl, a line for every trial that has ended, in their order;
OUT/report.html, loss against every parameter and all trials; the tables for the terminal; and
muTransfer, the best trial of a proxy as the params file of a wider target.

Cerebras-GPT (arXiv 2304.03208) Table 14: eta_base, sigma_base and m_emb hold for every width when
both models count widths from the same base, and heads are as wide. How they scale with the width
follows from `mup_base_hidden_size` where the target is trained, so they are written as they are.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.table import Table

from pipeline.commands.terminal import format_cell
from pipeline.config.yaml import YamlDocument
from pipeline.core import storage
from pipeline.core.errors import ConfigError, IntegrityError
from pipeline.core.words import abbreviate_count, pluralise
from trainer.config import ModelConfig, Params, model_parameters
from trainer.config.initializers import Normal, TruncatedNormal
from trainer.model.optimizer import find_peak_rate
from trainer.recipe import samples_in
from trainer.report import page as pages
from trainer.report.charts import Scale, ScatterPoint, scatter
from trainer.sweep.config import (
    EMBEDDINGS_SCALE,
    INITIALIZER_STD,
    LEARNING_RATE,
    NAMED,
    Parameter,
    Scalar,
)
from trainer.sweep.plan import SweepPlan, as_yaml, change_sections, read_base

NAME = "results.jsonl"


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """How a trial ended. `loss`: validation loss after the last step in nats per token, None for a
    trial that diverged at `step`; `reason`: what its run said then."""

    trial: int
    values: dict[str, Scalar]
    state: Literal["done", "diverged"]
    step: int
    loss: float | None
    reason: str = ""


def read_results(out: Path) -> dict[int, TrialResult]:
    """Results by trial; none where there is no file. Raises IntegrityError for damage."""
    path = out / NAME
    if not path.exists():
        return {}
    by_trial = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            result = TrialResult(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise IntegrityError(f"{path}:{number}: damaged: {error!r}") from error
        by_trial[result.trial] = result
    return by_trial


def write_results(out: Path, results: Mapping[int, TrialResult]) -> None:
    """Publish all results."""
    lines = [json.dumps(asdict(results[trial])) for trial in sorted(results)]
    storage.publish(out / NAME, "".join(f"{line}\n" for line in lines).encode())


def rank_results(results: Mapping[int, TrialResult]) -> list[TrialResult]:
    """The best first, those that diverged last; of equals the earlier one first."""
    return sorted(
        results.values(),
        key=lambda r: (r.loss is None, r.loss if r.loss is not None else 0, r.trial),
    )


def find_best(results: Mapping[int, TrialResult]) -> TrialResult | None:
    """The one with the least loss; None when none has one."""
    first = next(iter(rank_results(results)), None)
    return None if first is None or first.loss is None else first


REPORT = "report.html"


def write_page(out: Path, plan: SweepPlan, by_trial: Mapping[int, TrialResult]) -> None:
    """Publish the page of the trials that have ended."""
    ranked = rank_results(by_trial)
    content = pages.render_template(
        "trainer.sweep",
        "sweep.html.j2",
        plan=plan,
        names=list(plan.config.parameters),
        ranges={name: p.describe() for name, p in plan.config.parameters.items()},
        described=NAMED,
        ranked=ranked,
        best=find_best(by_trial),
        diverged=sum(result.loss is None for result in ranked),
        panels=[_panel(name, p, ranked) for name, p in plan.config.parameters.items()],
        learning_rate=LEARNING_RATE,
    )
    storage.publish(out / REPORT, content)


def _panel(name: str, parameter: Parameter, ranked: Sequence[TrialResult]) -> pages.Panel:
    """Loss against one parameter. Values that are no numbers stand at their place in the list."""
    places = {value: float(index) for index, value in enumerate(parameter.values or ())}
    words = any(isinstance(value, str | bool) for value in places)
    note = ", ".join(f"{place:.0f}: {value}" for value, place in places.items()) if words else ""

    def marked(result: TrialResult, kind: str) -> ScatterPoint:
        value = result.values[name]
        at = places[value] if words else float(value)
        loss = "diverged" if result.loss is None else f"loss {result.loss:.4f}"
        return ScatterPoint(at, result.loss or 0.0, f"trial {result.trial}: {value}, {loss}", kind)

    finished = [result for result in ranked if result.loss is not None]
    points = [marked(result, "c0" if index else "c1 best") for index, result in enumerate(finished)]
    lost = [marked(result, "lost") for result in ranked if result.loss is None]
    scale: Scale = "log" if parameter.is_logarithmic else "linear"
    chart = scatter(points[::-1], lost, scale=scale, x_label=name)
    return pages.Panel(name, "validation loss, nats per token", chart, note=note)


_MOST_ROWS = 20


def describe_sweep(plan: SweepPlan) -> Iterator[str]:
    """What a sweep would do, a line each."""
    params, config = plan.base.params, plan.config
    schedule = params.train_input.schedule
    tokens = samples_in(plan.steps, schedule) * params.model.max_position_embeddings
    yield (
        f"{pluralise(len(plan.variants), 'trial')} ({config.method}) of "
        f"{pluralise(plan.steps, 'step')}, "
        f"{abbreviate_count(tokens)} tokens each, {plan.flops:.3g} FLOPs in all"
    )
    yield (
        f"proxy: {abbreviate_count(model_parameters.parameter_count(params.model))} parameters, "
        f"width {params.model.hidden_size}, "
        f"{pluralise(params.model.num_hidden_layers, 'layer')}, heads of width "
        f"{params.model.head_size}"
    )
    rates = params.optimizer.learning_rate
    if not isinstance(rates, float) and all(rate.length is not None for rate in rates):
        length = sum(rate.length or 0 for rate in rates)
        if length != plan.steps:
            yield (
                f"note: the learning rate schedule has {pluralise(length, 'step')}, but a trial "
                f"has {plan.steps:,}"
            )
    for variant in plan.variants:
        values = "  ".join(f"{name} {value}" for name, value in variant.trial.values.items())
        yield f"trial {variant.trial.index:>4}  {values}"


def tabulate_results(plan: SweepPlan, by_trial: Mapping[int, TrialResult]) -> Table:
    """The best trials, best first."""
    names = list(plan.config.parameters)
    out = Table(
        "trial", *(format_cell(name) for name in names), "loss", "step", title_justify="left"
    )
    for column in out.columns:
        column.justify = "right"
    for result in rank_results(by_trial)[:_MOST_ROWS]:
        loss = "diverged" if result.loss is None else f"{result.loss:.4f}"
        cells = [format_cell(str(result.values[name])) for name in names]
        out.add_row(str(result.trial), *cells, loss, f"{result.step:,}")
    return out


def summary(plan: SweepPlan, by_trial: Mapping[int, TrialResult]) -> Iterator[str]:
    """Lines below the table."""
    left = len(by_trial) - _MOST_ROWS
    if left > 0:
        yield f"{left} more in {NAME}"
    lost = sum(result.loss is None for result in by_trial.values())
    if lost:
        yield f"{lost} of {pluralise(len(by_trial), 'trial')} diverged"
    best = find_best(by_trial)
    if best is None:
        yield "no trial has a loss"
        return
    values = "  ".join(f"{name} {value}" for name, value in best.values.items())
    yield f"best: trial {best.trial}, loss {best.loss:.4f}  {values}"


_KERNEL = "decoder_kernel"


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """What is carried over. `left`: parameters of the sweep that Table 14 does not scale; batches
    in tokens, of the first step."""

    learning_rate: float
    std: float
    embeddings_scale: float
    m_width: float
    proxy_batch: int
    target_batch: int
    left: tuple[str, ...]

    def lines(self) -> list[str]:
        """What was done, and what to mind."""
        lines = [
            f"eta_base {self.learning_rate:g}, sigma_base {self.std:g}, m_emb "
            f"{self.embeddings_scale:g}; m_width {self.m_width:g}: matrices inside "
            f"blocks use learning rate eta / {self.m_width:g} and initial deviation sigma / "
            f"sqrt({self.m_width:g})",
            "The learning rate transfers while the batch is at least the critical batch; below it, "
            "scale the learning rate linearly with the batch (Cerebras-GPT). The "
            f"critical batch is not known here; the batch of the proxy has {self.proxy_batch:,} "
            f"tokens, that of the target {self.target_batch:,}.",
        ]
        if self.left:
            lines.append(f"Not part of muTransfer, so not carried over: {', '.join(self.left)}")
        return lines


def transfer(
    plan: SweepPlan, by_trial: dict[int, TrialResult], target: Path, out: Path
) -> Transfer:
    """Publish `out`: `target` with eta_base, sigma_base and m_emb of the best trial. Raises
    ConfigError when no trial has a loss, when `out` is there, or for a key by which muP does not
    carry over."""
    if out.exists():
        raise ConfigError(f"--write {out}: this file already exists; choose another name")
    best = find_best(by_trial)
    if best is None:
        raise ConfigError("--transfer: no trial has a loss yet")
    proxy, base = plan.variants[best.trial].params, read_base(target)
    check_transfer(proxy.model, base.params, base.path)
    rule = proxy.model.initializer
    if not isinstance(rule, TruncatedNormal | Normal):
        raise ConfigError(f"--transfer: initializer {rule.name} of the proxy has no sigma")
    values = {
        LEARNING_RATE: find_peak_rate(proxy.optimizer.learning_rate),
        INITIALIZER_STD: rule.std,
        EMBEDDINGS_SCALE: proxy.model.embeddings_scale,
    }
    sections, params = change_sections(base, values, YamlDocument(base.path, {}, {}))
    done = Transfer(
        learning_rate=values[LEARNING_RATE],
        std=values[INITIALIZER_STD],
        embeddings_scale=values[EMBEDDINGS_SCALE],
        m_width=params.model.m_width,
        proxy_batch=_batch(proxy),
        target_batch=_batch(params),
        left=tuple(name for name in plan.config.parameters if name not in values),
    )
    head = f"{base.path.name} with eta, sigma and m_emb of trial {best.trial} of {plan.path.name}"
    head = "\n".join([f"{head} (loss {best.loss:.4f}).", *done.lines()])
    storage.publish(out, as_yaml(sections, head))
    return done


def check_transfer(proxy: ModelConfig, target: Params, path: Path) -> None:
    """Raise ConfigError naming the key in which `target`, of `path`, does not fit the proxy."""
    model = target.model
    for which, each in (("the proxy", proxy), (str(path), model)):
        if each.mup_base_hidden_size is None:
            raise ConfigError(
                f"--transfer: {which} has no model.mup_base_hidden_size: without muP its "
                "hyperparameters hold for its own width only"
            )
    pairs = {
        "model.mup_base_hidden_size": (proxy.mup_base_hidden_size, model.mup_base_hidden_size),
        "hidden_size / num_heads": (proxy.head_size, model.head_size),
        "model.mup_base_filter_size": (_base_filter(proxy), _base_filter(model)),
        "model.scale_qk_dot_by_d": (proxy.scale_qk_dot_by_d, model.scale_qk_dot_by_d),
        "model.output_logits_alpha": (
            proxy.output_logits_scale * proxy.m_width,
            model.output_logits_scale * model.m_width,
        ),
    }
    for key, (of_proxy, of_target) in pairs.items():
        if of_proxy != of_target:
            raise ConfigError(
                f"--transfer {path}: {key} is {of_target:g}, that of the proxy {of_proxy:g}; "
                "muTransfer holds between equal ones only"
            )
    factor = target.optimizer.adjust_learning_rate.get(_KERNEL, 1 / model.m_width)
    if abs(factor * model.m_width - 1) > 1e-9:
        raise ConfigError(
            f"--transfer {path}: optimizer.adjust_learning_rate.{_KERNEL} is {factor:g}; expected "
            f"1 / m_width = {1 / model.m_width:g}, or leave it out"
        )


def _base_filter(model: ModelConfig) -> float:
    given = model.mup_base_filter_size
    return model.filter_size / model.m_width if given is None else given


def _batch(params: Params) -> int:
    return params.train_input.schedule[0][1] * params.model.max_position_embeddings
