"""The names of `cerebras.pytorch.core` and `cerebras.pytorch.lib`: modes of a run, annotations of
operators and listeners, which are accepted and have no effect. Its modules are all this one."""

import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from torch.utils.hooks import RemovableHandle

from wafer_backend.cstorch.api import name_scope
from wafer_backend.errors import BackendConfigError

__all__ = ["annotation", "cerebras_pytorch_lib", "modes", "name_scope"]

annotation = cerebras_pytorch_lib = modes = sys.modules[__name__]

TRAIN = "train"
EVAL = "eval"
TRAIN_AND_EVAL = "train_and_eval"
EVAL_ALL = "eval_all"
INFERENCE = "inference"


def get_modes() -> tuple[str, ...]:
    """All of them."""
    return (TRAIN, EVAL, TRAIN_AND_EVAL, EVAL_ALL, INFERENCE)


def is_valid(mode: str) -> bool:
    """Whether it is one of them."""
    return mode in get_modes()


Function = TypeVar("Function", bound=Callable[..., Any])
Annotator = Callable[[Function], Function]


class AnnotationMode:
    """The two classes that an annotation is written with."""

    @dataclass
    class Config:
        """Settings of an annotation; scripts add fields of their own."""

        enable_fwd: bool
        enable_bwd: bool

    @dataclass
    class Attribute:
        """What a compiler would find at an operator."""

        name: str
        value: Any


def create_annotation(
    config_class: type[AnnotationMode.Config],
    get_attribute: Callable[[Any, bool], AnnotationMode.Attribute],
    **settings: Any,
) -> Annotator[Any]:
    """A function that annotates functions, once `config_class(**settings)` has checked them.

    There is no compiler to read annotations, so it returns each function as it is.
    """
    config_class(**settings)
    return _as_it_is


def kernel_annotater(kernel: str | None) -> Annotator[Any]:
    """Choose a kernel for the operators of a function: it is returned as it is."""
    return _as_it_is


def groups_annotater(num_groups: int | None) -> Annotator[Any]:
    """Say how many groups of keys and values a function has: it is returned as it is."""
    return _as_it_is


def set_attribute(tensor: Any, name: str, value: Any) -> None:
    """Annotate one tensor: nothing happens."""


def _as_it_is(function: Function) -> Function:
    return function


_hooks: "OrderedDict[int, Callable[..., Any]]" = OrderedDict()


def create_listener(listener_type: str | None = None, **settings: Any) -> NoReturn:
    """Raises BackendConfigError: there is no graph to listen to."""
    raise BackendConfigError(
        f"the listener {listener_type!r} is not supported: steps run eagerly and there is no graph "
        "whose tensors have names; use hooks of torch.nn.Module, or summarize_tensor, and take the "
        "listener out of the config"
    )


def register_traced_tensor_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Keep a hook until its handle is removed. It is never called: no tensor is traced."""
    handle = RemovableHandle(_hooks)
    _hooks[handle.id] = hook
    return handle
