"""Detector `identifier`: numbers of works, where the text says that a number follows.

Needles ("ISBN", "doi:", "Registration Number" …) find the places; only the bytes behind one are
read, and only numbers whose form and check digit are right are told
(`pipeline.provenance.identifiers`).

kind: isbn | doi | lccn | asin | usco. target: the normalised number. work_id: of a registry, when
it has the number. attributes: places, how often the text has the number, within the limits of the
sweep; there is one finding for each number of a text, at its first place.

Limits: a number without a word that announces it is not looked for. A number says which work is
named, not that the document is that work: reference lists are full of them.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from pipeline.provenance import identifiers
from pipeline.provenance.detectors.contract import Finding, attributes_json, findings_table
from pipeline.provenance.detectors.sweep import Hit, SweepHits, sweep_all

GROUP = "identifier"
_BEHIND = 160
_BEFORE = 80

_DASH = rb"(?:[ -]|\xc2\xa0|\xe2\x80[\x90-\x95]|\xe2\x88\x92)"
_ISBN = (
    rb"((?:97[89]" + _DASH + rb"?)?(?:[0-9]" + _DASH + rb"?){9}[0-9Xx])(?![0-9A-Za-z])"
)  # fmt: skip
_FIRST_ISBN = re.compile(rb"[Ss]?(?![A-Za-z])[^0-9]{0,40}?(?:1[03][^0-9]{1,8})?" + _ISBN)
_NEXT_ISBN = re.compile(rb"[\s,;/|]*(?:\([^()]{0,40}\))?[\s,;/|:]*" + _ISBN)
_DOI = re.compile(rb"(?:\.org/)?[\s:=/{(\[\"'>]{0,8}(10\.[0-9]{4,9}[^\s\"<>{}|\\^`]{2,150})")
_LCCN = re.compile(
    rb"(?:[^0-9A-Za-z]{0,8}(?:control|catalog(?:ue)?|card|number|no)\b\.?){0,3}[^0-9A-Za-z]{0,8}"
    rb"([a-z]{0,3} ?[0-9]{2,4}-?[0-9]{1,8})(?![0-9A-Za-z-])",
    re.IGNORECASE,
)
_ASIN = re.compile(rb"[\s:=#\"'>]{0,6}(B0[0-9A-Z]{8})(?![0-9A-Za-z])", re.IGNORECASE)
_PRODUCT = re.compile(rb"([0-9A-Z]{10})(?![0-9A-Za-z])")
_USCO = re.compile(
    rb"[^\r\n]{0,40}?(?<![A-Za-z])((?:TXU|VAU|PAU|SRU|PRE|TX|VA|PA|SR|SE|MW|RE)[ -]{0,2}"
    rb"(?:[0-9]{7,10}|[0-9]{1,4}(?:[ -][0-9]{3}){1,3}))(?![ -]?[0-9])",
    re.IGNORECASE,
)
_BARE_USCO = re.compile(
    rb"(TXU?[ -]?(?:[0-9]-[0-9]{3}-[0-9]{3}|0{2,3}[0-9]{7}))(?![ -]?[0-9])", re.IGNORECASE
)

_NEEDLES: dict[str, tuple[str, ...]] = {
    "isbn": ("isbn",),
    "doi": (
        "doi:", "doi.org/", "doi 10.", "doi=", "doi{10.", "doi/10.", "doi = {10.", 'doi = "10.',
    ),
    "lccn": ("lccn",),
    "catalogue": ("library of congress c",),
    "asin": ("asin:", "asin b0", "asin="),
    "product": ("/dp/", "/gp/product/"),
    "usco": ("registration number", "registration no", "registration #", "reg. no"),
    "bare": tuple(
        f"{prefix}{dash}{digit}"
        for prefix in ("tx", "txu") for dash in ("", " ", "-") for digit in "0123456789"
    ),
}  # fmt: skip
_READER_OF = {needle: name for name, needles in _NEEDLES.items() for needle in needles}
NEEDLES = tuple(_READER_OF)

Read = Iterator[tuple[str, str, int, int]]
"""kind, number, first and last byte, counted from the hit."""


@dataclass(frozen=True)
class IdentifierSettings:
    """works: the work that each number of the registries names."""

    works: Mapping[str, str] = field(default_factory=dict)


def detect_identifiers(
    batch: pa.Table, settings: IdentifierSettings, swept: SweepHits | None = None
) -> pa.Table:
    """FINDINGS of the texts of a batch. `swept`: a sweep over `batch["text"]` that has `NEEDLES` as
    its group `identifier`; without it, the texts are swept here."""
    swept = swept or sweep_all(batch["text"], {GROUP: NEEDLES})
    places: dict[tuple[int, str, str], list[tuple[int, int]]] = {}
    for hit in swept.hits(GROUP):
        for kind, number, start, end in _read(swept, hit):
            key = (hit.row, kind, number)
            places.setdefault(key, []).append((hit.offset + start, hit.offset + end))
    return findings_table(_findings(swept, settings, places))


def _findings(
    swept: SweepHits,
    settings: IdentifierSettings,
    found: Mapping[tuple[int, str, str], list[tuple[int, int]]],
) -> Iterator[Finding]:
    for (row, kind, number), places in found.items():
        start, end = min(places)
        yield Finding(
            row, kind, number, swept.cut(row, start, end).decode(errors="ignore"), start,
            end - start, settings.works.get(number, ""),
            attributes=attributes_json({"places": len(set(places))}),
        )  # fmt: skip


def _read(swept: SweepHits, hit: Hit) -> Read:
    reader = _READER_OF[hit.needle]
    size = len(hit.needle)
    before = swept.cut(hit.row, hit.offset - _BEFORE, hit.offset)
    if reader != "product" and before[-1:].isalnum():
        return
    window = swept.cut(hit.row, hit.offset, hit.offset + size + _BEHIND)
    if reader == "isbn":
        yield from _isbns(window, size)
    elif reader == "product":
        if b"amazon." in before.lower():
            yield from _one(_PRODUCT, window, size, "asin", identifiers.asin)
            yield from _one(_PRODUCT, window, size, "isbn", identifiers.isbn13)
    else:
        expression, start, kind, normal = _SINGLE[reader]
        yield from _one(expression, window, size if start is None else start, kind, normal)


Normal = Callable[[str], str | None]
_SINGLE: dict[str, tuple[re.Pattern[bytes], int | None, str, Normal]] = {
    "doi": (_DOI, len("doi"), "doi", identifiers.doi),
    "lccn": (_LCCN, None, "lccn", identifiers.lccn),
    "catalogue": (_LCCN, len("library of congress "), "lccn", identifiers.lccn),
    "asin": (_ASIN, len("asin"), "asin", identifiers.asin),
    "usco": (_USCO, None, "usco", identifiers.usco),
    "bare": (_BARE_USCO, 0, "usco", identifiers.usco),
}
"""Of each reader: what stands behind a hit, from which byte (None: the end of the needle), the kind
and the normal form."""


def _one(
    expression: re.Pattern[bytes], window: bytes, start: int, kind: str, normal: Normal
) -> Read:
    found = expression.match(window, start)
    number = normal(found[1].decode(errors="ignore")) if found else None
    if found and number:
        yield kind, number, found.start(1), found.end(1)


def _isbns(window: bytes, start: int) -> Read:
    """The ISBN behind a hit, and those that follow it at once."""
    found = _FIRST_ISBN.match(window, start)
    while found:
        number = identifiers.isbn13(found[1].decode(errors="ignore"))
        if number:
            yield "isbn", number, found.start(1), found.end(1)
        found = _NEXT_ISBN.match(window, found.end())
