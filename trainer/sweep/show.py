"""A sweep for the terminal: what will run, and the table of what came out."""

from collections.abc import Iterator, Mapping

from rich.table import Table

from pipeline.core.figures import abbreviate_count
from pipeline.core.words import pluralise
from pipeline.terminal import format_cell
from trainer import flops
from trainer.config.schedules import Ending
from trainer.recipe import samples_in
from trainer.sweep import results
from trainer.sweep.plan import SweepPlan
from trainer.sweep.results import TrialResult

_MOST_ROWS = 20


def describe_plan(plan: SweepPlan) -> Iterator[str]:
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
        f"proxy: {abbreviate_count(flops.parameter_count(params.model))} parameters, width "
        f"{params.model.hidden_size}, {pluralise(params.model.num_hidden_layers, 'layer')}, heads "
        "of width "
        f"{params.model.head_size}"
    )
    length = _length_of_rates(plan)
    if length is not None and length != plan.steps:
        yield (
            f"note: the learning rate schedule has {pluralise(length, 'step')}, but a trial has "
            f"{plan.steps:,}"
        )
    for variant in plan.variants:
        values = "  ".join(f"{name} {value}" for name, value in variant.trial.values.items())
        yield f"trial {variant.trial.index:>4}  {values}"


def _length_of_rates(plan: SweepPlan) -> int | None:
    rates = plan.base.params.optimizer.learning_rate
    if isinstance(rates, float) or not all(isinstance(rate, Ending) for rate in rates):
        return None
    return sum(rate.total_iters for rate in rates if isinstance(rate, Ending))


def table(plan: SweepPlan, found: Mapping[int, TrialResult]) -> Table:
    """The best trials, best first."""
    names = list(plan.config.parameters)
    out = Table(
        "trial", *(format_cell(name) for name in names), "loss", "step", title_justify="left"
    )
    for column in out.columns:
        column.justify = "right"
    for result in results.rank_results(found)[:_MOST_ROWS]:
        loss = "diverged" if result.loss is None else f"{result.loss:.4f}"
        cells = [format_cell(str(result.values[name])) for name in names]
        out.add_row(str(result.trial), *cells, loss, f"{result.step:,}")
    return out


def summary(plan: SweepPlan, found: Mapping[int, TrialResult]) -> Iterator[str]:
    """Lines below the table."""
    left = len(found) - _MOST_ROWS
    if left > 0:
        yield f"{left} more in {results.NAME}"
    lost = sum(result.loss is None for result in found.values())
    if lost:
        yield f"{lost} of {pluralise(len(found), 'trial')} diverged"
    best = results.best(found)
    if best is None:
        yield "no trial has a loss"
        return
    values = "  ".join(f"{name} {value}" for name, value in best.values.items())
    yield f"best: trial {best.trial}, loss {best.loss:.4f}  {values}"
