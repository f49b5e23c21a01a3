"""Evidence by detector, read attribute by attribute: codes into the distinct values.

A condition is asked once of every distinct value, a JSON object is parsed once however many rows
have it, so documents with the same evidence cost no Python each.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64
from pipeline.core.errors import IntegrityError
from pipeline.provenance.policy.attributes import Attribute
from pipeline.provenance.policy.rules import ConditionGroup, Test

_PARSED = "attributes"

Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class CodedColumn:
    """N values as codes (N,) int64 into the distinct ones; None stands for a missing value."""

    codes: I64
    values: list[Any]

    def where(self, holds: Callable[[Any], bool]) -> Bool:
        """Which of the N values fulfil a test, (N,) bool."""
        return np.array([holds(value) for value in self.values], bool)[self.codes]


class EvidenceRows:
    """The evidence on D documents, with the works and the records it refers to.

    `evidence` has at least the columns of the published table (`EVIDENCE_SCHEMA` without doc_id);
    `works` has `work_id` and what policies read; `documents` has `doc_key`, `source` and `licence`.
    """

    def __init__(
        self, evidence: pa.Table, works: pa.Table | None = None, documents: pa.Table | None = None
    ) -> None:
        self.table = evidence
        encoded = _encoded(evidence["doc_key"])
        self.keys: pa.Array = encoded.dictionary
        """(D,) keys of the documents, in order of first appearance."""
        self.document: I64 = encoded.indices.to_numpy().astype(np.int64)
        """(N,) which of the D documents a row is about."""
        self._works = works
        self._documents = documents
        self._rows: dict[tuple[str, ...], I64] = {}
        self._columns: dict[tuple[tuple[str, ...], str, str], CodedColumn] = {}

    def rows(self, detectors: tuple[str, ...]) -> I64:
        """Numbers of the rows of these detectors, ascending."""
        if detectors not in self._rows:
            chosen = pc.is_in(self.table["detector"], pa.array(detectors, pa.string()))
            self._rows[detectors] = np.flatnonzero(chosen.to_numpy(zero_copy_only=False))
        return self._rows[detectors]

    def matching(self, group: ConditionGroup) -> I64:
        """Numbers of the rows that fulfil all conditions of a group, ascending."""
        rows = self.rows(group.detectors)
        fulfilled = np.ones(len(rows), bool)
        for test in group.tests:
            if fulfilled.any():
                fulfilled &= self.column(group.detectors, test).where(test.holds)
        return rows[fulfilled]

    def column(self, detectors: tuple[str, ...], of: Test) -> CodedColumn:
        """The attribute that a test asks for, over `rows(detectors)`."""
        return self.values(detectors, of.namespace, of.attribute)

    def values(
        self, detectors: tuple[str, ...], namespace: str, attribute: Attribute
    ) -> CodedColumn:
        """An attribute of these detectors or of the work they name, over `rows(detectors)`."""
        key = (detectors, namespace, attribute.name)
        if key not in self._columns:
            name = "work_id" if namespace == "work" else attribute.column or _PARSED
            column = self._read(detectors, name)
            if namespace == "work":
                column = CodedColumn(column.codes, self._of_works(column.values, attribute))
            elif name == _PARSED:
                column = _distinct(column, attribute.name)
            self._columns[key] = column
        return self._columns[key]

    def _read(self, detectors: tuple[str, ...], name: str) -> CodedColumn:
        """A column of the table over `rows(detectors)`; `attributes` as parsed objects."""
        key = (detectors, "", name)
        if key not in self._columns:
            column = _column(self.table[name].take(pa.array(self.rows(detectors))))
            if name == _PARSED:
                column = CodedColumn(column.codes, list(map(_parsed, column.values)))
            self._columns[key] = column
        return self._columns[key]

    def of_documents(self, attribute: Attribute) -> CodedColumn:
        """An attribute of the documents' own records, over the D documents."""
        if self._documents is None:
            raise ValueError("the policy asks for document.source or document.licence")
        known = self._documents["doc_key"].combine_chunks()
        place = pc.index_in(self.keys, value_set=known)
        return _column(self._documents[attribute.column].take(place))

    def _of_works(self, work_ids: list[Any], attribute: Attribute) -> list[Any]:
        if self._works is None:
            return [None] * len(work_ids)
        place = pc.index_in(
            pa.array(work_ids, pa.string()),
            value_set=self._works["work_id"].cast(pa.string()).combine_chunks(),
        )
        values: list[Any] = self._works[attribute.column].take(place).to_pylist()
        return values


def _encoded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """A column as one dictionary array, nulls among its values, in order of first appearance."""
    return pc.dictionary_encode(column.combine_chunks(), null_encoding="encode")


def _column(column: pa.ChunkedArray) -> CodedColumn:
    encoded = _encoded(column)
    return CodedColumn(encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_pylist())


def _distinct(objects: CodedColumn, name: str) -> CodedColumn:
    """One key of parsed objects, equal values as one."""
    values: dict[str, Any] = {}
    number: dict[str, int] = {}
    renumbered = np.empty(len(objects.values), np.int64)
    for place, parsed in enumerate(objects.values):
        value = parsed.get(name)
        written = repr(value)
        renumbered[place] = number.setdefault(written, len(number))
        values[written] = value
    return CodedColumn(renumbered[objects.codes], list(values.values()))


def _parsed(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except ValueError as error:
        raise IntegrityError(f"evidence: attributes are not JSON ({error})") from error
    if not isinstance(value, dict):
        raise IntegrityError("evidence: attributes are not a JSON object")
    return value


def first_per_document(document: I64, rows: I64) -> tuple[I64, I64]:
    """The documents of ascending `rows` and the first row of each; `document` is that of every row
    of the table."""
    documents, first = np.unique(document[rows], return_index=True)
    return documents, rows[first]
