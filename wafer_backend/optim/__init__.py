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

from wafer_backend.optim import lr_scheduler, weight_decay_scheduler
from wafer_backend.optim.configure import configure_lr_scheduler, configure_optimizer
from wafer_backend.optim.lamb import Lamb
from wafer_backend.optim.lion import Lion
from wafer_backend.optim.lr_scheduler import (
    ChainedLR,
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CosineDecayLR,
    CyclicLR,
    ExponentialLR,
    InverseExponentialTimeDecayLR,
    InverseSquareRootDecayLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiplicativeLR,
    MultiStepLR,
    OneCycleLR,
    PiecewiseConstantLR,
    PolynomialLR,
    ScalePerParamLR,
    SequentialLR,
    StepLR,
)
from wafer_backend.optim.optimizer import Optimizer
from wafer_backend.optim.scheduler import Scheduler
from wafer_backend.optim.torch_optimizers import (
    ASGD,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Muon,
    NAdam,
    RAdam,
    RMSprop,
    Rprop,
)
from wafer_backend.optim.weight_decay_scheduler import (
    ChainedWD,
    ConstantWD,
    CosineAnnealingWarmRestartsWD,
    CosineAnnealingWD,
    CosineDecayWD,
    CyclicWD,
    ExponentialWD,
    InverseExponentialTimeDecayWD,
    InverseSquareRootDecayWD,
    LambdaWD,
    LinearWD,
    MultiplicativeWD,
    MultiStepWD,
    OneCycleWD,
    PiecewiseConstantWD,
    PolynomialWD,
    ScalePerParamWD,
    SequentialWD,
    StepWD,
    WDScheduler,
)

__all__ = [
    "ASGD",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "ChainedLR",
    "ChainedScheduler",
    "ChainedWD",
    "ConstantLR",
    "ConstantWD",
    "CosineAnnealingLR",
    "CosineAnnealingWD",
    "CosineAnnealingWarmRestarts",
    "CosineAnnealingWarmRestartsWD",
    "CosineDecayLR",
    "CosineDecayWD",
    "CyclicLR",
    "CyclicWD",
    "ExponentialLR",
    "ExponentialWD",
    "InverseExponentialTimeDecayLR",
    "InverseExponentialTimeDecayWD",
    "InverseSquareRootDecayLR",
    "InverseSquareRootDecayWD",
    "LRScheduler",
    "Lamb",
    "LambdaLR",
    "LambdaWD",
    "LinearLR",
    "LinearWD",
    "Lion",
    "MultiStepLR",
    "MultiStepWD",
    "MultiplicativeLR",
    "MultiplicativeWD",
    "Muon",
    "NAdam",
    "OneCycleLR",
    "OneCycleWD",
    "Optimizer",
    "PiecewiseConstantLR",
    "PiecewiseConstantWD",
    "PolynomialLR",
    "PolynomialWD",
    "RAdam",
    "RMSprop",
    "Rprop",
    "ScalePerParamLR",
    "ScalePerParamWD",
    "Scheduler",
    "SequentialLR",
    "SequentialWD",
    "StepLR",
    "StepWD",
    "WDScheduler",
    "configure_lr_scheduler",
    "configure_optimizer",
    "lr_scheduler",
    "weight_decay_scheduler",
]
