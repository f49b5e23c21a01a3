"""Whether a module can run on the cluster: what is refused by name, and what is warned about."""

import warnings
from collections.abc import Iterator

import torch
from torch import nn

from wafer_backend.activation_worker import GlobalBatch
from wafer_backend.errors import BackendConfigError

_NAMED = 3
"""Modules that a warning names."""


def check_module(module: nn.Module, *, streams: bool) -> None:
    """Raise BackendConfigError for a module without parameters, with parameters that have no shape
    yet, or, where weights stream, with code that cannot ask for them."""
    if not any(True for _ in module.parameters()):
        raise BackendConfigError("the module has no parameters")
    for path, child in _named(module):
        if any(nn.parameter.is_lazy(p) for p in child._parameters.values() if p is not None):
            raise BackendConfigError(
                f"{path} has parameters without a shape; call the model on one sample before it "
                "is compiled, or give the sizes"
            )
        if streams and isinstance(child, torch.jit.ScriptModule):
            raise BackendConfigError(
                f"{path} is TorchScript (torch.jit.script or torch.jit.trace), whose code cannot "
                "ask MemoryX for weights; compile the Python module that it was made from"
            )


def warn_of_batch_statistics(module: nn.Module, batch: GlobalBatch) -> None:
    """Warn when modules normalise over samples, and leaves hold fewer than the global batch."""
    paths = [path for path, child in _named(module) if _normalises_over_samples(child)]
    if not paths or batch.micro_batch_size >= batch.batch_size:
        return
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    warnings.warn(
        f"{', '.join(paths[:_NAMED])}{more}: batch statistics are those of one leaf of "
        f"{batch.micro_batch_size} samples at a time, not of the global batch of "
        f"{batch.batch_size}, so losses differ from plain PyTorch; use LayerNorm or GroupNorm, or "
        "one leaf (micro_batch_size = None)",
        stacklevel=5,
    )


def _normalises_over_samples(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and (
        module.training or module.running_mean is None
    )


def _named(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module inside, with what to call it."""
    for path, child in module.named_modules():
        kind = type(child).__name__
        yield (f"module {path!r} ({kind})" if path else f"the module ({kind})"), child
