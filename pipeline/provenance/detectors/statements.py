"""Licence statements in texts: addresses, machine-readable tags, names and wordings of licences.

A statement has high confidence when it speaks of the text it stands in ("this work is licensed
under …", a tag, the wording of the licence itself), low when it may speak of something else.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from pipeline.provenance.detectors.licence_names import BSD, PUBLIC_DOMAIN, RESERVED
from pipeline.provenance.detectors.spdx import licence_at, licence_of, normalise_licence
from pipeline.provenance.detectors.sweep import Hit, SweepHits

GROUP = "licence"
"""The name of this detector's needles in a sweep."""

_BEFORE, _AFTER = 320, 640
"""Bytes around a needle that are read."""

_RESERVED = (
    "all rights reserved", "alle rechte vorbehalten", "tous droits réservés",
    "todos los derechos reservados", "todos os direitos reservados", "tutti i diritti riservati",
    "alle rechten voorbehouden", "все права защищены", "no part of this",
)  # fmt: skip
_NAMES = (
    "creative commons", "cc by", "cc-by", "cc0", "mit licen", "apache licen", "bsd licen",
    "bsd-style", "clause bsd", "general public licen", "free documentation licen", "gnu gpl",
    "gnu lgpl", "gplv2", "gplv3", "mozilla public licen", "eclipse public licen",
    "artistic licen", "open government licen", "open database licen",
    "open data commons attribution", "boost software licen", "isc licen",
)  # fmt: skip
_WORDINGS = {
    "permission is hereby granted, free of charge": "MIT",
    "redistribution and use in source and binary": BSD,
    "permission to use, copy, modify, and distribute this software": "ISC",
    "permission to use, copy, modify, and/or distribute this software": "ISC",
    "free and unencumbered software released into": "Unlicense",
}
_ADDRESS, _TAG, _DOMAIN = "creativecommons.org/", "spdx-license-identifier", "public domain"

NEEDLES = (_ADDRESS, _TAG, _DOMAIN, *_NAMES, *_WORDINGS, *_RESERVED)

