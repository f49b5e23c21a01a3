"""Optimizers and schedules from the sections of a params file, old spellings included.

optimizer = configure_optimizer("AdamW", params, learning_rate=6e-4, beta1=0.9, beta2=0.95)
scheduler = configure_lr_scheduler(optimizer, [
    {"scheduler": "Linear", "initial_learning_rate": 0, "end_learning_rate": 6e-4, "steps": 9},
    {"scheduler": "CosineDecay", "initial_learning_rate": 6e-4, "end_learning_rate": 6e-5,
     "total_iters": 91},
])
"""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch

from pipeline.core.words import did_you_mean_or_all
from wafer_backend.errors import BackendConfigError
from wafer_backend.optim import lr_scheduler
from wafer_backend.optim.optimizer import Optimizer, Params
from wafer_backend.optim.registry import find_optimizer, find_scheduler

LearningRate = float | Mapping[str, Any] | Sequence[Mapping[str, Any]]

# Spellings of R1.x, and of TensorFlow before it: what each may stand for, in order.
_OLDER = {
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
    milestones = list(accumulate(scheduler.total_iters for scheduler in made[:-1]))
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
        new = next((n for n in _OLDER.get(key, ()) if n in parameters), key)
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
