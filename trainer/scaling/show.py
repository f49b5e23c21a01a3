"""A fitted law and its predictions, for the terminal and as JSON values."""

from collections.abc import Iterator
from typing import Any

from pipeline.core.errors import ConfigError
from pipeline.core.words import pluralise
from trainer.amount import parse_amount
from trainer.scaling.laws import FITTED_FLOPS, loss_at
from trainer.scaling.paper_points import RUN_TO_RUN
from trainer.scaling.power_law import Interval, PowerLaw, loss_intervals


def describe_fit(law: PowerLaw) -> Iterator[str]:
    """The law, its intervals and each point's residual."""
    yield f"loss = (flops / a) ** -b + c, fitted to {pluralise(len(law.points), 'point')}"
    yield f"a  {law.scale:<10.4g}  95 %: {_range(law.scale_interval)}"
    yield f"b  {law.exponent:<10.4g}  95 %: {_range(law.exponent_interval)}"
    given = "given" if law.fixed_irreducible else f"95 %: {_range(law.irreducible_interval)}"
    yield f"c  {law.irreducible:<10.4g}  {given}"
    freedom = law.degrees_of_freedom
    yield (
        f"deviation of points {law.relative_deviation:.2%}, "
        f"{freedom} {'degree' if freedom == 1 else 'degrees'} of freedom"
    )
    if freedom == 1:
        yield "with one degree of freedom the intervals say little"
    for point in sorted(law.points, key=lambda point: point.flops):
        residual = point.loss / law.loss(point.flops) - 1
        yield f"  {point.flops:.3e} FLOPs  loss {point.loss:.4f}  {residual:+.2%}  {point.name}"


def flops_of(text: str) -> float:
    """FLOPs of an option's text. Raises ConfigError."""
    try:
        return parse_amount(text)
    except ValueError as error:
        raise ConfigError(f"--flops {error}") from None


def prediction(law: PowerLaw | None, flops: float) -> dict[str, Any]:
    """JSON values: the loss at `flops` by a law, or by the paper's equation 1 (None).

    `interval`: 95 % of the law; `run_interval`: of a run; null for the paper's law, of which only
    the scatter between seeds is known. `extrapolation`: FLOPs beyond the fitted ones, as a factor.
    """
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
