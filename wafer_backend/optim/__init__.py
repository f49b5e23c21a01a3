"""Optimizers and schedulers in the shape of `cstorch.optim`, on today's PyTorch.

    optimizer = optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.1)
    scheduler = optim.lr_scheduler.LinearLR(optimizer, 6e-4, 6e-5, total_iters=9037)
    ...
    optimizer.step()
    scheduler.step()

Formulas, references and differences: docs/optimizers.md. Limits: no sparse gradients beyond what
PyTorch's classes take; schedules compute in float64, the original API in float32; Adafactor is
PyTorch's, without its first moment.
"""

# ruff: noqa: F403 - every module names what it exports, once

from wafer_backend.optim import (
    lr_scheduler,
    optimizer,
    scheduler,
    torch_optimizers,
    weight_decay_scheduler,
)
from wafer_backend.optim.lr_scheduler import *
from wafer_backend.optim.optimizer import *
from wafer_backend.optim.registry import (
    configure_lr_scheduler,
    configure_optimizer,
    configure_optimizer_params,
    configure_param_groups,
    configure_scheduler_params,
)
from wafer_backend.optim.scheduler import Scheduler
from wafer_backend.optim.torch_optimizers import *
from wafer_backend.optim.weight_decay_scheduler import *

__all__ = [
    "Scheduler",
    "configure_lr_scheduler",
    "configure_optimizer",
    "configure_optimizer_params",
    "configure_param_groups",
    "configure_scheduler_params",
    "lr_scheduler",
    "scheduler",
    "weight_decay_scheduler",
]
__all__ += lr_scheduler.__all__
__all__ += optimizer.__all__
__all__ += torch_optimizers.__all__
__all__ += weight_decay_scheduler.__all__
