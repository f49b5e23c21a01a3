"""Looking at quarantined documents: every look is an event."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.compute as pc

from pipeline.core import storage
from pipeline.core.errors import ConfigError, InputError, printable
from pipeline.provenance.events import append_event, append_line
from pipeline.provenance.reviews import REVIEWS, Review
from pipeline.quarantine.store import held_shards, is_moved, read_days
from pipeline.takedown.holds import held_documents


@dataclass(frozen=True)
class Quarantined:
    """One document in quarantine; `text` is empty when it was purged, `held` says what keeps it."""

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
    held: str


def list_quarantined(directory: Path) -> list[Quarantined]:
    """Every document in quarantine, without its text, by shard and row. Raises InputError when the
    run has no such store."""
    return [about for about, _ in _rows(directory)]


def show_quarantined(directory: Path, wanted: str, by: str) -> tuple[Quarantined, str]:
    """One document (its key, or the beginning) with its text; an event names who looked."""
    about, text = _one(directory, wanted)
    _note(directory, by, {"action": "show", "doc_key": about.key})
    return about, text


def export_quarantined(directory: Path, out: Path, by: str) -> int:
    """Write all of them as records (jsonl) to a new file, for a person to look at; returns how
    many. Raises ConfigError when the file is there."""
    if out.exists():
        raise ConfigError(f"--out {out}: exists; give a new file")
    rows = [{**plain(about), "text": text} for about, text in _rows(directory)]
    _note(directory, by, {"action": "export", "documents": len(rows), "to": out.name})
    storage.publish(out, msgspec.json.Encoder().encode_lines(rows))
    return len(rows)


def release_quarantined(directory: Path, wanted: str, by: str, note: str) -> Quarantined:
    """Record the review `allow` of a document; the next `prep run` puts it where it then belongs.
    Raises InputError when its text was purged."""
    about, _ = _one(directory, wanted)
    if about.purged:
        raise InputError(f"{about.key}: its text was purged; there is nothing to release")
    if not by.strip() or not note.strip():
        raise ConfigError("--by and --note: expected the name of a person, and a reason")
    what: dict[str, Any] = {
        "doc_key": about.key, "text_key": about.text_key, "decision": "allow", "note": note,
        "spans": [],
    }  # fmt: skip
    event = append_event(directory, "review", by, {**what, "released": True})
    encoded = msgspec.json.encode({**what, "by": by, "event": event.n})
    append_line(directory / REVIEWS, Review.model_validate_json(encoded).model_dump_json())
    return about


def _note(directory: Path, by: str, what: dict[str, Any]) -> None:
    if not by.strip():
        raise ConfigError("--by: expected the name of whoever looks; it is recorded")
    append_event(directory, "quarantine", by, what)


def _one(directory: Path, wanted: str) -> tuple[Quarantined, str]:
    found = [row for row in _rows(directory) if row[0].key.startswith(wanted.lower())]
    if len(found) != 1 or len(wanted) < 6:
        what = f"{len(found):,} documents match" if found else "no such document in quarantine"
        raise InputError(f"{printable(wanted)}: {what}; give its key (`prep quarantine list`)")
    return found[0]


def _rows(directory: Path) -> Iterator[tuple[Quarantined, str]]:
    if not is_moved(directory):
        raise InputError(
            f"{directory}: no texts in quarantine; `prep quarantine collect` moves those of "
            "quarantined documents there"
        )
    files = [f"{row['input']}/{row['path']}" for row in _inputs(directory)]
    days = read_days(directory)
    for table in held_shards(directory):
        held = held_documents(directory, pc.unique(table["doc_key"]))
        for row in table.to_pylist():
            key = row["doc_key"].hex()
            yield (
                Quarantined(
                    key, row["text_key"].hex(), row["source"], files[row["path_id"]],
                    row["line"] or row["byte_offset"], row["rule"], row["reason"],
                    tuple(row["evidence"] or ()), row["text_bytes"],
                    not row["text"] and row["text_bytes"] > 0, days.get(key),
                    held.get(row["doc_key"], ""),
                ),
                row["text"],
            )  # fmt: skip


def _inputs(directory: Path) -> list[dict[str, str]]:
    import pyarrow.parquet as pq

    from pipeline import layout

    rows: list[dict[str, str]] = pq.read_table(
        directory / layout.SOURCES, columns=["input", "path"]
    ).to_pylist()
    return rows


def plain(about: Quarantined) -> dict[str, Any]:
    """Plain data, for JSON."""
    since = about.since.isoformat() if about.since else None
    return {**vars(about), "since": since, "evidence": list(about.evidence)}
