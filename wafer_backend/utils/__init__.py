"""`utils.data`, `utils.profiler`, `CSConfig`; `tensorboard` and `benchmark` when asked for."""

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wafer_backend.backends.base import ClusterConfig
from wafer_backend.utils import data, nest, profiler
from wafer_backend.utils.module_names import MODULES, find_module_name

if TYPE_CHECKING:
    from wafer_backend.utils import benchmark, tensorboard


@dataclass(init=False)
class CSConfig(ClusterConfig):
    """The older spelling of `distributed.ClusterConfig`, with more settings of no effect."""

    debug_args: Any = None
    fabric_type_blacklist: Any = None
    precision_opt_level: int | None = None
    transfer_processes: int | None = None

    __hash__ = ClusterConfig.__hash__


def __getattr__(name: str) -> Any:
    if name in ("benchmark", "tensorboard"):
        return importlib.import_module(f"wafer_backend.utils.{name}")
    if f"utils.{name}" in MODULES:
        return importlib.import_module(f"wafer_backend.{find_module_name(f'utils.{name}')}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["CSConfig", "benchmark", "data", "nest", "profiler", "tensorboard"]
