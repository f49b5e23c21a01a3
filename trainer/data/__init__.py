"""The data of a run: formats, mixtures, the order of training, batches read ahead.

    source = open_training(params.train_input, params.model)
    data = TrainingData(source, seed=1, schedule=((1, 8),))
    with Prefetcher(data, first_step=1, last_step=100) as ahead:
        batch = ahead.batch(1)

Limits: one process reads whole global batches; the order of `modelzoo` needs 8 bytes a row.
"""

from trainer.data.batches import TrainingData
from trainer.data.formats import Batch, open_checked, to_batch
from trainer.data.history import became_by_masking, datasets_from
from trainer.data.prefetch import Prefetcher
from trainer.data.source import Source, open_evaluation, open_training

__all__ = [
    "Batch",
    "Prefetcher",
    "Source",
    "TrainingData",
    "became_by_masking",
    "datasets_from",
    "open_checked",
    "open_evaluation",
    "open_training",
    "to_batch",
]
