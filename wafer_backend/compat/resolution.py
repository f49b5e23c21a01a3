"""What a dotted name of the cstorch API is here: an object, an instance of a class, or missing.

Only this package is imported. Of an instance only the class is known, so its attributes are those
of the class and those that its methods set on `self`.
"""

import ast
import dataclasses
import functools
import importlib
import inspect
import textwrap
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from types import MethodType, ModuleType
from typing import Any

from pipeline.core.words import pluralise
from wafer_backend.backends.current import list_settings
from wafer_backend.cstorch.aliases import find_real_name


@dataclass(frozen=True)
class Known:
    """An object of this package."""

    value: Any


@dataclass(frozen=True)
class Instance:
    """Some instance of a class of this package."""

    kind: type


@dataclass(frozen=True)
class Missing:
    """A name that is not here; `reason` is what the package says about it, or empty."""

    reason: str = ""


Found = Known | Instance | Missing | None
"""None: nothing is known, so nothing is said."""


def find_module(path: str) -> Known | Missing:
    """The module that `import path` gives with `install_aliases`."""
    try:
        return Known(importlib.import_module(find_real_name(path) or path))
    except ModuleNotFoundError:
        return Missing()


def find_imported(path: str, name: str) -> Found:
    """What `from path import name` gives."""
    module = find_module(path)
    if isinstance(module, Missing):
        return module
    attribute = find_attribute(module, name)
    if not isinstance(attribute, Missing):
        return attribute
    submodule = find_module(f"{path}.{name}")
    return attribute if isinstance(submodule, Missing) else submodule


def find_attribute(owner: Found, name: str) -> Found:
    """`owner.name`."""
    if isinstance(owner, Known):
        return _attribute_of_object(owner.value, name)
    if isinstance(owner, Instance):
        return _attribute_of_instance(owner.kind, name)
    return None


def _attribute_of_object(owner: Any, name: str) -> Found:
    if not _is_ours(owner):
        return None
    try:
        value = getattr(owner, name)
    except AttributeError as error:
        return Missing(_reason(str(error)))
    return Known(value)


def _reason(text: str) -> str:
    """What an AttributeError of this package says besides that the name is missing."""
    return text.partition(": ")[2] if "does not support" in text else ""


def _attribute_of_instance(kind: type, name: str) -> Found:
    if hasattr(kind, "__getattr__"):
        return None
    try:
        value = inspect.getattr_static(kind, name)
    except AttributeError:
        known = name in _set_on_self(kind) or name in inspect.get_annotations(kind)
        return None if known else Missing()
    if isinstance(value, property) and value.fget is not None:
        return _returned(value.fget)
    return Known(MethodType(value, object())) if inspect.isfunction(value) else None


@functools.cache
def _set_on_self(kind: type) -> frozenset[str]:
    """The attributes that the methods of a class and of its bases set on `self`."""
    names: set[str] = set()
    for one in kind.__mro__:
        if one.__module__.startswith("wafer_backend"):
            tree = ast.parse(textwrap.dedent(inspect.getsource(one)))
            names |= {
                node.attr
                for node in ast.walk(tree)
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            }
        elif one is not object:
            names |= set(vars(one).get("__annotations__", {}))
    return frozenset(names)


def find_result(function: Found) -> Found:
    """What a call gives: an instance of a class, or of what the annotation of a function says."""
    if not isinstance(function, Known) or not _is_ours(function.value):
        return None
    if inspect.isclass(function.value):
        return Instance(function.value)
    return _returned(function.value)


def _returned(function: Any) -> Found:
    try:
        hint = typing.get_type_hints(function).get("return")
    except (NameError, TypeError):
        return None
    ours = inspect.isclass(hint) and hint.__module__.startswith("wafer_backend")
    return Instance(hint) if ours and hint is not None else None


def find_wrong_arguments(
    function: Found, positional: int | None, keywords: Sequence[str]
) -> list[str]:
    """The arguments of a call that `function` does not take, as `name=` or a sentence.

    `positional`: how many are given by position, None where a starred one hides it.
    """
    if not isinstance(function, Known) or not callable(function.value):
        return []
    if not _is_ours(function.value) or isinstance(function.value, ModuleType):
        return []
    allowed, most = _accepted(function.value)
    wrong = [f"{name}=" for name in keywords if allowed is not None and name not in allowed]
    if positional is not None and most is not None and positional > most:
        wrong.append(f"{pluralise(positional, 'positional argument')}, at most {most}")
    return wrong


def _accepted(function: Any) -> tuple[set[str] | None, int | None]:
    """The keywords a callable takes, and how many positional arguments; None: any."""
    if getattr(function, "__name__", "") == "backend":
        return list_settings(), 2
    if dataclasses.is_dataclass(function):
        return {field.name for field in dataclasses.fields(function)}, None
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None, None
    kinds = [parameter.kind for parameter in parameters]
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    most = sum(kind in by_place for kind in kinds)
    return (
        None
        if inspect.Parameter.VAR_KEYWORD in kinds
        else {parameter.name for parameter in parameters},
        None if inspect.Parameter.VAR_POSITIONAL in kinds else most,
    )


def _is_ours(value: Any) -> bool:
    """Whether an object is of this package; torch's are not looked into."""
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] == "wafer_backend"
    module = getattr(value, "__module__", None) or type(value).__module__
    return str(module).partition(".")[0] == "wafer_backend"
