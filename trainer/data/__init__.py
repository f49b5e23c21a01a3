"""The data of a run: formats, mixtures, the order of training, batches read ahead.

    source = open_training(params.train_input, params.model)
    data = TrainingData(source, seed=1, schedule=((1, 8),))
    with BatchPrefetcher(data, first_step=1, last_step=100) as ahead:
        batch = ahead.batch(1)

Limits: one process reads whole global batches; the order of `modelzoo` needs 8 bytes a row.
"""

from trainer.data.batches import BatchPrefetcher, TrainingData
from trainer.data.history import datasets_from, is_continued_by, join_generations
from trainer.data.source import (
    Batch,
    SampleSource,
    open_checked,
    open_evaluation,
    open_training,
    to_batch,
)

__all__ = [
    "Batch",
    "BatchPrefetcher",
    "SampleSource",
    "TrainingData",
    "datasets_from",
    "is_continued_by",
    "join_generations",
    "open_checked",
    "open_evaluation",
    "open_training",
    "to_batch",
]
