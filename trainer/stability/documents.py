"""What a step read, in words for a message: its rows, and the documents that lineage knows."""

import shlex
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipeline.core.errors import PrepError
from pipeline.core.order import batch_size_at, samples_before_step
from pipeline.core.words import pluralise
from pipeline.hdf5.read import SampleDataset
from trainer.data import TrainingData

SHOWN = 5


def read_by(step: int, data: TrainingData, model_dir: Path) -> str:
    """The rows that 1-based `step` reads, data set by data set: the keys of the first documents and
    the command that lists all, or, without lineage, files and rows."""
    first = samples_before_step(step, data.schedule)
    rows_B = data.order.rows(first, batch_size_at(step, data.schedule))
    found = []
    for part, dataset in enumerate(data.source.datasets):
        own = rows_B - data.order.first_row(part)
        own = own[(own >= 0) & (own < data.source.parts[part].rows)]
        if len(own):
            found.append(_of_data_set(dataset, own, step, model_dir))
    return f"step {step} read {'; '.join(found)}"


def _of_data_set(
    dataset: SampleDataset, rows_N: npt.NDArray[np.int64], step: int, model_dir: Path
) -> str:
    # Not before something went wrong: it takes pyarrow and all that reads lineage.
    from pipeline.provenance.label_sources import has_lineage
    from pipeline.provenance.trace import trace_step

    why = "which has no lineage"
    if has_lineage(dataset):
        run = dataset.directory.parent.parent
        try:
            spans = trace_step(run, model_dir, step)
        except PrepError as error:
            why = f"whose lineage cannot be read ({error})"
        else:
            keys = dict.fromkeys(span.document for span in spans if not span.masked)
            return (
                f"{pluralise(len(rows_N), 'row')} of {run} with "
                f"{pluralise(len(keys), 'document')}: {_first(list(keys))}; to list all: prep "
                f"trace {shlex.quote(str(run))} --train {shlex.quote(str(model_dir))} --step {step}"
            )
    places = (dataset.file_and_row(int(row)) for row in rows_N[:SHOWN])
    shown = [f"{path.name} row {row}" for path, row in places]
    return (
        f"{pluralise(len(rows_N), 'row')} of {dataset.directory}, {why}: "
        f"{', '.join(shown)}{', …' if len(rows_N) > SHOWN else ''}"
    )


def _first(keys: list[str]) -> str:
    return ", ".join(islice(keys, SHOWN)) + (", …" if len(keys) > SHOWN else "")
