"""Section `optimizer`."""

import math
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator

from pipeline.core.config_model import FrozenModel
from trainer.config.fields import Rate
from trainer.config.schedules import Scheduler

ADJUSTABLE = ("decoder_kernel",)
"""Groups of `adjust_learning_rate`: the matrices inside blocks."""


def _kind_of_rate(value: Any) -> str:
    return "schedulers" if isinstance(value, list | tuple) else "number"


class OptimizerConfig(FrozenModel):
    """Section `optimizer`: AdamW with decoupled decay (none on 1-D parameters)."""

    optimizer_type: Literal["AdamW"] = "AdamW"
    betas: tuple[float, float] = Field((0.9, 0.95), description="decay of the two moments")
    eps: float = Field(1e-8, gt=0, description="added to the square root of the second moment")
    weight_decay: float = Field(0.1, ge=0, description="decoupled decay per unit of learning rate")
    max_gradient_norm: float | None = Field(
        1.0, gt=0, description="global 2-norm limit; null: none"
    )
    learning_rate: Annotated[
        Annotated[Rate, Tag("number")] | Annotated[tuple[Scheduler, ...], Tag("schedulers")],
        Discriminator(_kind_of_rate),
    ] = Field(description="a number, or schedulers that follow one another; the last value stays")
    adjust_learning_rate: dict[str, float] = Field(
        {},
        description="factor on the learning rate of a group of parameters: decoder_kernel, the "
        "matrices inside blocks; with model.mup_base_hidden_size, default 1 / m_width",
    )
    loss_scaling_factor: float | Literal["dynamic"] = Field(
        1.0,
        description="loss scale of float16, a power of two; dynamic: starts at 32768, halves on "
        "overflow (that step is skipped), doubles after 2000 finite steps",
    )

    @field_validator("loss_scaling_factor", mode="before")
    @classmethod
    def _power_of_two(cls, value: Any) -> Any:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value != "dynamic" and not (number and value > 0 and math.frexp(value)[0] == 0.5):
            raise ValueError("expected dynamic, or a power of two, which divides out exactly")
        return value

    @field_validator("adjust_learning_rate")
    @classmethod
    def _known_groups(cls, value: dict[str, float]) -> dict[str, float]:
        for group, factor in value.items():
            if group not in ADJUSTABLE:
                raise ValueError(f"no group {group!r}; expected one of {', '.join(ADJUSTABLE)}")
            if factor <= 0:
                raise ValueError(f"expected a factor above 0 for {group}")
        return value
