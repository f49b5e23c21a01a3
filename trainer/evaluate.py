"""Validation loss over a data set, in file order, written to eval.jsonl."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.core.errors import InputError
from pipeline.hdf5.read import SampleDataset
from trainer import metrics
from trainer.data import to_batch
from wafer_backend.compiled import CompiledModule


@dataclass(frozen=True)
class Evaluation:
    """`loss`: nats per counted label; `n_counted`: labels; `samples`: sequences read."""

    loss: float
    n_counted: int
    samples: int


@dataclass(frozen=True)
class Evaluator:
    """Evaluates the weights in MemoryX on one data set.

    `batch_size`, `micro_batch_size`: sequences of a batch and of a leaf; `max_batches`: None for
    all rows; `between_leaves` may raise to give up; `writes`: whether this process adds
    to eval.jsonl.
    """

    compiled: CompiledModule
    dataset: SampleDataset
    model_dir: Path
    batch_size: int
    micro_batch_size: int
    max_batches: int | None
    between_leaves: Callable[[], None]
    writes: bool
    say: Callable[[str], None]

    def run(self, step: int) -> Evaluation:
        """Evaluate after `step`, print the Model Zoo line and add one line to eval.jsonl."""
        started = time.monotonic()
        found = self.measure()
        seconds = time.monotonic() - started
        line = {
            "step": step,
            "loss": found.loss,
            "loss_hex": found.loss.hex(),
            "n_counted": found.n_counted,
            "samples": found.samples,
        }
        if self.writes:
            metrics.append(self.model_dir / metrics.EVALUATION, line)
        self.say(
            f"| Eval Device={self.compiled.config.target}, GlobalStep={step}, "
            f"Loss={found.loss:.5f}, Rate={found.samples / seconds:.2f} samples/sec"
        )
        return found

    def measure(self) -> Evaluation:
        """Mean loss over the first `max_batches` batches; the last batch of the set may be short.

        Raises InputError when no label counts.
        """
        rows, size = self.dataset.rows, self.batch_size
        limit = rows if self.max_batches is None else min(rows, self.max_batches * size)
        loss_sum, counted = 0.0, 0
        for first in range(0, limit, size):
            rows_B = np.arange(first, min(first + size, limit), dtype=np.int64)
            batch_loss, batch_counted = self.compiled.evaluate(
                to_batch(self.dataset.read(rows_B)),
                micro_batch_size=self.micro_batch_size,
                between_leaves=self.between_leaves,
            )
            loss_sum += batch_loss
            counted += batch_counted
        if counted == 0:
            raise InputError(f"{self.dataset.directory}: no label counts: every loss mask is zero")
        return Evaluation(loss_sum / counted, counted, limit)
