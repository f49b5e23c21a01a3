"""Optimizers and learning-rate schedulers by name: the built-in ones and those of other packages;
and made from the sections of a params file, old spellings included.

optimizer = configure_optimizer("AdamW", params, learning_rate=6e-4, beta1=0.9, beta2=0.95)
scheduler = configure_lr_scheduler(optimizer, [
    {"scheduler": "Linear", "initial_learning_rate": 0, "end_learning_rate": 6e-4, "steps": 9},
    {"scheduler": "CosineDecay", "initial_learning_rate": 6e-4, "end_learning_rate": 6e-5,
     "total_iters": 91},
])

A package adds them as entry points of the groups below: an optimizer is a subclass of `Optimizer`,
a scheduler a function of the 0-based step and of its settings that returns the learning rate. What
a params file can set follows from their signatures.

Parameter groups of a model are made from section `optimizer` of a params file as trainers do it.
"""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from pipeline.core.errors import ConfigError
from pipeline.core.plugins import PlugInCode, load_plug_ins
from pipeline.core.words import did_you_mean_or_all
from wafer_backend.errors import BackendConfigError
from wafer_backend.optim import closed_forms, lr_scheduler, torch_optimizers
from wafer_backend.optim import optimizer as own_optimizers
from wafer_backend.optim.lr_scheduler import FormLR
from wafer_backend.optim.optimizer import Optimizer, ParameterwiseOptimizer, Params

OPTIMIZERS_GROUP = "wafermill.optimizers"
SCHEDULERS_GROUP = "wafermill.schedulers"

Kind = TypeVar("Kind")


@dataclass(frozen=True, eq=False)
class RegistryEntry(Generic[Kind]):
    """A class that a params file can name, and its settings there.

    `code`: of the package that adds it, None if it is built in.
    """

    name: str
    kind: Kind
    settings: Mapping[str, inspect.Parameter]
    code: PlugInCode | None = None


def _name_optimizer(
    name: str, kind: Any, code: PlugInCode | None = None
) -> RegistryEntry[type[Optimizer]]:
    if not issubclass(kind, Optimizer):
        raise BackendConfigError(f"{kind!r} is no subclass of wafer_backend.optim.Optimizer")
    return RegistryEntry(name, kind, kind.settings(), code)


def _name_scheduler(
    name: str, kind: Any, code: PlugInCode | None = None
) -> RegistryEntry[type[FormLR]]:
    if not isinstance(kind, type):
        kind = type(f"{name}LR", (FormLR,), {"__doc__": kind.__doc__}, form=kind)
    settings = closed_forms.form_settings(kind.form)
    spelled = {kind.names[key]: value for key, value in settings.items()}
    return RegistryEntry(name, kind, spelled, code)


OPTIMIZERS = {
    name: _name_optimizer(name, kind)
    for module in (torch_optimizers, own_optimizers)
    for name, kind in vars(module).items()
    if name in module.__all__ and kind not in (Optimizer, ParameterwiseOptimizer)
}
"""The built-in ones."""

SCHEDULERS = {
    (name := key.removesuffix("LR")): _name_scheduler(name, kind)
    for key, kind in vars(lr_scheduler).items()
    if isinstance(kind, type) and issubclass(kind, FormLR) and kind is not FormLR
}
"""The built-in ones."""


@functools.cache
def list_optimizers() -> dict[str, RegistryEntry[type[Optimizer]]]:
    """All optimizers by name. Raises BackendConfigError for a package that is broken."""
    return OPTIMIZERS | _load(OPTIMIZERS_GROUP, type, OPTIMIZERS, _name_optimizer)


@functools.cache
def list_schedulers() -> dict[str, RegistryEntry[type[FormLR]]]:
    """All schedulers by name. Raises BackendConfigError for a package that is broken."""
    return SCHEDULERS | _load(SCHEDULERS_GROUP, FunctionType, SCHEDULERS, _name_scheduler)


def _load(
    group: str,
    kind: type[Any],
    built_in: Mapping[str, RegistryEntry[Kind]],
    make: Callable[[str, Any, PlugInCode | None], RegistryEntry[Kind]],
) -> dict[str, RegistryEntry[Kind]]:
    added = {}
    try:
        for name, plug_in in load_plug_ins(group, kind, built_in).items():
            try:
                added[name] = make(name, plug_in.value, plug_in.code)
            except (BackendConfigError, NameError, TypeError) as error:
                raise plug_in.refuse(f"cannot be used: {error}") from error
    except ConfigError as error:
        raise BackendConfigError(str(error)) from error
    return added


def find_optimizer(name: str) -> RegistryEntry[type[Optimizer]]:
    """The optimizer of that name, in any case. Raises BackendConfigError."""
    return _match(name, list_optimizers())


def find_scheduler(name: str) -> RegistryEntry[type[FormLR]]:
    """The scheduler of that name, in any case, with or without LR. Raises BackendConfigError."""
    return _match(name[:-2] if name.lower().endswith("lr") else name, list_schedulers())


