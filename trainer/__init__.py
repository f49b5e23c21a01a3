"""Train decoders on the shards that `prep` makes, or on Model Zoo's, through `wafer_backend`.

GPT-2, GPT-J, GPT-NeoX and Llama are configurations of one decoder, in fp32 or mixed precision; a
run reads one data set, several or a mixture; `trainer.config` has what can be chosen.

Public are the names in `__all__`; they raise `pipeline.errors`. Every other module is internal and
may change in any release.

Limits: decoders only; every rank reads whole global batches.
"""

from typing import TYPE_CHECKING

from pipeline.core import export_lazily

if TYPE_CHECKING:
    from trainer.api import TrainingResult, evaluate, generate, load, train
    from trainer.config import Params
    from trainer.errors import LostRankError, TrainingError
    from trainer.evaluation.labels import Amount
    from trainer.evaluation.loss import Evaluation, LossMeasurement
    from trainer.generation.loaded import LoadedModel
    from trainer.generation.text import GeneratedText
    from trainer.loop.callbacks import Callback, StopTraining, TrainingState

__all__ = [
    "Amount",
    "Callback",
    "Evaluation",
    "GeneratedText",
    "LoadedModel",
    "LossMeasurement",
    "LostRankError",
    "Params",
    "StopTraining",
    "TrainingError",
    "TrainingResult",
    "TrainingState",
    "evaluate",
    "generate",
    "load",
    "train",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    __all__,
    {
        ".api": "TrainingResult evaluate generate load train",
        ".config": "Params",
        ".errors": "LostRankError TrainingError",
        ".evaluation.labels": "Amount",
        ".evaluation.loss": "Evaluation LossMeasurement",
        ".generation.loaded": "LoadedModel",
        ".generation.text": "GeneratedText",
        ".loop.callbacks": "Callback StopTraining TrainingState",
    },
)
