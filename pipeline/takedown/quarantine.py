"""Looking at quarantined documents, where every look is an event, and purging them.

A purge deletes their text; key, hashes, rule and evidence stay. It is written down like a takedown
(DIR/takedowns/purge-NNNN.json), withholds its documents from later runs by key, and touches no
other copy of the same text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core import storage
from pipeline.core.errors import ConfigError, InputError, escape_text
from pipeline.core.manifest import fingerprint_of
from pipeline.engine.runner import manifest_path
from pipeline.runs import layout
from pipeline.runs.events import append_event, append_line
from pipeline.runs.held_texts import read_held_shards
from pipeline.runs.records import read_file_names
from pipeline.screening.reviews import REVIEWS, Review
from pipeline.stages.findings.withheld import NAME
from pipeline.takedown.apply import SignOff, apply, resume
from pipeline.takedown.claims import (
    Claim,
    ClaimSubject,
    LoadedClaim,
    find_held_documents,
    refuse_held,
)
from pipeline.takedown.copies import (
    list_outside_copies,
    list_stored_copies,
    make_key_array,
    open_run_tables,
)
from pipeline.takedown.plan import TakedownPlan
from pipeline.takedown.quarantine_store import read_days, read_retention
from pipeline.takedown.record import PURGE, Takedown, check_none_pending, read_takedowns
from pipeline.takedown.resolve import take_exactly


@dataclass(frozen=True, kw_only=True)
class QuarantinedDocument:
    """One document in quarantine: whether its text was purged, since when it is there, the last day
    that it is to stay (None: for good), and what `held` says keeps it."""

    key: str
    text_key: str
    source: str
    file: str
    line: int
    rule: str
    reason: str
    evidence: tuple[str, ...]
    text_bytes: int
    purged: bool
    since: date | None
    until: date | None
    held: str

    def is_due(self, today: date) -> bool:
        """Whether its text stayed as long as it was to stay, and nothing keeps it."""
        late = self.until is not None and self.until < today
        return late and not self.purged and not self.held


def list_quarantined(directory: Path) -> list[QuarantinedDocument]:
    """Every document in quarantine, without its text, by shard and row. Raises InputError for a run
    that screened nothing."""
    return [about for about, _ in _list_rows(directory)]


def show_quarantined(directory: Path, key: str, by: str) -> tuple[QuarantinedDocument, str]:
    """One document (its key, or the beginning) with its text; an event names who looked."""
    about, text = _find_one(directory, key)
    _log_look(directory, by, {"action": "show", "doc_key": about.key})
    return about, text.as_py()


def export_quarantined(directory: Path, out: Path, by: str) -> int:
    """Write all of them as records (jsonl) to a new file, for a person to look at; returns how
    many. Raises ConfigError when the file is there."""
    if out.exists():
        raise ConfigError(f"--out {out}: exists already; expected a new file")
    rows = list(_list_rows(directory))
    _log_look(directory, by, {"action": "export", "documents": len(rows), "to": out.name})
    lines = ({**to_json_data(about), "text": text.as_py()} for about, text in rows)
    storage.publish(out, (msgspec.json.encode(line) + b"\n" for line in lines))
    return len(rows)


def release_quarantined(directory: Path, key: str, by: str, note: str) -> QuarantinedDocument:
    """Record the review `allow` of a document; the next `prep run` puts it where it then belongs.
    Raises InputError when its text was purged."""
    about, _ = _find_one(directory, key)
    if about.purged:
        raise InputError(f"{about.key}: its text was purged, so it cannot be released")
    if not by.strip() or not note.strip():
        raise ConfigError("--by and --note: expected the name of a person, and a reason")
    what: dict[str, Any] = {
        "doc_key": about.key,
        "text_key": about.text_key,
        "decision": "allow",
        "note": note,
        "spans": [],
    }
    event = append_event(directory, "review", by, {**what, "released": True})
    encoded = msgspec.json.encode({**what, "by": by, "event": event.n})
    append_line(directory / REVIEWS, Review.model_validate_json(encoded).model_dump_json())
    return about


def _log_look(directory: Path, by: str, what: dict[str, Any]) -> None:
    if not by.strip():
        raise ConfigError("--by: expected the name of whoever looks, which is recorded")
    append_event(directory, "quarantine", by, what)


def _find_one(directory: Path, key: str) -> tuple[QuarantinedDocument, pa.LargeStringScalar]:
    matches = [row for row in _list_rows(directory) if row[0].key.startswith(key.lower())]
    if len(matches) != 1 or len(key) < 6:
        what = f"{len(matches):,} documents match" if matches else "no such document in quarantine"
        raise InputError(f"{escape_text(key)}: {what}; give its key (`prep quarantine list`)")
    return matches[0]


def _list_rows(directory: Path) -> Iterator[tuple[QuarantinedDocument, pa.LargeStringScalar]]:
    """Every document, and its text, which is read as it is asked for."""
    if not manifest_path(directory, NAME).exists():
        raise InputError(
            f"{directory}: nothing was screened here; expected the directory of a `prep run` or "
            "`prep screen`"
        )
    files, retention = read_file_names(directory / layout.SOURCES), read_retention(directory)
    days = read_days(directory)
    for table in read_held_shards(directory):
        held_reasons = find_held_documents(directory, pc.unique(table["doc_key"]))
        is_empty = pc.equal(pc.binary_length(table["text"]), 0)
        purged = pc.and_(is_empty, pc.greater(table["text_bytes"], 0)).to_pylist()
        for number, row in enumerate(table.drop_columns(["text"]).to_pylist()):
            key = row["doc_key"].hex()
            since = days.get(key)
            about = QuarantinedDocument(
                key=key,
                text_key=row["text_key"].hex(),
                source=row["source"],
                file=files[row["path_id"]],
                line=row["line"] or row["byte_offset"],
                rule=row["rule"],
                reason=row["reason"],
                evidence=tuple(row["evidence"] or ()),
                text_bytes=row["text_bytes"],
                purged=purged[number],
                since=since,
                until=since + timedelta(days=retention)
                if since and retention is not None
                else None,
                held=held_reasons.get(row["doc_key"], ""),
            )
            yield about, table["text"][number]


def to_json_data(about: QuarantinedDocument) -> dict[str, Any]:
    """Plain data, for JSON."""
    days = {
        name: day.isoformat() if day else None
        for name, day in (("since", about.since), ("until", about.until))
    }
    return {**vars(about), **days, "evidence": list(about.evidence)}


def choose_for_purge(
    documents: Sequence[QuarantinedDocument],
    keys: Sequence[str],
    older_than: int | None,
    today: date,
) -> list[QuarantinedDocument]:
    """Those to purge: the documents with these keys, or all that are in quarantine for more than so
    many days and on no hold. What was purged before is left out. Raises InputError for a key that
    is not in quarantine."""
    unpurged = [about for about in documents if not about.purged]
    documents_by_key = {about.key: about for about in documents}
    unknown = [key for key in keys if key not in documents_by_key]
    if unknown:
        raise InputError(f"{unknown[0]}: not in quarantine (`prep quarantine list` shows keys)")
    if keys:
        return [about for about in unpurged if about.key in keys]
    return [
        about
        for about in unpurged
        if not about.held and about.since and (today - about.since).days > (older_than or 0)
    ]


def choose_days(directory: Path, keys: Sequence[str], older_than: int | None) -> int | None:
    """The days after which texts are purged: those asked for, or those of the run; None where
    documents are named. Raises ConfigError when neither is known, or both are asked for."""
    if keys:
        if older_than is not None:
            raise ConfigError("expected --older-than DAYS or --document KEY, not both")
        return None
    days = read_retention(directory) if older_than is None else older_than
    if days is None:
        raise ConfigError(
            "expected --older-than DAYS or --document KEY, as the run has no screen.quarantine_days"
        )
    return days


def purge_documents(
    directory: Path, keys: Sequence[str], older_than: int | None, by: str, today: date
) -> Takedown | None:
    """Delete the text of the chosen documents; returns the record, None when there is nothing to
    do. Without keys and days, those of the run count (`screen.quarantine_days`). An interrupted
    purge goes on as `prep quarantine purge` is called again.

    Raises InputError when a document that was named is on hold, ConfigError when nothing says what
    to purge.
    """
    older_than = choose_days(directory, keys, older_than)
    for takedown in read_takedowns(directory):
        if takedown.pending and takedown.mode == PURGE:
            resume(directory, takedown.id)
    check_none_pending(directory)
    documents = choose_for_purge(list_quarantined(directory), keys, older_than, today)
    if not documents:
        return None
    names = [about.key for about in documents]
    array = make_key_array([bytes.fromhex(name) for name in names])
    refuse_held(directory, array, "purge")
    run = open_run_tables(directory)
    taken = take_exactly(run, array, "purged from quarantine")
    taken = taken.set_column(
        taken.column_names.index("text_key"), "text_key", pa.nulls(len(taken), pa.binary(16))
    )
    plan = TakedownPlan(
        run=run,
        loaded=_make_claim(directory, names, older_than, by, today),
        taken=taken,
        earlier=0,
        related=(),
        nothing=(),
        splits=(),
        exposed=(),
        copies=list_stored_copies(run, taken),
        outside=list_outside_copies(taken, (), ()),
    )
    return apply(plan, SignOff(by, today, PURGE))


def _make_claim(
    directory: Path, keys: list[str], older_than: int | None, by: str, today: date
) -> LoadedClaim:
    number = 1 + sum(takedown.mode == PURGE for takedown in read_takedowns(directory))
    basis = "named by key" if older_than is None else f"in quarantine for over {older_than} days"
    claim = Claim(
        id=f"purge-{number:04d}",
        claimant=by,
        received=today,
        basis=basis,
        what=ClaimSubject(documents=tuple(keys)),
        note="",
    )
    return LoadedClaim(claim, (), fingerprint_of({"claim": claim.model_dump(mode="json")}))
