"""Section `optimizer`: one model for every `optimizer_type`, each with its own keys.

Names, keys and defaults are those of `wafer_backend.optim` (docs/optimizers.md), but for AdamW,
whose defaults are the paper's (Cerebras-GPT section 2.3).
"""

import math
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, TypeAdapter, ValidationInfo, field_validator

from pipeline.config.model import FrozenModel
from trainer.config.model import Probability, Rate
from trainer.config.schedules import Scheduler

ADJUSTABLE = ("decoder_kernel",)
"""Groups of `adjust_learning_rate`: the matrices inside blocks."""

_COUPLED = "this times the weight is added to the gradient"
_DECOUPLED = "decoupled: a step shrinks each weight by this times the learning rate"
_EPS = "added to the square root of the second moment"
_BETAS = "decay of the first and the second moment"

Betas = tuple[Probability, Probability]


def _kind_of_rate(value: Any) -> str:
    return "schedulers" if isinstance(value, list | tuple) else "number"


class OptimizerConfig(FrozenModel):
    """Section `optimizer`: what every optimizer has. Nothing decays 1-D parameters."""

    optimizer_type: str
    max_gradient_norm: float | None = Field(
        1.0, gt=0, description="limit of the global 2-norm of the gradient; null: none"
    )
    learning_rate: Annotated[
        Annotated[Rate, Tag("number")] | Annotated[tuple[Scheduler, ...], Tag("schedulers")],
        Discriminator(_kind_of_rate),
    ] = Field(
        description="a number, or a list of schedulers, one after the other; the last one "
        "continues "
        "by its formula, and keeps its last value if it has an end"
    )
    adjust_learning_rate: dict[str, float] = Field(
        {},
        description="factor for the learning rate of a group of parameters; the one group is "
        "decoder_kernel, the matrices inside blocks; with model.mup_base_hidden_size, its default "
        "is "
        "1 / m_width",
    )
    loss_scaling_factor: float | Literal["dynamic"] = Field(
        1.0,
        description="loss scale for float16, a power of two; dynamic: starts at 32768, is halved "
        "on "
        "overflow (that step is skipped) and doubled after 2000 finite steps",
    )

    @field_validator("loss_scaling_factor", mode="before")
    @classmethod
    def _power_of_two(cls, value: Any) -> Any:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value != "dynamic" and not (number and value > 0 and math.frexp(value)[0] == 0.5):
            raise ValueError(
                "expected dynamic or a power of two (any other number would round gradients)"
            )
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


class AdamWConfig(OptimizerConfig):
    """Section `optimizer`: AdamW with decoupled decay (none on 1-D parameters)."""

    optimizer_type: Literal["AdamW"] = "AdamW"
    betas: Betas = Field((0.9, 0.95), description=_BETAS)
    eps: float = Field(1e-8, gt=0, description=_EPS)
    weight_decay: float = Field(0.1, ge=0, description=_DECOUPLED)


class AdamConfig(OptimizerConfig):
    """Section `optimizer` of Adam."""

    optimizer_type: Literal["Adam"] = "Adam"
    betas: Betas = Field((0.9, 0.999), description=_BETAS)
    eps: float = Field(1e-6, gt=0, description=_EPS)
    weight_decay: float = Field(0.0, ge=0, description=_COUPLED)


class AdamaxConfig(OptimizerConfig):
    """Section `optimizer` of Adamax."""

    optimizer_type: Literal["Adamax"] = "Adamax"
    betas: Betas = Field(
        (0.9, 0.999), description="decay of the first moment and of the largest gradient"
    )
    eps: float = Field(1e-6, gt=0, description="added to the absolute value of the gradient")
    weight_decay: float = Field(0.0, ge=0, description=_COUPLED)


class NAdamConfig(OptimizerConfig):
    """Section `optimizer` of NAdam."""

    optimizer_type: Literal["NAdam"] = "NAdam"
    betas: Betas = Field((0.9, 0.999), description=_BETAS)
    eps: float = Field(1e-8, gt=0, description=_EPS)
    weight_decay: float = Field(0.0, ge=0, description=_COUPLED)
    momentum_decay: float = Field(
        4e-3, ge=0, description="decay of the Nesterov momentum, per step"
    )