_CC_ADDRESS = re.compile(rb"creativecommons\.org/(?:licenses|publicdomain)/[a-z0-9./-]{2,40}", re.I)
_TAGGED = re.compile(rb"spdx-license-identifier:?[ \t]*([A-Za-z0-9.+() -]{2,100})", re.I)
_CC_NAME = re.compile(
    rb"(?:creative\s+commons|\bcc)[\s-]{0,3}(?:attribution|by|zero|0)\b"
    rb"(?:[\s,/-]{1,3}(?:non-?\s?commercial|share-?\s?alike|no-?\s?deriv[a-z]*|nc|sa|nd))*"
    rb"(?:[\s,/-]{1,3}(?:licen[cs]e|version|international|unported))*"
    rb"(?:[\s,-]{0,3}v?(\d\.\d))?",
    re.I,
)
_GNU_NAME = re.compile(
    rb"(?:gnu\s+)?(?:(?:affero|lesser|library)\s+)?(?:general\s+public|free\s+documentation)\s+"
    rb"licen[cs]e|\bgnu\s+l?gpl\b|\bgplv[23]\b",
    re.I,
)
_GNU_VERSION = re.compile(
    rb"(?:\s*\([a-z]+\))?[\s,;]*(?:as\s+published\s+by\s+the\s+free\s+software\s+foundation[\s,;]*)?"
    rb"(?:either\s+)?(?:version|v\.?)?\s*([123](?:\.[0-3])?)\b"
    rb"([\s,;]*(?:of\s+the\s+licen[cs]e[\s,;]*)?(?:or\s+(?:\(at\s+your\s+option\)\s+)?any\s+later|"
    rb"or\s+later|\+))?",
    re.I,
)
_OTHER_NAME = re.compile(
    rb"(?:mit|isc|boost\s+software)\s+licen[cs]e|"
    rb"apache\s+licen[cs]e(?:[\s,]*(?:version|v\.?)?\s*[12]\.[01])?|"
    rb"(?:(?:[234]|two|three|four)-clause\s+|new\s+|modified\s+|simplified\s+)?"
    rb"bsd(?:-style)?(?:\s+licen[cs]e)?|"
    rb"(?:mozilla|eclipse)\s+public\s+licen[cs]e(?:[\s,]*(?:version|v\.?)?\s*[12]\.[01])?|"
    rb"artistic\s+licen[cs]e(?:\s+2\.0)?|open\s+government\s+licen[cs]e(?:\s*v?[123]\.0)?|"
    rb"open\s+database\s+licen[cs]e|open\s+data\s+commons\s+attribution",
    re.I,
)
_GRANT = re.compile(
    rb"\b(?:licen[cs]ed|released|distributed|published|available|provided|redistribute|modify|"
    rb"shared|covered|governed|offered|permitted|used)\b[^.]{0,120}\b(?:under|by|to)\b[^.]{0,60}\Z|"
    rb"(?:\A|\n)[\W_]*licen[cs]ed?(?:\s+under|\s*[:=]|\s*\Z)[^.\n]{0,60}\Z",
    re.I,
)
_SELF = re.compile(
    rb"\bthis\s+(?:work|file|book|e-?book|e-?text|text|document|documentation|article|report|"
    rb"software|program|image|page|site|website|publication|material|content|code|source|library|"
    rb"package|module|paper|chapter|data|dataset|project|manual|is\s+an\s+open|is\s+free)|"
    rb"\byou\s+(?:may|can|should\s+have)\b|otherwise\s+(?:noted|stated|specified)|"
    rb"\b(?:text|content|contents|articles?|source\s+code)\s+(?:is|are|of\s+this|on\s+this)\b|"
    rb"(?:\A|\n)[\W_]*licen[cs]ed?(?:\s+under|\s*[:=]|\s*\n)",
    re.I,
)
_COPYRIGHT = re.compile(rb"copyright|\xc2\xa9|\(c\)|\bcopr\.", re.I)
_ALLOWS = re.compile(
    rb"licen[cs]e|licen[cs]ing|permission\s+is|permission\s+to|permitted|redistribut|"
    rb"public\s+domain|some\s+rights|freely|copying",
    re.I,
)
_NO_PART = re.compile(
    rb"no\s+part\s+of\s+this\s+(?:book|e-?book|publication|work|volume|document|report|material|"
    rb"text|magazine|article|manuscript|novel|story)\b[^.]{0,80}"
    rb"\b(?:may|can|shall|should|must|is\s+to|to)\s+be\b",
    re.I,
)
_OWN_DOMAIN = re.compile(
    rb"\b(?:this|these)\s+(?:work|file|book|e-?book|e-?text|text|document|article|report|software|"
    rb"image|publication|material|content|code|program)s?\b[^.]{0,80}?\bpublic\s+domain|"
    rb"\b(?:dedicated|released|placed|donated|put)\s+(?:to|into|in)\s+the\s+public\s+domain",
    re.I,
)


class Statement(NamedTuple):
    """A licence statement: an SPDX expression and where it stands, in bytes of the text.

    basis: address, tag, name, wording or notice. confidence: high or low.
    """

    row: int
    offset: int
    length: int
    spdx: str
    basis: str
    confidence: str


def find_statements(swept: SweepHits) -> Iterator[list[Statement]]:
    """For every text that has any, its statements: of each licence the first of the highest
    confidence, in order of place."""
    row, found = -1, list[Statement]()
    for hit in swept.hits(GROUP):
        if hit.row != row and found:
            yield _first_of_each(found)
            found = []
        row = hit.row
        if statement := _statement_at(swept, hit):
            found.append(statement)
    if found:
        yield _first_of_each(found)


def _first_of_each(found: list[Statement]) -> list[Statement]:
    best: dict[str, Statement] = {}
    for statement in found:
        held = best.get(statement.spdx)
        if held is None or (held.confidence == "low" and statement.confidence == "high"):
            best[statement.spdx] = statement
    return sorted(best.values(), key=lambda one: (one.offset, one.spdx))


class _Window(NamedTuple):
    """The bytes around a hit; `at` is where its needle begins in `data`."""

    hit: Hit
    data: bytes
    at: int

    def statement(
        self, span: tuple[int, int], spdx: str, basis: str, is_high: bool
    ) -> Statement | None:
        if not spdx:
            return None
        start, end = span
        offset = self.hit.offset - self.at + start
        confidence = "high" if is_high else "low"
        return Statement(self.hit.row, offset, end - start, spdx, basis, confidence)


