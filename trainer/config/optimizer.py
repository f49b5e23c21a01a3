"""Section `optimizer`: one model for every `optimizer_type`, each with its own keys.

Names, keys and defaults are those of `wafer_backend.optim` (docs/optimizers.md), but for AdamW,
whose defaults are the paper's (Cerebras-GPT section 2.3).
"""

import math
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, TypeAdapter, ValidationInfo, field_validator

from pipeline.core.config_model import FrozenModel
from trainer.config.fields import Probability, Rate
from trainer.config.schedules import Scheduler

ADJUSTABLE = ("decoder_kernel",)
"""Groups of `adjust_learning_rate`: the matrices inside blocks."""

_COUPLED = "times the weight, added to the gradient"
_DECOUPLED = "decoupled decay per unit of learning rate"
_EPS = "added to the square root of the second moment"
_BETAS = "decay of the two moments"

Betas = tuple[Probability, Probability]


def _kind_of_rate(value: Any) -> str:
    return "schedulers" if isinstance(value, list | tuple) else "number"


class OptimizerConfig(FrozenModel):
    """Section `optimizer`: what every optimizer has. Nothing decays 1-D parameters."""

    optimizer_type: str
    max_gradient_norm: float | None = Field(
        1.0, gt=0, description="global 2-norm limit; null: none"
    )
    learning_rate: Annotated[
        Annotated[Rate, Tag("number")] | Annotated[tuple[Scheduler, ...], Tag("schedulers")],
        Discriminator(_kind_of_rate),
    ] = Field(
        description="a number, or schedulers that follow one another; the last goes on as its "
        "formula does, and stays at its end where it has one"
    )
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


class AdamW(OptimizerConfig):
    """Section `optimizer`: AdamW with decoupled decay (none on 1-D parameters)."""

    optimizer_type: Literal["AdamW"] = "AdamW"
    betas: Betas = Field((0.9, 0.95), description=_BETAS)
    eps: float = Field(1e-8, gt=0, description=_EPS)
    weight_decay: float = Field(0.1, ge=0, description=_DECOUPLED)


class Adam(OptimizerConfig):
    """Section `optimizer` of Adam."""

    optimizer_type: Literal["Adam"] = "Adam"
    betas: Betas = Field((0.9, 0.999), description=_BETAS)
    eps: float = Field(1e-6, gt=0, description=_EPS)
    weight_decay: float = Field(0.0, ge=0, description=_COUPLED)


class Adamax(OptimizerConfig):
    """Section `optimizer` of Adamax."""

    optimizer_type: Literal["Adamax"] = "Adamax"
    betas: Betas = Field((0.9, 0.999), description="decay of the moment and of the largest size")
    eps: float = Field(1e-6, gt=0, description="added to the gradient's size")
    weight_decay: float = Field(0.0, ge=0, description=_COUPLED)


class NAdam(OptimizerConfig):
    """Section `optimizer` of NAdam."""

    optimizer_type: Literal["NAdam"] = "NAdam"
    betas: Betas = Field((0.9, 0.999), description=_BETAS)
    eps: float = Field(1e-8, gt=0, description=_EPS)
    weight_decay: float = Field(0.0, ge=0, description=_COUPLED)
    momentum_decay: float = Field(4e-3, ge=0, description="of the Nesterov momentum, per step")


class RAdam(OptimizerConfig):
    """Section `optimizer` of RAdam."""

    optimizer_type: Literal["RAdam"] = "RAdam"
    betas: Betas = Field((0.9, 0.999), description=_BETAS)
    eps: float = Field(1e-6, gt=0, description=_EPS)
    weight_decay: float = Field(0.0, ge=0, description=_COUPLED)


class Lamb(OptimizerConfig):
    """Section `optimizer` of LAMB, without bias correction."""

    optimizer_type: Literal["Lamb"] = "Lamb"
    betas: Betas = Field((0.9, 0.999), description=_BETAS)
    eps: float = Field(1e-6, gt=0, description=_EPS)
    weight_decay: float = Field(0.0, ge=0, description="times the weight, added to the update")
    adam: bool = Field(False, description="leave out the ratio of norms")


class Lion(OptimizerConfig):
    """Section `optimizer` of Lion."""

    optimizer_type: Literal["Lion"] = "Lion"
    betas: Betas = Field((0.9, 0.99), description="of the direction, and of the momentum")
    weight_decay: float = Field(0.0, ge=0, description=_DECOUPLED)


class SGD(OptimizerConfig):
    """Section `optimizer` of SGD."""

    optimizer_type: Literal["SGD"] = "SGD"
    momentum: float = Field(0.0, ge=0, description="of the gradient; 0: none")
    dampening: float = Field(0.0, description="of what the gradient adds to the momentum")
    nesterov: bool = Field(False, description="look ahead; needs momentum and no dampening")
    weight_decay: float = Field(0.0, ge=0, description=_COUPLED)

    @field_validator("nesterov")
    @classmethod
    def _looks_ahead(cls, value: bool, info: ValidationInfo) -> bool:
        if value and (not info.data.get("momentum") or info.data.get("dampening")):
            raise ValueError("expected false, or a momentum above 0 and a dampening of 0")
        return value


