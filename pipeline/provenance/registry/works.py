"""The record of a work, the table of all works, and what identifies a work."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa

from pipeline.core.storage import canonical_json, hash_bytes
from pipeline.provenance.registry.names import normalise_author, normalise_title

STATUSES = ("asserted", "verified", "licensed", "public_domain")
"""What is known of a work: someone asserts rights in it; that was verified with a source; its use
is licensed to the operator; it is in the public domain. The last two say that it may be matched
without a rule acting on it."""

SCOPES = ("exact", "derivatives")
"""exact: the text, whole, in part or edited. derivatives: translations and adaptations too."""

TIERS = ("excerpt", "whole_book")
"""How densely text is fingerprinted: to find excerpts, or most of a book only."""

WORK_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_ID_DIGITS = 12

_LIST = pa.list_(pa.string())

WORKS = pa.schema([
    ("work_id", pa.string()), ("title_raw", pa.string()), ("title_norm", pa.string()),
    ("subtitle", pa.string()), ("authors", _LIST), ("publisher", pa.string()),
    ("claimant", pa.string()), ("reg_no", pa.string()), ("reg_date", pa.string()),
    ("pub_date", pa.string()), ("isbn13", _LIST), ("asin", _LIST), ("doi", pa.string()),
    ("lccn", pa.string()), ("catalog_url", pa.string()), ("jurisdiction", pa.string()),
    ("status", pa.string()), ("basis", pa.string()), ("scope", pa.string()),
    ("contact", pa.string()), ("legal_hold", pa.bool_()), ("effective_from", pa.string()),
    ("effective_to", pa.string()), ("tier", pa.string()), ("text_sha256", pa.string()),
    ("sketch_hash", pa.string()),
])  # fmt: skip
"""No nulls: unknown is "" or an empty list. title_norm: the proper title, as `normalise_title` has
it. Dates: ISO 8601, also 1992 or 1992-08. text_sha256: of the UTF-8 text kept with the registry.
sketch_hash: xxh3-128 of the sketch kept instead of a text."""


@dataclass(frozen=True, slots=True)
class Work:
    """One row of WORKS."""

    work_id: str
    title_raw: str
    title_norm: str
    subtitle: str = ""
    authors: tuple[str, ...] = ()
    publisher: str = ""
    claimant: str = ""
    reg_no: str = ""
    reg_date: str = ""
    pub_date: str = ""
    isbn13: tuple[str, ...] = ()
    asin: tuple[str, ...] = ()
    doi: str = ""
    lccn: str = ""
    catalog_url: str = ""
    jurisdiction: str = ""
    status: str = "asserted"
    basis: str = ""
    scope: str = "exact"
    contact: str = ""
    legal_hold: bool = False
    effective_from: str = ""
    effective_to: str = ""
    tier: str = "excerpt"
    text_sha256: str = ""
    sketch_hash: str = ""


FIELDS = tuple(field.name for field in fields(Work))


def work_id_of(title: str, subtitle: str, authors: Sequence[str], reg_no: str) -> str:
    """12 hex digits from what a work is: proper title, subtitle, authors and registration number,
    all normalised, so that spelling and the order of an author's names do not count."""
    names = sorted(map(normalise_author, authors))
    identity = [normalise_title(title), normalise_title(subtitle), names, reg_no]
    return hash_bytes(canonical_json(identity))[:_ID_DIGITS]


def works_table(works: Iterable[Work]) -> pa.Table:
    """Works as WORKS, by work_id."""
    rows = sorted(works, key=lambda work: work.work_id)
    columns = {name: [getattr(row, name) for row in rows] for name in FIELDS}
    return pa.table(columns, schema=WORKS)


def works_of(table: pa.Table) -> list[Work]:
    """The rows of a table with the columns of WORKS."""
    return [_work(row) for row in table.select(WORKS.names).to_pylist()]


def _work(row: dict[str, Any]) -> Work:
    lists = {name: tuple(row[name]) for name in ("authors", "isbn13", "asin")}
    return Work(**{**row, **lists})
