"""Section `optimizer`: a model for every `optimizer_type`, each with its own keys.

Names, keys and defaults are those of the classes of `wafer_backend.optim` (docs/optimizers.md),
except for AdamW, whose defaults are the paper's (Cerebras-GPT section 2.3).
"""

import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import (
    Discriminator,
    Field,
    PlainValidator,
    SerializeAsAny,
    Tag,
    TypeAdapter,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)
from torch import nn

from pipeline.config.model import FrozenModel
from trainer.config.model import Rate
from trainer.config.schedules import Scheduler, read_settings
from wafer_backend.errors import BackendConfigError
from wafer_backend.optim import Optimizer as BackendOptimizer
from wafer_backend.optim.registry import OPTIMIZERS, Named, find_optimizer

ADJUSTABLE = ("decoder_kernel",)
"""Groups of `adjust_learning_rate`: the matrices inside blocks."""


def _kind_of_rate(value: Any) -> str:
    return "schedulers" if isinstance(value, list | tuple) else "number"


class OptimizerConfig(FrozenModel):
    """Section `optimizer`: what every optimizer has. Nothing decays 1-D parameters."""

    optimizer_type: str

    named: ClassVar[Named[type[BackendOptimizer]]]

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

    def own_settings(self) -> dict[str, Any]:
        """The arguments of the optimizer's class."""
        return self.model_dump(exclude=set(OptimizerConfig.model_fields))

    def build(self, parameters: Iterable[nn.Parameter]) -> BackendOptimizer:
        """The optimizer over parameters that all have these settings; its learning rate is 0."""
        kind: Callable[..., BackendOptimizer] = self.named.kind
        return kind(parameters, lr=0.0, **self.own_settings())

    @model_validator(mode="after")
    def _check_by_its_class(self) -> Self:
        try:
            self.build([nn.Parameter(torch.zeros(1, 1))])
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(f"{self.named.name} fails: {type(error).__name__}: {error}") from error
        return self


def find_optimizer_config(name: str) -> type[OptimizerConfig]:
    """The model of an optimizer by its name in any case. Raises BackendConfigError."""
    named = find_optimizer(name)
    if named.kind.not_for_train:
        raise BackendConfigError(f"{named.name} is not supported: {named.kind.not_for_train}")
    return _make_config(named)


@functools.cache
def _make_config(named: Named[type[BackendOptimizer]]) -> type[OptimizerConfig]:
    fields: dict[str, Any] = {"optimizer_type": (Literal[named.name], named.name)}
    for key, setting in named.settings.items():
        default = ... if setting.default is setting.empty else setting.default
        fields[key] = (setting.annotation, named.kind.train_defaults.get(key, default))
    doc = (named.kind.__doc__ or "").partition("\n\n")[0]
    made = create_model(
        f"{named.name}Config",
        __base__=OptimizerConfig,
        __doc__=f"{doc} 1-D parameters do not decay." if "weight_decay" in fields else doc,
        **fields,
    )
    made.named = named
    return made


OPTIMIZER_CONFIGS = {
    name: _make_config(OPTIMIZERS[name])
    for name in ("AdamW", *(name for name in OPTIMIZERS if name != "AdamW"))
    if not OPTIMIZERS[name].kind.not_for_train
}
"""The models of the built-in optimizers."""


def _validate(value: Any, info: ValidationInfo) -> OptimizerConfig:
    if isinstance(value, dict):
        value = {"optimizer_type": "AdamW", **value}
    config = read_settings(find_optimizer_config, "optimizer_type", value, info)
    if not isinstance(config, OptimizerConfig):
        raise ValueError("expected a mapping")
    return config


if TYPE_CHECKING:
    Optimizer = OptimizerConfig
else:
    Optimizer = Annotated[
        functools.reduce(operator.or_, OPTIMIZER_CONFIGS.values()),
        PlainValidator(_validate),
        SerializeAsAny(),
    ]
"""Any optimizer by `optimizer_type`, built in or of a package; AdamW where it is not given."""

ANY_OPTIMIZER: TypeAdapter[Optimizer] = TypeAdapter(Optimizer)
