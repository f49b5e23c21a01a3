"""`utils.data`, `utils.tensorboard` (imported by who needs it), `utils.profiler`, `CSConfig`."""

from dataclasses import dataclass
from typing import Any

from wafer_backend.distributed import ClusterConfig
from wafer_backend.utils import data, profiler


@dataclass(init=False)
class CSConfig(ClusterConfig):
    """The older spelling of `distributed.ClusterConfig`, with two more settings of no effect."""

    debug_args: Any = None
    transfer_processes: int | None = None


__all__ = ["CSConfig", "data", "profiler"]
