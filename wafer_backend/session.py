"""The state of a process that scripts set: its random numbers, and forgetting all of it."""

import torch

from wafer_backend import amp, backends, loss_scale, profiler, tracing


def manual_seed(seed: int) -> None:
    """Seed torch; the random numbers of leaves follow, unless `emulation.seed` is set."""
    torch.manual_seed(seed)


def reset() -> None:
    """Forget the backend, compiled modules, flags, executors, closures, half dtype, loss scale,
    and the profile.

    For notebooks and tests. Models and optimizers are the script's own and stay; modules compiled
    before must not be called again.
    """
    backends.reset()
    tracing.reset()
    amp.reset()
    profiler.reset()
    loss_scale.set_current(None)
