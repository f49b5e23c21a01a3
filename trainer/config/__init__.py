"""The config of a run: Model Zoo R2.2 `params.yaml` sections as frozen, typed data.

Key names are Model Zoo's; keys that are ours are marked so. A value Model Zoo knows and we do not
yet is refused by the type, never ignored.
"""

from trainer.config.fields import Count, Rate, TruncatedNormal
from trainer.config.inputs import BatchSizeStep, EvalInput, InputConfig, MixturePart, TrainInput
from trainer.config.model import ExtraAttention, ModelConfig
from trainer.config.optimizer import OptimizerConfig
from trainer.config.params import Params, load_params, override
from trainer.config.runconfig import Autorestart, OpProfilerConfig, RunConfig, StabilityConfig
from trainer.config.schedules import Constant, CosineDecay, Linear, Scheduler

__all__ = [
    "Autorestart",
    "BatchSizeStep",
    "Constant",
    "CosineDecay",
    "Count",
    "EvalInput",
    "ExtraAttention",
    "InputConfig",
    "Linear",
    "MixturePart",
    "ModelConfig",
    "OpProfilerConfig",
    "OptimizerConfig",
    "Params",
    "Rate",
    "RunConfig",
    "Scheduler",
    "StabilityConfig",
    "TrainInput",
    "TruncatedNormal",
    "load_params",
    "override",
]