def _match(name: str, entries: Mapping[str, RegistryEntry[Kind]]) -> RegistryEntry[Kind]:
    names = {one.lower(): one for one in entries}
    if name.lower() not in names:
        raise BackendConfigError(f"{name!r} is unknown{did_you_mean_or_all(name, entries)}")
    return entries[names[name.lower()]]


LearningRate = float | Mapping[str, Any] | Sequence[Mapping[str, Any]]

# Spellings of R1.x, and of TensorFlow before it: what each may stand for, in order.
_OLDER_SPELLINGS = {
    "weight_decay_rate": ("weight_decay",),
    "steps": ("total_iters",),
    "decay_steps": ("total_iters",),
    "learning_rate": ("learning_rate", "initial_learning_rate", "lr"),
    "val": ("learning_rate",),
    "values": ("learning_rates",),
    "boundaries": ("milestones",),
}


def configure_optimizer(optimizer_type: str, params: Params, **kwargs: Any) -> Optimizer:
    """The optimizer of that name, in any case, over `params` (tensors or parameter groups).

    Arguments are those of the class; `beta1` and `beta2`, `weight_decay_rate` and `learning_rate`
    are taken too. A `learning_rate` that is a schedule gives lr = 0 until a scheduler sets it.
    Raises BackendConfigError for an unknown name or argument.
    """
    try:
        named = find_optimizer(optimizer_type)
    except BackendConfigError as error:
        raise BackendConfigError(f"optimizer_type {error}") from None
    name, cls = named.name, named.kind
    if isinstance(kwargs.get("learning_rate"), list | tuple | Mapping):
        kwargs["learning_rate"] = 0.0
    signature = inspect.signature(cls)
    if "betas" in signature.parameters and {"beta1", "beta2"} & kwargs.keys():
        first, second = signature.parameters["betas"].default
        if "betas" in kwargs:
            raise BackendConfigError(
                f"{name}: betas and beta1 or beta2 are both given; give only one of them"
            )
        kwargs["betas"] = (kwargs.pop("beta1", first), kwargs.pop("beta2", second))
    if isinstance(kwargs.get("betas"), list):
        kwargs["betas"] = tuple(kwargs["betas"])
    optimizer: Optimizer = _call(name, cls, params, kwargs)
    return optimizer


def configure_lr_scheduler(
    optimizer: torch.optim.Optimizer,
    learning_rate: LearningRate,
    adjust_learning_rate: Any = None,
) -> lr_scheduler.LRScheduler:
    """A number, one schedule, or schedules that follow one another (all but the last with an end).

    A schedule is a mapping with `scheduler`, its name in any case with or without LR, and the
    arguments of its class; `main_scheduler: chained` multiplies the list instead. Groups that
    carry `adjust_learning_rate` are scaled by it; given as an argument it only asks for that.
    """
    if isinstance(learning_rate, int | float):
        made: list[Any] = [lr_scheduler.ConstantLR(optimizer, float(learning_rate))]
        chained = False
    else:
        parts = [learning_rate] if isinstance(learning_rate, Mapping) else list(learning_rate)
        if not parts:
            raise BackendConfigError(
                "learning_rate is an empty list; expected at least one schedule"
            )
        chained = _is_chained(parts)
        made = [_schedule(optimizer, part) for part in parts]
    scaled = any("adjust_learning_rate" in group for group in optimizer.param_groups)
    if chained:
        if scaled or adjust_learning_rate:
            raise BackendConfigError(
                "chained schedules and adjust_learning_rate do not work together; use a sequence"
            )
        return lr_scheduler.ChainedLR(made)
    scheduler = made[0] if len(made) == 1 else _sequence(optimizer, made)
    if scaled or adjust_learning_rate:
        return lr_scheduler.ScalePerParamLR(optimizer, scheduler)
    return scheduler


def _schedule(optimizer: torch.optim.Optimizer, part: Mapping[str, Any]) -> Any:
    if "scheduler" not in part:
        raise BackendConfigError(f"schedule {dict(part)} has no key 'scheduler'; name one")
    try:
        named = find_scheduler(str(part["scheduler"]))
    except BackendConfigError as error:
        raise BackendConfigError(f"scheduler {error}") from None
    arguments = {k: v for k, v in part.items() if k not in ("scheduler", "main_scheduler")}
    return _call(named.name, named.kind, optimizer, arguments)


def _sequence(optimizer: torch.optim.Optimizer, made: list[Any]) -> lr_scheduler.SequentialLR:
    for index, scheduler in enumerate(made[:-1]):
        if scheduler.total_iters is None:
            raise BackendConfigError(
                f"schedule {index} ({type(scheduler).__name__}) has no end, so none can follow it; "
                "give it total_iters or put it last"
            )
    milestones = list(itertools.accumulate(scheduler.total_iters for scheduler in made[:-1]))
    return lr_scheduler.SequentialLR(optimizer, made, milestones)


