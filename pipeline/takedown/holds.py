"""Holds: documents and works whose text nobody may delete for now, in DIR/holds.jsonl.

A hold names a document key or a work id, who set it and why; a later line lifts it. A registry can
hold a work too (`legal_hold`). What is on hold is not purged and not taken down.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core.errors import ConfigError, InputError
from pipeline.core.words import pluralise
from pipeline.runs import layout
from pipeline.runs.events import append_event, append_line
from pipeline.runs.parts import read_schema, wrap_read_errors
from pipeline.runs.records import map_arrow
from pipeline.runs.references import is_key

HOLDS = "holds.jsonl"


@dataclass(frozen=True)
class Hold:
    """One hold that stands: on a document (key in hex) or a work, by whom and why."""

    what: str
    by: str
    reason: str

    @property
    def is_document(self) -> bool:
        """Whether a document is held, rather than a work."""
        return len(self.what) == 32 and is_key(self.what)


def set_hold(directory: Path, what: str, by: str, reason: str) -> None:
    """Hold a document (its whole key in hex) or a work. Raises ConfigError without a name and a
    reason."""
    _write_hold(directory, "hold", what, by, reason)


def lift_hold(directory: Path, what: str, by: str, reason: str) -> None:
    """Lift a hold. Raises InputError when there is none on it."""
    if what not in {hold.what for hold in read_holds(directory)}:
        raise InputError(f"{what}: not on hold in {directory}")
    _write_hold(directory, "unhold", what, by, reason)


def _write_hold(directory: Path, action: str, what: str, by: str, reason: str) -> None:
    if not by.strip() or not reason.strip():
        raise ConfigError("--by and --reason: expected the name of a person, and a reason")
    value = {"action": action, "what": what, "by": by, "reason": reason}
    append_event(directory, "quarantine", by, {"action": action, "what": what, "reason": reason})
    append_line(directory / HOLDS, json.dumps(value, sort_keys=True, ensure_ascii=False))


def read_holds(directory: Path) -> tuple[Hold, ...]:
    """The holds that stand, oldest first. Raises InputError naming a line that is none."""
    path = directory / HOLDS
    if not path.exists():
        return ()
    standing: dict[str, Hold] = {}
    *lines, _ = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
            action, hold = value["action"], Hold(value["what"], value["by"], value["reason"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path}:{number}: not a hold as `prep quarantine hold` writes it"
            ) from error
        standing.pop(hold.what, None)
        if action == "hold":
            standing[hold.what] = hold
    return tuple(standing.values())


def find_held_documents(directory: Path, keys: pa.Array) -> dict[bytes, str]:
    """Those of these documents that are on hold, each with what holds it."""
    holds = read_holds(directory)
    key_set = set(keys.to_pylist())
    reasons = {
        bytes.fromhex(hold.what): f"on hold by {hold.by}: {hold.reason}"
        for hold in holds
        if hold.is_document and bytes.fromhex(hold.what) in key_set
    }
    works = {
        hold.what: f"work {hold.what} is on hold by {hold.by}: {hold.reason}"
        for hold in holds
        if not hold.is_document
    }
    works |= {
        work: f"work {work} is on hold in the registry" for work in _read_registry_holds(directory)
    }
    for key, work in _find_works(directory, keys, list(works)):
        reasons.setdefault(key, works[work])
    return reasons


def _read_registry_holds(directory: Path) -> list[str]:
    path = directory / layout.WORKS
    works = map_arrow(path) if path.exists() else pa.table({"work_id": []})
    if "legal_hold" not in works.column_names:
        return []
    return list(works.filter(pc.fill_null(works["legal_hold"], False))["work_id"].to_pylist())


def _find_works(directory: Path, keys: pa.Array, works: list[str]) -> list[tuple[bytes, str]]:
    """(document, work) for evidence that names one of these works."""
    path = directory / layout.EVIDENCE
    if not works or not path.exists() or "work_id" not in read_schema(path).names:
        return []
    with wrap_read_errors(path):
        table = pq.read_table(
            path, columns=["doc_key", "work_id"], filters=pc.field("work_id").isin(works)
        )
    table = table.filter(pc.is_in(table["doc_key"], keys))
    return list(zip(table["doc_key"].to_pylist(), table["work_id"].to_pylist(), strict=True))


def refuse_held(directory: Path, keys: pa.Array, what: str) -> None:
    """Raises InputError when one of these documents is on hold."""
    reasons = find_held_documents(directory, keys)
    if reasons:
        key, why = min(reasons.items())
        raise InputError(
            f"{what}: {pluralise(len(reasons), 'document')} must be kept for now, such as "
            f"{key.hex()} ({why}); ask counsel, then `prep quarantine unhold`"
        )
