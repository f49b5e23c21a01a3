"""Weight sparsity: masks in MemoryX on weights, gradients and optimizer state.

    sparsity = configure({"algorithm": "rigl", "sparsity": 0.9, "update": {"freq": 100}})
    model.apply(sparsity)
    optimizer.apply(sparsity)          # sparsity(optimizer) for an optimizer of torch

Limits: masks save no time and no memory here; on a CS-2 pruned weights are neither stored nor
multiplied. `simulated_speedup` gives the ideal bound.
"""

from wafer_backend.sparse import init
from wafer_backend.sparse.algorithms import GMP, SET, RigL, SparsityAlgorithm, Static
from wafer_backend.sparse.configure import (
    GMPSparsityOptimizer,
    Group,
    RigLSparsityOptimizer,
    SETSparsityOptimizer,
    StaticSparsityOptimizer,
    configure,
    configure_sparsity_optimizer,
    map_sparsity_algorithm,
)
from wafer_backend.sparse.masks import (
    SimulatedSpeedup,
    mask_gradient,
    mask_of,
    simulated_speedup,
    split_nan,
)
from wafer_backend.sparse.schedules import (
    Constant,
    Cosine,
    Cycling,
    Exp,
    HyperParameterSchedule,
    Lambda,
    Linear,
    Power,
)
from wafer_backend.sparse.wrapper import SparsityWrapperOptimizer, configure_sparsity_wrapper

__all__ = [
    "GMP",
    "SET",
    "Constant",
    "Cosine",
    "Cycling",
    "Exp",
    "GMPSparsityOptimizer",
    "Group",
    "HyperParameterSchedule",
    "Lambda",
    "Linear",
    "Power",
    "RigL",
    "RigLSparsityOptimizer",
    "SETSparsityOptimizer",
    "SimulatedSpeedup",
    "SparsityAlgorithm",
    "SparsityWrapperOptimizer",
    "Static",
    "StaticSparsityOptimizer",
    "configure",
    "configure_sparsity_optimizer",
    "configure_sparsity_wrapper",
    "init",
    "map_sparsity_algorithm",
    "mask_gradient",
    "mask_of",
    "simulated_speedup",
    "split_nan",
]
