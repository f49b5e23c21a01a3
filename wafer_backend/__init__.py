"""A weight-streaming cluster in the shape of a CS-2 installation, usable alone.

    config = BackendConfig(target="CSX", num_csx=2, micro_batch_size=1)
    compiled = compile(module, config)          # module(batch) returns (loss_sum, n_counted)
    compiled.memoryx.optimizer = torch.optim.AdamW(compiled.memoryx.parameters.values())
    result = compiled.train_step(batch, step=1, learning_rate=1e-3)

Bits are equal for every num_csx (`tree`), and equal to a plain PyTorch loop that adds micro-batch
gradients in the same tree. They are promised for one thread count, torch build and CPU
capability.

Limits: one process (the inline transport); the module must return the loss pair itself; fp32;
what does not stream is listed in `streaming`. It computes what such a cluster computes, not as
fast, and not with its number formats. Activation checkpointing inside a streamed module is not
supported yet.
"""

from wafer_backend.backend import BackendConfig, CompiledModule, compile, device_of
from wafer_backend.coordinator import LossRule, StepResult
from wafer_backend.errors import BackendConfigError, BackendError, StepError

__all__ = [
    "BackendConfig",
    "BackendConfigError",
    "BackendError",
    "CompiledModule",
    "LossRule",
    "StepError",
    "StepResult",
    "compile",
    "device_of",
]
