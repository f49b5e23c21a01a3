"""The masks of all sparse parameters, kept with them in MemoryX, and what they could save at best.

A pruned weight is 0, its gradient is 0 and its optimizer state is 0. The engine calls
`mask_gradient` when it delivers a reduced gradient; autograd calls it through a hook, but not for
gradients of single leaves.

A CS-2 stores pruned weights as NaN; `split_nan` reads such checkpoints. `simulated_speedup` is a
ratio of operations, no measurement.
"""

import contextlib
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from wafer_backend.errors import BackendConfigError


@dataclass
class _MaskEntry:
    """`pruned`: bool of the parameter's shape, true where it is pruned (the mask, negated)."""

    pruned: torch.Tensor
    wants_dense: bool = False
    dense: torch.Tensor | None = None


_entries = WeakIdKeyDictionary()
_leaves_running = 0


def _entry(parameter: torch.Tensor) -> _MaskEntry | None:
    entry: _MaskEntry | None = _entries.get(parameter)  # type: ignore[no-untyped-call]
    return entry


def set_mask(parameter: nn.Parameter, mask: torch.Tensor) -> None:
    """Give `parameter` a mask (bool, its shape, true where a weight is kept) and apply it."""
    if mask.shape != parameter.shape or mask.dtype is not torch.bool:
        raise BackendConfigError(
            f"a mask of shape {tuple(mask.shape)}, {mask.dtype} does not fit a parameter of shape "
            f"{tuple(parameter.shape)}; give a bool tensor of its shape"
        )
    entry, pruned = _entry(parameter), ~mask.to(parameter.device)
    if entry is None:
        _entries[parameter] = _MaskEntry(pruned)
    else:
        entry.pruned = pruned
    enforce(parameter)
    if parameter.grad is not None:
        enforce_on(parameter, parameter.grad)


def mask_of(parameter: torch.Tensor) -> torch.Tensor | None:
    """A copy of the mask, true where a weight is kept; None for a dense parameter."""
    entry = _entry(parameter)
    return None if entry is None else ~entry.pruned


def require_mask(parameter: torch.Tensor) -> torch.Tensor:
    """`mask_of` a parameter that is known to be sparse."""
    mask = mask_of(parameter)
    assert mask is not None
    return mask


def mask_gradient(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The gradient with 0 where `parameter` is pruned; `gradient` itself when it is dense.

    Called with every gradient before it is added to `parameter.grad`, hence before norms and
    clipping. Before an update that needs it, the dense gradient is kept too.
    """
    entry = _entry(parameter)
    if entry is None:
        return gradient
    if entry.wants_dense:
        # Gradients accumulate until the user clears them; what was kept before that is stale.
        stale = parameter.grad is None or not parameter.grad.any()
        dense, kept = gradient.detach(), entry.dense
        entry.dense = dense.clone() if kept is None or stale else kept + dense
    return gradient.masked_fill(entry.pruned, 0)


def hook_gradient(parameter: nn.Parameter) -> None:
    """Let autograd mask what it adds to `parameter.grad`, as delivery does."""
    # Weak: a parameter that held a closure over itself would live until the garbage collector runs.
    owner = weakref.ref(parameter)

    def mask(gradient: torch.Tensor) -> torch.Tensor:
        alive = owner()
        if alive is None or _leaves_running:
            return gradient
        return mask_gradient(alive, gradient)

    if parameter.requires_grad:
        parameter.register_hook(mask)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def running_leaves() -> Iterator[None]:
    """Inside, gradients are those of single leaves and stay dense; their sum is masked.

    A target that keeps its weights runs leaves on the parameters themselves.
    """
    global _leaves_running
    _leaves_running += 1
    try:
        yield
    finally:
        _leaves_running -= 1


def want_dense(parameter: torch.Tensor, wanted: bool) -> None:
    """Keep dense gradients from now on, or forget what was kept."""
    entry = _entry(parameter)
    if entry is not None:
        entry.wants_dense, entry.dense = wanted, None


def dense_gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    """The dense gradient of the step at hand, if one was wanted and delivered."""
    entry = _entry(parameter)
    return None if entry is None else entry.dense


def enforce(parameter: torch.Tensor) -> None:
    """Zero the pruned weights (NaN too), in place."""
    enforce_on(parameter, parameter)


def enforce_on(parameter: torch.Tensor, *tensors: torch.Tensor) -> None:
    """Zero what belongs to pruned weights in tensors of the parameter's shape, in place."""
    entry = _entry(parameter)
    if entry is None:
        return
    with torch.no_grad():
        for tensor in tensors:
            tensor.masked_fill_(entry.pruned, 0)


def pack_mask(mask: torch.Tensor) -> torch.Tensor:
    """A bool mask as uint8 (ceil(N / 8),), eight elements a byte, the first in the highest bit."""
    return torch.from_numpy(np.packbits(mask.cpu().numpy()))


def unpack_mask(bits: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The mask that was packed. Raises BackendConfigError when the length does not fit."""
    if bits.dtype is not torch.uint8 or bits.numel() != -(-shape.numel() // 8):
        raise BackendConfigError(
            f"a packed mask of {bits.numel()} x {bits.dtype} does not fit the shape {tuple(shape)}"
        )
    flat = np.unpackbits(bits.cpu().numpy(), count=shape.numel())
    return torch.from_numpy(flat.astype(bool)).reshape(shape)


def split_nan(
    weights: Mapping[str, torch.Tensor],
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Weights whose pruned elements are NaN, as (weights with zeros, masks of those with NaN).

    Give the masks to `init.from_masks`.

    >>> weights, masks = split_nan({"w": torch.tensor([1.0, torch.nan]), "b": torch.zeros(1)})
    >>> weights["w"], masks
    (tensor([1., 0.]), {'w': tensor([ True, False])})
    """
    clean, masks = dict(weights), {}
    for name, weight in weights.items():
        pruned = torch.isnan(weight)
        if pruned.any():
            clean[name] = weight.masked_fill(pruned, 0)
            masks[name] = ~pruned
    return clean, masks


@dataclass(frozen=True)
class SimulatedSpeedup:
    """`ratio`: operations of dense weights over those of the weights that are kept."""

    ratio: float
    density: float

    def __str__(self) -> str:
        return (
            f"simulated speed-up: at most {self.ratio:.2f} x, at density {self.density:.3f} "
            "(operations of matrix products with weights; ideal, nothing was measured)"
        )


def simulated_speedup(module: nn.Module) -> SimulatedSpeedup:
    """An ideal upper bound for hardware that skips pruned weights, in all three products.

    Every weight of two or more dimensions takes part in a number of multiplications per sample that
    is proportional to its elements (forward, and twice that backward), so the ratio is
    sum(elements) / sum(kept elements). Embedding tables are looked up, not multiplied, and do not
    count unless an output layer shares them. Attention scores, norms, optimizer, data movement and
    whatever hardware loses are left out: all of them lower the ratio. CPUs and GPUs gain nothing.

    Raises BackendConfigError when no weight is left.
    """
    looked_up = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    elements = kept = 0
    for parameter in module.parameters():
        shared = len(names[id(parameter)]) > 1
        if parameter.ndim < 2 or (id(parameter) in looked_up and not shared):
            continue
        mask = mask_of(parameter)
        elements += parameter.numel()
        kept += parameter.numel() if mask is None else int(mask.sum())
    if not kept:
        raise BackendConfigError("simulated_speedup: no weight of two or more dimensions is left")
    return SimulatedSpeedup(ratio=elements / kept, density=kept / elements)
