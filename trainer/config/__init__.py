"""The config of a run: Model Zoo R2.2 `params.yaml` sections as frozen, typed data.

Key names are Model Zoo's; keys that are ours are marked so. A value Model Zoo knows and we do not
yet is refused by the type, never ignored.
"""

from typing import Any

from trainer.config.model import ModelConfig
from trainer.config.optimizer import (
    OPTIMIZER_CONFIGS,
    SCHEDULER_CONFIGS,
    Optimizer,
    OptimizerConfig,
    Scheduler,
    SchedulerConfig,
)
from trainer.config.params import Params, ParamsLike, load_params, override
from trainer.config.sections import (
    EvalInput,
    InferenceInput,
    MixturePart,
    RunConfig,
    SampleInputConfig,
    StabilityConfig,
    TrainInput,
)
from trainer.config.sparsity import SparsityGroup

__all__ = [
    "EvalInput",
    "InferenceInput",
    "MixturePart",
    "ModelConfig",
    "Optimizer",
    "OptimizerConfig",
    "Params",
    "ParamsLike",
    "RunConfig",
    "SampleInputConfig",
    "Scheduler",
    "SchedulerConfig",
    "SparsityGroup",
    "StabilityConfig",
    "TrainInput",
    "load_params",
    "override",
]


def __getattr__(name: str) -> Any:
    """The model of a built-in optimizer or scheduler, as `LionConfig` or `LinearScheduler`."""
    models = [*OPTIMIZER_CONFIGS.values(), *SCHEDULER_CONFIGS.values()]
    for model in models:
        if model.__name__ == name:
            return model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
