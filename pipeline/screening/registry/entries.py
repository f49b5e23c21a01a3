"""From one line of a list to the record of a work: every value checked and normalised.

A line is refused when it names no work, or when what it says of how the work is to be treated
cannot be read. Any other value that cannot be read is left out, with a remark.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from pipeline.core.errors import escape_text
from pipeline.core.words import did_you_mean
from pipeline.screening.registry.names import (
    normalise_asin,
    normalise_doi,
    normalise_isbn,
    normalise_lccn,
    normalise_title,
    normalise_usco,
    split_authors,
    split_title,
)
from pipeline.screening.registry.works import CHOICES, WORK_ID, Work, make_work_id

_MONTHS = {
    name: number
    for number, names in enumerate(
        ("jan january", "feb february", "mar march", "apr april", "may", "jun june", "jul july",
         "aug august", "sep sept september", "oct october", "nov november", "dec december"), 1
    )
    for name in names.split()
}  # fmt: skip
_ISO = re.compile(r"([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2}))?)?(?:T[0-9:.Z+-]*| 00:00:00)?\Z")
_MONTH_FIRST = re.compile(r"([a-z]+)\.?(?:\s+([0-9]{1,2}))?,?\s+([0-9]{4})\Z")
_DAY_FIRST = re.compile(r"([0-9]{1,2})\s+([a-z]+)\.?,?\s+([0-9]{4})\Z")
_SLASHES = re.compile(r"([0-9]{1,2})/([0-9]{1,2})/([0-9]{4})\Z")


def normalise_date(text: str, month_first: bool = False) -> str | None:
    """`1992-08-05`, `1992-08` or `1992`; None for anything that is no date.

    08/05/1992 is read only where it is known that the month comes first.

    >>> [normalise_date(text) for text in ("1992-08-05", "c1992.", "Aug. 5, 1992", "May 1992")]
    ['1992-08-05', '1992', '1992-08-05', '1992-05']
    >>> normalise_date("08/05/1992"), normalise_date("08/05/1992", month_first=True)
    (None, '1992-08-05')
    >>> normalise_date("1992-02-30") is None
    True
    """
    date_text = text.strip().rstrip(".").lower()
    date_text = re.sub(r"\A(?:c|©|\(c\)|copyright)\s*(?=[0-9])", "", date_text)
    if match := _ISO.match(date_text):
        return _check_date(match[1], match[2], match[3])
    if match := _MONTH_FIRST.match(date_text):
        return _check_date(match[3], _MONTHS.get(match[1], 0), match[2])
    if match := _DAY_FIRST.match(date_text):
        return _check_date(match[3], _MONTHS.get(match[2], 0), match[1])
    if (match := _SLASHES.match(date_text)) and month_first:
        return _check_date(match[3], match[1], match[2])
    return None


def _check_date(year: str, month: str | int | None, day: str | None) -> str | None:
    try:
        whole = date(int(year), 1 if month is None else int(month), 1 if day is None else int(day))
    except ValueError:
        return None
    return whole.isoformat()[: 4 if month is None else 7 if day is None else 10]


def choose_finer(one: str, other: str) -> str | None:
    """The more precise of two dates of which one is the beginning of the other; None if neither is.

    >>> choose_finer("1992", "1992-08-05"), choose_finer("1992", "1993")
    ('1992-08-05', None)
    """
    longer, shorter = sorted((one, other), key=len, reverse=True)
    return longer if longer == shorter or longer.startswith(f"{shorter}-") else None


FieldValues = dict[str, Any]
"""Field of Work -> its value."""

MAX_CELL = 10_000
_EMPTY = {"", "-", "--", "n/a", "na", "none", "null", "nil", "unknown", "not available", "tbd"}
_BRACKETS = re.compile(r"\([^)]*\)|\[[^\]]*\]")
_BETWEEN = re.compile(r"[;,|\n]+|\s/\s|\s+and\s+")
_TRUE, _FALSE = {"true", "yes", "y", "1"}, {"false", "no", "n", "0"}
_PLAIN = ("publisher", "claimant", "catalog_url", "jurisdiction", "contact", "basis")
_SINGLE: dict[str, tuple[Callable[[str], str | None], str]] = {
    "reg_no": (normalise_usco, "a US registration number such as TX 3-372-564 or TX0003372564"),
    "doi": (normalise_doi, "a DOI such as 10.1000/182"),
    "lccn": (normalise_lccn, "a Library of Congress number such as n78-890351"),
}
"""Normal form and what it is expected to be."""


@dataclass(frozen=True)
class ListEntry:
    """One line of a list as written: `where` is FILE:LINE, `values` are by field, and
    `text` next to them is the path of a reference text. `month_first`: how 08/05/1992 is meant."""

    where: str
    values: Mapping[str, str]
    month_first: bool = False


@dataclass(frozen=True)
class Remark:
    """Something to tell about a line: FILE:LINE, and what."""

    where: str
    text: str


@dataclass(frozen=True)
class Refusal:
    """A line that was not taken: FILE:LINE, and why."""

    where: str
    why: str


class EntryError(Exception):
    """The line cannot become a work; the message says why."""


@dataclass(frozen=True)
class IncomingWork:
    """A work as a line describes it. given: the fields that the line, or the command, fills."""

    work: Work
    given: frozenset[str]
    where: str
    text: str = ""
    remarks: tuple[Remark, ...] = field(default=())


def make_incoming_work(entry: ListEntry, defaults: Mapping[str, str]) -> IncomingWork:
    """The work that a line describes; `defaults` fill fields that it leaves empty.

    Raises EntryError.
    """
    values = {**defaults, **{name: v for name, v in _list_cells(entry) if v}}
    remarks: list[str] = []
    fields: FieldValues = {n: values[n] for n in _PLAIN if n in values}
    fields |= _read_title(values) | _read_choices(values) | _read_dates(entry, values, remarks)
    fields |= _read_identifiers(values, remarks)
    given = frozenset(name for name, value in fields.items() if value or name == "legal_hold")
    given |= {"work_id"} if values.get("work_id") else set()
    proper = split_title(fields["title_raw"]).title
    identity = (proper, fields["subtitle"], fields["authors"], fields.get("reg_no", ""))
    work_id = values.get("work_id") or make_work_id(*identity)
    if not WORK_ID.match(work_id):
        raise EntryError(
            f"work_id {escape_text(work_id, 40)!r}: expected up to 64 letters, digits, '.', '_', "
            "'-'"
        )
    entry_remarks = tuple(Remark(entry.where, text) for text in remarks)
    text = values.get("text", "")
    return IncomingWork(Work(work_id=work_id, **fields), given, entry.where, text, entry_remarks)


def _list_cells(entry: ListEntry) -> list[tuple[str, str]]:
    cells = []
    for name, value in entry.values.items():
        text = value.strip() if name == "text" else " ".join(value.split())
        if len(text) > MAX_CELL:
            raise EntryError(f"{name}: {len(text):,} characters; expected at most {MAX_CELL:,}")
        control = next((c for c in text if unicodedata.category(c) == "Cc"), None)
        if control is not None:
            raise EntryError(f"{name}: holds the control character {escape_text(control)}")
        title = name in ("title_raw", "authors")
        cells.append((name, "" if text.lower() in _EMPTY and not title else text))
    return cells


def _read_title(values: Mapping[str, str]) -> FieldValues:
    raw = values.get("title_raw", "")
    if not raw:
        raise EntryError("no title")
    parts = split_title(raw)
    title_norm = normalise_title(parts.title)
    if not title_norm:
        raise EntryError(f"the title {escape_text(raw, 40)!r} has no letter or digit")
    first = parts.responsibility.split(" ; ")[0]  # before translators and others
    statement = re.sub(r"\A(?:written\s+)?by\s+", "", first, flags=re.IGNORECASE)
    authors = split_authors(values.get("authors", "") or statement)
    subtitle = values.get("subtitle", "") or parts.subtitle
    return {"title_raw": raw, "title_norm": title_norm, "subtitle": subtitle, "authors": authors}


def _read_choices(values: Mapping[str, str]) -> FieldValues:
    choices: FieldValues = {}
    for name, allowed in CHOICES.items():
        if name in values:
            value = re.sub(r"[\s-]+", "_", values[name].lower())
            if value not in allowed:
                raise EntryError(
                    f"{name} {escape_text(values[name], 40)!r}: expected one of "
                    f"{', '.join(allowed)}{did_you_mean(values[name], allowed)}"
                )
            choices[name] = value
    if "legal_hold" in values:
        word = values["legal_hold"].lower()
        if word not in _TRUE | _FALSE:
            raise EntryError(f"legal_hold {escape_text(word, 40)!r}: expected true or false")
        choices["legal_hold"] = word in _TRUE
    return choices


def _read_dates(entry: ListEntry, values: Mapping[str, str], remarks: list[str]) -> FieldValues:
    dates: FieldValues = {}
    for name in ("reg_date", "pub_date", "effective_from", "effective_to"):
        if name not in values:
            continue
        value = normalise_date(values[name], entry.month_first)
        problem = f"{name} {escape_text(values[name], 40)!r}: expected a date such as 1992-08-05"
        if value is not None:
            dates[name] = value
        elif name.startswith("effective"):
            raise EntryError(problem)
        else:
            remarks.append(f"{problem}; left out")
    if problem := period_problem(dates.get("effective_from"), dates.get("effective_to")):
        raise EntryError(problem)
    return dates


def period_problem(first: str | None, last: str | None) -> str:
    """What is wrong with the days from and to which a status holds; empty: nothing."""
    if first and last and last < first:
        return f"effective_to {last}: expected a day not before effective_from {first}"
    return ""


def _read_identifiers(values: Mapping[str, str], remarks: list[str]) -> FieldValues:
    identifiers_by_name: FieldValues = {}
    for name, (normal, expected) in _SINGLE.items():
        parts = _BETWEEN.split(values.get(name, "")) if name == "reg_no" else [values.get(name, "")]
        numbers = list(dict.fromkeys(n for part in parts if part for n in [normal(part)] if n))
        if numbers:
            identifiers_by_name[name] = numbers[0]
        if values.get(name) and not numbers:
            text = escape_text(values[name], 40)
            remarks.append(f"{name} {text!r}: expected {expected}; left out")
        elif numbers[1:]:
            remarks.append(f"{name}: {numbers[0]} is used, {', '.join(numbers[1:])} left out")
    isbns, asins = _read_book_numbers(
        f"{values.get('isbn13', '')};{values.get('asin', '')}", remarks
    )
    return identifiers_by_name | {"isbn13": isbns, "asin": asins}


def _read_book_numbers(text: str, remarks: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    isbns, asins = set(), set()
    for part in _BETWEEN.split(_BRACKETS.sub(" ", text)):
        for piece in [part] if normalise_isbn(part) else part.split():
            if isbn := normalise_isbn(piece):
                isbns.add(isbn)
            elif asin := normalise_asin(piece):
                asins.add(asin)
            elif any(map(str.isdigit, piece)):
                number = escape_text(piece.strip(), 40)
                remarks.append(
                    f"{number!r}: neither an ISBN with a valid check digit nor an ASIN; left out"
                )
    return tuple(sorted(isbns)), tuple(sorted(asins))
