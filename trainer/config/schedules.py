"""Section `optimizer.learning_rate`: schedulers that follow one another.

Names and keys are those of Model Zoo; the formulas are those of `wafer_backend.optim`, in
`closed_forms`. t is the step of the scheduler itself, from 0. A scheduler with `total_iters` can be
followed by another; the others have no end.
"""

import itertools
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.core.config_model import FrozenModel
from trainer.config.fields import Count, Rate

Milestones = tuple[Annotated[int, Field(ge=0)], ...]


class Linear(FrozenModel):
    """Learning rate on a straight line over `total_iters` steps."""

    scheduler: Literal["Linear"]
    initial_learning_rate: Rate
    end_learning_rate: Rate
    total_iters: Count = Field(description="length in steps")
    cycle: bool = Field(False, description="start anew from a longer line when it is over")


class CosineDecay(FrozenModel):
    """Learning rate on half a cosine over `total_iters` steps."""

    scheduler: Literal["CosineDecay"]
    initial_learning_rate: Rate
    end_learning_rate: Rate
    total_iters: Count = Field(description="length in steps")


class Constant(FrozenModel):
    """One learning rate for `total_iters` steps."""

    scheduler: Literal["Constant"]
    learning_rate: Rate
    total_iters: Count = Field(description="length in steps")


class Polynomial(FrozenModel):
    """Learning rate along a power of the share of `total_iters` that is left."""

    scheduler: Literal["Polynomial"]
    initial_learning_rate: Rate
    end_learning_rate: Rate
    total_iters: Count = Field(description="length in steps")
    power: float = Field(1.0, gt=0, description="of the share of steps that is left")
    cycle: bool = Field(False, description="start anew from a longer decay when it is over")


class Exponential(FrozenModel):
    """Learning rate times `decay_rate` every `total_iters` steps."""

    scheduler: Literal["Exponential"]
    initial_learning_rate: Rate
    total_iters: Count = Field(description="steps of one decay, and length in steps")
    decay_rate: float = Field(gt=0, description="factor of one decay")
    staircase: bool = Field(False, description="only at multiples of total_iters")


class InverseExponentialTimeDecay(FrozenModel):
    """Learning rate over 1 + decay_rate * t ** step_exponent / total_iters."""

    scheduler: Literal["InverseExponentialTimeDecay"]
    initial_learning_rate: Rate
    step_exponent: Count = Field(description="power of the step")
    total_iters: Count = Field(description="steps of one decay, and length in steps")
    decay_rate: float = Field(ge=0, description="of the decay")
    staircase: bool = Field(False, description="round down what decay_rate is multiplied with")


class InverseSquareRootDecay(FrozenModel):
    """Learning rate times scale / sqrt(max(t, warmup_steps))."""

    scheduler: Literal["InverseSquareRootDecay"]
    initial_learning_rate: Rate = 1.0
    scale: float = Field(1.0, gt=0, description="factor on the learning rate")
    warmup_steps: float = Field(1.0, gt=0, description="steps with one learning rate")


class PiecewiseConstant(FrozenModel):
    """A learning rate for each stretch between milestones."""

    scheduler: Literal["PiecewiseConstant"]
    learning_rates: tuple[Rate, ...] = Field(description="one more than milestones")
    milestones: Milestones = Field(description="steps with which the next one begins, ascending")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if len(self.learning_rates) != len(self.milestones) + 1:
            raise ValueError(
                f"{len(self.learning_rates)} learning_rates for {len(self.milestones)} "
                "milestones; expected one more"
            )
        _check_ascending(self.milestones)
        return self


class MultiStep(FrozenModel):
    """Learning rate times `gamma` at every milestone."""

    scheduler: Literal["MultiStep"]
    initial_learning_rate: Rate
    gamma: float = Field(gt=0, description="factor of one milestone")
    milestones: Milestones = Field(description="steps, ascending")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        _check_ascending(self.milestones)
        return self


class Step(FrozenModel):
    """Learning rate times `gamma` every `step_size` steps."""

    scheduler: Literal["Step"]
    initial_learning_rate: Rate
    step_size: Count = Field(description="steps between two changes")
    gamma: float = Field(gt=0, description="factor of one change")


class CosineAnnealing(FrozenModel):
    """Learning rate on a cosine with half a period of `T_max` steps."""

    scheduler: Literal["CosineAnnealing"]
    initial_learning_rate: Rate
    T_max: Count = Field(description="steps from the largest to the least")
    eta_min: Rate = Field(0.0, description="least learning rate")


class CosineAnnealingWarmRestarts(FrozenModel):
    """Learning rate on half a cosine, again and again."""

    scheduler: Literal["CosineAnnealingWarmRestarts"]
    initial_learning_rate: Rate
    T_0: Count = Field(description="steps of the first one")
    T_mult: Count = Field(1, description="how many times as long each one is as that before it")
    eta_min: Rate = Field(0.0, description="least learning rate")


class Cyclic(FrozenModel):
    """Learning rate on a triangle wave (arXiv 1506.01186)."""

    scheduler: Literal["Cyclic"]
    base_lr: Rate = Field(description="least learning rate")
    max_lr: Rate = Field(description="largest learning rate of the first cycle")
    step_size_up: Count = Field(2000, description="steps on the way up")
    step_size_down: Count | None = Field(None, description="on the way down; null: step_size_up")
    mode: Literal["triangular", "triangular2", "exp_range"] = Field(
        "triangular", description="triangular2: half as high every cycle; exp_range: gamma ** x"
    )
    gamma: float = Field(1.0, gt=0, description="of exp_range")
    scale_mode: Literal["cycle", "iterations"] = Field(
        "cycle", description="x: the number of the cycle, or the step"
    )


class OneCycle(FrozenModel):
    """Learning rate up to `max_lr` once, then far down (arXiv 1708.07120)."""

    scheduler: Literal["OneCycle"]
    initial_learning_rate: Rate
    max_lr: Rate = Field(description="largest learning rate")
    total_steps: Count = Field(1000, description="steps until the least")
    pct_start: float = Field(0.3, ge=0, le=1, description="of the steps, on the way up")
    final_div_factor: float = Field(1e4, gt=0, description="initial over least learning rate")
    three_phase: bool = Field(False, description="down to the initial one as fast as up")
    anneal_strategy: Literal["cos", "linear"] = Field("cos", description="half a cosine, or a line")


Ending = Linear | CosineDecay | Constant | Polynomial | Exponential | InverseExponentialTimeDecay
"""Schedulers with `total_iters`, which others can follow."""

Scheduler = Annotated[
    Ending
    | InverseSquareRootDecay
    | PiecewiseConstant
    | MultiStep
    | Step
    | CosineAnnealing
    | CosineAnnealingWarmRestarts
    | Cyclic
    | OneCycle,
    Field(discriminator="scheduler"),
]

RATES = (
    "learning_rate", "initial_learning_rate", "end_learning_rate", "learning_rates", "base_lr",
    "max_lr", "eta_min",
)  # fmt: skip
"""Keys of schedulers that are learning rates."""


def _check_ascending(milestones: Milestones) -> None:
    if any(b <= a for a, b in itertools.pairwise(milestones)):
        raise ValueError(f"milestones: expected steps that ascend, not {list(milestones)}")
