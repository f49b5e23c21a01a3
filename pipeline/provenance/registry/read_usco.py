"""Records of the US Copyright Office as its public catalogue and court exhibits print them.

    Type of Work: Text
    Registration Number / Date: TX0003372564 / 1992-08-05
    Title: Negrophobia: an urban parable: a novel / Darius James.
    Copyright Claimant: Darius James

A value may begin on the next line and may go on over several. Only labels of the catalogue begin a
field, since a wrapped title may hold a colon at any place. A record ends where its first field, its
registration number or its title would come a second time.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.core.errors import InputError, escape_text
from pipeline.provenance.registry.entries import ListEntry, Refusal

_TAKEN = {
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
_LABELS = "|".join([*sorted(map(re.escape, _TAKEN), key=len, reverse=True), _PASSED_OVER])
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
    found = False
    for block in _blocks(text):
        found = True
        where = f"{path.name}:{block.line}"
        values = _fields(block.values)
        if values.get("title_raw"):
            yield ListEntry(where, values, month_first=True)
        else:
            number = escape_text(block.values.get("reg", ""), 60)
            yield Refusal(where, f"a record without 'Title:' (registration number {number!r})")
    if not found:
        raise InputError(
            f"{path}:1: expected records of the US Copyright Office with lines such as "
            "'Registration Number / Date: …' and 'Title: …'; found none"
        )


def _blocks(text: str) -> Iterator[_Block]:
    block = _Block(1, 0)
    after_rule = False
    for number, line in enumerate(text.split("\n"), 1):
        if _PAGE.match(line) or _RULE.match(line):
            after_rule |= _PAGE.match(line) is None
            continue
        label = _label(line.rstrip("\r"), block)
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


def _label(line: str, block: _Block) -> tuple[str, str, int] | None:
    """Field, value and indentation of a line that begins a field."""
    found = _LABEL.match(line)
    if found is None:
        return None
    name = _TAKEN.get(found[2].lower(), "ignored")
    values = [part for part in found.groups()[2:] if part is not None]
    indent = len(found[1])
    goes_on = bool(block.values) and indent > block.indent and name not in _FIRST
    if goes_on or (not values and not found[2][0].isupper()):
        return None
    return name, values[0].strip() if values else "", indent


def _fields(values: dict[str, str]) -> dict[str, str]:
    """Our fields from the catalogue's."""
    number, _, registered = values.get("reg", "").partition("/")
    imprint = values.get("imprint", "")
    publisher = _COLON.split(imprint, maxsplit=1)[-1] if _COLON.search(imprint) else ""
    found = {
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
    if not found["authors"] and not re.search(r"\s/\s*\S", found["title_raw"]):
        found["authors"] = values.get("names", "")
    return {name: " ".join(value.split()) for name, value in found.items() if value.strip()}