class RAdamConfig(OptimizerConfig):
    """Section `optimizer` of RAdam."""

    optimizer_type: Literal["RAdam"] = "RAdam"
    betas: Betas = Field((0.9, 0.999), description=_BETAS)
    eps: float = Field(1e-6, gt=0, description=_EPS)
    weight_decay: float = Field(0.0, ge=0, description=_COUPLED)


class LambConfig(OptimizerConfig):
    """Section `optimizer` of LAMB, without bias correction."""

    optimizer_type: Literal["Lamb"] = "Lamb"
    betas: Betas = Field((0.9, 0.999), description=_BETAS)
    eps: float = Field(1e-6, gt=0, description=_EPS)
    weight_decay: float = Field(
        0.0, ge=0, description="this times the weight is added to the update"
    )
    adam: bool = Field(False, description="do not scale updates by the ratio of norms")


class LionConfig(OptimizerConfig):
    """Section `optimizer` of Lion."""

    optimizer_type: Literal["Lion"] = "Lion"
    betas: Betas = Field(
        (0.9, 0.99), description="decay in the direction of an update, and decay of the momentum"
    )
    weight_decay: float = Field(0.0, ge=0, description=_DECOUPLED)


class SGDConfig(OptimizerConfig):
    """Section `optimizer` of SGD."""

    optimizer_type: Literal["SGD"] = "SGD"
    momentum: float = Field(0.0, ge=0, description="momentum of the gradient; 0: none")
    dampening: float = Field(
        0.0, description="lowers what a gradient adds to the momentum; 0: not at all"
    )
    nesterov: bool = Field(
        False, description="Nesterov momentum; needs momentum, and a dampening of 0"
    )
    weight_decay: float = Field(0.0, ge=0, description=_COUPLED)

    @field_validator("nesterov")
    @classmethod
    def _looks_ahead(cls, value: bool, info: ValidationInfo) -> bool:
        if value and (not info.data.get("momentum") or info.data.get("dampening")):
            raise ValueError("expected false, or a momentum above 0 and a dampening of 0")
        return value


class RMSpropConfig(OptimizerConfig):
    """Section `optimizer` of RMSprop."""

    optimizer_type: Literal["RMSprop"] = "RMSprop"
    alpha: Probability = Field(0.99, description="decay of the mean of squared gradients")
    eps: float = Field(
        1e-8, gt=0, description="added to the square root of the mean of squared gradients"
    )
    momentum: float = Field(0.0, ge=0, description="momentum of the update; 0: none")
    centered: bool = Field(
        False, description="divide by the standard deviation of the gradient instead"
    )
    weight_decay: float = Field(0.0, ge=0, description=_COUPLED)


