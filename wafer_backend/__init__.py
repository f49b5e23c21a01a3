"""A weight-streaming cluster in the shape of a CS-2 installation, usable alone.

It runs scripts of the cstorch API on today's torch (docs/cstorch.md):

    import wafer_backend as cstorch

    backend = cstorch.backend("CSX", cluster_config=cstorch.distributed.ClusterConfig(num_csx=2))
    model = Model()
    compiled = cstorch.compile(model, backend)
    optimizer = cstorch.optim.AdamW(model.parameters(), lr=1e-3)

    @cstorch.trace
    def step(batch):
        loss = compiled(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

Weights live in MemoryX and visit a wafer while they are used; a global batch is cut into leaves;
gradients are added in a tree that does not depend on num_csx, so the bits are equal for every
num_csx. They are promised for one thread count, torch build and CPU capability. The engine alone
is `CompiledModule(module, BackendConfig(...))`.

Public are the names in `__all__` here and in the modules among them; every other module is internal
and may change in any release.

Limits: it computes what such a cluster computes, not as fast, and in its own number format only
where asked to (docs/cbfloat16.md); what does not stream is listed in `streaming`; names of cstorch
that are missing say so (`unsupported`).
"""

import importlib
from typing import TYPE_CHECKING, Any

from wafer_backend import amp, backends, distributed, metrics, optim, profiler, sparse, utils
from wafer_backend.backends import (
    Backend,
    BackendType,
    backend,
    current_backend,
    current_torch_device,
    use_cs,
)
from wafer_backend.cluster.coordinator import StepResult
from wafer_backend.cluster.outputs import LossRule
from wafer_backend.compiled import BackendConfig, CompiledModule, device_of
from wafer_backend.cstorch.aliases import install_aliases, missing
from wafer_backend.cstorch.api import (
    add_debug_name,
    current_pol,
    from_numpy,
    full,
    full_like,
    get_debug_name,
    make_constant,
    manual_seed,
    name_scope,
    ones,
    ones_like,
    pol,
    reset,
    set_debug_scope,
    tensor,
    to_numpy,
    zeros,
    zeros_like,
)
from wafer_backend.cstorch.compilation import compile
from wafer_backend.distributed import is_streamer, num_streamers, num_tasks
from wafer_backend.errors import (
    BackendConfigError,
    BackendError,
    CheckpointError,
    LoaderError,
    StepError,
    StrictError,
)
from wafer_backend.storage.checkpoint import load, save
from wafer_backend.tracing import (
    checkpoint_closure,
    compile_step,
    current_executor,
    step_closure,
    trace,
)
from wafer_backend.utils.module_names import MODULES, find_module_name

if TYPE_CHECKING:
    from wafer_backend import legacy, performance_model
    from wafer_backend.legacy import PyTorchBaseModel, run, task_id
    from wafer_backend.utils.tensorboard import summarize_scalar, summarize_tensor

__all__ = [
    "Backend",
    "BackendConfig",
    "BackendConfigError",
    "BackendError",
    "BackendType",
    "CheckpointError",
    "CompiledModule",
    "LoaderError",
    "LossRule",
    "PyTorchBaseModel",
    "StepError",
    "StepResult",
    "StrictError",
    "add_debug_name",
    "amp",
    "backend",
    "backends",
    "checkpoint_closure",
    "compile",
    "compile_step",
    "current_backend",
    "current_executor",
    "current_pol",
    "current_torch_device",
    "device_of",
    "distributed",
    "from_numpy",
    "full",
    "full_like",
    "get_debug_name",
    "install_aliases",
    "is_streamer",
    "legacy",
    "load",
    "make_constant",
    "manual_seed",
    "metrics",
    "name_scope",
    "num_streamers",
    "num_tasks",
    "ones",
    "ones_like",
    "optim",
    "performance_model",
    "pol",
    "profiler",
    "reset",
    "run",
    "save",
    "set_debug_scope",
    "sparse",
    "step_closure",
    "summarize_scalar",
    "summarize_tensor",
    "task_id",
    "tensor",
    "to_numpy",
    "trace",
    "use_cs",
    "utils",
    "zeros",
    "zeros_like",
]

__version__ = "2.10.0+wafermill"
"""The release of the cstorch API that this package follows: scripts compare checkpoints with it."""

_generating_docs = False

# Imported when asked for: few scripts need them.
_LATER = {
    "Compression": "cstorch.weight_rules",
    "PyTorchBaseModel": "legacy",
    "get_loop_iteration_slice": "cluster.implicit_loops",
    "legacy": "",
    "performance_model": "",
    "run": "legacy",
    "run_implicit_autoregressive_loop": "cluster.implicit_loops",
    "start_implicit_loop": "cluster.implicit_loops",
    "summarize_scalar": "utils.tensorboard",
    "summarize_tensor": "utils.tensorboard",
    "task_id": "legacy",
    "update_implicit_loop": "cluster.implicit_loops",
}


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return importlib.import_module(f"wafer_backend.{find_module_name(name)}".rstrip("."))
    if name not in _LATER:
        raise missing(name)
    module = importlib.import_module(f"wafer_backend.{_LATER[name] or name}")
    return getattr(module, name) if _LATER[name] else module
