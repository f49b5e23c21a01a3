"""Optimizers and learning-rate schedulers by name: the built-in ones and those of other packages.

A package adds them as entry points of the groups below: an optimizer is a subclass of `Optimizer`,
a scheduler a function of the 0-based step and of its settings that returns the learning rate. What
a params file can set follows from their signatures.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Generic, TypeVar

from pipeline.core.errors import ConfigError
from pipeline.core.plugins import PlugInCode, load_plug_ins
from pipeline.core.words import did_you_mean_or_all
from wafer_backend.errors import BackendConfigError
from wafer_backend.optim import closed_forms, lr_scheduler, optimizer, torch_optimizers
from wafer_backend.optim.lr_scheduler import FormLR
from wafer_backend.optim.optimizer import Optimizer, ParameterwiseOptimizer

OPTIMIZERS_GROUP = "wafermill.optimizers"
SCHEDULERS_GROUP = "wafermill.schedulers"

Kind = TypeVar("Kind")


@dataclass(frozen=True, eq=False)
class Named(Generic[Kind]):
    """A class that a params file can name, and its settings there.

    `code`: of the package that adds it, None if it is built in.
    """

    name: str
    kind: Kind
    settings: Mapping[str, inspect.Parameter]
    code: PlugInCode | None = None


def _name_optimizer(name: str, kind: Any, code: PlugInCode | None = None) -> Named[type[Optimizer]]:
    if not issubclass(kind, Optimizer):
        raise BackendConfigError(f"{kind!r} is no subclass of wafer_backend.optim.Optimizer")
    return Named(name, kind, kind.settings(), code)


def _name_scheduler(name: str, kind: Any, code: PlugInCode | None = None) -> Named[type[FormLR]]:
    if not isinstance(kind, type):
        kind = type(f"{name}LR", (FormLR,), {"__doc__": kind.__doc__}, form=kind)
    settings = closed_forms.form_settings(kind.form)
    spelled = {kind.names[key]: value for key, value in settings.items()}
    return Named(name, kind, spelled, code)


OPTIMIZERS = {
    name: _name_optimizer(name, kind)
    for module in (torch_optimizers, optimizer)
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
def list_optimizers() -> dict[str, Named[type[Optimizer]]]:
    """All optimizers by name. Raises BackendConfigError for a package that is broken."""
    return OPTIMIZERS | _load(OPTIMIZERS_GROUP, type, OPTIMIZERS, _name_optimizer)


@functools.cache
def list_schedulers() -> dict[str, Named[type[FormLR]]]:
    """All schedulers by name. Raises BackendConfigError for a package that is broken."""
    return SCHEDULERS | _load(SCHEDULERS_GROUP, FunctionType, SCHEDULERS, _name_scheduler)


def _load(
    group: str,
    kind: type[Any],
    built_in: Mapping[str, Named[Kind]],
    make: Callable[[str, Any, PlugInCode | None], Named[Kind]],
) -> dict[str, Named[Kind]]:
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


def find_optimizer(name: str) -> Named[type[Optimizer]]:
    """The optimizer of that name, in any case. Raises BackendConfigError."""
    return _match(name, list_optimizers())


def find_scheduler(name: str) -> Named[type[FormLR]]:
    """The scheduler of that name, in any case, with or without LR. Raises BackendConfigError."""
    return _match(name[:-2] if name.lower().endswith("lr") else name, list_schedulers())


def _match(name: str, known: Mapping[str, Named[Kind]]) -> Named[Kind]:
    names = {one.lower(): one for one in known}
    if name.lower() not in names:
        raise BackendConfigError(f"{name!r} is unknown{did_you_mean_or_all(name, known)}")
    return known[names[name.lower()]]
