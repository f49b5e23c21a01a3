"""From evidence to decisions: a pure function of the policy and the evidence of each document.

Rules are tried in order. The first that matches and does not say review decides; a matching review
stands unless another rule decides otherwise; a document that no rule matches has no row. Conditions
are tested once for every distinct value, so documents with the same evidence cost no Python each.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64
from pipeline.core.errors import IntegrityError
from pipeline.screening.detectors.catalogue import Attribute
from pipeline.screening.evidence import DECISION_SCHEMA
from pipeline.screening.policy.attributes import WORK_DETECTORS, TemplateField
from pipeline.screening.policy.rules import ConditionGroup, Policy, ReadyRule, compile_rules

_PARSED = "attributes"

Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class CodedColumn:
    """N values as codes (N,) int64 into the distinct ones; None is a missing value."""

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
        encoded = _encode(evidence["doc_key"])
        self.keys: pa.Array = encoded.dictionary
        """(D,) keys of the documents, in order of first appearance."""
        self.document: I64 = encoded.indices.to_numpy().astype(np.int64)
        """(N,) which of the D documents a row is about."""
        self._works = works
        self._documents = documents
        self._rows: dict[tuple[str, ...], I64] = {}
        self._columns: dict[tuple[tuple[str, ...], str, str], CodedColumn] = {}

    def list_rows(self, detectors: tuple[str, ...]) -> I64:
        """Numbers of the rows of these detectors, ascending."""
        if detectors not in self._rows:
            mask = pc.is_in(self.table["detector"], pa.array(detectors, pa.string()))
            self._rows[detectors] = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
        return self._rows[detectors]

    def find_matching(self, group: ConditionGroup) -> I64:
        """Numbers of the rows that fulfil all conditions of a group, ascending."""
        rows = self.list_rows(group.detectors)
        fulfilled = np.ones(len(rows), bool)
        for test in group.tests:
            if fulfilled.any():
                column = self.read_values(group.detectors, test.namespace, test.attribute)
                fulfilled &= column.where(test.holds)
        return rows[fulfilled]

    def read_values(
        self, detectors: tuple[str, ...], namespace: str, attribute: Attribute
    ) -> CodedColumn:
        """An attribute of these detectors or of the work they name, over `list_rows(detectors)`."""
        key = (detectors, namespace, attribute.name)
        if key not in self._columns:
            name = "work_id" if namespace == "work" else attribute.column or _PARSED
            column = self._read_column(detectors, name)
            if namespace == "work":
                column = CodedColumn(column.codes, self._read_works(column.values, attribute))
            elif name == _PARSED:
                column = _code_attribute(column, attribute.name)
            self._columns[key] = column
        return self._columns[key]

    def _read_column(self, detectors: tuple[str, ...], name: str) -> CodedColumn:
        """A column of the table over `list_rows(detectors)`; `attributes` as parsed objects."""
        key = (detectors, "", name)
        if key not in self._columns:
            column = _code_column(self.table[name].take(pa.array(self.list_rows(detectors))))
            if name == _PARSED:
                column = CodedColumn(column.codes, list(map(_parse_attributes, column.values)))
            self._columns[key] = column
        return self._columns[key]

    def read_records(self, attribute: Attribute) -> CodedColumn:
        """An attribute of the documents' own records, over the D documents."""
        if self._documents is None:
            raise ValueError("the policy asks for document.source or document.licence")
        keys = self._documents["doc_key"].combine_chunks()
        place = pc.index_in(self.keys, value_set=keys)
        return _code_column(self._documents[attribute.column].take(place))

    def _read_works(self, work_ids: list[Any], attribute: Attribute) -> list[Any]:
        if self._works is None:
            return [None] * len(work_ids)
        place = pc.index_in(
            pa.array(work_ids, pa.string()),
            value_set=self._works["work_id"].cast(pa.string()).combine_chunks(),
        )
        values: list[Any] = self._works[attribute.column].take(place).to_pylist()
        return values


