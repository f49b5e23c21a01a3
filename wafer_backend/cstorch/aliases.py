"""`install_aliases`, for scripts unchanged, and the names of the API that are missing here.

    import wafer_backend
    wafer_backend.install_aliases()
    import cerebras.pytorch as cstorch        # R2.1 and later
    import cerebras_pytorch as cstorch        # R1.9 to R2.0
    import cerebras_pytorch.experimental      # R1.8

Aliases are opt-in and never hide an installed package of that name.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from os.path import isdir, join
from types import ModuleType
from typing import Any

from wafer_backend.errors import BackendConfigError
from wafer_backend.utils.module_names import find_module_name

REASONS: dict[str, str] = {
    "configure": 'use backend("CSX", compile_only=..., cluster_config=...) and DataExecutor',
    "device": "use backend().device or current_torch_device()",
    "device_annotation": "there is no device placement to annotate",
    "export": "steps run eagerly, there is no graph to export",
    "register_decomposition": "operators are torch's own, none is decomposed for a compiler",
    "save_summaries": "use summarize_scalar, or utils.tensorboard.SummaryWriter in a closure",
    "scalar_summary": "use summarize_scalar",
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


API = ("cerebras.pytorch", "cerebras_pytorch")
APPLIANCE = ("cerebras.appliance", "cerebras_appliance")
_NAMESPACE = "cerebras"


def install_aliases() -> None:
    """Make the aliases importable in this process; a second call does nothing.

    Raises BackendConfigError when a package of one of these names is installed.
    """
    if any(isinstance(finder, _AliasFinder) for finder in sys.meta_path):
        return
    for name in (*API, *APPLIANCE):
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


def find_real_name(name: str) -> str | None:
    """The module of this package that an alias stands for.

    >>> find_real_name("cerebras.pytorch.optim"), find_real_name("cerebras.modelzoo")
    ('wafer_backend.optim', None)
    >>> find_real_name("cerebras_pytorch.core.modes"), find_real_name("cerebras.appliance.log")
    ('wafer_backend.cstorch.core', 'wafer_backend.appliance')
    """
    for alias in (*API, *APPLIANCE):
        if name == alias or name.startswith(alias + "."):
            path = name[len(alias) + 1 :]
            path = find_module_name(path if alias in API else f"appliance.{path}".rstrip("."))
            return f"wafer_backend.{path}".rstrip(".")
    return None


class _AliasFinder(MetaPathFinder):
    """Finds aliases before the path is searched, so that no module is loaded a second time."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        real = find_real_name(fullname)
        if real is not None:
            if not _is_installed(real):
                return None
            return ModuleSpec(fullname, _AliasLoader(real), is_package=True)
        others = [finder for finder in sys.meta_path if finder is not self]
        if fullname != _NAMESPACE or any(f.find_spec(fullname, None) for f in others):
            return None
        return ModuleSpec(fullname, _EmptyPackage(), is_package=True)


class _AliasLoader(Loader):
    """Hands out a module that exists, under a second name.

    Where its parent has a function of that name, the module is callable, as in the API.
    """

    def __init__(self, real: str) -> None:
        self._real = real
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._real)
        self._spec = module.__spec__
        parent, _, name = spec.name.rpartition(".")
        known = vars(sys.modules[parent]).get(name) if parent else None
        if isinstance(known, _CallableModule):
            return known
        return _CallableModule(module, known) if callable(known) else module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _CallableModule(ModuleType):
    """A module whose name is a function's too, such as `backend` and `sparse.configure`."""

    def __init__(self, module: ModuleType, function: Callable[..., Any]) -> None:
        super().__init__(module.__name__, function.__doc__)
        self.__dict__.update(_module=module, _function=function)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_module"], name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["_function"](*args, **kwargs)


class _FoldersOnPath:
    """The folders `cerebras` on Python's path, which may grow after the import."""

    def __iter__(self) -> Iterator[str]:
        return (folder for entry in sys.path if isdir(folder := join(entry, _NAMESPACE)))


class _EmptyPackage(Loader):
    """`cerebras` itself, where nothing of that name is installed."""

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = _FoldersOnPath()  # type: ignore[assignment]
