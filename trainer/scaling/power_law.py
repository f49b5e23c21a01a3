"""Fit of L = (f / a) ** -b + c to losses L of models trained with f FLOPs; and the losses that the
paper prints, to compare with (Cerebras-GPT, arXiv 2304.03208).

Method: least squares of relative residuals, since losses scatter by a share of themselves. For a
given b the law is linear in k = (f0 / a) ** -b and c, so these are solved for, and b is searched on
a grid that is refined: no start values, the same answer every time. c >= 0, as an entropy is.

Intervals: all laws whose sum of squares is at most the least one times 1 + t^2 / (n - p), with t
the 97.5 % quantile of Student's t for n - p degrees of freedom (profile likelihood; n points, p
parameters).

The paper's losses: Pile test loss in nats per GPT-2 token; the peers' losses are corrected to GPT-2
tokens there. Training FLOPs are the paper's, two digits (Table 8 for its own models).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from pipeline.core.errors import InputError
from pipeline.core.words import pluralise
from wafer_backend.performance_model.calibration import TRAINING_FLOPS

RUN_TO_RUN = 0.0035
"""Relative standard deviation of the loss between runs that differ in the seed."""

SP_LOSS = {
    "111M": 2.608,
    "256M": 2.349,
    "590M": 2.181,
    "1.3B": 1.997,
    "2.7B": 1.834,
    "6.7B": 1.704,
    "13B": 1.572,
}
MUP_LOSS = {"111M": 2.588, "256M": 2.359, "590M": 2.155, "1.3B": 1.984, "2.7B": 1.846}


@dataclass(frozen=True)
class Point:
    """A trained model. `flops`: of training. `loss`: in nats per token."""

    name: str
    flops: float
    loss: float


def _own(losses: dict[str, float]) -> tuple[Point, ...]:
    return tuple(Point(name, TRAINING_FLOPS[name], loss) for name, loss in losses.items())


GROUPS = {
    "Cerebras-GPT": _own(SP_LOSS),
    "Cerebras-GPT muP": _own(MUP_LOSS),
    "Pythia": (
        Point("70M", 1.6e20, 2.504),
        Point("160M", 4.1e20, 2.186),
        Point("410M", 1.1e21, 1.971),
        Point("1B", 2.2e21, 1.845),
        Point("1.4B", 3.2e21, 1.793),
        Point("2.8B", 6.1e21, 1.720),
        Point("6.9B", 1.4e22, 1.626),
        Point("12B", 2.4e22, 1.582),
    ),
    "GPT-J": (Point("6.1B", 1.7e22, 1.613),),
    "GPT-NeoX": (Point("20B", 6.4e22, 1.519),),
}
"""The paper's own models and the peers on its axes, by family."""


Array = NDArray[np.float64]
Interval = tuple[float, float]

CONFIDENCE = 0.95
_EXPONENTS = (0.003, 3.0)
_GRID, _ROUNDS = 2001, 4


@dataclass(frozen=True, kw_only=True)
class _Laws:
    """The best law of every b of a grid (B,): k, c, the sum of squares, and the variances and
    covariance of k and c per unit of sum of squares."""

    b: Array
    k: Array
    c: Array
    squares: Array
    var_k: Array
    var_c: Array
    cov: Array

    def only(self, chosen: NDArray[np.bool_]) -> "_Laws":
        return _Laws(**{name: column[chosen] for name, column in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """L = (f / scale) ** -exponent + irreducible, with 95 % intervals. `points`: what it was
    fitted to. `fixed_irreducible`: c was given, not fitted. `relative_deviation`: standard
    deviation of relative residuals, over degrees of freedom."""

    scale: float
    exponent: float
    irreducible: float
    scale_interval: Interval
    exponent_interval: Interval
    irreducible_interval: Interval
    relative_deviation: float
    degrees_of_freedom: int
    fixed_irreducible: bool
    points: tuple[Point, ...]

    def loss(self, flops: float) -> float:
        """Loss at `flops`."""
        return float((flops / self.scale) ** -self.exponent + self.irreducible)

    def extrapolation(self, flops: float) -> float:
        """How many times `flops` is above the largest or below the smallest point; 1 inside."""
        seen = [point.flops for point in self.points]
        return max(1.0, flops / max(seen), min(seen) / flops)


def fit_power_law(points: Sequence[Point], irreducible: float | None = None) -> PowerLaw:
    """The law of `points`; `irreducible` fixes c. Raises InputError for fewer than 4 points of
    different FLOPs, 3 with a fixed c, and when losses do not fall with FLOPs."""
    free = 2 if irreducible is not None else 3
    _check(points, free, irreducible)
    problem = _Problem.of(points, irreducible)
    best = problem.best()
    b, k, c = float(best.b[0]), float(best.k[0]), float(best.c[0])
    region, slack = problem.region(best, len(points) - free)
    half_k, half_c = np.sqrt(slack * region.var_k), np.sqrt(slack * region.var_c)
    log_low = np.log(np.maximum(region.k - half_k, np.finfo(float).tiny)) / region.b
    log_high = np.log(region.k + half_k) / region.b
    return PowerLaw(
        scale=problem.middle * k ** (1 / b),
        exponent=b,
        irreducible=c,
        scale_interval=(problem.scale(log_low.min()), problem.scale(log_high.max())),
        exponent_interval=(float(region.b.min()), float(region.b.max())),
        irreducible_interval=(
            float(np.maximum(region.c - half_c, 0).min()),
            float((region.c + half_c).max()),
        ),
        relative_deviation=math.sqrt(float(best.squares[0]) / (len(points) - free)),
        degrees_of_freedom=len(points) - free,
        fixed_irreducible=irreducible is not None,
        points=tuple(points),
    )


def loss_intervals(
    law: PowerLaw, flops: Sequence[float], *, of_a_run: bool = False
) -> tuple[Interval, ...]:
    """95 % intervals of the law; `of_a_run`: of the loss of one more run, which scatters."""
    problem = _Problem.of(law.points, law.irreducible if law.fixed_irreducible else None)
    region, slack = problem.region(problem.best(), law.degrees_of_freedom)
    intervals = []
    for each in flops:
        x = (each / problem.middle) ** -region.b
        middle = x * region.k + region.c
        half = np.sqrt(slack * (x * x * region.var_k + 2 * x * region.cov + region.var_c))
        intervals.append((float((middle - half).min()), float((middle + half).max())))
    if not of_a_run:
        return tuple(intervals)
    noise = _quantile(law.degrees_of_freedom) * law.relative_deviation
    wider = []
    for each, (low, high) in zip(flops, intervals, strict=True):
        loss = law.loss(each)
        below = math.hypot(loss - low, noise * loss)  # added in squares
        wider.append((loss - below, loss + math.hypot(high - loss, noise * loss)))
    return tuple(wider)


@dataclass(frozen=True)
class _Problem:
    """FLOPs over `middle` and losses of the points (N,), and a c that is given or None."""

    flops: Array
    losses: Array
    middle: float
    given_c: float | None

    @classmethod
    def of(cls, points: Sequence[Point], given_c: float | None) -> "_Problem":
        flops_N = np.array([point.flops for point in points])
        middle = float(np.exp(np.log(flops_N).mean()))
        losses_N = np.array([point.loss for point in points])
        return cls(flops_N / middle, losses_N, middle, given_c)

    def best(self) -> _Laws:
        low, high = math.log(_EXPONENTS[0]), math.log(_EXPONENTS[1])
        for _ in range(_ROUNDS):
            b_B = np.exp(np.linspace(low, high, _GRID))
            laws = self.laws(b_B)
            at = int(np.argmin(laws.squares))
            step = (high - low) / (_GRID - 1)
            low, high = math.log(b_B[at]) - 2 * step, math.log(b_B[at]) + 2 * step
        return laws.only(np.arange(_GRID) == at)

    def region(self, best: _Laws, freedom: int) -> tuple[_Laws, Array]:
        """Laws within the threshold, and what is left of it at each of them."""
        limit = float(best.squares[0]) * (1 + _quantile(freedom) ** 2 / freedom)
        grid_B = np.geomspace(_EXPONENTS[0], _EXPONENTS[1], 4 * _GRID)
        near_B = best.b * np.exp(np.linspace(-0.05, 0.05, 4 * _GRID))
        laws = self.laws(np.sort(np.concatenate([grid_B, near_B, best.b])))
        inside = laws.squares <= limit * (1 + 1e-9)
        inside_laws = laws.only(inside)
        return inside_laws, np.maximum(limit - inside_laws.squares, 0.0)

    def scale(self, log_of_share: float) -> float:
        """a for its logarithm relative to `middle`; infinite beyond what a float holds."""
        return float(np.exp(min(log_of_share + math.log(self.middle), 700.0)))

    def laws(self, b_B: Array) -> _Laws:
        """The best k, and c unless given, of every b; c at least 0."""
        u_N = 1 / self.losses
        x_BN = self.flops ** -b_B[:, None] * u_N
        if self.given_c is not None:
            return _with_c(b_B, x_BN, u_N, self.given_c)
        xx, xu, uu = (x_BN**2).sum(1), x_BN @ u_N, float(u_N @ u_N)
        x, u = x_BN.sum(1), float(u_N.sum())
        determinant = xx * uu - xu**2
        k, c = (uu * x - xu * u) / determinant, (xx * u - xu * x) / determinant
        squares = ((1 - k[:, None] * x_BN - c[:, None] * u_N) ** 2).sum(1)
        free = _Laws(
            b=b_B,
            k=k,
            c=c,
            squares=squares,
            var_k=uu / determinant,
            var_c=xx / determinant,
            cov=-xu / determinant,
        )
        edge = _with_c(b_B, x_BN, u_N, 0.0)
        parts = {
            field.name: np.where(c < 0, getattr(edge, field.name), getattr(free, field.name))
            for field in fields(_Laws)
        }
        return _Laws(**parts)


def _with_c(b_B: Array, x_BN: Array, u_N: Array, c: float) -> _Laws:
    y_N = 1 - c * u_N
    xx = (x_BN**2).sum(1)
    k = x_BN @ y_N / xx
    squares = ((y_N - k[:, None] * x_BN) ** 2).sum(1)
    nothing = np.zeros_like(b_B)
    return _Laws(
        b=b_B, k=k, c=nothing + c, squares=squares, var_k=1 / xx, var_c=nothing, cov=nothing
    )


def _quantile(freedom: int) -> float:
    """Of Student's t, two-sided."""
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def _check(points: Sequence[Point], free: int, irreducible: float | None) -> None:
    different = len({point.flops for point in points})
    if len(points) <= free or different < free:
        hint = "" if irreducible is not None else ", or 3 with --irreducible, which fixes c"
        raise InputError(
            f"{pluralise(len(points), 'point')} at {different} different FLOPs: to fit {free} "
            f"parameters with uncertainties, give at least {free + 1} points at {free} different "
            f"FLOPs{hint}"
        )
    for point in points:
        if not (point.flops > 0 and point.loss > 0 and math.isfinite(point.flops * point.loss)):
            raise InputError(
                f"{point.name}: FLOPs {point.flops} and loss {point.loss}: expected both above 0"
            )
    least = min(point.loss for point in points)
    if irreducible is not None and not 0 <= irreducible < least:
        raise InputError(
            f"--irreducible {irreducible}: expected at least 0 and less than every loss ({least})"
        )
    if np.corrcoef(np.log([p.flops for p in points]), [p.loss for p in points])[0, 1] >= 0:
        raise InputError("losses do not fall as FLOPs grow: there is no power law to fit")
