"""Which documents a takedown masked in a data set, and from which version of it on.

A data set that takedowns were applied to names its ancestors; version v of it is the one before the
v-th takedown, the present one is the last. DIR/takedowns/NAME.parquet lists the documents of one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64
from pipeline import layout
from pipeline.core.errors import escape_text
from pipeline.hdf5.read import SampleDataset
from pipeline.provenance.records import wrap_read_errors

NEVER = 1 << 62


@dataclass(frozen=True)
class MaskedDocuments:
    """Documents (dense indices, ascending) and the first version in which each is masked, (N,)."""

    doc: I64
    since: I64

    def since_of(self, doc_M: I64) -> I64:
        """The first version in which each document is masked; NEVER where none is, (M,)."""
        if not len(self.doc):
            return np.full(len(doc_M), NEVER)
        place = np.minimum(np.searchsorted(self.doc, doc_M), len(self.doc) - 1)
        return np.where(self.doc[place] == doc_M, self.since[place], NEVER)

    def at(self, doc_M: I64, version: int) -> npt.NDArray[np.bool_]:
        """Whether each document is masked in a version, (M,)."""
        return np.asarray(self.since_of(doc_M) <= version)


def text_of_work(work_id: str) -> str:
    """Why a document was taken down that holds text of a work, as `because` has it."""
    return f"text of work {escape_text(work_id)}"


def taken_for_works(directory: Path, work_ids: Sequence[str]) -> dict[bytes, str]:
    """Documents (key -> why) that takedowns took for their text of one of these works. A takedown
    deletes what a rescan found, so that its record alone tells of them afterwards."""
    reasons = pa.array([text_of_work(work) for work in work_ids], pa.string())
    found: dict[bytes, str] = {}
    for file in sorted((directory / layout.TAKEDOWNS).glob("*.parquet")):
        with wrap_read_errors(file) as path:
            columns = ["doc_key", "because"]
            chosen = pc.field("because").isin(reasons)
            rows = pq.read_table(path, columns=columns, filters=chosen).to_pylist()
        found |= {row["doc_key"]: f"{row['because']}, taken down" for row in rows}
    return found


def takedowns_of(directory: Path, key: bytes) -> tuple[str, ...]:
    """The takedowns of a run, by name, that took this document."""
    wanted = pc.field("doc_key") == pa.scalar(key, pa.binary(len(key)))
    found = []
    for file in sorted((directory / layout.TAKEDOWNS).glob("*.parquet")):
        with wrap_read_errors(file) as path:
            if len(pq.read_table(path, columns=["doc"], filters=wanted)):
                found.append(file.stem)
    return tuple(found)


def read_masked_documents(directory: Path, dataset: SampleDataset) -> MaskedDocuments:
    """What takedowns masked in a data set of the run in `directory`. Raises IntegrityError when the
    record of one is missing."""
    docs, versions = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for version, name in enumerate(dataset.takedowns, 1):
        with wrap_read_errors(directory / layout.TAKEDOWNS / f"{name}.parquet") as path:
            doc = pq.read_table(path, columns=["doc"])["doc"].to_numpy().astype(np.int64)
        docs.append(doc)
        versions.append(np.full(len(doc), version))
    doc, first = np.unique(np.concatenate(docs), return_index=True)
    return MaskedDocuments(doc, np.concatenate(versions)[first])