def _encode(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """A column as one dictionary array, nulls among its values, in order of first appearance."""
    return pc.dictionary_encode(column.combine_chunks(), null_encoding="encode")


def _code_column(column: pa.ChunkedArray) -> CodedColumn:
    encoded = _encode(column)
    return CodedColumn(encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_pylist())


def _code_attribute(objects: CodedColumn, name: str) -> CodedColumn:
    """One key of parsed objects, equal values as one."""
    values: dict[str, Any] = {}
    numbers: dict[str, int] = {}
    renumbered = np.empty(len(objects.values), np.int64)
    for place, parsed in enumerate(objects.values):
        value = parsed.get(name)
        spelling = repr(value)
        renumbered[place] = numbers.setdefault(spelling, len(numbers))
        values[spelling] = value
    return CodedColumn(renumbered[objects.codes], list(values.values()))


def _parse_attributes(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except ValueError as error:
        raise IntegrityError(f"evidence: attributes are not JSON ({error})") from error
    if not isinstance(value, dict):
        raise IntegrityError("evidence: attributes are not a JSON object")
    return value


def take_first_rows(document: I64, rows: I64) -> tuple[I64, I64]:
    """The documents of ascending `rows` and the first row of each; `document` is that of every row
    of the table."""
    documents, first = np.unique(document[rows], return_index=True)
    return documents, rows[first]


NO_SPAN = " (quarantined: the evidence names no span to redact)"
"""Added to the reason of a redact rule whose evidence has no place in the text."""

_NONE = -1
Words = npt.NDArray[np.object_]


@dataclass(frozen=True)
class RuleMatch:
    """Where one rule matched: the documents (D,) bool, and the rows of each of its groups."""

    rule: ReadyRule
    documents: Bool
    rows: tuple[I64, ...]


def evaluate_policy(
    policy: Policy,
    evidence: pa.Table,
    works: pa.Table | None = None,
    documents: pa.Table | None = None,
) -> pa.Table:
    """The policy's decisions: DECISION_SCHEMA (without doc_id where the evidence has none), one row
    per document that a rule matches, in the order in which documents first appear.

    evidence: EVIDENCE_SCHEMA, any number of shards; rows of one document may be apart. works:
    what `work.X` reads, `work_id` and columns of the registry. documents: doc_key, source, licence
    of at least the documents with evidence, where the policy asks for them (`reads_documents`).
    """
    evidence_rows = EvidenceRows(evidence, works, documents)
    matches = list(match_rules(policy, evidence_rows))
    rule_numbers = _choose_rules(matches, len(evidence_rows.keys))
    decided = np.flatnonzero(rule_numbers != _NONE)
    rows, lengths, has_span = _select_evidence(matches, rule_numbers, evidence_rows)
    columns = _make_words(matches, rule_numbers, decided, evidence_rows, has_span)
    offsets = np.concatenate([[0], np.cumsum(lengths[decided])]).astype(np.int32)
    ids = evidence["evidence_id"].take(pa.array(rows)).combine_chunks()
    columns["evidence"] = pa.ListArray.from_arrays(pa.array(offsets), ids)
    columns["doc_key"] = evidence_rows.keys.take(pa.array(decided))
    columns["propagated_from"] = pa.nulls(len(decided), pa.binary(16))
    if "doc_id" in evidence.column_names:
        _, first = take_first_rows(evidence_rows.document, np.arange(len(evidence)))
        columns["doc_id"] = evidence["doc_id"].take(pa.array(first[decided]))
    schema = pa.schema([field for field in DECISION_SCHEMA if field.name in columns])
    return pa.table([columns[name] for name in schema.names], schema=schema)


def match_rules(policy: Policy, evidence: EvidenceRows) -> Iterator[RuleMatch]:
    """Every rule in order with what it matches."""
    for rule in compile_rules(policy):
        rows = tuple(evidence.find_matching(group) for group in rule.present)
        matched = np.ones(len(evidence.keys), bool)
        for matching in rows:
            matched &= _has_row(evidence, matching)
        for group in rule.absent:
            matched &= ~_has_row(evidence, evidence.find_matching(group))
        for test in rule.document:
            if matched.any():
                matched &= evidence.read_records(test.attribute).where(test.holds)
        yield RuleMatch(rule, matched, rows)


def _has_row(evidence: EvidenceRows, rows: I64) -> Bool:
    there = np.zeros(len(evidence.keys), bool)
    there[evidence.document[rows]] = True
    return there


def _choose_rules(matches: list[RuleMatch], documents: int) -> I64:
    """The rule that decides each document, (D,): a number in `matches`, or _NONE."""
    decided, review = np.full(documents, _NONE), np.full(documents, _NONE)
    for number, match in enumerate(matches):
        kind = review if match.rule.rule.decision == "review" else decided
        kind[match.documents & (kind == _NONE)] = number
    return np.where(decided != _NONE, decided, review)


def _select_evidence(
    matches: list[RuleMatch], rule_numbers: I64, evidence: EvidenceRows
) -> tuple[I64, I64, Bool]:
    """The rows that matched the rule which decided, by document and then in table order; how many
    each document has, (D,); and whether any of them has a span, (D,)."""
    selected = np.zeros(len(evidence.document), bool)
    for number, match in enumerate(matches):
        for rows in match.rows:
            selected[rows[rule_numbers[evidence.document[rows]] == number]] = True
    rows = np.flatnonzero(selected)
    rows = rows[np.argsort(evidence.document[rows], kind="stable")]
    document = evidence.document[rows]
    length = pc.fill_null(evidence.table["byte_length"].take(pa.array(rows)), 0).to_numpy()
    has_span = np.zeros(len(evidence.keys), bool)
    has_span[document[length > 0]] = True
    return rows, np.bincount(document, minlength=len(evidence.keys)), has_span


def _make_words(
    matches: list[RuleMatch],
    rule_numbers: I64,
    decided: I64,
    evidence: EvidenceRows,
    has_span: Bool,
) -> dict[str, pa.Array]:
    decision = np.empty(len(evidence.keys), object)
    rule, reason = decision.copy(), decision.copy()
    for number, match in enumerate(matches):
        documents = np.flatnonzero(rule_numbers == number)
        if not len(documents):
            continue
        decision[documents] = match.rule.rule.decision
        rule[documents] = match.rule.rule.id
        reason[documents] = fill_reasons(match, documents, evidence)
        if match.rule.rule.decision == "redact":
            bare = documents[~has_span[documents]]
            decision[bare] = "quarantine"
            reason[bare] = reason[bare] + NO_SPAN
    columns = {"decision": decision, "rule": rule, "reason": reason}
    return {name: pa.array(values[decided], pa.string()) for name, values in columns.items()}


def fill_reasons(match: RuleMatch, documents: I64, evidence: EvidenceRows) -> Words:
    """The reason for each of these ascending documents, filled in from the first row that matched;
    made once for each combination of values."""
    template = match.rule.reason
    code, columns = np.zeros(len(documents), np.int64), []
    for field in template.fields:
        column = _read_field(match, field, documents, evidence)
        columns.append(column)
        code = np.unique(code * len(column.values) + column.codes, return_inverse=True)[1]
    _, example, which = np.unique(code, return_index=True, return_inverse=True)
    filled = [
        template.fill(tuple(column.values[column.codes[place]] for column in columns))
        for place in example.tolist()
    ]
    return np.array(filled, object)[which]


def _read_field(
    match: RuleMatch, field: TemplateField, documents: I64, evidence: EvidenceRows
) -> CodedColumn:
    """A field of the reason over these documents, each from the first row that matched."""
    if field.namespace == "document":
        column = evidence.read_records(field.attribute)
        return CodedColumn(column.codes[documents], column.values)
    detectors, rows = _find_group(match, field.namespace)
    column = evidence.read_values(detectors, field.namespace, field.attribute)
    about, first = take_first_rows(evidence.document, rows)
    first = first[np.searchsorted(about, documents)]
    return CodedColumn(
        column.codes[np.searchsorted(evidence.list_rows(detectors), first)], column.values
    )


def _find_group(match: RuleMatch, namespace: str) -> tuple[tuple[str, ...], I64]:
    """The group whose rows a field of a reason is read from: its detectors, its rows."""
    detectors = WORK_DETECTORS if namespace == "work" else (namespace,)
    return next(
        (group.detectors, rows)
        for group, rows in zip(match.rule.present, match.rows, strict=True)
        if group.detectors[0] in detectors
    )