class RMSprop(OptimizerConfig):
    """Section `optimizer` of RMSprop."""

    optimizer_type: Literal["RMSprop"] = "RMSprop"
    alpha: Probability = Field(0.99, description="decay of the mean of squares")
    eps: float = Field(1e-8, gt=0, description="added to the root of the mean of squares")
    momentum: float = Field(0.0, ge=0, description="of the update; 0: none")
    centered: bool = Field(False, description="divide by the deviation instead")
    weight_decay: float = Field(0.0, ge=0, description=_COUPLED)


class Rprop(OptimizerConfig):
    """Section `optimizer` of Rprop, which has no decay."""

    optimizer_type: Literal["Rprop"] = "Rprop"
    etas: tuple[float, float] = Field(
        (0.5, 1.2), description="factors of a step size when the sign turns, and when it stays"
    )
    step_sizes: tuple[float, float] = Field((1e-6, 50.0), description="least and largest")

    @field_validator("etas")
    @classmethod
    def _shrinks_and_grows(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0 < value[0] < 1 < value[1]:
            raise ValueError("expected one factor between 0 and 1, and one above 1")
        return value


class Adagrad(OptimizerConfig):
    """Section `optimizer` of Adagrad."""

    optimizer_type: Literal["Adagrad"] = "Adagrad"
    lr_decay: float = Field(0.0, ge=0, description="of the learning rate, per step")
    initial_accumulator_value: float = Field(0.0, ge=0, description="first sum of squares")
    eps: float = Field(1e-6, gt=0, description="added to the root of the sum of squares")
    weight_decay: float = Field(0.0, ge=0, description=_COUPLED)


class Adadelta(OptimizerConfig):
    """Section `optimizer` of Adadelta."""

    optimizer_type: Literal["Adadelta"] = "Adadelta"
    rho: Probability = Field(0.9, description="decay of the means of squares")
    eps: float = Field(1e-6, gt=0, description="added to the means of squares")
    weight_decay: float = Field(0.0, ge=0, description=_COUPLED)


class Adafactor(OptimizerConfig):
    """Section `optimizer` of Adafactor, as PyTorch has it."""

    optimizer_type: Literal["Adafactor"] = "Adafactor"
    eps: tuple[Rate | None, Rate] = Field(
        (1e-30, 1e-3), description="of squared gradients, and of the size of a parameter"
    )
    clip_threshold: float = Field(1.0, ge=1, description="root mean square of an update at most")
    decay_rate: float = Field(-0.8, le=0, description="exponent of the second moment's decay")
    weight_decay: float = Field(0.0, ge=0, description=_DECOUPLED)
    beta1: Literal[None] = Field(None, description="no first moment here")
    scale_parameter: Literal[True] = True
    relative_step: Literal[False] = False
    warmup_init: Literal[False] = False


class ASGD(OptimizerConfig):
    """Section `optimizer` of averaged SGD; weights are those of SGD, the average is state."""

    optimizer_type: Literal["ASGD"] = "ASGD"
    lambd: float = Field(1e-4, ge=0, description="decay term")
    alpha: float = Field(0.75, ge=0, description="power of the learning rate's decay")
    t0: float = Field(1e6, ge=0, description="the average begins there")
    weight_decay: float = Field(0.0, ge=0, description=_COUPLED)


_ALL: tuple[type[OptimizerConfig], ...] = (
    AdamW, Adam, Adamax, NAdam, RAdam, Lamb, Lion, SGD, RMSprop, Rprop, Adagrad, Adadelta,
    Adafactor, ASGD,
)  # fmt: skip
OPTIMIZERS = {kind.__name__: kind for kind in _ALL}


def _name(value: Any) -> Any:
    if isinstance(value, dict):
        return value.get("optimizer_type", AdamW.__name__)
    return getattr(value, "optimizer_type", None)


Optimizer = Annotated[
    Annotated[AdamW, Tag("AdamW")]
    | Annotated[Adam, Tag("Adam")]
    | Annotated[Adamax, Tag("Adamax")]
    | Annotated[NAdam, Tag("NAdam")]
    | Annotated[RAdam, Tag("RAdam")]
    | Annotated[Lamb, Tag("Lamb")]
    | Annotated[Lion, Tag("Lion")]
    | Annotated[SGD, Tag("SGD")]
    | Annotated[RMSprop, Tag("RMSprop")]
    | Annotated[Rprop, Tag("Rprop")]
    | Annotated[Adagrad, Tag("Adagrad")]
    | Annotated[Adadelta, Tag("Adadelta")]
    | Annotated[Adafactor, Tag("Adafactor")]
    | Annotated[ASGD, Tag("ASGD")],
    Discriminator(
        _name,
        custom_error_type="optimizer_type",
        custom_error_message=f"expected an optimizer_type of {', '.join(OPTIMIZERS)}",
    ),
]
"""Any of them, by `optimizer_type`; AdamW where it is not given."""

ANY_OPTIMIZER: TypeAdapter[Optimizer] = TypeAdapter(Optimizer)


def optimizer_named(name: object) -> type[OptimizerConfig] | None:
    """The model of an optimizer by its name in any case; None where there is none.

    >>> optimizer_named("adamw").__name__, optimizer_named("Sophia")
    ('AdamW', None)
    """
    return next((k for n, k in OPTIMIZERS.items() if n.lower() == str(name).lower()), None)
