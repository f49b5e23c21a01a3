"""The config of a run: Model Zoo R2.2 `params.yaml` sections as frozen, typed data.

Key names are Model Zoo's; keys that are ours are marked so. A value Model Zoo knows and we do not
yet is refused by the type, never ignored.
"""

from trainer.config.fields import Count, Rate
from trainer.config.inputs import (
    BatchSizeStep,
    EvalInput,
    InferenceInput,
    InputConfig,
    MixturePart,
    TrainInput,
)
from trainer.config.model import (
    ConstantValue,
    ExtraAttention,
    Fill,
    Initializer,
    Kaiming,
    Lecun,
    ModelConfig,
    Normal,
    TruncatedNormal,
    Uniform,
    VarianceScaling,
    Xavier,
)
from trainer.config.optimizer import AdamW, Optimizer, OptimizerConfig
from trainer.config.params import Params, ParamsLike, load_params, override
from trainer.config.runconfig import Autorestart, OpProfilerConfig, RunConfig, StabilityConfig
from trainer.config.schedules import (
    Constant,
    CosineAnnealing,
    CosineAnnealingWarmRestarts,
    CosineDecay,
    Cyclic,
    Exponential,
    InverseExponentialTimeDecay,
    InverseSquareRootDecay,
    Linear,
    MultiStep,
    OneCycle,
    PiecewiseConstant,
    Polynomial,
    Scheduler,
    Step,
)
from trainer.config.sparsity import SparsityGroup

__all__ = [
    "AdamW",
    "Autorestart",
    "BatchSizeStep",
    "Constant",
    "ConstantValue",
    "CosineAnnealing",
    "CosineAnnealingWarmRestarts",
    "CosineDecay",
    "Count",
    "Cyclic",
    "EvalInput",
    "Exponential",
    "ExtraAttention",
    "Fill",
    "InferenceInput",
    "Initializer",
    "InputConfig",
    "InverseExponentialTimeDecay",
    "InverseSquareRootDecay",
    "Kaiming",
    "Lecun",
    "Linear",
    "MixturePart",
    "ModelConfig",
    "MultiStep",
    "Normal",
    "OneCycle",
    "OpProfilerConfig",
    "Optimizer",
    "OptimizerConfig",
    "Params",
    "ParamsLike",
    "PiecewiseConstant",
    "Polynomial",
    "Rate",
    "RunConfig",
    "Scheduler",
    "SparsityGroup",
    "StabilityConfig",
    "Step",
    "TrainInput",
    "TruncatedNormal",
    "Uniform",
    "VarianceScaling",
    "Xavier",
    "load_params",
    "override",
]
