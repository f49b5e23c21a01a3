"""Lists of works with a header row, and records of the US Copyright Office as its catalogue prints
them.

Lists are parted by commas, tabs, semicolons or bars. In a CSV the first row is the header and every
column is known; a works list, as settlements have them, may begin with other lines, have columns
that are passed over, and puts the month first. In records (`Title: …`) a value may begin on the
next line and go on over several; only labels of the catalogue begin a field. A record ends where
its first field, registration number or title would come again.
"""

import csv
import difflib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.core.errors import InputError, escape_text
from pipeline.screening.registry.entries import ListEntry, Refusal, Remark

_NAMES = {
    "work_id": "work id | work key",
    "title_raw": "title | title raw | work title | title of work | book title | full title | "
    "application title",
    "subtitle": "subtitle | sub title",
    "authors": "author | authors | author s | author name | author names | creator | creators | "
    "written by",
    "publisher": "publisher | publisher name | imprint",
    "claimant": "claimant | claimants | copyright claimant | copyright claimants | "
    "copyright owner | rightsholder | rights holder | owner",
    "reg_no": "registration number | reg no | registration no | registration | reg number | "
    "registration numbers | copyright registration number | copyright registration | "
    "copyright reg no | us copyright registration number | usco registration number | "
    "us registration number | registration number s | tx number",
    "reg_date": "registration date | reg date | date of registration | "
    "effective date of registration | copyright registration date",
    "pub_date": "publication date | pub date | date of publication | publication year | "
    "year of publication | pub year | year | published",
    "isbn13": "isbn | isbn13 | isbn 13 | isbn10 | isbn 10 | isbns | isbn s | isbn number | "
    "isbn asin | isbn or asin | asin isbn | isbn or asin number | isbn13 s",
    "asin": "asin | asins",
    "doi": "doi",
    "lccn": "lccn | loc control number",
    "catalog_url": "catalog url | catalogue url | catalog link | usco link | url | link",
    "jurisdiction": "jurisdiction | country",
    "status": "status",
    "basis": "basis",
    "scope": "scope",
    "contact": "contact | contact email | email",
    "legal_hold": "legal hold | hold",
    "effective_from": "effective from",
    "effective_to": "effective to",
    "tier": "tier",
    "text": "text | text file | text path",
}
"""Field of a work -> names of columns, folded. `text` is a path, not a field."""

_FIELD_OF = {name.strip(): field for field, names in _NAMES.items() for name in names.split("|")}


def find_field(column: str) -> str | None:
    """The field that a column's name means.

    >>> [find_field(column) for column in ("Author(s)", "ISBN / ASIN", "title_raw", "colour")]
    ['authors', 'isbn13', 'title_raw', None]
    """
    return _FIELD_OF.get(_fold(column))


def find_nearest(column: str) -> str | None:
    """The known name of a column that is most like an unknown one, if any is."""
    close = difflib.get_close_matches(_fold(column), _FIELD_OF, n=1, cutoff=0.7)
    return close[0].replace(" ", "_") if close else None


