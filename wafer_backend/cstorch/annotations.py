"""Annotations of operators, which tell a compiler about kernels: accepted, and without effect."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

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