def _statement_at(swept: SweepHits, hit: Hit) -> Statement | None:
    start = max(0, hit.offset - _BEFORE)
    window = _Window(hit, swept.cut(hit.row, start, hit.offset + _AFTER), hit.offset - start)
    if hit.needle in _RESERVED:
        return _reserved(window)
    if hit.needle in _WORDINGS:
        return _wording(window)
    if hit.needle == _DOMAIN:
        return _public_domain(window)
    if hit.needle == _TAG:
        return _tagged(window)
    return _address(window) if hit.needle == _ADDRESS else _named(window)


def _reserved(window: _Window) -> Statement | None:
    _, data, at = window
    needle = len(window.hit.needle.encode())
    if window.hit.needle == "no part of this":
        found = _NO_PART.match(data, at)
        return window.statement(found.span(), RESERVED, "notice", True) if found else None
    has_owner = _COPYRIGHT.search(data[max(0, at - 160) : at + needle + 80]) is not None
    is_alone = _ALLOWS.search(data) is None
    return window.statement((at, at + needle), RESERVED, "notice", has_owner and is_alone)


def _wording(window: _Window) -> Statement | None:
    spdx = _WORDINGS[window.hit.needle]
    span = (window.at, window.at + len(window.hit.needle))
    return window.statement(span, spdx, "wording", True)


def _public_domain(window: _Window) -> Statement | None:
    end = window.at + len(window.hit.needle)
    found = next((f for f in _OWN_DOMAIN.finditer(window.data, 0, end) if f.end() == end), None)
    return window.statement(found.span(), PUBLIC_DOMAIN, "name", True) if found else None


def _tagged(window: _Window) -> Statement | None:
    found = _TAGGED.match(window.data, window.at)
    if not found:
        return None
    words = re.split(r"\s{2,}|\s-", found[1].decode("ascii").strip())[0]
    spdx = licence_of(words).spdx or licence_of(words.split(" ")[0]).spdx
    return window.statement(found.span(), spdx, "tag", True)


def _address(window: _Window) -> Statement | None:
    found = _CC_ADDRESS.match(window.data, window.at)
    if not found:
        return None
    spdx = licence_at(found[0].decode("ascii").rstrip("./-"))
    return window.statement(found.span(), spdx, "address", _is_own(window, *found.span()))


def _named(window: _Window) -> Statement | None:
    """The licence whose name the needle is part of."""
    data, at = window.data, window.at
    for pattern, read in ((_CC_NAME, _cc), (_GNU_NAME, _gnu), (_OTHER_NAME, _other)):
        for found in pattern.finditer(data, max(0, at - 40), at + 160):
            if found.start() <= at < found.end():
                own = _is_own(window, *found.span())
                return window.statement(found.span(), read(found, data, own), "name", own)
    return None


def _cc(found: re.Match[bytes], data: bytes, own: bool) -> str:
    """ "cc by" alone is an ordinary phrase unless a grant stands before it."""
    name = _text(found[0])
    is_phrase = re.fullmatch(r"cc\W*by\W*", name, re.I) is not None
    return "" if is_phrase and not own else normalise_licence(name).spdx


def _gnu(found: re.Match[bytes], data: bytes, own: bool) -> str:
    name = _text(found[0])
    if version := _GNU_VERSION.match(data, found.end()):
        name += f" {_text(version[1])}{' or later' if version[2] else ''}"
    return normalise_licence(name).spdx


def _other(found: re.Match[bytes], data: bytes, own: bool) -> str:
    return normalise_licence(_text(found[0])).spdx


def _text(name: bytes) -> str:
    return " ".join(name.decode("ascii", "ignore").split())


def _is_own(window: _Window, start: int, end: int) -> bool:
    """Whether a grant leads to the licence, and the text speaks of itself nearby."""
    before = window.data[max(0, start - 240) : start]
    return bool(
        _GRANT.search(before)
        and (_SELF.search(before) or _SELF.search(window.data[end : end + 160]))
    )
