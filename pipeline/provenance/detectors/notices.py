"""Detector `notice`: copyright lines and what else a title page says of rights.

kind: `copyright` (a sign or the word, with a year), `rights_reserved` ("all rights reserved"),
`reproduction` ("no part of this … may be reproduced"), `cip` (cataloguing-in-publication data),
`public_domain_statement` (the header of a Project Gutenberg file).

target: of a copyright line its holder as written, which may be empty; else the phrase. attributes:
places, how often the text has it, within the limits of the sweep; of a copyright line also holder
and year, an integer, the latest that the line names. There is one finding for each kind, holder and
year of a text, at the first place.

Limits: English and the signs © and (c) only. A notice says what its author wrote; who holds rights
in the document is another question.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from pipeline.provenance.detectors.contract import Finding, attributes_json, findings_table
from pipeline.provenance.detectors.sweep import Hit, SweepHits, sweep_all

GROUP = "notice"
_BEHIND = 400
_BEFORE = 40

_SIGN = rb"(?:\xc2\xa9|\(c\)|&copy;)"
_YEAR = rb"(?:1[4-9]|20)[0-9]{2}"
_YEARS = (
    rb"(?P<years>" + _YEAR + rb"(?:\s?(?:--?|\xe2\x80\x93|,|&|and|to)\s?"
    rb"(?:" + _YEAR + rb"|[0-9]{2}(?![0-9])|present))*)(?![0-9])"
)  # fmt: skip
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
)  # fmt: skip
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
        "cataloging-in-publication", "cataloguing-in-publication", "cataloging in publication",
        "cataloguing in publication", "cip data",
    ),
    "public_domain_statement": ("project gutenberg",),
}  # fmt: skip
_KIND_OF = {needle: kind for kind, needles in _KINDS.items() for needle in needles}
_PHRASES = {
    "rights_reserved": "all rights reserved",
    "reproduction": "no part of this",
    "cip": "cataloguing in publication",
    "public_domain_statement": "project gutenberg",
}
NEEDLES = tuple(_KIND_OF)


class _Notice(NamedTuple):
    kind: str
    target: str
    year: int
    end: int


def detect_notices(batch: pa.Table, swept: SweepHits | None = None) -> pa.Table:
    """FINDINGS of the texts of a batch. `swept`: a sweep over `batch["text"]` that has `NEEDLES` as
    its group `notice`; without it, the texts are swept here."""
    swept = swept or sweep_all(batch["text"], {GROUP: NEEDLES})
    found: dict[tuple[int, str, str, int], list[tuple[int, int]]] = {}
    row, covered = -1, 0
    for hit in swept.hits(GROUP):
        if hit.row != row:
            row, covered = hit.row, 0
        is_line = _KIND_OF[hit.needle] == "copyright"
        if is_line and hit.offset < covered:
            continue
        notice = _read(swept, hit)
        if notice:
            covered = hit.offset + notice.end if is_line else covered
            places = found.setdefault((row, *notice[:3]), [])
            places.append((hit.offset, hit.offset + notice.end))
    return findings_table(_findings(swept, found))


def _findings(
    swept: SweepHits, found: dict[tuple[int, str, str, int], list[tuple[int, int]]]
) -> Iterator[Finding]:
    for (row, kind, target, year), places in found.items():
        start, end = places[0]
        seen = swept.cut(row, start, end).decode(errors="ignore")
        about: dict[str, str | int] = {"places": len(places)}
        if kind == "copyright":
            about |= {"holder": target, "year": year}
        yield Finding(
            row, kind, target, seen, start, end - start, attributes=attributes_json(about)
        )


def _read(swept: SweepHits, hit: Hit) -> _Notice | None:
    kind = _KIND_OF[hit.needle]
    size = len(hit.needle.encode())
    if kind in ("rights_reserved", "cip"):
        return _Notice(kind, _PHRASES[kind], 0, size)
    window = swept.cut(hit.row, hit.offset, hit.offset + _BEHIND)
    if kind == "copyright":
        return _copyright(window)
    if kind == "reproduction":
        return _Notice(kind, _PHRASES[kind], 0, size) if _REPRODUCED.search(window) else None
    before = swept.cut(hit.row, hit.offset - _BEFORE, hit.offset)
    header = _GUTENBERG_TITLE.match(window) if _GUTENBERG.search(before) else None
    return _Notice(kind, _PHRASES[kind], 0, header.end()) if header else None


def _copyright(window: bytes) -> _Notice | None:
    """The line that begins with the window, if it names a year."""
    found = _YEAR_FIRST.match(window)
    years_first = found is not None
    found = found or _HOLDER_FIRST.match(window)
    if found is None:
        return None
    name, size = _holder(found["holder"] or b"")
    end = found.start("holder") + size if years_first and size else found.end("years")
    year = max(int(digits) for digits in _FOUR_DIGITS.findall(found["years"]))
    return _Notice("copyright", name, year, end)


def _holder(raw: bytes) -> tuple[str, int]:
    """A holder without what follows it on the line, and how many bytes of `raw` it takes."""
    text = raw.decode(errors="ignore")
    stop = _HOLDER_END.search(text)
    name = (text[: stop.start()] if stop else text).rstrip(" \t.,:'\"-–—")
    return " ".join(name.split()), len(name.encode())
