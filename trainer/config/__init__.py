"""The config of a run: Model Zoo R2.2 `params.yaml` sections as frozen, typed data.

Key names are Model Zoo's; keys that are ours are marked so. A value Model Zoo knows and we do not
yet is refused by the type, never ignored.
"""

from trainer.config.inputs import (
    EvalInput,
    InferenceInput,
    MixturePart,
    SampleInputConfig,
    TrainInput,
)
from trainer.config.model import ModelConfig
from trainer.config.optimizer import AdamWConfig, Optimizer, OptimizerConfig
from trainer.config.params import Params, ParamsLike, load_params, override
from trainer.config.runconfig import RunConfig, StabilityConfig
from trainer.config.schedules import InverseSquareRootDecayScheduler, LinearScheduler, Scheduler
from trainer.config.sparsity import SparsityGroup

__all__ = [
    "AdamWConfig",
    "EvalInput",
    "InferenceInput",
    "InverseSquareRootDecayScheduler",
    "LinearScheduler",
    "MixturePart",
    "ModelConfig",
    "Optimizer",
    "OptimizerConfig",
    "Params",
    "ParamsLike",
    "RunConfig",
    "SampleInputConfig",
    "Scheduler",
    "SparsityGroup",
    "StabilityConfig",
    "TrainInput",
    "load_params",
    "override",
]
