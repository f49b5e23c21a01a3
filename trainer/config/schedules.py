"""Section `optimizer.learning_rate`: schedulers that follow one another.

Names and keys are those of Model Zoo; the formulas are those of `wafer_backend.optim`, in
`closed_forms`. t is the step of the scheduler itself, from 0. A scheduler with `total_iters` can be
followed by another; the others have no end.
"""

import itertools
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.config.model import FrozenModel
from trainer.config.model import Count, Rate

Milestones = tuple[Annotated[int, Field(ge=0)], ...]


class LinearScheduler(FrozenModel):
    """Learning rate on a straight line over `total_iters` steps."""

    scheduler: Literal["Linear"]
    initial_learning_rate: Rate
    end_learning_rate: Rate
    total_iters: Count = Field(description="length in steps")
    cycle: bool = Field(False, description="start again with a longer line at the end")


class CosineDecayScheduler(FrozenModel):
    """Learning rate on half a cosine over `total_iters` steps."""

    scheduler: Literal["CosineDecay"]
    initial_learning_rate: Rate
    end_learning_rate: Rate
    total_iters: Count = Field(description="length in steps")


class ConstantScheduler(FrozenModel):
    """One learning rate for `total_iters` steps."""

    scheduler: Literal["Constant"]
    learning_rate: Rate
    total_iters: Count = Field(description="length in steps")


class PolynomialScheduler(FrozenModel):
    """Learning rate along a power of the share of `total_iters` that is left."""

    scheduler: Literal["Polynomial"]
    initial_learning_rate: Rate
    end_learning_rate: Rate
    total_iters: Count = Field(description="length in steps")
    power: float = Field(1.0, gt=0, description="exponent of the share of steps that is left")
    cycle: bool = Field(False, description="start again with a longer decay at the end")


class ExponentialScheduler(FrozenModel):
    """Learning rate times `decay_rate` every `total_iters` steps."""

    scheduler: Literal["Exponential"]
    initial_learning_rate: Rate
    total_iters: Count = Field(description="steps per decay, and length in steps")
    decay_rate: float = Field(gt=0, description="factor per decay")
    staircase: bool = Field(False, description="change only at multiples of total_iters")


class InverseExponentialTimeDecayScheduler(FrozenModel):
    """Learning rate over 1 + decay_rate * t ** step_exponent / total_iters."""

    scheduler: Literal["InverseExponentialTimeDecay"]
    initial_learning_rate: Rate
    step_exponent: Count = Field(description="exponent of the step")
    total_iters: Count = Field(description="steps per decay, and length in steps")
    decay_rate: float = Field(ge=0, description="rate of the decay")
    staircase: bool = Field(
        False, description="round down the number that decay_rate is multiplied with"
    )


class InverseSquareRootDecayScheduler(FrozenModel):
    """Learning rate times scale / sqrt(max(t, warmup_steps))."""

    scheduler: Literal["InverseSquareRootDecay"]
    initial_learning_rate: Rate = 1.0
    scale: float = Field(1.0, gt=0, description="factor for the learning rate")
    warmup_steps: float = Field(1.0, gt=0, description="steps with a constant learning rate")


