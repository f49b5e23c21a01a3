"""What `backend("CSX", compile_only=True)` and `validate_only=True` do instead of a step."""

from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from wafer_backend.errors import BackendConfigError, StepError


class DryRunFinished(SystemExit):
    """A plan or a check is done. `trace` catches it; outside of one the program ends with 0."""

    def __init__(self) -> None:
        super().__init__(0)


def batch_size_of(inputs: Any) -> int:
    """Samples of a global batch: the first dimension of its first tensor that has one."""
    for value in _pytree.tree_leaves(inputs):
        if isinstance(value, torch.Tensor) and value.ndim:
            return int(value.shape[0])
    raise StepError("a compiled module was called without a tensor of samples")


def first_samples(inputs: Any, count: int) -> Any:
    """The first `count` samples of every tensor; scalars as they are."""

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[:count] if tensor.ndim else tensor

    return _pytree.tree_map_only(torch.Tensor, cut, inputs)


def plan(module: nn.Module, batch_size: int, num_csx: int, micro_batch_size: int | None) -> str:
    """What a step would be, in lines: parameters, bytes, leaves, and the simulated step time."""
    parameters = list(module.parameters())
    count = sum(p.numel() for p in parameters)
    size = sum(p.numel() * p.element_size() for p in parameters)
    largest = max(p.numel() * p.element_size() for p in parameters)
    if micro_batch_size is None:
        leaves = "leaves of a size chosen at the first step"
    else:
        number = -(-batch_size // micro_batch_size)
        leaves = f"{number} leaves of {micro_batch_size} samples"
    lines = [
        f"model: {count:,} parameters, {size:,} bytes in MemoryX, largest weight {largest:,} bytes",
        f"step: global batch {batch_size:,}, {leaves}, num_csx {num_csx}",
    ]
    return "\n".join([*lines, *_predicted(module, batch_size, num_csx, micro_batch_size)])


def _predicted(module: nn.Module, batch: int, num_csx: int, sub_batch: int | None) -> list[str]:
    """The performance model's word on it, or why it has none."""
    from wafer_backend.performance_model import predict

    try:
        return [str(predict(module, batch, num_csx, sub_batch=sub_batch))]
    except BackendConfigError as error:
        return [f"simulated step time: none, {error}"]


def check(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Run one sample forward without a graph, in evaluation mode; says what came out."""
    before = module.training
    module.eval()
    try:
        with torch.no_grad():
            output = module(*first_samples(args, 1), **first_samples(kwargs, 1))
    finally:
        module.train(before)
    shapes = [
        f"{tuple(value.shape)} {value.dtype}"
        for value in _pytree.tree_leaves(output)
        if isinstance(value, torch.Tensor)
    ]
    return f"validated: one sample ran forward and gave {', '.join(shapes) or 'no tensor'}"
