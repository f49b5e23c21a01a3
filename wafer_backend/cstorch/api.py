"""Small functions of the cstorch API: tensors, scopes, random numbers, reset; the names of it that
are missing here, and `install_aliases` for scripts unchanged.

    import wafer_backend
    wafer_backend.install_aliases()
    import cerebras.pytorch as cstorch        # R2.1 and later
    import cerebras_pytorch as cstorch        # R1.9 to R2.0
    import cerebras_pytorch.experimental      # R1.8

Tensors are made on the current backend's device, and come from and go to NumPy. Scopes name things,
and set precision optimization levels, which change no number. Aliases are opt-in and never hide an
installed package of that name.
"""

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

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


@contextlib.contextmanager
def pol(level: int) -> Iterator[None]:
    """Run with a precision optimization level of 0, 1 or 2, as a context or a decorator.

    The level chooses kernels of the real compiler. Here only `current_pol` shows it.
    """
    if level not in (0, 1, 2):
        raise BackendConfigError(f"pol({level!r}): expected 0, 1 or 2")
    _levels.append(level)
    try:
        yield
    finally:
        _levels.pop()


def current_pol() -> int:
    """The innermost `pol`, or `backends.csx.precision.optimization_level`."""
    return _levels[-1] if _levels else int(csx.precision.optimization_level)


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


REASONS: dict[str, str] = {
    "add_debug_name": "there is no compiler whose debug names could be set; use name_scope",
    "cirh": "there is no compiler dialect",
    "configure": 'use backend("CSX", compile_only=..., cluster_config=...) and DataExecutor',
    "device": "use backend().device or current_torch_device()",
    "device_annotation": "there is no device placement to annotate",
    "experimental": "its names are at the top of this package",
    "export": "steps run eagerly, there is no graph to export",
    "get_debug_name": "there is no compiler whose debug names could be read",
    "nn": "use torch.nn; its modules stream as they are",
    "register_decomposition": "operators are torch's own, none is decomposed for a compiler",
    "save_summaries": "use summarize_scalar, or utils.tensorboard.SummaryWriter in a closure",
    "saver": "use save and load",
    "scalar_summary": "use summarize_scalar",
    "set_debug_scope": "there is no compiler whose debug names could be set; use name_scope",
    "trainer": "training loops of Model Zoo are not included; see `train` and examples/cstorch/",
}


def missing(name: str) -> AttributeError:
    """The error for a name that this package does not have.

    >>> print(missing("device_annotation"))
    wafer_backend does not support device_annotation: there is no device placement to annotate
    """
    if name in REASONS:
        return AttributeError(f"wafer_backend does not support {name}: {REASONS[name]}")
    return AttributeError(f"module 'wafer_backend' has no attribute {name!r}")


TARGET = "wafer_backend"
ALIASES = ("cerebras_pytorch.experimental", "cerebras_pytorch", "cerebras.pytorch")
_NAMESPACE = "cerebras"


def install_aliases() -> None:
    """Make the aliases importable in this process; a second call does nothing.

    Raises BackendConfigError when a package of one of these names is installed.
    """
    if any(isinstance(finder, _AliasFinder) for finder in sys.meta_path):
        return
    for name in ("cerebras_pytorch", "cerebras.pytorch"):
        if name in sys.modules or _is_installed(name):
            raise BackendConfigError(
                f"{name} is installed, so wafer_backend does not take its name; uninstall it, or "
                "write `import wafer_backend as cstorch`"
            )
    sys.meta_path.insert(0, _AliasFinder())


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _real_name(name: str) -> str | None:
    """The module of this package that an alias stands for.

    >>> _real_name("cerebras.pytorch.optim"), _real_name("cerebras.modelzoo")
    ('wafer_backend.optim', None)
    """
    for alias in ALIASES:
        if name == alias or name.startswith(alias + "."):
            return TARGET + name[len(alias) :]
    return None


class _AliasFinder(MetaPathFinder):
    """Finds aliases before the path is searched, so that no module is loaded a second time."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        real = _real_name(fullname)
        if real is not None:
            if importlib.util.find_spec(real) is None:
                return None
            return ModuleSpec(fullname, _AliasLoader(real), is_package=True)
        others = [finder for finder in sys.meta_path if finder is not self]
        if fullname != _NAMESPACE or any(f.find_spec(fullname, None) for f in others):
            return None
        return ModuleSpec(fullname, _EmptyPackage(), is_package=True)


class _AliasLoader(Loader):
    """Hands out a module that exists, under a second name."""

    def __init__(self, real: str) -> None:
        self._real = real
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._real)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _EmptyPackage(Loader):
    """`cerebras` itself, where nothing of that name is installed."""

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = []
