"""`prep inspect --dropped`: the records that left for one reason, with what was found in them."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.core.errors import InputError, escape_text
from pipeline.provenance.explain import DocumentEvidence, evidence_of
from pipeline.provenance.quarantined import IN_QUARANTINE, QUARANTINED
from pipeline.provenance.records import PLACE, RecordPlace, RunRecords, wrap_read_errors

EXCERPT_BYTES = 600
_NAMED = 12


@dataclass(frozen=True)
class DroppedRecord:
    """One record that left, the beginning of its text, and all evidence on it."""

    place: RecordPlace
    state: str
    text_bytes: int
    excerpt: str
    evidence: tuple[DocumentEvidence, ...]


@dataclass(frozen=True)
class DroppedRecords:
    """All that left for a reason: records and bytes of text, in all and by source; `failed`:
    documents that this rule found something in, whatever the reason why they left or stayed; the
    first records in input order."""

    reason: str
    total: int
    bytes: int
    by_source: dict[str, int]
    failed: int
    records: tuple[DroppedRecord, ...]


def find_dropped(directory: Path, reason: str, source: str, top: int) -> DroppedRecords:
    """The records of a finished run that left for this reason, of one source if one is named, and
    the first `top` of them. Raises InputError for a run that is not finished and an unknown reason.
    """
    records = RunRecords(directory)
    if not records.finished:
        raise InputError(f"{directory}: not finished; its {layout.DOCUMENTS} will hold the reasons")
    with wrap_read_errors(directory / layout.DOCUMENTS) as path:
        columns = [*PLACE, "state", "reason", "text_bytes"]
        table = pq.read_table(path, columns=columns, filters=pc.field("state") != "kept")
    found = table.filter(pc.equal(table["reason"], reason))
    failed = _failed(directory, reason)
    if not len(found) and not failed:
        raise InputError(f"--dropped {escape_text(reason)}: {_known(table)}")
    if source:
        found = found.filter(pc.equal(found["source"], source))
    counts = Counter(found["source"].to_pylist())
    size = pc.sum(found["text_bytes"]).as_py() or 0
    shown = _shown(records, found.slice(0, top))
    return DroppedRecords(reason, len(found), size, dict(sorted(counts.items())), failed, shown)


def _shown(records: RunRecords, table: pa.Table) -> tuple[DroppedRecord, ...]:
    keys = table["doc_key"].to_pylist()
    texts = records.texts(keys, EXCERPT_BYTES)
    evidence = evidence_of(records.directory, keys)
    rows = zip(
        keys, records.places(table), table["state"].to_pylist(), table["text_bytes"].to_pylist(),
        strict=True,
    )  # fmt: skip
    return tuple(
        DroppedRecord(
            place, state, size, _excerpt(records, texts, key, state), evidence.get(key, ()),
        )
        for key, place, state, size in rows
    )  # fmt: skip


def _excerpt(records: RunRecords, texts: dict[bytes, str], key: bytes, state: str) -> str:
    if key in texts:
        return texts[key]
    return IN_QUARANTINE if state == QUARANTINED else records.excerpt(key)


def _failed(directory: Path, rule: str) -> int:
    path = directory / layout.EVIDENCE
    if not path.exists():
        return 0
    with wrap_read_errors(path):
        found = pq.read_table(path, columns=["doc_key"], filters=pc.field("rule") == rule)
    return len(pc.unique(found["doc_key"]))


def _known(table: pa.Table) -> str:
    reasons = Counter(table["reason"].to_pylist()).most_common()
    if not reasons:
        return "every record of this run was kept"
    named = ", ".join(f"{escape_text(reason)} ({count:,})" for reason, count in reasons[:_NAMED])
    more = f" and {len(reasons) - _NAMED} more" if len(reasons) > _NAMED else ""
    return f"no record left for this reason; the reasons of this run are {named}{more}"
