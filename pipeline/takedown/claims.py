"""What people ask for by name: CLAIM.yaml, who asks for what to be taken down; and holds, documents
and works whose text nobody may delete for now, in DIR/holds.jsonl.

A hold names a document key or a work id, who set it and why; a later line lifts it. A registry can
hold a work too (`legal_hold`). What is on hold is not purged and not taken down.
"""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field, field_validator, model_validator

from pipeline.config.model import FrozenModel, parse
from pipeline.config.yaml import load_yaml
from pipeline.core.errors import ConfigError, InputError, escape_text
from pipeline.core.hashes import hash_bytes, read_at_most
from pipeline.core.manifest import fingerprint_of
from pipeline.core.words import pluralise
from pipeline.runs import layout
from pipeline.runs.events import append_event, append_line
from pipeline.runs.parts import read_schema, wrap_read_errors
from pipeline.runs.records import map_arrow
from pipeline.runs.references import is_key

MOST_TEXT_BYTES = 64 << 20


class ClaimSubject(FrozenModel):
    """What the claim is about; every list adds documents."""

    works: tuple[str, ...] = Field((), description="ids of works in the registry")
    documents: tuple[str, ...] = Field((), description="document keys, FILE:LINE, or FILE")
    sources: tuple[str, ...] = Field((), description="source labels; all their documents are meant")
    urls: tuple[str, ...] = Field((), description="beginnings of addresses in a record's meta")
    texts: tuple[str, ...] = Field(
        (), description="files with the text of a work, in the directory of the claim or below"
    )

    @field_validator("urls")
    @classmethod
    def _long_enough(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        if any("://" not in url or len(url.partition("://")[2]) < 4 for url in urls):
            raise ValueError("expected beginnings of addresses such as https://example.org/book/")
        return urls

    @model_validator(mode="after")
    def _is_about_something(self) -> "ClaimSubject":
        if not any(self.items()):
            raise ValueError("expected one or more of works, documents, sources, urls, texts")
        if not all(item.strip() for _, item in self.items()):
            raise ValueError("expected no empty entries")
        return self

    def items(self) -> Iterator[tuple[str, str]]:
        """(list, entry) of everything named, in order."""
        for name in type(self).model_fields:
            for item in getattr(self, name):
                yield name, item


class Claim(FrozenModel):
    """One claim as it was received."""

    id: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,60}$", description="a short id, such as 2026-0007"
    )
    claimant: str = Field(min_length=1, description="who makes the claim")
    received: date = Field(description="the day it was received, such as 2026-03-01")
    basis: str = Field(min_length=1, description="what the claim is based on, in a sentence")
    what: ClaimSubject = Field(description="what to take down")
    note: str = Field("", description="anything else")


@dataclass(frozen=True)
class LoadedClaim:
    """A claim, the texts it names (file name, UTF-8 text), and a hash of both."""

    claim: Claim
    texts: tuple[tuple[str, str], ...]
    digest: str


def load_claim(path: Path, texts_from: Path | None = None) -> LoadedClaim:
    """Read a claim, and its texts from below `texts_from` (default: the claim's own directory).

    Raises ConfigError with file, line and key; InputError for a text that is not below that
    directory once links are resolved, cannot be read, is not UTF-8 or is larger than 64 MiB.
    """
    claim = parse(Claim, load_yaml(path))
    directory = path.parent if texts_from is None else texts_from
    texts = tuple((name, _read_text(_find_text(directory, name))) for name in claim.what.texts)
    digests = [hash_bytes(text.encode()) for _, text in texts]
    value = {"claim": claim.model_dump(mode="json"), "texts": digests}
    return LoadedClaim(claim, texts, fingerprint_of(value))


def _find_text(directory: Path, name: str) -> Path:
    """A claim comes from outside: it names no file of this machine but those put next to it."""
    path = (directory / name).resolve()
    if not path.is_relative_to(directory.resolve()):
        raise InputError(
            f"what.texts: {escape_text(name)}: not below {directory}; put the text there, or give "
            "the directory of the texts with --texts-from"
        )
    return path


def _read_text(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: expected a file with a text; what.texts names it")
        data = read_at_most(path, MOST_TEXT_BYTES)
        if data is None:
            raise InputError(f"{path}: expected a text of at most 64 MiB; got more")
        return io.StringIO(data.decode(), newline=None).read()
    except OSError as error:
        raise InputError(f"{path}: cannot read ({error.strerror}); what.texts names it") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from error


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
        chosen = pc.field("work_id").isin(works) & pc.field("doc_key").isin(keys)
        table = pq.read_table(path, columns=["doc_key", "work_id"], filters=chosen)
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
