"""`utils.data`, `utils.tensorboard` (imported when asked for), `utils.profiler`, `CSConfig`."""

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wafer_backend.backends.base import ClusterConfig
from wafer_backend.utils import data, profiler

if TYPE_CHECKING:
    from wafer_backend.utils import tensorboard


@dataclass(init=False)
class CSConfig(ClusterConfig):
    """The older spelling of `distributed.ClusterConfig`, with two more settings of no effect."""

    debug_args: Any = None
    transfer_processes: int | None = None


def __getattr__(name: str) -> Any:
    if name == "tensorboard":
        return importlib.import_module("wafer_backend.utils.tensorboard")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["CSConfig", "data", "profiler", "tensorboard"]
