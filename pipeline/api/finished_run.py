"""`pipeline.open_run`: a finished run to read tables, texts and rows from, and to ask questions."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.api import AnyPath, questions, run_path
from pipeline.core import ids
from pipeline.core.errors import InputError
from pipeline.core.ledger import Ledger, ledger_from_dict
from pipeline.explain.explain import Explanation, explain_document
from pipeline.hdf5.dataset import HDF5Dataset, Labels
from pipeline.hdf5.format import DATA_PARAMS
from pipeline.runs import layout
from pipeline.runs.generations import list_generations
from pipeline.runs.origin import texts_home
from pipeline.runs.parts import read_schema, wrap_read_errors
from pipeline.runs.records import DocumentTable, map_arrow, select_texts
from pipeline.runs.run_directory import read_committed


@dataclass(frozen=True)
class FinishedRun:
    """A finished run; `open_run` makes one. Where a path is taken, it stands for its directory.

    directory: where it is; of a run in a bucket, where this machine has copies of what was read.
    manifest: manifest.json: the config's name, the command (`story`), stages, and every file with
        its size in bytes and its hash.

    Of a run that was appended to, tables and rows are those of its first generation;
    `generations` has all of them, and questions are answered with all. Tables are Arrow tables with
    the columns of docs/formats.md. Raises InputError for what this
    run's command does not make, IntegrityError for damage.
    """

    directory: Path
    manifest: dict[str, Any]

    def __fspath__(self) -> str:
        return str(self.directory)

    @property
    def generations(self) -> tuple["FinishedRun", ...]:
        """The generations of a run that was appended to, each as a run; this one alone of any
        other."""
        later = (g.directory for g in list_generations(self.directory)[1:])
        return (self, *(FinishedRun(place, read_committed(place)) for place in later))

    @property
    def ledger(self) -> Ledger:
        """Every record, document, byte and token accounted for, by source and split."""
        path = self.directory / layout.LEDGER
        if not path.is_file():
            raise InputError(f"{path}: not there; `prep {self.manifest['story']}` makes none")
        return ledger_from_dict(json.loads(path.read_bytes()))

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the data sets in hdf5/, such as train."""
        files = (self.directory / "hdf5").glob(f"*/{DATA_PARAMS}")
        return tuple(sorted(path.parent.name for path in files))

    def split(
        self,
        name: str = "train",
        *,
        max_sequence_length: int | None = None,
        labels: Labels = "shifted",
    ) -> HDF5Dataset:
        """Return the rows of a split, as a map-style data set of PyTorch.

        name: one of `splits`.
        max_sequence_length: tokens of a row, only for the format `corpus`.
        labels: `shifted` as stored, or `hf` for models of transformers.

        Raises InputError for a split that is not there.
        """
        if name not in self.splits:
            names = ", ".join(self.splits) or "none"
            raise InputError(f"{self.directory}: no split {name}; expected one of: {names}")
        where = self.directory / "hdf5" / name
        return HDF5Dataset(where, max_sequence_length=max_sequence_length, labels=labels)

    def documents(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return one row per record ever read, with its one end.

        columns: such as `doc_key`, `source`, `state`, `split` and `tokens`; by default all.

        Raises InputError for a column that is not there.
        """
        return self._table(self.directory, layout.DOCUMENTS, columns)

    def sources(self) -> pa.Table:
        """Return the raw shards with size in bytes and the hash of what was read; `path_id` of
        documents is a row of it."""
        return self._table(self.directory, layout.SOURCES)

    def evidence(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return what detectors, filters and reviews found in documents.

        columns: such as `doc_key`, `detector` and `target`; by default all.

        Raises InputError for a column that is not there, and where nothing was looked for.
        """
        return self._table(texts_home(self.directory), layout.EVIDENCE, columns)

    def decisions(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return what follows from the evidence, one row per document concerned.

        columns: such as `doc_key`, `decision` and `rule`; by default all.

        Raises InputError for a column that is not there, and where nothing was decided.
        """
        return self._table(texts_home(self.directory), layout.DECISIONS, columns)

    def texts(self, split: str | None = None) -> Iterator[tuple[str, str]]:
        """Yield (key in hex, cleaned text) of the kept documents, in the order of `documents`.

        split: only documents of this one, such as `train`; by default of all.

        Texts that were taken down are left out. Raises InputError where the texts were deleted.
        """
        home = texts_home(self.directory)
        chosen = pc.field("state") == "kept"
        if split is not None:
            chosen &= pc.field("split") == split
        parts = DocumentTable(self.directory).parts(["doc_key", "state", "split"])
        paths = sorted((home / "documents").glob("*.arrow"))
        if not paths:
            raise InputError(f"{home}: no documents/: the texts were deleted")
        kept = pa.array([], pa.binary(ids.KEY_BYTES))
        for path in paths:
            table = map_arrow(path)
            while len(kept) < len(table) and (part := next(parts, None)) is not None:
                more = part[1].filter(chosen)["doc_key"].combine_chunks()
                kept = pa.concat_arrays([kept, more])
            # Both are in document order, so those of this shard are among the next ones.
            nearby = kept.slice(0, len(table))
            kept = kept.slice(pc.sum(pc.is_in(table["doc_key"], nearby)).as_py() or 0)
            for key, text in select_texts(table, nearby, None).items():
                yield key.hex(), text

    verify = questions.verify
    trace = questions.trace
    search = questions.search

    def explain(self, document: str, *, limit: int | None = None) -> Explanation:
        """Return what became of a document, and why, as `prep explain`.

        document: a key in hex or six digits of its beginning, FILE:LINE, FILE of one record,
            SHARD[ROW] or the id of a work that leads to one document.
        limit: list so many documents at most that it stands for; by default all.

        Raises InputError for an unknown or ambiguous document.
        """
        return explain_document(self.directory, document, limit)

    def _table(self, directory: Path, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        path = directory / name
        if not path.exists():
            raise InputError(f"{path}: not there: this run has no such table")
        with wrap_read_errors(path):
            names = read_schema(path).names
            strange = [column for column in columns or () if column not in names]
            if not strange:
                return pq.read_table(path, columns=None if columns is None else list(columns))
        raise InputError(f"{path}: no column {strange[0]}; expected {', '.join(names)}")


def open_run(directory: AnyPath) -> FinishedRun:
    """Open a finished run to read from it.

    directory: a run directory that any command of `prep` made, or its URL in a bucket.

    Returns the run; tables are read when they are asked for. Raises InputError for a directory that
    is no finished run, IntegrityError for a damaged manifest.
    """
    where = run_path(directory)
    return FinishedRun(where, read_committed(where))
