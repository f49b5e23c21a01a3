"""Small functions of the cstorch API: tensors, scopes, random numbers, reset.

Tensors are made on the current backend's device, and come from and go to NumPy. Scopes name things,
and set precision optimization levels, which change no number.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from wafer_backend import amp, backends, profiler, tracing
from wafer_backend.backends import csx, current_torch_device
from wafer_backend.cluster import precision
from wafer_backend.errors import BackendConfigError

Shape = Sequence[int] | torch.Size


def full(shape: Shape, value: complex, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of one value on the current device; `dtype`: by default as torch chooses it."""
    return torch.full(tuple(shape), value, dtype=dtype, device=current_torch_device())


def full_like(
    other: torch.Tensor, value: complex, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """A tensor of one value, of another's shape, dtype (unless given) and device."""
    return torch.full_like(other, value, dtype=dtype)


def ones(shape: Shape, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of ones on the current device; `dtype`: by default torch's."""
    return torch.ones(tuple(shape), dtype=dtype, device=current_torch_device())


def ones_like(other: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Ones of another's shape, dtype (unless given) and device."""
    return torch.ones_like(other, dtype=dtype)


def zeros(shape: Shape, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of zeros on the current device; `dtype`: by default torch's."""
    return torch.zeros(tuple(shape), dtype=dtype, device=current_torch_device())


def zeros_like(other: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Zeros of another's shape, dtype (unless given) and device."""
    return torch.zeros_like(other, dtype=dtype)


def tensor(data: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of the values in `data` on the current device; `dtype`: by default theirs."""
    return torch.tensor(data, dtype=dtype, device=current_torch_device())


def make_constant(value: torch.Tensor) -> torch.Tensor:
    """The same values on the current device, outside of any graph."""
    return value.detach().to(current_torch_device())


def to_numpy(value: torch.Tensor) -> npt.NDArray[Any]:
    """A host array of the same values; bfloat16, which NumPy lacks, becomes float32.

    >>> to_numpy(torch.tensor([1.5], dtype=torch.bfloat16)).dtype
    dtype('float32')
    """
    host = value.detach().cpu()
    return host.float().numpy() if host.dtype == torch.bfloat16 else host.numpy()


def from_numpy(array: npt.ArrayLike) -> torch.Tensor:
    """A host tensor over a copy of an array."""
    return torch.from_numpy(np.array(array))


_levels: list[int] = []


@contextlib.contextmanager
def name_scope(name: str) -> Iterator[str]:
    """Name what runs inside, as a context or a decorator; the name appears in torch.profiler."""
    import torch

    with torch.profiler.record_function(name):
        yield name


def set_debug_scope(name: str | None) -> None:
    """Name what follows for a compiler's dumps. There is none, which the log says once."""
    backends.current.say_without_effect(["set_debug_scope"])


@contextlib.contextmanager
def pol(level: int | None = None, bwd_level: int | None = None) -> Iterator[None]:
    """Run with a precision optimization level of 0, 1 or 2, as a context or a decorator.

    The level (`bwd_level`: in backward) chooses kernels of the real compiler. Here only
    `current_pol` shows it.
    """
    for given in (level, bwd_level):
        if given not in (None, 0, 1, 2):
            raise BackendConfigError(f"pol({given!r}): expected 0, 1 or 2")
    _levels.append(current_pol() if level is None else level)
    try:
        yield
    finally:
        _levels.pop()


def current_pol() -> int:
    """The innermost `pol`, or `backends.csx.precision.optimization_level`."""
    return _levels[-1] if _levels else int(csx.precision.optimization_level)


def add_debug_name(module: nn.Module, root_name: str | None = None) -> None:
    """Name every module inside by the way to it, `root_name` (by default the class) itself."""
    root = type(module).__name__ if root_name is None else root_name
    for name, child in module.named_modules():
        child._debug_name = name or root


def get_debug_name(module: nn.Module) -> str:
    """The name that `add_debug_name` gave a module, else that of its class."""
    return str(getattr(module, "_debug_name", type(module).__name__))


def manual_seed(seed: int) -> None:
    """Seed torch; the random numbers of leaves follow, unless `emulation.seed` is set."""
    torch.manual_seed(seed)


def reset() -> None:
    """Forget the backend, compiled modules, flags, executors, closures, half dtype, loss scale,
    and the profile.

    For notebooks and tests. Models and optimizers are the script's own and stay; modules compiled
    before must not be called again.
    """
    backends.reset_backend()
    tracing.reset_tracing()
    amp.reset_amp()
    profiler.reset_profiler()
    precision.set_current_loss_scale(None)
