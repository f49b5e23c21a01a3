"""Detectors `identifier` and `notice`: numbers of works, and what a title page says of rights.

Needles ("ISBN", "doi:", "©" …) find the places, and expressions read the bytes around them. A
number counts if form and check digit are right (`registry.names`); `target` is its normal
form. Of a copyright line `target` is the holder as written, else it is the phrase. There is one
finding for each number, or kind, holder and year, at its first place; `places` counts them. English
only.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa

from pipeline.screening.detectors.sweep import Hit, SweepHits, sweep_all
from pipeline.screening.evidence import Finding, findings_table
from pipeline.screening.registry.names import (
    normalise_asin,
    normalise_doi,
    normalise_isbn,
    normalise_lccn,
    normalise_usco,
)

IDENTIFIER_GROUP = "identifier"
_BEHIND = 160
_BEFORE = 80

_DASH = rb"(?:[ -]|\xc2\xa0|\xe2\x80[\x90-\x95]|\xe2\x88\x92)"
_ISBN = rb"((?:97[89]" + _DASH + rb"?)?(?:[0-9]" + _DASH + rb"?){9}[0-9Xx])(?![0-9A-Za-z])"
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
IDENTIFIER_NEEDLES = tuple(_READER_OF)

Read = Iterator[tuple[str, str, int, int]]
"""kind, number, first and last byte, counted from the hit."""


def detect_identifiers(
    batch: pa.Table, works: Mapping[str, str], swept: SweepHits | None = None
) -> pa.Table:
    """FINDINGS of the texts of a batch. `works`: the work that each number of the registries names.
    `swept`: a sweep over `batch["text"]` that has `IDENTIFIER_NEEDLES` as its group `identifier`;
    without it, the texts are swept here."""
    swept = swept or sweep_all(batch["text"], {IDENTIFIER_GROUP: IDENTIFIER_NEEDLES})
    places_by_number: dict[tuple[int, str, str], list[tuple[int, int]]] = {}
    for hit in swept.hits(IDENTIFIER_GROUP):
        for kind, number, start, end in _read_identifiers(swept, hit):
            key = (hit.row, kind, number)
            places_by_number.setdefault(key, []).append((hit.offset + start, hit.offset + end))
    findings = []
    for (row, kind, number), places in places_by_number.items():
        start, end = min(places)
        finding = Finding(
            row=row,
            kind=kind,
            target=number,
            seen=swept.cut(row, start, end).decode(errors="ignore"),
            byte_offset=start,
            byte_length=end - start,
            work_id=works.get(number, ""),
            attributes={"places": len(set(places))},
        )
        findings.append(finding)
    return findings_table(findings)


def _read_identifiers(swept: SweepHits, hit: Hit) -> Read:
    reader = _READER_OF[hit.needle]
    size = len(hit.needle)
    before = swept.cut(hit.row, hit.offset - _BEFORE, hit.offset)
    if reader != "product" and before[-1:].isalnum():
        return
    window = swept.cut(hit.row, hit.offset, hit.offset + size + _BEHIND)
    if reader == "isbn":
        yield from _read_isbns(window, size)
    elif reader == "product":
        if b"amazon." in before.lower():
            yield from _read_one(_PRODUCT, window, size, "asin", normalise_asin)
            yield from _read_one(_PRODUCT, window, size, "isbn", normalise_isbn)
    else:
        expression, start, kind, normal = _SINGLE[reader]
        yield from _read_one(expression, window, size if start is None else start, kind, normal)


Normal = Callable[[str], str | None]
_SINGLE: dict[str, tuple[re.Pattern[bytes], int | None, str, Normal]] = {
    "doi": (_DOI, len("doi"), "doi", normalise_doi),
    "lccn": (_LCCN, None, "lccn", normalise_lccn),
    "catalogue": (_LCCN, len("library of congress "), "lccn", normalise_lccn),
    "asin": (_ASIN, len("asin"), "asin", normalise_asin),
    "usco": (_USCO, None, "usco", normalise_usco),
    "bare": (_BARE_USCO, 0, "usco", normalise_usco),
}
"""Of each reader: what follows a hit, from which byte (None: the end of the needle), the kind
and the normal form."""


def _read_one(
    expression: re.Pattern[bytes], window: bytes, start: int, kind: str, normal: Normal
) -> Read:
    match = expression.match(window, start)
    number = normal(match[1].decode(errors="ignore")) if match else None
    if match and number:
        yield kind, number, match.start(1), match.end(1)


def _read_isbns(window: bytes, start: int) -> Read:
    match = _FIRST_ISBN.match(window, start)
    while match:
        number = normalise_isbn(match[1].decode(errors="ignore"))
        if number:
            yield "isbn", number, match.start(1), match.end(1)
        match = _NEXT_ISBN.match(window, match.end())


NOTICE_GROUP = "notice"
_BYTES_BEHIND = 400
_BYTES_BEFORE = 40

_SIGN = rb"(?:\xc2\xa9|\(c\)|&copy;)"
_YEAR = rb"(?:1[4-9]|20)[0-9]{2}"
_YEARS = (
    rb"(?P<years>" + _YEAR + rb"(?:\s?(?:--?|\xe2\x80\x93|,|&|and|to)\s?"
    rb"(?:" + _YEAR + rb"|[0-9]{2}(?![0-9])|present))*)(?![0-9])"
)
_BEGINS = rb"[^\s\d.,;:|<>()\[\]{}*#=+/\\\"-]"
_GOES_ON = rb"[^\r\n;|<>()\[\]{}*#=\"]"
_BLANKS = rb"[^\S\r\n]*"
_DASHES = rb"(?:[,.:;-]|\xe2\x80[\x90-\x95])?"
_YEAR_FIRST = re.compile(
    rb"(?:copyright|" + _SIGN + rb")(?:[\s:,.]{0,3}(?:copyright|" + _SIGN + rb")){0,2}[\s:,.]{0,4}"
    + _YEARS + rb"(?:" + _BLANKS + _DASHES + _BLANKS + rb"(?:\r?\n\s{0,8}(?=by\s))?(?:by\s+)?"
    rb"(?P<holder>" + _BEGINS + _GOES_ON + rb"{1,80}))?",
    re.IGNORECASE,
)  # fmt: skip
_HOLDER_FIRST = re.compile(
    rb"(?:(?:copyright" + _BLANKS + rb")?" + _SIGN + rb"(?:" + _BLANKS + rb"copyright)?"
    rb"|copyright(?=\s+by\s))[\s:,.]{0,4}(?:by\s+)?"
    rb"(?P<holder>" + _BEGINS + rb"[^\r\n;|<>()\[\]{}*#=\"0-9]{1,80}?)[\s,(]{1,3}" + _YEARS,
    re.IGNORECASE,
)
_HOLDER_END = re.compile(
    r"(?<!\b\w)\.\s|copyright|©"
    r"|,?\s+(?:all rights|licen[cs]ed|(?:first )?published|printed|see)\b|$",
    re.IGNORECASE,
)
_FOUR_DIGITS = re.compile(_YEAR)
_REPRODUCED = re.compile(rb"reproduc|transmit|copied|stored|distribut", re.IGNORECASE)
_GUTENBERG = re.compile(
    rb"(?:\*\*\*?\s*(?:start of (?:this|the)|this is the)|(?:^|[\r\n\xbf])(?:the)?)\s*\Z",
    re.IGNORECASE,
)
_GUTENBERG_TITLE = re.compile(
    rb"project gutenberg(?:'s| e-?book| e-?text|\xe2\x80\x99s)[^\r\n]{0,100}", re.IGNORECASE
)

_KINDS: dict[str, tuple[str, ...]] = {
    "copyright": ("©", "&copy;", "copyright", "(c) 19", "(c) 20", "(c)19", "(c)20"),
    "rights_reserved": ("all rights reserved",),
    "reproduction": ("no part of this",),
    "cip": (
        "cataloging-in-publication",
        "cataloguing-in-publication",
        "cataloging in publication",
        "cataloguing in publication",
        "cip data",
    ),
    "public_domain_statement": ("project gutenberg",),
}
_KIND_OF = {needle: kind for kind, needles in _KINDS.items() for needle in needles}
_PHRASES = {kind: needles[0] for kind, needles in _KINDS.items()} | {
    "cip": "cataloguing in publication"
}
NOTICE_NEEDLES = tuple(_KIND_OF)


class _Notice(NamedTuple):
    kind: str
    target: str
    year: int
    end: int


def detect_notices(batch: pa.Table, swept: SweepHits | None = None) -> pa.Table:
    """FINDINGS of the texts of a batch. `swept`: a sweep over `batch["text"]` that has
    `NOTICE_NEEDLES` as its group `notice`; without it, the texts are swept here."""
    swept = swept or sweep_all(batch["text"], {NOTICE_GROUP: NOTICE_NEEDLES})
    places_by_notice: dict[tuple[int, str, str, int], list[tuple[int, int]]] = {}
    row, covered = -1, 0
    for hit in swept.hits(NOTICE_GROUP):
        if hit.row != row:
            row, covered = hit.row, 0
        is_line = _KIND_OF[hit.needle] == "copyright"
        if is_line and hit.offset < covered:
            continue
        notice = _read_notice(swept, hit)
        if notice:
            covered = hit.offset + notice.end if is_line else covered
            places = places_by_notice.setdefault((row, *notice[:3]), [])
            places.append((hit.offset, hit.offset + notice.end))
    findings = []
    for (row, kind, target, year), places in places_by_notice.items():
        start, end = places[0]
        about: dict[str, str | int] = {"places": len(places)}
        finding = Finding(
            row=row,
            kind=kind,
            target=target,
            seen=swept.cut(row, start, end).decode(errors="ignore"),
            byte_offset=start,
            byte_length=end - start,
            attributes=about | ({"holder": target, "year": year} if kind == "copyright" else {}),
        )
        findings.append(finding)
    return findings_table(findings)


def _read_notice(swept: SweepHits, hit: Hit) -> _Notice | None:
    kind = _KIND_OF[hit.needle]
    size = len(hit.needle.encode())
    window = swept.cut(hit.row, hit.offset, hit.offset + _BYTES_BEHIND)
    if kind == "copyright":
        return _read_copyright(window)
    if kind == "reproduction" and not _REPRODUCED.search(window):
        return None
    if kind == "public_domain_statement":
        before = swept.cut(hit.row, hit.offset - _BYTES_BEFORE, hit.offset)
        header = _GUTENBERG_TITLE.match(window) if _GUTENBERG.search(before) else None
        if header is None:
            return None
        size = header.end()
    return _Notice(kind, _PHRASES[kind], 0, size)


def _read_copyright(window: bytes) -> _Notice | None:
    match = _YEAR_FIRST.match(window)
    years_first = match is not None
    match = match or _HOLDER_FIRST.match(window)
    if match is None:
        return None
    name, size = _cut_holder(match["holder"] or b"")
    end = match.start("holder") + size if years_first and size else match.end("years")
    year = max(int(digits) for digits in _FOUR_DIGITS.findall(match["years"]))
    return _Notice("copyright", name, year, end)


def _cut_holder(raw: bytes) -> tuple[str, int]:
    """A holder without what follows it on the line, and how many bytes of `raw` it takes."""
    text = raw.decode(errors="ignore")
    stop = _HOLDER_END.search(text)
    name = (text[: stop.start()] if stop else text).rstrip(" \t.,:'\"-–—")
    return " ".join(name.split()), len(name.encode())
