"""Which source the labels of an evaluation belong to, over all its data sets.

Sources are those of the documents where a data set stands in a run directory; elsewhere nothing
tells of documents, and the data set itself is the source, by the name of its directory.
"""

import numpy as np
import numpy.typing as npt

from pipeline.lineage.forward import NO_SOURCE, LabelSources, has_lineage
from trainer.data.source import SampleSource

__all__ = ["NO_SOURCE", "SourcesOfLabels"]


class SourcesOfLabels:
    """`names`: all sources, sorted. Raises as `LabelSources`."""

    def __init__(self, source: SampleSource) -> None:
        self._source = source
        self._starts = np.cumsum([0, *(part.rows for part in source.parts)])
        self._labels = [LabelSources(d) if has_lineage(d) else None for d in source.datasets]
        known = [
            labels.names if labels else (dataset.directory.name,)
            for dataset, labels in zip(source.datasets, self._labels, strict=True)
        ]
        self.names = tuple(sorted({name for names in known for name in names}))
        self._index = [np.array([self.names.index(n) for n in names], np.int16) for names in known]

    def of(self, rows_B: npt.NDArray[np.int64]) -> npt.NDArray[np.int16]:
        """For every label of these rows the index of its source in `names`, (B, S); NO_SOURCE for
        padding, where lineage tells it."""
        out = np.zeros((len(rows_B), self._source.max_sequence_length), np.int16)
        part_B = np.searchsorted(self._starts, rows_B, side="right") - 1
        for part in np.unique(part_B).tolist():
            here, labels, index = part_B == part, self._labels[part], self._index[part]
            if labels is None:
                out[here] = index[0]
                continue
            found = labels.of(rows_B[here] - self._starts[part])
            out[here] = np.where(found == NO_SOURCE, NO_SOURCE, index[found])
        return out
