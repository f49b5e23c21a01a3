"""Weight sparsity: masks in MemoryX on weights, gradients and optimizer state.

    sparsity = configure({"algorithm": "rigl", "sparsity": 0.9, "update": {"freq": 100}})
    model.apply(sparsity)
    optimizer.apply(sparsity)          # sparsity(optimizer) for an optimizer of torch

Limits: masks save no time and no memory here; on a CS-2 pruned weights are neither stored nor
multiplied. `simulated_speedup` gives the ideal bound.
"""

from wafer_backend.sparse import init
from wafer_backend.sparse.algorithm import SparsityAlgorithm
from wafer_backend.sparse.algorithms import GMP, SET, RigL, Static
from wafer_backend.sparse.configure import configure
from wafer_backend.sparse.group import Group
from wafer_backend.sparse.masks import mask_gradient, mask_of, split_nan
from wafer_backend.sparse.optimizers import (
    GMPSparsityOptimizer,
    RigLSparsityOptimizer,
    SETSparsityOptimizer,
    StaticSparsityOptimizer,
    configure_sparsity_optimizer,
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
from wafer_backend.sparse.speedup import SimulatedSpeedup, simulated_speedup

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
    "Static",
    "StaticSparsityOptimizer",
    "configure",
    "configure_sparsity_optimizer",
    "init",
    "mask_gradient",
    "mask_of",
    "simulated_speedup",
    "split_nan",
]
