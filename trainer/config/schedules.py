"""Section `optimizer.learning_rate`: schedulers that follow one another."""

from typing import Annotated, Literal

from pydantic import Field

from pipeline.core.config_model import FrozenModel
from trainer.config.fields import Count, Rate


class Linear(FrozenModel):
    """Learning rate on a straight line over `total_iters` steps."""

    scheduler: Literal["Linear"]
    initial_learning_rate: Rate
    end_learning_rate: Rate
    total_iters: Count = Field(description="length in steps")


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


Scheduler = Annotated[Linear | CosineDecay | Constant, Field(discriminator="scheduler")]
