"""How a policy arrives at its decision about one document: what every rule made of the evidence."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.core import ids
from pipeline.provenance.evidence import DECISION_SCHEMA, EVIDENCE_SCHEMA
from pipeline.provenance.policy.difference import published_works
from pipeline.provenance.policy.evaluation import RuleMatch, evaluate, matches_of
from pipeline.provenance.policy.model import Policy
from pipeline.provenance.policy.rows import EvidenceRows
from pipeline.provenance.records import RunRecord, RunRecords, wrap_read_errors


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


def chain(directory: Path, wanted: str, policy: Policy) -> DecisionChain:
    """The chain of a document of a run (`wanted` as `prep explain` takes it). Raises InputError for
    an unknown one, IntegrityError for damaged tables."""
    record = RunRecords(directory).find(wanted)
    key = bytes.fromhex(record.place.key)
    evidence = _about(directory / layout.EVIDENCE, key, EVIDENCE_SCHEMA)
    works = published_works(directory)
    document = pa.table({
        "doc_key": pa.array([key], pa.binary(ids.KEY_BYTES)),
        "source": [record.place.source], "licence": [record.licence],
    })  # fmt: skip
    found = EvidenceRows(evidence, works, document)
    decision = evaluate(policy, evidence, works, document).to_pylist()
    recorded = _about(directory / layout.DECISIONS, key, DECISION_SCHEMA).to_pylist()
    return DecisionChain(
        record, tuple(evidence.to_pylist()),
        tuple(outcome(match, found) for match in matches_of(policy, found)),
        decision[0] if decision else None, recorded[0] if recorded else None,
    )  # fmt: skip


def outcome(match: RuleMatch, found: EvidenceRows) -> Outcome:
    """What a rule made of the evidence on one document."""
    matched = bool(match.documents.any())
    rows = np.unique(np.concatenate(match.rows)) if matched else np.zeros(0, np.int64)
    names = found.table["evidence_id"].take(pa.array(rows)).to_pylist()
    missing = "" if matched else _missing(match, found)
    return Outcome(match.rule.rule.id, match.rule.rule.decision, matched, tuple(names), missing)


def _missing(match: RuleMatch, found: EvidenceRows) -> str:
    """The first thing that keeps a rule from matching one document."""
    for group, rows in zip(match.rule.present, match.rows, strict=True):
        if not len(rows):
            if len(found.rows(group.detectors)):
                return f"no evidence with {group.written}"
            return f"no evidence of {group.detectors[0]}"
    for group in match.rule.absent:
        if len(found.matching(group)):
            return f"there is evidence that the rule excludes: {group.written}"
    return next(
        f"the document does not match {test.written}"
        for test in match.rule.document
        if not found.of_documents(test.attribute).where(test.holds).all()
    )


def _about(path: Path, key: bytes, schema: pa.Schema) -> pa.Table:
    """The rows of a table on one document; none while the table is not there."""
    columns = [field for field in schema if field.name != "doc_id"]
    if not path.exists():
        return pa.schema(columns).empty_table()
    wanted = pc.field("doc_key") == pa.scalar(key, pa.binary(ids.KEY_BYTES))
    with wrap_read_errors(path):
        return pq.read_table(path, columns=[f.name for f in columns], filters=wanted)
