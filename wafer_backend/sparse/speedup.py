"""What sparsity could save at best: a ratio of operations, no measurement."""

from dataclasses import dataclass

from torch import nn

from wafer_backend.errors import BackendConfigError
from wafer_backend.sparse import masks


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
        mask = masks.mask_of(parameter)
        elements += parameter.numel()
        kept += parameter.numel() if mask is None else int(mask.sum())
    if not kept:
        raise BackendConfigError("simulated_speedup: no weight of two or more dimensions is left")
    return SimulatedSpeedup(ratio=elements / kept, density=kept / elements)
