"""Looking at quarantined documents, where every look is an event, and purging them.

Purging: the text of quarantined documents is deleted; key, hashes, rule and evidence stay.

A purge is written down like a takedown (DIR/takedowns/purge-NNNN.json), withholds its documents
from later runs by key, and touches no other copy of the same text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core import storage
from pipeline.core.errors import ConfigError, InputError, escape_text
from pipeline.core.manifest import fingerprint_of
from pipeline.engine.runner import manifest_path
from pipeline.quarantine.store import read_days, read_retention
from pipeline.runs import layout
from pipeline.runs.events import append_event, append_line
from pipeline.runs.held_texts import read_held_shards
from pipeline.runs.records import wrap_read_errors
from pipeline.screening.reviews import REVIEWS, Review
from pipeline.stages.withheld import NAME
from pipeline.takedown.apply import SignOff, apply, resume
from pipeline.takedown.claim import Claim, ClaimSubject, LoadedClaim
from pipeline.takedown.copies import key_array, open_run_tables, outside_copies, stored_copies
from pipeline.takedown.holds import held_documents, refuse_held
from pipeline.takedown.plan import TakedownPlan
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
    return [about for about, _ in _rows(directory)]


def show_quarantined(directory: Path, wanted: str, by: str) -> tuple[QuarantinedDocument, str]:
    """One document (its key, or the beginning) with its text; an event names who looked."""
    about, text = _one(directory, wanted)
    _note(directory, by, {"action": "show", "doc_key": about.key})
    return about, text.as_py()


def export_quarantined(directory: Path, out: Path, by: str) -> int:
    """Write all of them as records (jsonl) to a new file, for a person to look at; returns how
    many. Raises ConfigError when the file is there."""
    if out.exists():
        raise ConfigError(f"--out {out}: exists already; expected a new file")
    rows = list(_rows(directory))
    _note(directory, by, {"action": "export", "documents": len(rows), "to": out.name})
    lines = ({**to_json_data(about), "text": text.as_py()} for about, text in rows)
    storage.publish(out, (msgspec.json.encode(line) + b"\n" for line in lines))
    return len(rows)


def release_quarantined(directory: Path, wanted: str, by: str, note: str) -> QuarantinedDocument:
    """Record the review `allow` of a document; the next `prep run` puts it where it then belongs.
    Raises InputError when its text was purged."""
    about, _ = _one(directory, wanted)
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


def _note(directory: Path, by: str, what: dict[str, Any]) -> None:
    if not by.strip():
        raise ConfigError("--by: expected the name of whoever looks, which is recorded")
    append_event(directory, "quarantine", by, what)


def _one(directory: Path, wanted: str) -> tuple[QuarantinedDocument, pa.LargeStringScalar]:
    found = [row for row in _rows(directory) if row[0].key.startswith(wanted.lower())]
    if len(found) != 1 or len(wanted) < 6:
        what = f"{len(found):,} documents match" if found else "no such document in quarantine"
        raise InputError(f"{escape_text(wanted)}: {what}; give its key (`prep quarantine list`)")
    return found[0]


def _rows(directory: Path) -> Iterator[tuple[QuarantinedDocument, pa.LargeStringScalar]]:
    """Every document, and its text, which is read as it is asked for."""
    if not manifest_path(directory, NAME).exists():
        raise InputError(
            f"{directory}: nothing was screened here; expected the directory of a `prep run` or "
            "`prep screen`"
        )
    facts = _Facts(_files(directory), read_days(directory), read_retention(directory))
    for table in read_held_shards(directory):
        held = held_documents(directory, pc.unique(table["doc_key"]))
        gone = pc.and_(
            pc.equal(pc.binary_length(table["text"]), 0), pc.greater(table["text_bytes"], 0)
        )
        table = table.append_column("purged", gone)
        for number, row in enumerate(table.drop_columns(["text"]).to_pylist()):
            about = facts.about(row, held.get(row["doc_key"], ""))
            yield about, table["text"][number]


@dataclass(frozen=True)
class _Facts:
    """What the store itself does not tell: names of raw shards, and days."""

    files: list[str]
    days: dict[str, date]
    retention: int | None

    def about(self, row: dict[str, Any], held: str) -> QuarantinedDocument:
        """A row without its text."""
        key = row["doc_key"].hex()
        since, until = self.days.get(key), None
        if since is not None and self.retention is not None:
            until = since + timedelta(days=self.retention)
        return QuarantinedDocument(
            key=key,
            text_key=row["text_key"].hex(),
            source=row["source"],
            file=self.files[row["path_id"]],
            line=row["line"] or row["byte_offset"],
            rule=row["rule"],
            reason=row["reason"],
            evidence=tuple(row["evidence"] or ()),
            text_bytes=row["text_bytes"],
            purged=row["purged"],
            since=since,
            until=until,
            held=held,
        )


def _files(directory: Path) -> list[str]:
    with wrap_read_errors(directory / layout.SOURCES) as path:
        rows = pq.read_table(path, columns=["input", "path"]).to_pylist()
    return [f"{row['input']}/{row['path']}" for row in rows]


def to_json_data(about: QuarantinedDocument) -> dict[str, Any]:
    """Plain data, for JSON."""
    days = {
        name: day.isoformat() if day else None
        for name, day in (("since", about.since), ("until", about.until))
    }
    return {**vars(about), **days, "evidence": list(about.evidence)}


def choose_for_purge(
    found: Sequence[QuarantinedDocument], keys: Sequence[str], older_than: int | None, today: date
) -> list[QuarantinedDocument]:
    """Those to purge: the documents with these keys, or all that are in quarantine for more than so
    many days and on no hold. What was purged before is left out. Raises InputError for a key that
    is not in quarantine."""
    left = [about for about in found if not about.purged]
    known = {about.key: about for about in found}
    unknown = [key for key in keys if key not in known]
    if unknown:
        raise InputError(f"{unknown[0]}: not in quarantine (`prep quarantine list` shows keys)")
    if keys:
        return [about for about in left if about.key in keys]
    return [
        about
        for about in left
        if not about.held and about.since and (today - about.since).days > (older_than or 0)
    ]


def days_of(directory: Path, keys: Sequence[str], older_than: int | None) -> int | None:
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
    older_than = days_of(directory, keys, older_than)
    for takedown in read_takedowns(directory):
        if takedown.pending and takedown.mode == PURGE:
            resume(directory, takedown.id)
    check_none_pending(directory)
    chosen = choose_for_purge(list_quarantined(directory), keys, older_than, today)
    if not chosen:
        return None
    names = [about.key for about in chosen]
    refuse_held(directory, key_array([bytes.fromhex(name) for name in names]), "purge")
    run = open_run_tables(directory)
    taken = take_exactly(
        run,
        run.rows_of(key_array([bytes.fromhex(name) for name in names])),
        "purged from quarantine",
    )
    taken = taken.set_column(
        taken.column_names.index("text_key"), "text_key", pa.nulls(len(taken), pa.binary(16))
    )
    plan = TakedownPlan(
        run=run,
        loaded=_claim(directory, names, older_than, by, today),
        taken=taken,
        earlier=0,
        told=(),
        nothing=(),
        splits=(),
        exposed=(),
        copies=stored_copies(run, taken),
        outside=outside_copies(taken, (), ()),
    )
    return apply(plan, SignOff(by, today, PURGE))


def _claim(
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
