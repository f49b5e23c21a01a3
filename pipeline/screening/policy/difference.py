"""What another policy would change in a finished run, and how a policy decides about one document.

Both policies are evaluated on evidence.parquet, spread over clusters.parquet and joined with what
filters and decontamination decided, as decisions.parquet shows it; no text is read. Tokens of
documents that were not tokenized are estimated from their bytes. Which document of a cluster is
kept is taken as the run made it; a filter whose every decision was outdone counts as reporting
only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core import ids
from pipeline.core.errors import InputError
from pipeline.runs import layout
from pipeline.runs.parts import read_schema, wrap_read_errors
from pipeline.runs.records import RunRecord, RunRecords
from pipeline.screening.evidence import DECISION_SCHEMA, EVIDENCE_SCHEMA
from pipeline.screening.policy import evaluation
from pipeline.screening.policy.propagation import propagate, select_worst
from pipeline.screening.policy.rules import Policy

WORKS = "registry/works.arrow"
"""What the run published of its registries, if it had any."""

_TAKEDOWN = "takedown"
ALLOW = "allow"
_SIDES = ("old_decision", "old_rule", "new_decision", "new_rule")
_DOCUMENTS = ["doc_key", "source", "licence", "state", "text_bytes", "tokens"]
_CLUSTERS = ["kept", "member", "kind", "jaccard", "index"]


@dataclass(frozen=True, kw_only=True)
class DecisionChange:
    """Documents that one policy decides one way and the other another: how many, how many of them
    the run kept, their text in bytes, their tokens as counted, and the estimate for the rest. A
    rule is empty where none matches."""

    old_decision: str
    old_rule: str
    new_decision: str
    new_rule: str
    documents: int
    kept: int
    text_bytes: int
    tokens: int
    tokens_estimated: int


@dataclass(frozen=True)
class PolicyDifference:
    """All changes, those of the decision first, the largest first; documents in the run, and those
    whose decision (not only the rule behind it) changes."""

    documents: int
    decisions_changed: int
    changes: tuple[DecisionChange, ...]


def compare_policies(directory: Path, old: Policy, new: Policy) -> PolicyDifference:
    """What `new` would decide otherwise than `old` on the documents of a run.

    Raises InputError when the run has no evidence, or that of an older version.
    """
    evidence = _read_table(directory / layout.EVIDENCE, _list_columns(EVIDENCE_SCHEMA))
    documents = _read_table(directory / layout.DOCUMENTS, _DOCUMENTS)
    recorded = _read_table(directory / layout.DECISIONS, _list_columns(DECISION_SCHEMA))
    works = read_published_works(directory)
    path = directory / layout.CLUSTERS
    clusters = _read_table(path, _CLUSTERS) if path.exists() else None
    if clusters is not None:  # nothing spread to contained documents
        clusters = clusters.filter(pc.not_equal(clusters["kind"], layout.CONTAINED))
    fixed = find_filter_decisions(evidence, recorded)
    sides = []
    for policy in (old, new):
        decisions = evaluation.evaluate_policy(policy, evidence, works, documents)
        if clusters is not None:
            decisions = propagate(decisions, clusters, policy)
        sides.append(select_worst(decisions, fixed))
    return compare_decisions(sides[0], sides[1], documents)


def read_published_works(directory: Path) -> pa.Table | None:
    """The works of the registries that a run looked at; None when it looked at none."""
    path = directory / WORKS
    if not path.exists():
        return None
    with wrap_read_errors(path), pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


def find_filter_decisions(evidence: pa.Table, recorded: pa.Table) -> pa.Table:
    """The decisions of filters and decontamination, one row for each document and stage: the first
    rule that the document fails, and the action that the recorded decisions show, without a reason;
    and those of takedowns as recorded."""
    own = evidence.filter(pc.not_equal(evidence["rule"], ""))
    stage = pc.utf8_slice_codeunits(
        own["evidence_id"], 2 * ids.KEY_BYTES + 1, 2 * ids.KEY_BYTES + 2
    )
    parts = [recorded.filter(pc.equal(recorded["rule"], _TAKEDOWN))]
    for letter in sorted(pc.unique(stage).to_pylist()):
        rows = own.filter(pc.equal(stage, letter))
        decided_rows = recorded.filter(
            pc.and_(
                pc.is_in(recorded["rule"], pc.unique(rows["rule"])),
                pc.is_null(recorded["propagated_from"]),
            )
        )
        if len(decided_rows):
            parts.append(_take_first_rows(rows, decided_rows["decision"][0].as_py()))
    return pa.concat_tables(parts)


def _take_first_rows(rows: pa.Table, action: str) -> pa.Table:
    encoded = pc.dictionary_encode(rows["doc_key"].combine_chunks())
    _, first = np.unique(encoded.indices.to_numpy(), return_index=True)
    first_rows = (
        rows.select(["doc_key", "rule", "evidence_id"]).take(pa.array(first)).combine_chunks()
    )
    offsets = pa.array(np.arange(len(first) + 1, dtype=np.int32))
    blank = pa.nulls(len(first), pa.string())
    schema = pa.schema([f for f in DECISION_SCHEMA if f.name != "doc_id"])
    columns = {
        "doc_key": first_rows["doc_key"],
        "decision": blank.fill_null(action),
        "rule": first_rows["rule"],
        "reason": blank.fill_null(""),
        "propagated_from": pa.nulls(len(first), pa.binary(16)),
        "evidence": pa.ListArray.from_arrays(offsets, first_rows["evidence_id"].combine_chunks()),
    }
    return pa.table([columns[name] for name in schema.names], schema=schema)


def compare_decisions(old: pa.Table, new: pa.Table, documents: pa.Table) -> PolicyDifference:
    """The difference of two tables of decisions; documents: columns doc_key, state, text_bytes and
    tokens of all documents. A document without a row is allowed."""
    keys = documents["doc_key"].combine_chunks()
    columns = {}
    for side, table in (("old", old), ("new", new)):
        place = pc.index_in(keys, value_set=table["doc_key"].combine_chunks())
        columns[f"{side}_decision"] = pc.fill_null(table["decision"].take(place), ALLOW)
        columns[f"{side}_rule"] = pc.fill_null(table["rule"].take(place), "")
    tokens, estimate = _estimate_tokens(documents)
    columns |= {
        "documents": pa.array(np.ones(len(documents), np.int64)),
        "tokens": tokens,
        "kept": pc.equal(documents["state"], "kept").cast(pa.int64()),
        "text_bytes": documents["text_bytes"].cast(pa.int64()),
        "tokens_estimated": estimate,
    }
    table = pa.table(columns)
    other = pc.or_(
        pc.not_equal(table["old_decision"], table["new_decision"]),
        pc.not_equal(table["old_rule"], table["new_rule"]),
    )
    changes = _group_changes(table.filter(other))
    changed = sum(c.documents for c in changes if c.old_decision != c.new_decision)
    return PolicyDifference(len(documents), changed, changes)


def _group_changes(table: pa.Table) -> tuple[DecisionChange, ...]:
    sums = ("documents", "kept", "text_bytes", "tokens", "tokens_estimated")
    grouped = table.group_by(_SIDES, use_threads=False).aggregate([(name, "sum") for name in sums])
    changes = [
        DecisionChange(
            **{name: row[name] for name in _SIDES}, **{name: row[f"{name}_sum"] for name in sums}
        )
        for row in grouped.to_pylist()
    ]
    return tuple(
        sorted(
            changes,
            key=lambda c: (
                c.old_decision == c.new_decision,
                -c.documents,
                *(getattr(c, name) for name in _SIDES),
            ),
        )
    )


def _estimate_tokens(documents: pa.Table) -> tuple[pa.Array, pa.Array]:
    tokens = documents["tokens"].to_numpy().astype(np.int64)
    text: npt.NDArray[np.int64] = documents["text_bytes"].to_numpy().astype(np.int64)
    is_counted = tokens > 0
    rate = tokens[is_counted].sum() / max(1, int(text[is_counted].sum()))
    return pa.array(tokens), pa.array(
        np.where(is_counted, 0, np.rint(text * rate)).astype(np.int64)
    )


def _list_columns(schema: pa.Schema) -> list[str]:
    return [name for name in schema.names if name != "doc_id"]


def _read_table(path: Path, columns: Sequence[str]) -> pa.Table:
    if not path.exists():
        raise InputError(f"{path}: does not exist; `prep run` writes it")
    try:
        missing = [name for name in columns if name not in read_schema(path).names]
        if missing:
            raise InputError(
                f"{path}: no column {missing[0]}; an older version wrote it, run `prep run` again"
            )
        return pq.read_table(path, columns=list(columns))
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            f"{path}: damaged ({type(error).__name__}); `prep verify` names all damage"
        ) from error


@dataclass(frozen=True)
class Outcome:
    """One rule: whether it matched, with which evidence, or what was missing."""

    rule: str
    decision: str
    matched: bool
    evidence: tuple[str, ...]
    missing: str


@dataclass(frozen=True)
class DecisionChain:
    """What a policy says of one document: its evidence, every rule in order, the policy's decision
    (None: no rule matches, so it is allowed), and the one that the run recorded, clusters, filters
    and decontamination included."""

    record: RunRecord
    evidence: tuple[dict[str, Any], ...]
    outcomes: tuple[Outcome, ...]
    decision: dict[str, Any] | None
    recorded: dict[str, Any] | None


def explain_decision(directory: Path, document_name: str, policy: Policy) -> DecisionChain:
    """The chain of a document of a run (`document_name` as `prep explain` takes it). Raises
    InputError for an unknown one, IntegrityError for damaged tables."""
    record = RunRecords(directory).find(document_name)
    key = bytes.fromhex(record.place.key)
    evidence = _read_rows(directory / layout.EVIDENCE, key, EVIDENCE_SCHEMA)
    works = read_published_works(directory)
    document = pa.table(
        {
            "doc_key": pa.array([key], pa.binary(ids.KEY_BYTES)),
            "source": [record.place.source],
            "licence": [record.licence],
        }
    )
    evidence_rows = evaluation.EvidenceRows(evidence, works, document)
    decision = evaluation.evaluate_policy(policy, evidence, works, document).to_pylist()
    recorded = _read_rows(directory / layout.DECISIONS, key, DECISION_SCHEMA).to_pylist()
    return DecisionChain(
        record,
        tuple(evidence.to_pylist()),
        tuple(
            make_outcome(match, evidence_rows)
            for match in evaluation.match_rules(policy, evidence_rows)
        ),
        decision[0] if decision else None,
        recorded[0] if recorded else None,
    )


def make_outcome(match: evaluation.RuleMatch, evidence: evaluation.EvidenceRows) -> Outcome:
    """What a rule made of the evidence on one document."""
    matched = bool(match.documents.any())
    rows = np.unique(np.concatenate(match.rows)) if matched else np.zeros(0, np.int64)
    names = evidence.table["evidence_id"].take(pa.array(rows)).to_pylist()
    missing = "" if matched else _find_missing(match, evidence)
    return Outcome(match.rule.rule.id, match.rule.rule.decision, matched, tuple(names), missing)


def _find_missing(match: evaluation.RuleMatch, evidence: evaluation.EvidenceRows) -> str:
    """The first thing that keeps a rule from matching one document."""
    for group, rows in zip(match.rule.present, match.rows, strict=True):
        if not len(rows):
            if len(evidence.list_rows(group.detectors)):
                return f"no evidence with {group.written}"
            return f"no evidence of {group.detectors[0]}"
    for group in match.rule.absent:
        if len(evidence.find_matching(group)):
            return f"there is evidence that the rule excludes: {group.written}"
    return next(
        f"the document does not match {test.written}"
        for test in match.rule.document
        if not evidence.read_records(test.attribute).where(test.holds).all()
    )


def _read_rows(path: Path, key: bytes, schema: pa.Schema) -> pa.Table:
    columns = [field for field in schema if field.name != "doc_id"]
    if not path.exists():
        return pa.schema(columns).empty_table()
    is_about = pc.field("doc_key") == pa.scalar(key, pa.binary(ids.KEY_BYTES))
    with wrap_read_errors(path):
        return pq.read_table(path, columns=[f.name for f in columns], filters=is_about)