class RpropConfig(OptimizerConfig):
    """Section `optimizer` of Rprop, which has no decay."""

    optimizer_type: Literal["Rprop"] = "Rprop"
    etas: tuple[float, float] = Field(
        (0.5, 1.2),
        description="factor for a step size when the sign of the gradient changes, and when it "
        "does not",
    )
    step_sizes: tuple[float, float] = Field(
        (1e-6, 50.0), description="smallest and largest step size"
    )

    @field_validator("etas")
    @classmethod
    def _shrinks_and_grows(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0 < value[0] < 1 < value[1]:
            raise ValueError("expected one factor between 0 and 1, and one above 1")
        return value


class AdagradConfig(OptimizerConfig):
    """Section `optimizer` of Adagrad."""

    optimizer_type: Literal["Adagrad"] = "Adagrad"
    lr_decay: float = Field(0.0, ge=0, description="decay of the learning rate, per step")
    initial_accumulator_value: float = Field(
        0.0, ge=0, description="initial sum of squared gradients"
    )
    eps: float = Field(
        1e-6, gt=0, description="added to the square root of the sum of squared gradients"
    )
    weight_decay: float = Field(0.0, ge=0, description=_COUPLED)


class AdadeltaConfig(OptimizerConfig):
    """Section `optimizer` of Adadelta."""

    optimizer_type: Literal["Adadelta"] = "Adadelta"
    rho: Probability = Field(
        0.9, description="decay of the means of squared gradients and squared updates"
    )
    eps: float = Field(
        1e-6, gt=0, description="added to the means of squared gradients and squared updates"
    )
    weight_decay: float = Field(0.0, ge=0, description=_COUPLED)


class AdafactorConfig(OptimizerConfig):
    """Section `optimizer` of Adafactor, as PyTorch has it."""

    optimizer_type: Literal["Adafactor"] = "Adafactor"
    eps: tuple[Rate | None, Rate] = Field(
        (1e-30, 1e-3),
        description="lower limits of squared gradients, and of the size of a parameter",
    )
    clip_threshold: float = Field(1.0, ge=1, description="largest root mean square of an update")
    decay_rate: float = Field(-0.8, le=0, description="exponent in the decay of the second moment")
    weight_decay: float = Field(0.0, ge=0, description=_DECOUPLED)
    beta1: Literal[None] = Field(None, description="a first moment is not supported")
    scale_parameter: Literal[True] = True
    relative_step: Literal[False] = False
    warmup_init: Literal[False] = False


class ASGDConfig(OptimizerConfig):
    """Section `optimizer` of averaged SGD; weights are those of SGD, the average is state."""

    optimizer_type: Literal["ASGD"] = "ASGD"
    lambd: float = Field(1e-4, ge=0, description="decay of the weights")
    alpha: float = Field(0.75, ge=0, description="exponent in the decay of the learning rate")
    t0: float = Field(1e6, ge=0, description="step at which averaging starts")
    weight_decay: float = Field(0.0, ge=0, description=_COUPLED)


_ALL: tuple[type[OptimizerConfig], ...] = (
    AdamWConfig, AdamConfig, AdamaxConfig, NAdamConfig, RAdamConfig, LambConfig, LionConfig,
    SGDConfig, RMSpropConfig, RpropConfig, AdagradConfig, AdadeltaConfig, AdafactorConfig,
    ASGDConfig,
)  # fmt: skip
OPTIMIZERS = {str(kind.model_fields["optimizer_type"].default): kind for kind in _ALL}


def _name(value: Any) -> Any:
    if isinstance(value, dict):
        return value.get("optimizer_type", "AdamW")
    return getattr(value, "optimizer_type", None)


Optimizer = Annotated[
    Annotated[AdamWConfig, Tag("AdamW")]
    | Annotated[AdamConfig, Tag("Adam")]
    | Annotated[AdamaxConfig, Tag("Adamax")]
    | Annotated[NAdamConfig, Tag("NAdam")]
    | Annotated[RAdamConfig, Tag("RAdam")]
    | Annotated[LambConfig, Tag("Lamb")]
    | Annotated[LionConfig, Tag("Lion")]
    | Annotated[SGDConfig, Tag("SGD")]
    | Annotated[RMSpropConfig, Tag("RMSprop")]
    | Annotated[RpropConfig, Tag("Rprop")]
    | Annotated[AdagradConfig, Tag("Adagrad")]
    | Annotated[AdadeltaConfig, Tag("Adadelta")]
    | Annotated[AdafactorConfig, Tag("Adafactor")]
    | Annotated[ASGDConfig, Tag("ASGD")],
    Discriminator(
        _name,
        custom_error_type="optimizer_type",
        custom_error_message=f"expected an optimizer_type of {', '.join(OPTIMIZERS)}",
    ),
]
"""Any of them, by `optimizer_type`; AdamW where it is not given."""

ANY_OPTIMIZER: TypeAdapter[Optimizer] = TypeAdapter(Optimizer)


def find_optimizer(name: object) -> type[OptimizerConfig] | None:
    """The model of an optimizer by its name in any case; None where there is none.

    >>> find_optimizer("adamw") is AdamWConfig, find_optimizer("Sophia")
    (True, None)
    """
    return next((k for n, k in OPTIMIZERS.items() if n.lower() == str(name).lower()), None)