class PiecewiseConstantScheduler(FrozenModel):
    """A learning rate for each stretch between milestones."""

    scheduler: Literal["PiecewiseConstant"]
    learning_rates: tuple[Rate, ...] = Field(description="learning rates, one more than milestones")
    milestones: Milestones = Field(
        description="first step of the second and of each later learning rate, ascending"
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if len(self.learning_rates) != len(self.milestones) + 1:
            raise ValueError(
                f"{len(self.learning_rates)} learning_rates for {len(self.milestones)} "
                "milestones; expected one more"
            )
        _check_ascending(self.milestones)
        return self


class MultiStepScheduler(FrozenModel):
    """Learning rate times `gamma` at every milestone."""

    scheduler: Literal["MultiStep"]
    initial_learning_rate: Rate
    gamma: float = Field(gt=0, description="factor per milestone")
    milestones: Milestones = Field(description="steps, ascending")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        _check_ascending(self.milestones)
        return self


class StepScheduler(FrozenModel):
    """Learning rate times `gamma` every `step_size` steps."""

    scheduler: Literal["Step"]
    initial_learning_rate: Rate
    step_size: Count = Field(description="steps between changes")
    gamma: float = Field(gt=0, description="factor per change")


class CosineAnnealingScheduler(FrozenModel):
    """Learning rate on a cosine with half a period of `T_max` steps."""

    scheduler: Literal["CosineAnnealing"]
    initial_learning_rate: Rate
    T_max: Count = Field(description="steps from the largest to the smallest learning rate")
    eta_min: Rate = Field(0.0, description="smallest learning rate")


class CosineAnnealingWarmRestartsScheduler(FrozenModel):
    """Learning rate on half a cosine, again and again."""

    scheduler: Literal["CosineAnnealingWarmRestarts"]
    initial_learning_rate: Rate
    T_0: Count = Field(description="steps of the first half cosine")
    T_mult: Count = Field(
        1, description="how many times as long each half cosine is as the one before"
    )
    eta_min: Rate = Field(0.0, description="smallest learning rate")


class CyclicScheduler(FrozenModel):
    """Learning rate on a triangle wave (arXiv 1506.01186)."""

    scheduler: Literal["Cyclic"]
    base_lr: Rate = Field(description="smallest learning rate")
    max_lr: Rate = Field(description="largest learning rate of the first cycle")
    step_size_up: Count = Field(2000, description="steps of the rise")
    step_size_down: Count | None = Field(None, description="steps of the fall; null: step_size_up")
    mode: Literal["triangular", "triangular2", "exp_range"] = Field(
        "triangular", description="triangular2: half as high every cycle; exp_range: gamma ** x"
    )
    gamma: float = Field(1.0, gt=0, description="base of the power in exp_range")
    scale_mode: Literal["cycle", "iterations"] = Field(
        "cycle", description="x of exp_range: the number of the cycle, or of the step"
    )


class OneCycleScheduler(FrozenModel):
    """Learning rate up to `max_lr` once, then far down (arXiv 1708.07120)."""

    scheduler: Literal["OneCycle"]
    initial_learning_rate: Rate
    max_lr: Rate = Field(description="largest learning rate")
    total_steps: Count = Field(1000, description="steps until the smallest learning rate")
    pct_start: float = Field(0.3, ge=0, le=1, description="share of the steps in the rise")
    final_div_factor: float = Field(
        1e4, gt=0, description="initial learning rate divided by the smallest"
    )
    three_phase: bool = Field(
        False,
        description="fall to the initial learning rate in as many steps as the rise, then to the "
        "smallest",
    )
    anneal_strategy: Literal["cos", "linear"] = Field(
        "cos", description="shape: half a cosine, or a line"
    )


Ending = (
    LinearScheduler
    | CosineDecayScheduler
    | ConstantScheduler
    | PolynomialScheduler
    | ExponentialScheduler
    | InverseExponentialTimeDecayScheduler
)
"""Schedulers with `total_iters`, which others can follow."""

Scheduler = Annotated[
    Ending
    | InverseSquareRootDecayScheduler
    | PiecewiseConstantScheduler
    | MultiStepScheduler
    | StepScheduler
    | CosineAnnealingScheduler
    | CosineAnnealingWarmRestartsScheduler
    | CyclicScheduler
    | OneCycleScheduler,
    Field(discriminator="scheduler"),
]

RATES = (
    "learning_rate",
    "initial_learning_rate",
    "end_learning_rate",
    "learning_rates",
    "base_lr",
    "max_lr",
    "eta_min",
)
"""Keys of schedulers that are learning rates."""


def _check_ascending(milestones: Milestones) -> None:
    if any(b <= a for a, b in itertools.pairwise(milestones)):
        raise ValueError(f"milestones: expected ascending steps, not {list(milestones)}")
