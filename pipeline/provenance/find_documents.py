"""From what one knows of a work or a document to rows of documents.parquet.

Evidence leads from works and numbers to documents; clusters.parquet adds the documents that are
duplicates of those, because one of them may be the one that was kept. What is found is what the
screening of this run, or a `prep rescan` of it, matched: a work nobody looked for is not found.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.core.errors import ConfigError, InputError, escape_text
from pipeline.provenance import identifiers
from pipeline.provenance.document_table import DocumentTable
from pipeline.provenance.evidence import find_screenings
from pipeline.provenance.masked import taken_for_works
from pipeline.provenance.origin import texts_home
from pipeline.provenance.records import wrap_read_errors
from pipeline.provenance.registry import load_registry
from pipeline.provenance.registry.finding import find_works
from pipeline.provenance.registry.works import Work, works_of
from pipeline.provenance.siblings import find_siblings
from pipeline.provenance.trace import trace_reference

WORKS = "registry/works.arrow"
"""The works that a run was screened with (`pipeline.stages.registry`)."""

WORK_ID = re.compile("[0-9a-f]{12}")

_NUMBERS = {"isbn": identifiers.isbn13, "usco": identifiers.usco}


@dataclass(frozen=True)
class FoundDocuments:
    """Rows of documents.parquet, ascending; why each is among them; and what else is to be said."""

    rows: tuple[int, ...]
    because: tuple[str, ...]
    notes: tuple[str, ...] = ()


def find_named(directory: Path, wanted: str) -> FoundDocuments:
    """The document with this key, or at FILE:LINE, or all documents of FILE, of SHARD[ROW] or with
    evidence of a work given by its id. Raises InputError."""
    because = ""
    if (led := find_led_to(directory, wanted)) is not None:
        keys, because = led
        rows = DocumentTable(directory).rows_of_keys(keys).tolist()
    else:
        rows = DocumentTable(directory).find(wanted).tolist()
    return FoundDocuments(tuple(rows), (because,) * len(rows))


def find_led_to(directory: Path, wanted: str) -> tuple[list[bytes], str] | None:
    """Keys of the documents that a row or a work leads to, and what led there; None for what names
    documents itself."""
    if (spans := trace_reference(directory, wanted)) is not None:
        keys = list(dict.fromkeys(bytes.fromhex(span.document) for span in spans))
        return keys, f"in row {escape_text(wanted)}"
    if WORK_ID.fullmatch(wanted) and find_screenings(texts_home(directory)):
        works = _evidence(texts_home(directory), pc.field("work_id") == wanted, "")
        if works:
            return list(works), f"evidence of work {wanted}"
    return None


def find_of_work(directory: Path, asked: str, registry: Path | None = None) -> FoundDocuments:
    """Documents with evidence of a work: its id (or the beginning of one), registration number,
    ISBN, DOI or title, as the run's registry or `registry` has it, and cluster siblings of them.

    An id that no registry explains is looked for as it is. Raises InputError when a registry is
    there and knows no such work.
    """
    works = _works(directory, registry)
    if works is None:
        return rows_with_siblings(directory, _of_ids(directory, [asked]), _NO_REGISTRY)
    return _of_registered(directory, find_works(works, asked))


def find_of_title(directory: Path, title: str, registry: Path | None = None) -> FoundDocuments:
    """`find_of_work` by title alone. Raises InputError when no registry is there."""
    works = _works(directory, registry)
    if works is None:
        raise InputError(
            f"{directory}: screened without a registry, so titles cannot be looked up; give one "
            "with --registry"
        )
    return _of_registered(directory, find_works(works, title))


def find_of_number(
    directory: Path, kind: str, number: str, registry: Path | None = None
) -> FoundDocuments:
    """Documents that print an ISBN (kind `isbn`) or a registration number (`usco`), and those with
    other evidence of the works that have it. Raises ConfigError for what is no such number."""
    normal = _NUMBERS[kind](number)
    if normal is None:
        raise ConfigError(
            f"{escape_text(number)}: not a valid {kind}: its form or its check digit is wrong"
        )
    printed = (pc.field("kind") == kind) & (pc.field("target") == normal)
    found = _evidence(directory, printed, f"prints {normal}")
    mine = [w for w in _works(directory, registry) or [] if normal in (w.reg_no, *w.isbn13)]
    found = {**_of_works(directory, mine), **found}
    return rows_with_siblings(directory, found, _said(mine))


_NO_REGISTRY = (
    "the run was screened without a registry: the id was looked for in its evidence only",
)


def _said(works: Sequence[Work]) -> tuple[str, ...]:
    return tuple(f"work {w.work_id}: {escape_text(w.title_raw, 80)} ({w.status})" for w in works)


def _works(directory: Path, registry: Path | None) -> list[Work] | None:
    """Works of `registry`, else those that the run was compared with; None without any."""
    if registry is not None:
        return load_registry(registry).work_list()
    paths = [place / WORKS for place in find_screenings(directory) if (place / WORKS).is_file()]
    if not paths:
        return None
    works: dict[str, Work] = {}
    for path in paths:
        with wrap_read_errors(path):
            table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        works |= {work.work_id: work for work in works_of(table)}
    return list(works.values())


def _of_registered(directory: Path, works: Sequence[Work]) -> FoundDocuments:
    return rows_with_siblings(directory, _of_works(directory, works), _said(works))


def _of_works(directory: Path, works: Sequence[Work]) -> dict[bytes, str]:
    return _of_ids(directory, [work.work_id for work in works]) if works else {}


def _of_ids(directory: Path, work_ids: list[str]) -> dict[bytes, str]:
    found = _evidence(directory, pc.field("work_id").isin(work_ids), "")
    return {**taken_for_works(directory, work_ids), **found}


def _evidence(directory: Path, which: pc.Expression, because: str) -> dict[bytes, str]:
    """Document key -> why, of the documents that some evidence is about."""
    paths = [place / layout.EVIDENCE for place in find_screenings(directory)]
    if not paths:
        raise InputError(f"{directory}: no {layout.EVIDENCE}: nothing was screened in this run")
    columns = ["doc_key", "detector", "work_id"]
    rows: list[dict[str, Any]] = []
    for path in paths:
        with wrap_read_errors(path):
            rows += pq.read_table(path, columns=columns, filters=which).to_pylist()
    found: dict[bytes, str] = {}
    for row in rows:
        why = because or f"{row['detector']} evidence of work {row['work_id']}"
        known = found.get(row["doc_key"], "")
        if why not in known:
            found[row["doc_key"]] = f"{known}; {why}" if known else why
    return found


def rows_with_siblings(
    directory: Path, found: dict[bytes, str], notes: tuple[str, ...] = ()
) -> FoundDocuments:
    """Rows of documents given by key, and of their cluster siblings, which are told apart."""
    siblings = find_siblings(directory / layout.CLUSTERS, found, only_verified=False)
    tied = {s.key: f"{s.kind} duplicate of {s.via.hex()}" for s in siblings.tied}
    reasons = {**tied, **found}
    table = DocumentTable(directory)
    rows = table.rows_of_keys(list(reasons))
    keys = table.take(rows, ["doc_key"])["doc_key"].to_pylist()
    return FoundDocuments(tuple(rows.tolist()), tuple(reasons[key] for key in keys), notes)
