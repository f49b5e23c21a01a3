"""The data of a run: formats, mixtures, the order of training, batches read ahead.

    source = open_training(params.train_input, params.model)
    data = TrainingData(source, seed=1, schedule=((1, 8),))
    with BatchPrefetcher(data, first_step=1, last_step=100) as ahead:
        batch = ahead.batch(1)

Limits: one process reads whole global batches; the order of `modelzoo` needs 8 bytes a row.
"""

from trainer.data.batches import BatchPrefetcher, TrainingData
from trainer.data.source import (
    Batch,
    SampleSource,
    datasets_from,
    is_or_became_by_masking,
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
    "is_or_became_by_masking",
    "open_checked",
    "open_evaluation",
    "open_training",
    "to_batch",
]
