"""Which backend a process has, how it is set up, and the flags `backends.csx.…`."""

from wafer_backend.backends.base import Backend, BackendType, ClusterConfig
from wafer_backend.backends.current import (
    backend,
    configure_cluster,
    csx,
    current_backend,
    current_backend_impl,
    current_torch_device,
    current_watch,
    get_backend_args,
    has_backend,
    is_writer,
    load_run_state,
    reset_backend,
    run_state,
    strictly,
    use_cs,
)

__all__ = [
    "Backend",
    "BackendType",
    "ClusterConfig",
    "backend",
    "configure_cluster",
    "csx",
    "current_backend",
    "current_backend_impl",
    "current_torch_device",
    "current_watch",
    "get_backend_args",
    "has_backend",
    "is_writer",
    "load_run_state",
    "reset_backend",
    "run_state",
    "strictly",
    "use_cs",
]
