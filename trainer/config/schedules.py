"""Section `optimizer.learning_rate`: schedulers that follow one another.

Names and keys are those of Model Zoo, the settings those of the forms in
`wafer_backend.optim.closed_forms`. A scheduler with `total_iters` can be followed by another; the
others have no end.
"""

import functools
import json
import operator
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import (
    PlainValidator,
    SerializeAsAny,
    ValidationInfo,
    create_model,
    model_validator,
)

from pipeline.config.model import FrozenModel
from wafer_backend.errors import BackendConfigError
from wafer_backend.optim.closed_forms import is_scheduled
from wafer_backend.optim.lr_scheduler import FormLR
from wafer_backend.optim.registry import SCHEDULERS, Named, find_scheduler


class SchedulerConfig(FrozenModel):
    """One scheduler; each has a model of its own with its settings."""

    scheduler: str

    named: ClassVar[Named[type[FormLR]]]
    rate_keys: ClassVar[tuple[str, ...]]
    """Settings that are learning rates, or lists of them."""

    @property
    def length(self) -> int | None:
        """Steps after which another scheduler can follow; None: it has no end."""
        return getattr(self, "total_iters", None)

    def compute_rate(self, iteration: int) -> float:
        """The learning rate at a 0-based step of this scheduler."""
        form, names = self.named.kind.form, self.named.kind.names
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
    return _make_config(find_scheduler(name))


@functools.cache
def _make_config(named: Named[type[FormLR]]) -> type[SchedulerConfig]:
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
    made.named = named
    made.rate_keys = tuple(key for key, (kind, _) in fields.items() if is_scheduled(kind))
    return made


def read_settings(find: Any, key: str, value: Any, info: ValidationInfo) -> Any:
    """The model that `value[key]` names, with the other values as its settings."""
    if not isinstance(value, dict):
        return value
    try:
        kind = find(str(value.get(key)))
    except BackendConfigError as error:
        raise ValueError(f"{key} {error}") from error
    if info.mode == "json":
        return kind.model_validate_json(json.dumps(value))
    return kind.model_validate(value)


SCHEDULER_CONFIGS = {name: _make_config(named) for name, named in SCHEDULERS.items()}
"""The models of the built-in schedulers."""


def _validate(value: Any, info: ValidationInfo) -> SchedulerConfig:
    config = read_settings(find_scheduler_config, "scheduler", value, info)
    if not isinstance(config, SchedulerConfig):
        raise ValueError("expected a mapping with a key scheduler")
    return config


if TYPE_CHECKING:
    Scheduler = SchedulerConfig
else:
    Scheduler = Annotated[
        functools.reduce(operator.or_, SCHEDULER_CONFIGS.values()),
        PlainValidator(_validate),
        SerializeAsAny(),
    ]
"""Any scheduler, built in or of an installed package."""


def find_rate_keys(scheduler: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys of a scheduler, as a params file has it, that are learning rates.

    >>> find_rate_keys({"scheduler": "Cyclic"})
    ('base_lr', 'max_lr')
    """
    return find_scheduler_config(str(scheduler["scheduler"])).rate_keys
