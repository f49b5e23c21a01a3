"""The data sets of a run, each with what is known of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.report.data_sets import ReadDataSet
from trainer.report.prepared import PrepRun, SourceRead, read_prepared


@dataclass(frozen=True)
class ReportedDataSet:
    """A data set of run.json. `found`: where it stands, None when nobody told; `prepared`: of the
    prep run it stands in, None where it stands in none."""

    from_step: int
    dataset_hash: str
    rows: int | None
    rows_globally_shuffled: bool
    found: ReadDataSet | None
    prepared: PrepRun | None

    @property
    def run_argument(self) -> str:
        """The prep run, as an argument of `prep trace`."""
        run = self.found.run if self.found is not None else None
        return "RUN" if run is None else str(run)

    def tokens_read(self, source: SourceRead) -> float:
        """Tokens of a source in all readings: exact for whole epochs, expected for the rest."""
        return source.tokens * self.found.epochs if self.found is not None else 0.0


def find_data_sets(
    record: Mapping[str, Any], found: Sequence[ReadDataSet]
) -> tuple[ReportedDataSet, ...]:
    """The data sets of a record, in its order; raises as `read_prepared`.

    One that was masked on the way has an entry for each of its hashes; what is known of it stands
    with the last.
    """
    by_part = {data_set.part: data_set for data_set in found}
    entries = record["datasets"]
    last = {entry.get("part", 0): index for index, entry in enumerate(entries)}
    made = []
    for index, entry in enumerate(entries):
        part = entry.get("part", 0)
        here = by_part.get(part) if last[part] == index else None
        prepared = None
        if here is not None and here.run is not None:
            prepared = read_prepared(here.run, here.directory.name)
        made.append(
            ReportedDataSet(
                entry["from_step"],
                entry["dataset_hash"],
                entry.get("rows"),
                bool(entry.get("rows_globally_shuffled")),
                here,
                prepared,
            )
        )
    return tuple(made)
