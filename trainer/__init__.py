"""Train decoders on the shards that `prep` makes, or on Model Zoo's, through `wafer_backend`.

GPT-2, GPT-J, GPT-NeoX and Llama are configurations of one decoder, in fp32 or mixed precision; a
run reads one data set, several or a mixture; `trainer.config` has what can be chosen.

Public are the names in `__all__`; they raise `pipeline.errors`. Every other module is internal and
may change in any release.

Limits: decoders only; every rank reads whole global batches.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.api import TrainingResult, evaluate, generate, load, train
    from trainer.config import Params
    from trainer.errors import LostRankError, TrainingError
    from trainer.evaluation.checkpoint_loss import LossMeasurement
    from trainer.evaluation.labels import Amount
    from trainer.evaluation.loss import Evaluation
    from trainer.generation.loaded import LoadedModel
    from trainer.generation.text import GeneratedText

__all__ = [
    "Amount",
    "Evaluation",
    "GeneratedText",
    "LoadedModel",
    "LossMeasurement",
    "LostRankError",
    "Params",
    "TrainingError",
    "TrainingResult",
    "evaluate",
    "generate",
    "load",
    "train",
]

_HOMES = {
    "Amount": "evaluation.labels",
    "Evaluation": "evaluation.loss",
    "GeneratedText": "generation.text",
    "LoadedModel": "generation.loaded",
    "LossMeasurement": "evaluation.checkpoint_loss",
    "LostRankError": "errors",
    "Params": "config",
    "TrainingError": "errors",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: torch takes seconds."""
    if name not in __all__:
        raise AttributeError(f"module 'trainer' has no attribute {name!r}")
    return getattr(import_module(f"trainer.{_HOMES.get(name, 'api')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
