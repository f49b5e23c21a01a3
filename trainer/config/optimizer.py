"""Section `optimizer`: a model for every `optimizer_type` and for every scheduler of its
`learning_rate`, each with its own keys.

Names, keys and defaults of optimizers are those of the classes of `wafer_backend.optim`
(docs/optimizers.md), except for AdamW, whose defaults are the paper's (Cerebras-GPT section 2.3).
Schedulers follow one another. Their names and keys are those of Model Zoo, their settings those of
the forms in `wafer_backend.optim.closed_forms`. A scheduler with `total_iters` can be followed by
another; the others have no end.
"""

import functools
import json
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_args

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
from wafer_backend.errors import BackendConfigError
from wafer_backend.optim import Optimizer as BackendOptimizer
from wafer_backend.optim.closed_forms import is_scheduled
from wafer_backend.optim.lr_scheduler import FormLR
from wafer_backend.optim.registry import (
    OPTIMIZERS,
    SCHEDULERS,
    RegistryEntry,
    find_optimizer,
    find_scheduler,
)


def _any_of(
    built_in: Mapping[str, type[FrozenModel]],
    base: type[FrozenModel],
    key: str,
    find: Callable[[str], type[FrozenModel]],
    default: str | None = None,
) -> Any:
    """The type of a section whose `key` names its model, one of `built_in` or another that `find`
    knows, all of class `base`; `default`: the name where there is none."""

    def read(value: Any, info: ValidationInfo) -> FrozenModel:
        if isinstance(value, dict):
            named = value if default is None else {key: default, **value}
            try:
                kind = find(str(named.get(key)))
            except BackendConfigError as error:
                raise ValueError(f"{key} {error}") from error
            if info.mode == "json":
                return kind.model_validate_json(json.dumps(named))
            return kind.model_validate(named)
        if not isinstance(value, base):
            with_key = f" with a key {key}" if default is None else ""
            raise ValueError(f"expected a mapping{with_key}")
        return value

    return Annotated[
        functools.reduce(operator.or_, built_in.values()),
        PlainValidator(read),
        SerializeAsAny(),  # type: ignore[type-arg]
    ]


class SchedulerConfig(FrozenModel):
    """One scheduler; each has a model of its own with its settings."""

    scheduler: str

    entry: ClassVar[RegistryEntry[type[FormLR]]]
    rate_keys: ClassVar[tuple[str, ...]]
    """Settings that are learning rates, or lists of them."""

    @property
    def length(self) -> int | None:
        """Steps after which another scheduler can follow; None: it has no end."""
        return getattr(self, "total_iters", None)

    def compute_rate(self, iteration: int) -> float:
        """The learning rate at a 0-based step of this scheduler."""
        form, names = self.entry.kind.form, self.entry.kind.names
        return float(form(iteration, **{key: getattr(self, name) for key, name in names.items()}))

    def list_rates(self) -> Iterator[float]:
        """Every learning rate that the settings name."""
        for key in self.rate_keys:
            value = getattr(self, key)
            yield from value if isinstance(value, tuple) else (value,)

    @model_validator(mode="after")
    def _check_first_rate(self) -> Self:
        try:
            self.compute_rate(0)
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(f"its first step fails: {type(error).__name__}: {error}") from error
        return self


def find_scheduler_config(name: str) -> type[SchedulerConfig]:
    """The model of a scheduler by its name in any case. Raises BackendConfigError."""
    return _make_scheduler_config(find_scheduler(name))


@functools.cache
def _make_scheduler_config(named: RegistryEntry[type[FormLR]]) -> type[SchedulerConfig]:
    fields: dict[str, Any] = {"scheduler": (Literal[named.name], ...)}
    for key, setting in named.settings.items():
        default = ... if setting.default is setting.empty else setting.default
        fields[key] = (setting.annotation, default)
    if "total_iters" in fields:  # here an end is given, or the scheduler has none
        annotation, _ = fields["total_iters"]
        options = [one for one in get_args(annotation) if one is not type(None)]
        fields["total_iters"] = (options[0] if len(options) == 1 else annotation, ...)
    made = create_model(
        f"{named.name}Scheduler",
        __base__=SchedulerConfig,
        __doc__=named.kind.__doc__,
        **fields,
    )
    made.entry = named
    made.rate_keys = tuple(key for key, (kind, _) in fields.items() if is_scheduled(kind))
    return made