def _fold(column: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", column.lower().replace(".", "")).strip()


_DELIMITERS = ",\t;|"
_PREAMBLE = 50


@dataclass(frozen=True)
class _Header:
    """Field or None for each column, the line after which records begin, and how cells part."""

    fields: tuple[str | None, ...]
    columns: tuple[str, ...]
    line: int
    delimiter: str

    @property
    def unknown(self) -> list[str]:
        """The names of columns that mean no field."""
        return [c for c, field in zip(self.columns, self.fields, strict=True) if c and not field]


def read_csv(path: Path, text: str) -> Iterator[ListEntry | Refusal]:
    """The entries of a CSV; a Refusal for a row of another length. Raises InputError."""
    header = _find_header(path, text, preamble=1)
    for column in header.unknown:
        close = find_nearest(column)
        hint = f"did you mean {close!r}?" if close else "rename or remove it"
        where = f"{path}:{header.line}"
        raise InputError(f"{where}: unknown column {escape_text(column, 40)!r}; {hint}")
    yield from _read_entries(path, text, header, month_first=False)


def read_works_list(path: Path, text: str) -> Iterator[ListEntry | Refusal | Remark]:
    """The entries of a works list; a Refusal for a row of another length, and a Remark that names
    the columns passed over. Raises InputError."""
    header = _find_header(path, text, preamble=_PREAMBLE)
    if header.unknown:
        names = ", ".join(escape_text(column, 40) for column in header.unknown)
        yield Remark(f"{path.name}:{header.line}", f"columns ignored: {names}")
    yield from _read_entries(path, text, header, month_first=True)


def _find_header(path: Path, text: str, preamble: int) -> _Header:
    lines = enumerate(io.StringIO(text, newline=""), 1)
    rows = [(number, row.strip()) for number, row in lines if row.strip()][:preamble]
    for number, row in rows:
        columns, fields, delimiter = max(
            (_parse_header(row, delimiter) for delimiter in _DELIMITERS),
            key=lambda parsed: sum(map(bool, parsed[1])),
        )
        if "title_raw" in fields:
            twice = next((name for name in fields if name and fields.count(name) > 1), None)
            if twice:
                where = f"{path}:{number}"
                raise InputError(f"{where}: two columns mean {twice}; rename or remove one")
            return _Header(fields, columns, number, delimiter)
    first_row = escape_text(rows[0][1] if rows else "", 80)
    raise InputError(
        f"{path}:{rows[0][0] if rows else 1}: expected a header row with a column 'title', and "
        f"others such as author, isbn, registration_number; found {first_row!r}"
    )


def _parse_header(line: str, delimiter: str) -> tuple[tuple[str, ...], tuple[str | None, ...], str]:
    try:
        columns = tuple(c.strip() for c in next(csv.reader([line], delimiter=delimiter), []))
    except csv.Error:
        columns = ()
    return columns, tuple(map(find_field, columns)), delimiter


def _read_entries(
    path: Path, text: str, header: _Header, month_first: bool
) -> Iterator[ListEntry | Refusal]:
    lines = io.StringIO(text, newline="")
    for _ in range(header.line):
        lines.readline()
    rows = csv.reader(lines, delimiter=header.delimiter, strict=True)
    try:
        start = header.line + 1
        for row in rows:
            where = f"{path.name}:{start}"
            start = header.line + rows.line_num + 1
            if not any(map(str.strip, row)):
                continue
            if len(row) != len(header.fields):
                expected = f"expected {len(header.fields)} columns as in the header"
                yield Refusal(where, f"{expected}, found {len(row)}")
                continue
            cells = zip(header.fields, row, strict=True)
            yield ListEntry(where, {f: cell for f, cell in cells if f is not None}, month_first)
    except csv.Error as error:
        raise InputError(
            f"{path}:{start}: not a row of a list: {error}; correct the quotes"
        ) from None


_FIELDS_BY_LABEL = {
    "registration number / date": "reg", "registration number/date": "reg",
    "registration number": "reg", "registration no.": "reg", "registration date": "reg_date",
    "effective date of registration": "reg_date", "date of registration": "reg_date",
    "title": "title_raw", "full title": "title_raw", "title of work": "title_raw",
    "application title": "application_title", "copyright claimant": "claimant",
    "claimant": "claimant", "date of publication": "pub_date", "publication date": "pub_date",
    "date of creation": "created", "isbn": "isbn13", "lccn": "lccn", "author": "authors",
    "names": "names", "name": "names", "imprint": "imprint", "publisher": "publisher",
    "catalog link": "catalog_url", "link": "catalog_url", "url": "catalog_url",
    "type of work": "type",
}  # fmt: skip
_PASSED_OVER = (
    "record status|registration decision date|registration class|application status|appears in|"
    "variant title|title proper|other title|alternative title on application|series|edition|"
    "publisher number|description|physical description|notes?|personal author|corporate author|"
    "nation of first publication|country of first publication|authorship on application|"
    "authorship|domicile|citizenship|employer for hire|year of completion|"
    "pre-existing material|preexisting material|basis of claim|new matter|previous registration|"
    "copyright notes?|rights and permissions|issn|performer|contents|frequency|language|"
    "material type|deposit|cross reference|other registrations|voyager id|public catalog"
)
_LABELS = "|".join([*sorted(map(re.escape, _FIELDS_BY_LABEL), key=len, reverse=True), _PASSED_OVER])
_LABEL = re.compile(
    rf"(\s*)(?:\d+[.)]\s+)?({_LABELS})\s*(?::\s*(.*)|\t+\s*(.*)|\s{{2,}}(\S.*))?\Z", re.IGNORECASE
)
_FIRST = ("type", "reg", "title_raw")
_SEVERAL = ("names", "isbn13", "claimant")
_RULE = re.compile(r"\s*(?:[-=_*#]{3,}|record \d+ of \d+.*)\s*\Z", re.IGNORECASE)
_PAGE = re.compile(
    r"\s*(?:case \d+:\d+-\w+-.*\bpage \d+ of \d+.*|page \d+(?: of \d+)?|\f+)\s*\Z", re.IGNORECASE
)
_LINK = re.compile(r"\s*(https?://\S+|voyager_\d+)\s*\Z")
_COLON = re.compile(r"\s+:\s+")


@dataclass
class _Block:
    """A record being read: its first line and how far that is indented, its fields, and the field
    that a line without a label goes on."""

    line: int
    indent: int
    values: dict[str, str] = field(default_factory=dict)
    current: str = ""

    def add(self, name: str, value: str) -> None:
        if self.values.get(name) and name in _SEVERAL:
            value = f"{self.values[name]}; {value}"
        self.values[name] = value
        self.current = name

    def go_on(self, line: str) -> None:
        if link := _LINK.match(line):
            self.values.setdefault("catalog_url", link[1])
        elif self.current:
            before = self.values[self.current]
            between = "; " if before and self.current in ("names", "isbn13") else " "
            self.values[self.current] = f"{before}{between}{line.strip()}".strip()

    def is_record(self) -> bool:
        return bool(self.values.get("reg") or self.values.get("title_raw"))


def read_usco(path: Path, text: str) -> Iterator[ListEntry | Refusal]:
    """The entries of a file of records; a Refusal for a record without a title.

    Raises InputError when it holds no record.
    """
    has_record = False
    for block in _split_blocks(text):
        has_record = True
        where = f"{path.name}:{block.line}"
        values = _make_fields(block.values)
        if values.get("title_raw"):
            yield ListEntry(where, values, month_first=True)
        else:
            number = escape_text(block.values.get("reg", ""), 60)
            yield Refusal(where, f"a record without 'Title:' (registration number {number!r})")
    if not has_record:
        raise InputError(
            f"{path}:1: expected records of the US Copyright Office with lines such as "
            "'Registration Number / Date: …' and 'Title: …'; found none"
        )


def _split_blocks(text: str) -> Iterator[_Block]:
    block = _Block(1, 0)
    after_rule = False
    for number, line in enumerate(text.split("\n"), 1):
        if _PAGE.match(line) or _RULE.match(line):
            after_rule |= _PAGE.match(line) is None
            continue
        label = _read_label(line.rstrip("\r"), block)
        if label is None:
            if line.strip() and not after_rule:
                block.go_on(line)
            continue
        name, value, indent = label
        again = name in block.values or (after_rule and "title_raw" in block.values)
        if not block.values or (name in _FIRST and again):
            if block.is_record():
                yield block
            block = _Block(number, indent)
        after_rule = False
        block.add(name, value)
    if block.is_record():
        yield block


def _read_label(line: str, block: _Block) -> tuple[str, str, int] | None:
    """Field, value and indentation of a line that begins a field."""
    match = _LABEL.match(line)
    if match is None:
        return None
    name = _FIELDS_BY_LABEL.get(match[2].lower(), "ignored")
    values = [part for part in match.groups()[2:] if part is not None]
    indent = len(match[1])
    goes_on = bool(block.values) and indent > block.indent and name not in _FIRST
    if goes_on or (not values and not match[2][0].isupper()):
        return None
    return name, values[0].strip() if values else "", indent


def _make_fields(values: dict[str, str]) -> dict[str, str]:
    number, _, registered = values.get("reg", "").partition("/")
    imprint = values.get("imprint", "")
    publisher = _COLON.split(imprint, maxsplit=1)[-1] if _COLON.search(imprint) else ""
    fields = {
        "title_raw": values.get("title_raw") or values.get("application_title", ""),
        "authors": values.get("authors", ""),
        "claimant": values.get("claimant", ""),
        "reg_no": number,
        "reg_date": registered or values.get("reg_date", ""),
        "pub_date": values.get("pub_date", ""),
        "publisher": values.get("publisher") or re.sub(r",\s*\W*c?\d{4}\W*\Z", "", publisher),
        "isbn13": values.get("isbn13", ""),
        "lccn": values.get("lccn", ""),
        "catalog_url": values.get("catalog_url", ""),
        "jurisdiction": "US",
    }
    if not fields["authors"] and not re.search(r"\s/\s*\S", fields["title_raw"]):
        fields["authors"] = values.get("names", "")
    return {name: " ".join(value.split()) for name, value in fields.items() if value.strip()}