def _is_chained(parts: Iterable[Mapping[str, Any]]) -> bool:
    names = {str(part["main_scheduler"]).lower() for part in parts if "main_scheduler" in part}
    if len(names) > 1:
        raise BackendConfigError(
            f"main_scheduler is {sorted(names)}; give the same one for all schedules"
        )
    if not names:
        return False
    name = names.pop()
    kinds = {"sequential": False, "sequentiallr": False, "chained": True, "chainedlr": True}
    if name not in kinds:
        raise BackendConfigError(
            f"main_scheduler {name!r} is unknown{did_you_mean_or_all(name, kinds)}"
        )
    return kinds[name]


def _call(name: str, cls: Any, first: Any, given: Mapping[str, Any]) -> Any:
    """`cls(first, **given)` with older spellings put right and errors that say what is wrong."""
    parameters = inspect.signature(cls).parameters
    allowed = list(parameters)[1:]
    arguments: dict[str, Any] = {}
    for key, value in given.items():
        new = next((n for n in _OLDER_SPELLINGS.get(key, ()) if n in parameters), key)
        if new not in allowed:
            raise BackendConfigError(
                f"{name} has no argument {key!r}{did_you_mean_or_all(key, allowed)}"
            )
        if new in arguments:
            raise BackendConfigError(f"{name}: {new} is given twice, once as {key!r}")
        arguments[new] = value
    empty = inspect.Parameter.empty
    missing = [n for n in allowed if parameters[n].default is empty and n not in arguments]
    if missing:
        raise BackendConfigError(f"{name} needs {', '.join(missing)}; got {sorted(given)}")
    return cls(first, **arguments)


_NORMS = (
    nn.LayerNorm,
    nn.RMSNorm,
    nn.GroupNorm,
    nn.modules.batchnorm._NormBase,
)


ADJUSTED_WEIGHTS = {"embedding": ("embedding",), "decoder_kernel": ("linear", "dense")}
"""The keys of `adjust_learning_rate`: weights whose name has one of these words in it."""


def configure_param_groups(
    model: nn.Module, optimizer_params: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Two groups of trained parameters: with `weight_decay` (`weight_decay_rate`), and, for biases
    and the weights of norms, without.

    `adjust_learning_rate` maps keys of `ADJUSTED_WEIGHTS` to factors on the learning rate; each
    group is then cut by its factors, which schedulers apply.
    Raises BackendConfigError for another key of it.
    """
    factors: Mapping[str, float] = optimizer_params.get("adjust_learning_rate") or {}
    for key in factors:
        if key not in ADJUSTED_WEIGHTS:
            hint = did_you_mean_or_all(key, ADJUSTED_WEIGHTS)
            raise BackendConfigError(f"adjust_learning_rate has no key {key!r}{hint}")
    decay = optimizer_params.get("weight_decay", optimizer_params.get("weight_decay_rate")) or 0.0
    without = _find_undecayed(model)
    groups: dict[tuple[bool, str | None], dict[str, Any]] = {}
    for decays, adjusted in itertools.product((True, False), (*factors, None)):
        group: dict[str, Any] = {"params": [], "weight_decay": decay if decays else 0.0}
        if factors:
            group["adjust_learning_rate"] = factors[adjusted] if adjusted else 1.0
        groups[decays, adjusted] = group
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decays = "bias" not in name and id(parameter) not in without
            groups[decays, _find_adjusted(name, factors)]["params"].append(parameter)
    return [group for group in groups.values() if group["params"]]


def _find_adjusted(name: str, keys: Iterable[str]) -> str | None:
    """The first of the keys whose weights include the parameter of that name."""
    if "weight" not in name:
        return None
    return next((key for key in keys if any(word in name for word in ADJUSTED_WEIGHTS[key])), None)


def _find_undecayed(model: nn.Module) -> set[int]:
    """The parameters of norms."""
    norms = (module for module in model.modules() if isinstance(module, _NORMS))
    return {id(parameter) for norm in norms for parameter in norm.parameters()}


_OF_LOSS_SCALING = {
    "loss_scaling_factor",
    "initial_loss_scale",
    "steps_per_increase",
    "min_loss_scale",
    "max_loss_scale",
}
_OF_CLIPPING = {"max_gradient_norm", "max_gradient_value"}


def configure_optimizer_params(optimizer_type: str, kwargs: Mapping[str, Any]) -> Any:
    """Check section `optimizer` of a params file, whose arguments may be under `optim_params`;
    returns the class of the optimizer and the arguments for it: settings of loss scaling and of
    clipping, which the section holds too, are left out. Raises BackendConfigError."""
    given = dict(kwargs)
    given.update(given.pop("optim_params", None) or {})
    arguments = {k: v for k, v in given.items() if k not in _OF_LOSS_SCALING | _OF_CLIPPING}
    placeholder = [torch.zeros(1, requires_grad=True)]
    optimizer = configure_optimizer(optimizer_type, placeholder, **arguments)
    return type(optimizer), arguments


def configure_scheduler_params(learning_rate: Mapping[str, Any]) -> Any:
    """Check one schedule of a params file; returns the class of the scheduler and the arguments
    for it. Raises BackendConfigError."""
    placeholder = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.0)
    scheduler = configure_lr_scheduler(placeholder, learning_rate)
    return type(scheduler), {k: v for k, v in learning_rate.items() if k != "scheduler"}
