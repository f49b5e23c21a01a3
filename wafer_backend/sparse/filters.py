"""Which parameters of a module are sparse."""

import fnmatch
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from wafer_backend.errors import BackendConfigError

ParameterFilter = Callable[[str, torch.Tensor], bool]
Named = list[tuple[str, nn.Parameter]]

# Words in names of what is dense by default, whatever module they belong to.
_DENSE_WORDS = ("embed", "wte", "wpe", "norm", "lm_head", "bias")
_DENSE_MODULES = (
    nn.Embedding,
    nn.EmbeddingBag,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.GroupNorm,
    nn.modules.batchnorm._NormBase,
)


def default_filter(name: str, parameter: torch.Tensor) -> bool:
    """Two or more dimensions, and by its name no embedding, norm, output head or bias."""
    return parameter.ndim >= 2 and not any(word in name.lower() for word in _DENSE_WORDS)


def make_filter(given: str | Sequence[str] | ParameterFilter) -> ParameterFilter:
    """A filter of a glob, globs of which one must match, or a function (name, parameter) -> bool.

    >>> make_filter("*.proj_[qkv].weight")("decoder.0.proj_q.weight", torch.zeros(1))
    True
    """
    if callable(given):
        return given
    globs = [given] if isinstance(given, str) else list(given)
    return lambda name, parameter: any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def select(module: nn.Module, chosen: ParameterFilter) -> Named:
    """The parameters that `chosen` takes, each once under its first name.

    A parameter with several names (tied weights) is taken when any of them matches; with the
    default filter when all do, and never when an embedding or a norm owns it.
    """
    by_default = chosen is default_filter
    dense = set(_dense_by_type(module)) if by_default else set()
    names: dict[int, list[str]] = {}
    parameters: dict[int, nn.Parameter] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
        parameters[id(parameter)] = parameter
    all_or_any = all if by_default else any
    return [
        (names[key][0], parameter)
        for key, parameter in parameters.items()
        if key not in dense and all_or_any(chosen(name, parameter) for name in names[key])
    ]


def everything(name: str, parameter: torch.Tensor) -> bool:
    """Every parameter that is not marked `requires_dense`."""
    return not getattr(parameter, "requires_dense", False)


def check_some(named: Named, given: object) -> None:
    """Raises BackendConfigError when a filter took nothing."""
    if not named:
        raise BackendConfigError(
            f"the parameter filter {given!r} matches no parameter; compare it with the names of "
            "module.named_parameters()"
        )


def _dense_by_type(module: nn.Module) -> Iterable[int]:
    for part in module.modules():
        if isinstance(part, _DENSE_MODULES):
            yield from (id(parameter) for parameter in part.parameters(recurse=False))
