"""The stability watch: signs of trouble in weights, gradients and losses (docs/stability.md).

    with watch.over(step) as gradients:
        result = compiled.train_step(...)
    watched = watch.look(step, result.loss, gradients)
    watch.tell(watched)

A step that is bad is reported with what it read: its rows, and the documents that lineage knows.
Figures are pure functions of the state after a step, so a resumed run logs the same ones.

Limits: what wafers cast inside of forward and backward is seen in the gradients that arrive only.
"""

import contextlib
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.core.errors import PrepError
from pipeline.core.order import batch_size_at, samples_before_step
from pipeline.core.words import pluralise
from pipeline.hdf5.read import SampleDataset
from trainer.config import Params
from trainer.data import TrainingData
from trainer.errors import TrainingError
from trainer.model.optimizer import adam_eps
from trainer.runs.console import Say
from trainer.stability import measure, rules
from trainer.stability.measure import Gradients
from trainer.stability.rules import FIELD, Figures, History, Spike, figures
from wafer_backend.compiled import CompiledModule
from wafer_backend.errors import StepError

__all__ = ["StepFindings", "Watch"]

SHOWN = 5


def read_by(step: int, data: TrainingData, model_dir: Path) -> str:
    """The rows that 1-based `step` reads, data set by data set: the keys of the first documents and
    the command that lists all, or, without lineage, files and rows."""
    first = samples_before_step(step, data.schedule)
    rows_B = data.order.rows(first, batch_size_at(step, data.schedule))
    parts = []
    for part, dataset in enumerate(data.source.datasets):
        own = rows_B - data.order.first_row(part)
        own = own[(own >= 0) & (own < data.source.parts[part].rows)]
        if len(own):
            parts.append(_of_data_set(dataset, own, step, model_dir))
    return f"step {step} read {'; '.join(parts)}"


def _of_data_set(
    dataset: SampleDataset, rows_N: npt.NDArray[np.int64], step: int, model_dir: Path
) -> str:
    # Not before something went wrong: it takes pyarrow and all that reads lineage.
    from pipeline.lineage.forward import has_lineage
    from pipeline.lineage.trace import trace_step
    from pipeline.runs.generations import name_split

    why = "which has no lineage"
    if has_lineage(dataset):
        run = dataset.directory.parent.parent
        try:
            place = f"{name_split(dataset.directory)}/"
            spans = [s for s in trace_step(run, model_dir, step) if s.file.startswith(place)]
        except PrepError as error:
            why = f"whose lineage cannot be read ({error})"
        else:
            keys = dict.fromkeys(span.document for span in spans if not span.masked)
            names = ", ".join([*list(keys)[:SHOWN], *["…"] * (len(keys) > SHOWN)])
            return (
                f"{pluralise(len(rows_N), 'row')} of {run} with "
                f"{pluralise(len(keys), 'document')}: {names}; to list all: prep "
                f"trace {shlex.quote(str(run))} --train {shlex.quote(str(model_dir))} --step {step}"
            )
    places = (dataset.file_and_row(int(row)) for row in rows_N[:SHOWN])
    shown = [f"{path.name} row {row}" for path, row in places]
    return (
        f"{pluralise(len(rows_N), 'row')} of {dataset.directory}, {why}: "
        f"{', '.join(shown)}{', …' if len(rows_N) > SHOWN else ''}"
    )


@dataclass(frozen=True)
class StepFindings:
    """What was found at a step: `figures` if it was measured, with words for every cause in
    `warnings`; `spike` if its loss is one."""

    step: int
    figures: Figures | None = None
    warnings: Mapping[str, str] = field(default_factory=dict)
    spike: Spike | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """For the line of metrics.jsonl."""
        values: dict[str, Any] = {}
        if self.figures is not None:
            values[FIELD] = {**self.figures, "warnings": list(self.warnings)}
        if self.spike is not None:
            values["spike"] = self.spike.limit
        return values

    @property
    def scalars(self) -> dict[str, float]:
        """For TensorBoard, by name."""
        values = dict(_flat(FIELD, self.figures or {}))
        if self.spike is not None:
            values[f"{FIELD}/spike"] = self.spike.loss
        return values


@dataclass(kw_only=True)
class Watch:
    """Watches over the steps of a run. Every rank has one, and all find the same. `history`:
    what went before; `warned`: causes that were warned of and have not cleared since."""

    params: Params
    model_dir: Path
    compiled: CompiledModule
    data: TrainingData
    history: History
    say: Say
    warned: set[str] = field(default_factory=set)

    @contextlib.contextmanager
    def over(self, step: int) -> Iterator[Gradients]:
        """Run `step` inside; gives what counts its gradients. A StepError then says, too, what the
        step read."""
        gradients = Gradients(self.compiled)
        try:
            with gradients.counted() if self._due(step) else contextlib.nullcontext():
                yield gradients
        except StepError as error:
            raise StepError(f"{error}; {self._read_by(step)}") from error

    def look(self, step: int, loss: float, gradients: Gradients) -> StepFindings:
        """Measure after `step` if it is due, and hold its loss against those before."""
        rule, measured = self.params.runconfig.stability, None
        warnings: dict[str, str] = {}
        if self._due(step):
            eps = adam_eps(self.params.optimizer)
            sums = measure.by_name(self.compiled, gradients, self.params.model)
            measured = figures(sums, eps, self.history.first)
            warnings = rules.warnings(measured, rule, eps)
            self.history.first = self.history.first or measured
        spike = rules.spike(list(self.history.losses), loss, rule)
        self.history.losses.append(loss)
        return StepFindings(step, measured, warnings, spike)

    def tell(self, watched: StepFindings) -> None:
        """Warn of what was not warned of yet. Raises TrainingError at a spike if that is to stop
        the run: weights have learned from it then, but no checkpoint has."""
        if watched.figures is not None:
            for cause, words in watched.warnings.items():
                if cause not in self.warned:
                    self.say(f"Unstable ({cause}), step {watched.step}: {words}")
            self.warned = (self.warned & {_SPIKE}) | watched.warnings.keys()
        if watched.spike is None:
            self.warned.discard(_SPIKE)
            return
        stops = self.params.runconfig.stability.on_spike == "stop"
        if stops or _SPIKE not in self.warned:
            words = f"step {watched.step}: {watched.spike}; {self._read_by(watched.step)}"
            if stops:
                raise TrainingError(f"{words} (runconfig.stability.on_spike: stop)")
            self.say(f"Unstable ({_SPIKE}), {words}")
        self.warned.add(_SPIKE)

    def _due(self, step: int) -> bool:
        every = self.params.runconfig.stability.every
        return every is not None and step % every == 0

    def _read_by(self, step: int) -> str:
        return read_by(step, self.data, self.model_dir)


_SPIKE = "spike"


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Nested figures by names with slashes; `kinds` is left out of them."""
    for key, value in values.items():
        name = prefix if key == "kinds" else f"{prefix}/{key}"
        if isinstance(value, Mapping):
            yield from _flat(name, value)
        else:
            yield name, value