SCHEDULER_CONFIGS = {name: _make_scheduler_config(named) for name, named in SCHEDULERS.items()}
"""The models of the built-in schedulers."""


if TYPE_CHECKING:
    Scheduler = SchedulerConfig
else:
    Scheduler = _any_of(SCHEDULER_CONFIGS, SchedulerConfig, "scheduler", find_scheduler_config)
"""Any scheduler, built in or of an installed package."""


def find_rate_keys(scheduler: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys of a scheduler, as a params file has it, that are learning rates.

    >>> find_rate_keys({"scheduler": "Cyclic"})
    ('base_lr', 'max_lr')
    """
    return find_scheduler_config(str(scheduler["scheduler"])).rate_keys


ADJUSTABLE = ("decoder_kernel",)
"""Groups of `adjust_learning_rate`: the matrices inside blocks."""


def _kind_of_rate(value: Any) -> str:
    return "schedulers" if isinstance(value, list | tuple) else "number"


class OptimizerConfig(FrozenModel):
    """Section `optimizer`: what every optimizer has. Nothing decays 1-D parameters."""

    optimizer_type: str

    entry: ClassVar[RegistryEntry[type[BackendOptimizer]]]

    max_gradient_norm: float | None = Field(
        1.0, gt=0, description="limit of the global 2-norm of the gradient; null: none"
    )
    learning_rate: Annotated[
        Annotated[Rate, Tag("number")]
        | Annotated[tuple[Scheduler, ...], Field(min_length=1), Tag("schedulers")],
        Discriminator(_kind_of_rate),
    ] = Field(
        description="a number, or a list of schedulers, one after the other; the last one "
        "continues by its formula, and keeps its last value if it has an end"
    )
    adjust_learning_rate: dict[str, float] = Field(
        {},
        description="factor for the learning rate of a group of parameters; the one group is "
        "decoder_kernel, the matrices inside blocks; with model.mup_base_hidden_size, its default "
        "is 1 / m_width",
    )
    loss_scaling_factor: float | Literal["dynamic"] = Field(
        1.0,
        description="loss scale for float16, a power of two; dynamic, which cbfloat16_exact needs: "
        "starts at 32768, is halved on overflow (that step is skipped) and doubled after 2000 "
        "finite steps",
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
        kind: Callable[..., BackendOptimizer] = self.entry.kind
        return kind(parameters, lr=0.0, **self.own_settings())

    @model_validator(mode="after")
    def _check_by_its_class(self) -> Self:
        try:
            self.build([nn.Parameter(torch.zeros(1, 1))])
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(f"{self.entry.name} fails: {type(error).__name__}: {error}") from error
        return self


def find_optimizer_config(name: str) -> type[OptimizerConfig]:
    """The model of an optimizer by its name in any case. Raises BackendConfigError."""
    named = find_optimizer(name)
    if named.kind.not_for_train:
        raise BackendConfigError(f"{named.name} is not supported: {named.kind.not_for_train}")
    return _make_optimizer_config(named)


@functools.cache
def _make_optimizer_config(named: RegistryEntry[type[BackendOptimizer]]) -> type[OptimizerConfig]:
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
    made.entry = named
    return made


OPTIMIZER_CONFIGS = {
    name: _make_optimizer_config(OPTIMIZERS[name])
    for name in ("AdamW", *(name for name in OPTIMIZERS if name != "AdamW"))
    if not OPTIMIZERS[name].kind.not_for_train
}
"""The models of the built-in optimizers."""


if TYPE_CHECKING:
    Optimizer = OptimizerConfig
else:
    Optimizer = _any_of(
        OPTIMIZER_CONFIGS, OptimizerConfig, "optimizer_type", find_optimizer_config, "AdamW"
    )
"""Any optimizer by `optimizer_type`, built in or of a package; AdamW where it is not given."""

ANY_OPTIMIZER: TypeAdapter[Optimizer] = TypeAdapter(Optimizer)
