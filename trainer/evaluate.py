"""Loss over data sets, in file order, overall and by source, written to eval.jsonl."""

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.core.errors import InputError
from pipeline.tokenizers.definition import TokenizerDefinition
from trainer import metrics, pulse
from trainer.data import SampleSource, to_batch
from trainer.evaluation.amounts import Amount
from trainer.evaluation.by_group import GroupSums
from trainer.evaluation.labels import KnownLabels, known_labels
from trainer.tensorboard import Events
from wafer_backend.compiled import CompiledModule


@dataclass(frozen=True)
class Evaluation:
    """`total`: of all counted labels; `samples`: sequences read; `per_source`: by name, of sources
    with labels that count, empty where nothing tells of sources."""

    total: Amount
    samples: int
    per_source: dict[str, Amount] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        """Nats per counted label."""
        return self.total.loss

    @property
    def n_counted(self) -> int:
        """Labels that count."""
        return self.total.n_counted

    def described(self) -> dict[str, Any]:
        """As JSON values, with the exact loss in hexadecimal."""
        total = self.total.described()
        line = {"loss": total.pop("loss"), "loss_hex": self.loss.hex()}
        line |= {"n_counted": total.pop("n_counted"), "samples": self.samples, **total}
        if self.per_source:
            line["per_source"] = {n: amount.described() for n, amount in self.per_source.items()}
        return line


@dataclass(frozen=True)
class Evaluator:
    """Evaluates the weights in MemoryX on all rows of its data sets.

    `batch_size`, `micro_batch_size`: sequences of a batch and of a leaf; `max_batches`: None for
    all rows; `between_leaves` may raise to give up; `writes`: whether this process adds
    to eval.jsonl; `events`: None where TensorBoard is not fed. `reference`: a vocabulary in
    whose tokens losses are told too.
    """

    compiled: CompiledModule
    source: SampleSource
    model_dir: Path
    batch_size: int
    micro_batch_size: int
    max_batches: int | None
    between_leaves: Callable[[], None]
    writes: bool
    say: Callable[[str], None]
    events: Events | None = None
    reference: TokenizerDefinition | None = None

    def run(self, step: int) -> Evaluation:
        """Evaluate after `step`, print the Model Zoo line and add one line to eval.jsonl."""
        started = time.monotonic()
        found = self.measure()
        seconds = time.monotonic() - started
        if self.writes:
            line = {"step": step, **found.described()}
            metrics.append(self.model_dir / metrics.EVALUATION, line)
        if self.events is not None:
            self.events.add(step, _scalars(found))
        self.say(
            f"| Eval Device={self.compiled.config.target}, GlobalStep={step}, "
            f"Loss={found.loss:.5f}, Rate={found.samples / seconds:.2f} samples/sec"
        )
        return found

    def close(self) -> None:
        """Close the file of events."""
        if self.events is not None:
            self.events.close()

    def measure(self) -> Evaluation:
        """Mean loss over the first `max_batches` batches; the last batch of the set may be short.

        Raises InputError when no label counts, IntegrityError when lineage does not know one.
        """
        known = self._known
        sums = GroupSums(self.compiled, known.groups)
        text_2G = np.zeros((2, known.groups), np.int64)
        loss_sum, counted, samples = 0.0, 0, 0
        with sums.listening():
            for rows_B in self._batches():
                pulse.doing(f"evaluating, row {rows_B[0] + 1:,} of {self._rows:,}")
                rows_BCS, group_BS = self.source.read(rows_B), known.group_of(rows_B)
                batch_loss, batch_counted = self.compiled.evaluate(
                    sums.tagged(to_batch(rows_BCS), group_BS),
                    micro_batch_size=self.micro_batch_size,
                    between_leaves=self.between_leaves,
                )
                sums.take()
                text_2G += known.text_of(rows_BCS, group_BS)
                loss_sum += batch_loss
                counted += batch_counted
                samples += len(rows_B)
        if counted == 0:
            places = ", ".join(str(dataset.directory) for dataset in self.source.datasets)
            raise InputError(f"{places}: no token counts towards the loss: every loss mask is zero")
        total = known.amount(loss_sum, counted, text_2G.sum(axis=1))
        return Evaluation(total, samples, _per_source(known, sums, text_2G))

    @functools.cached_property
    def _known(self) -> KnownLabels:
        return known_labels(self.source, self.reference, self.say)

    def _batches(self) -> Iterator[npt.NDArray[np.int64]]:
        for first in range(0, self._rows, self.batch_size):
            yield np.arange(first, min(first + self.batch_size, self._rows), dtype=np.int64)

    @property
    def _rows(self) -> int:
        """Rows that are evaluated."""
        rows = self.source.rows
        return rows if self.max_batches is None else min(rows, self.max_batches * self.batch_size)


def _per_source(
    known: KnownLabels, sums: GroupSums, text_2G: npt.NDArray[np.int64]
) -> dict[str, Amount]:
    return {
        name: known.amount(float(sums.loss[g]), int(sums.counted[g]), text_2G[:, g])
        for g, name in enumerate(known.names)
        if sums.counted[g]
    }


def _scalars(found: Evaluation) -> dict[str, float | None]:
    """Points of TensorBoard."""
    by_source = {f"loss/{name}": amount.loss for name, amount in found.per_source.items()}
    return {"loss": found.loss, "bits_per_byte": found.total.bits_per_byte, **by_source}
