"""Which parameters of a module are sparse, and which of their elements a mask keeps.

Counts are exact, ties are broken by position, random numbers follow from identity.

Legend: N elements of one parameter in row-major order, G groups of equal size.
"""

import fnmatch
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

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


FilterCallable = ParameterFilter
make_param_filter = make_filter
"""As the API calls them."""


def convert_glob_to_regex(glob: str) -> re.Pattern[str]:
    """The regular expression that matches what a glob does.

    >>> bool(convert_glob_to_regex("*.bias").search("fc.bias"))
    True
    """
    return re.compile(fnmatch.translate(glob))


def select_parameters(module: nn.Module, chosen: ParameterFilter) -> Named:
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


EXCLUDED = -torch.inf


def pruned_count(sparsity: float, n: int) -> int:
    """Elements of n that are pruned: sparsity * n rounded to the nearest, halves up.

    >>> pruned_count(0.75, 10), pruned_count(0.3, 10), pruned_count(1.0, 3)
    (8, 3, 3)
    """
    return int(sparsity * n + 0.5)


def kept_count(sparsity: float, n: int) -> int:
    """Elements of n that are kept."""
    return n - pruned_count(sparsity, n)


def keep_largest(score_N: torch.Tensor, k: int) -> torch.Tensor:
    """Bool (N,): exactly k true, at the largest scores; of equal scores the first.

    `score_N` float, no NaN; EXCLUDED scores are taken last.

    >>> keep_largest(torch.tensor([1.0, 3.0, 3.0, 3.0, 0.0]), 2)
    tensor([False,  True,  True, False, False])
    """
    n = score_N.numel()
    if k <= 0 or k >= n:
        return torch.full_like(score_N, k >= n, dtype=torch.bool)
    smallest_kept = torch.kthvalue(score_N, n - k + 1).values
    keep_N = score_N > smallest_kept
    ties = torch.nonzero(score_N == smallest_kept).flatten()
    keep_N[ties[: k - int(keep_N.sum())]] = True
    return keep_N


@dataclass(frozen=True)
class Balance:
    """Every one of `groups` equal parts of the output or input channels keeps the same number.

    Weights have shape (outputs, inputs, ...). When k does not divide by `groups`, the first groups
    keep one more.
    """

    groups: int = 1
    channels: Literal["out", "in"] = "out"

    def keep(self, score: torch.Tensor, k: int) -> torch.Tensor:
        """Bool of the shape of `score`: k true, the largest of every group."""
        by_channel = score if self.channels == "out" else score.transpose(0, 1)
        score_GN = by_channel.reshape(self.groups, -1)
        base, extra = divmod(k, self.groups)
        rows = [keep_largest(row, base + (g < extra)) for g, row in enumerate(score_GN)]
        keep = torch.stack(rows).reshape(by_channel.shape)
        return keep if self.channels == "out" else keep.transpose(0, 1)

    def check(self, name: str, shape: torch.Size) -> None:
        """Raises BackendConfigError when the channels of a parameter do not divide."""
        axis = 0 if self.channels == "out" else 1
        if self.groups > 1 and (len(shape) <= axis or shape[axis] % self.groups):
            raise BackendConfigError(
                f"balance_{self.channels}_groups={self.groups} does not divide the channels of "
                f"{name!r}, shape {tuple(shape)}; exclude it with a param_filter"
            )


def uniform(shape: torch.Size, seed: int, name: str, update: int) -> torch.Tensor:
    """Uniform float64 in [0, 1) of `shape`: a function of (seed, parameter name, update number)."""
    identity = f"sparsity\x00{seed}\x00{name}\x00{update}".encode()
    digest = hashlib.blake2b(identity, digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    return torch.rand(shape, generator=generator, dtype=torch.float64)
