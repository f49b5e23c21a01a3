"""Global batches: which samples a step reads, as tensors.

The order is a pure function of the samples consumed, so nothing about the data has to be remembered
but that count. Shapes: B sequences, S tokens (MSL).
"""

from typing import Any

from pipeline.core.order import Schedule, batch_size_at, samples_before_step
from pipeline.hdf5.read import SampleDataset
from pipeline.hdf5.training_order import OrderName
from trainer.data.formats import Batch, to_batch
from trainer.data.source import SampleSource


class TrainingData:
    """The endless sequence of samples of one run, from a source or a single data set.

    Raises ConfigError for a modelzoo order of too many rows.
    """

    def __init__(
        self,
        source: SampleSource | SampleDataset,
        *,
        seed: int,
        schedule: Schedule,
        order: OrderName = "keyed",
    ) -> None:
        self.source = source if isinstance(source, SampleSource) else SampleSource.of(source)
        self.schedule = schedule
        self.order = self.source.order(order, seed)
        self._seed, self._name = seed, order

    def batch(self, step: int) -> Batch:
        """The global batch of 1-based `step`; each feature (B, S) int64."""
        first = samples_before_step(step, self.schedule)
        return to_batch(
            self.source.read(self.order.rows(first, batch_size_at(step, self.schedule)))
        )

    def describe(self) -> dict[str, Any]:
        """The fields of run.json from which `prep trace` finds the rows of a step."""
        fields: dict[str, Any] = {
            "seed": self._seed,
            "batch_size_schedule": [list(entry) for entry in self.schedule],
            "max_sequence_length": self.source.max_sequence_length,
            "datasets": self.source.describe(),
        }
        return fields if self._name == "keyed" else {**fields, "order": self._name}
