"""Detector `licence`: what was declared and is unknown or restricted (`declared`), what the text
states (`statement`: of every licence the first), and the worst contradiction (`conflict`).

A statement has high confidence when it speaks of its own text ("this work is licensed under …", a
tag, the wording of the licence itself), low when it may speak of something else. Only high ones
conflict, when they ask for more than what was declared.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.screening import evidence
from pipeline.screening.detectors.licence_names import BSD, PUBLIC_DOMAIN, RESERVED
from pipeline.screening.detectors.spdx import (
    RANKS,
    SpdxLicence,
    normalise_licence,
    parse_expression,
    read_licence_address,
)
from pipeline.screening.detectors.sweep import Hit, SweepHits, sweep_all

GROUP = "licence"
"""The name of this detector's needles in a sweep."""

_BEFORE, _AFTER = 320, 640
"""Bytes around a needle that are read."""

_RESERVED = (
    "all rights reserved",
    "alle rechte vorbehalten",
    "tous droits réservés",
    "todos los derechos reservados",
    "todos os direitos reservados",
    "tutti i diritti riservati",
    "alle rechten voorbehouden",
    "все права защищены",
    "no part of this",
)
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
)
_GNU_NAME = re.compile(
    rb"(?:gnu\s+)?(?:(?:affero|lesser|library)\s+)?(?:general\s+public|free\s+documentation)\s+"
    rb"licen[cs]e|\bgnu\s+l?gpl\b|\bgplv[23]\b",
)
_GNU_VERSION = re.compile(
    rb"(?:\s*\([a-z]+\))?[\s,;]*(?:as\s+published\s+by\s+the\s+free\s+software\s+foundation[\s,;]*)?"
    rb"(?:either\s+)?(?:version|v\.?)?\s*([123](?:\.[0-3])?)\b"
    rb"([\s,;]*(?:of\s+the\s+licen[cs]e[\s,;]*)?(?:or\s+(?:\(at\s+your\s+option\)\s+)?any\s+later|"
    rb"or\s+later|\+))?",
)
_OTHER_NAME = re.compile(
    rb"(?:mit|isc|boost\s+software)\s+licen[cs]e|"
    rb"apache\s+licen[cs]e(?:[\s,]*(?:version|v\.?)?\s*[12]\.[01])?|"
    rb"(?:(?:[234]|two|three|four)-clause\s+|new\s+|modified\s+|simplified\s+)?"
    rb"bsd(?:-style)?(?:\s+licen[cs]e)?|"
    rb"(?:mozilla|eclipse)\s+public\s+licen[cs]e(?:[\s,]*(?:version|v\.?)?\s*[12]\.[01])?|"
    rb"artistic\s+licen[cs]e(?:\s+2\.0)?|open\s+government\s+licen[cs]e(?:\s*v?[123]\.0)?|"
    rb"open\s+database\s+licen[cs]e|open\s+data\s+commons\s+attribution",
)
_NAME_PATTERNS = (
    (_CC_NAME, (b"creative", b"cc")),
    (_GNU_NAME, (b"general", b"documentation", b"gpl")),
    (_OTHER_NAME, (b"licen", b"bsd", b"commons")),
)
"""Of texts in lower case; each with words of which every match has one."""
_GRANT = re.compile(
    rb"\b(?:licen[cs]ed|released|distributed|published|available|provided|redistribute|modify|"
    rb"shared|covered|governed|offered|permitted|used)\b[^.]{0,120}\b(?:under|by|to)\b[^.]{0,60}\Z",
)
_GRANT_LINE = re.compile(rb"(?:\A|\n)[\W_]*licen[cs]ed?(?:\s+under|\s*[:=]|\s*\Z)[^.\n]{0,60}\Z")
_SELF = re.compile(
    rb"\bthis\s+(?:work|file|book|e-?book|e-?text|text|document|documentation|article|report|"
    rb"software|program|image|page|site|website|publication|material|content|code|source|library|"
    rb"package|module|paper|chapter|data|dataset|project|manual|is\s+an\s+open|is\s+free)|"
    rb"\byou\s+(?:may|can|should\s+have)\b|otherwise\s+(?:noted|stated|specified)|"
    rb"\b(?:text|content|contents|articles?|source\s+code)\s+(?:is|are|of\s+this|on\s+this)\b|"
    rb"(?:\A|\n)[\W_]*licen[cs]ed?(?:\s+under|\s*[:=]|\s*\n)",
)
_COPYRIGHT = re.compile(rb"copyright|\xc2\xa9|\(c\)|\bcopr\.")
_ALLOWS = re.compile(
    rb"licen[cs]e|licen[cs]ing|permission\s+is|permission\s+to|permitted|redistribut|"
    rb"public\s+domain|some\s+rights|freely|copying",
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
    """A licence statement: an SPDX expression and where it is, in bytes of the text.

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
    for _, hits in groupby(swept.hits(GROUP), attrgetter("row")):
        best: dict[str, Statement] = {}
        for hit in hits:
            if statement := _read_statement(swept, hit, best):
                before = best.setdefault(statement.spdx, statement)
                if before.confidence == "low" and statement.confidence == "high":
                    best[statement.spdx] = statement
        if best:
            yield sorted(best.values(), key=attrgetter("offset", "spdx"))


class _Window(NamedTuple):
    """The bytes around a hit; `at` is where its needle begins in `data`."""

    hit: Hit
    data: bytes
    at: int

    @property
    def lower(self) -> bytes:
        return self.data.lower()

    def statement(
        self, span: tuple[int, int], spdx: str, basis: str, is_high: bool
    ) -> Statement | None:
        if not spdx:
            return None
        start, end = span
        offset = self.hit.offset - self.at + start
        confidence = "high" if is_high else "low"
        return Statement(self.hit.row, offset, end - start, spdx, basis, confidence)


def _read_statement(swept: SweepHits, hit: Hit, best: Mapping[str, Statement]) -> Statement | None:
    """What a hit says; of a licence that has a statement of high confidence among `best`, that."""
    start = max(0, hit.offset - _BEFORE)
    window = _Window(hit, swept.cut(hit.row, start, hit.offset + _AFTER), hit.offset - start)
    end = window.at + len(hit.needle.encode())
    if hit.needle in _RESERVED:
        return _find_settled(RESERVED, best) or _find_reservation(window)
    if hit.needle in _WORDINGS:
        return window.statement((window.at, end), _WORDINGS[hit.needle], "wording", True)
    if hit.needle == _DOMAIN:
        matches = _OWN_DOMAIN.finditer(window.data, 0, end)
        match = next((match for match in matches if match.end() == end), None)
        return window.statement(match.span(), PUBLIC_DOMAIN, "name", True) if match else None
    if hit.needle == _TAG:
        return _read_tag(window)
    return _read_address(window) if hit.needle == _ADDRESS else _find_name(window, best)


def _find_settled(spdx: str, best: Mapping[str, Statement]) -> Statement | None:
    known = best.get(spdx)
    return known if known and known.confidence == "high" else None


def _find_reservation(window: _Window) -> Statement | None:
    _, data, at = window
    needle = len(window.hit.needle.encode())
    if window.hit.needle == "no part of this":
        match = _NO_PART.match(data, at)
        return window.statement(match.span(), RESERVED, "notice", True) if match else None
    lower = window.lower
    has_owner = _COPYRIGHT.search(lower[max(0, at - 160) : at + needle + 80])
    is_high = has_owner is not None and _ALLOWS.search(lower) is None
    return window.statement((at, at + needle), RESERVED, "notice", is_high)


def _read_tag(window: _Window) -> Statement | None:
    match = _TAGGED.match(window.data, window.at)
    if not match:
        return None
    words = re.split(r"\s{2,}|\s-", match[1].decode("ascii").strip())[0]
    spdx = parse_expression(words).spdx or parse_expression(words.split(" ")[0]).spdx
    return window.statement(match.span(), spdx, "tag", True)


def _read_address(window: _Window) -> Statement | None:
    match = _CC_ADDRESS.match(window.data, window.at)
    if not match:
        return None
    spdx = read_licence_address(match[0].decode("ascii").rstrip("./-"))
    return window.statement(match.span(), spdx, "address", _is_own(window.lower, *match.span()))


def _find_name(window: _Window, best: Mapping[str, Statement]) -> Statement | None:
    at, lower = window.at, window.lower
    begin, end = max(0, at - 40), at + 160
    near = lower[begin:end]
    for pattern, words in _NAME_PATTERNS:
        if not any(word in near for word in words):
            continue
        for match in pattern.finditer(lower, begin, end):
            if match.start() <= at < match.end():
                name = _join_words(match[0])
                if pattern is _GNU_NAME and (version := _GNU_VERSION.match(lower, match.end())):
                    name += f" {_join_words(version[1])}{' or later' if version[2] else ''}"
                spdx = normalise_licence(name).spdx
                if known := _find_settled(spdx, best):
                    return known
                is_own = _is_own(lower, *match.span())
                # "cc by" alone is an ordinary phrase unless a grant is before it
                if not is_own and re.fullmatch(r"cc\W*by\W*", name):
                    return None
                return window.statement(match.span(), spdx, "name", is_own)
    return None


def _join_words(name: bytes) -> str:
    return " ".join(name.decode("ascii", "ignore").split())


def _is_own(lower: bytes, start: int, end: int) -> bool:
    """Whether a grant leads to the licence, and the text speaks of itself nearby."""
    before = lower[max(0, start - 240) : start]
    sentence = before[before.rfind(b".") + 1 :]
    is_granted = _GRANT.search(sentence) or _GRANT_LINE.search(before)
    return bool(is_granted and (_SELF.search(before) or _SELF.search(lower[end : end + 160])))


NOT_KNOWN = "NOASSERTION"
"""The target of a declared licence that is not known: SPDX's word for it."""

_REPORTED = ("restricted", "reserved")


def detect_licences(batch: pa.Table, swept: SweepHits | None = None) -> pa.Table:
    """FINDINGS on the licences of a batch; target: an SPDX expression.

    swept: a sweep over `batch["text"]` that has `NEEDLES` as its group `licence`; without it, the
    texts are swept here. attributes: basis (metadata, address, tag, name, wording, notice),
    confidence (high, low), declared (SPDX expression, or the value where it is not known), family.
    """
    swept = swept or sweep_all(batch["text"], {GROUP: NEEDLES})
    declared = batch["licence"]
    findings = list[evidence.Finding]()
    for statements in find_statements(swept):
        value = declared[statements[0].row].as_py()
        licence = normalise_licence(value)
        findings += [_make_finding("statement", one, value, licence, swept) for one in statements]
        worst = _find_conflict(statements, licence)
        if worst is not None:
            findings.append(_make_finding("conflict", worst, value, licence, swept))
    return evidence.sort_findings([_find_declared(declared), evidence.findings_table(findings)])


def _find_declared(values: pa.ChunkedArray) -> pa.Table:
    """Findings on the documents whose declared licence is reported."""
    encoded = values.combine_chunks().dictionary_encode()
    findings = list[evidence.Finding]()
    number = np.full(len(encoded.dictionary), -1, np.int64)
    for code, value in enumerate(encoded.dictionary.to_pylist()):
        licence = normalise_licence(value)
        if not value or (licence.spdx and licence.family not in _REPORTED):
            continue
        number[code] = len(findings)
        finding = evidence.Finding(
            row=len(findings),
            kind="declared",
            target=licence.spdx or NOT_KNOWN,
            seen=value,
            attributes=_make_attributes("metadata", "high", value, licence, licence.family),
        )
        findings.append(finding)
    of_row = number[encoded.indices.to_numpy()]
    rows = np.flatnonzero(of_row >= 0)
    return (
        evidence.findings_table(findings)
        .take(pa.array(of_row[rows]))
        .set_column(0, evidence.FINDINGS.field("row"), pa.array(rows, pa.int64()))
    )


def _find_conflict(statements: Sequence[Statement], declared: SpdxLicence) -> Statement | None:
    """The statement that asks for most, if it asks for more than what was declared.

    A reservation next to a licence in the same text is none: licences begin with one.
    """
    if not declared.family:
        return None
    own = [
        (RANKS.get(parse_expression(s.spdx).family, -1), s)
        for s in statements
        if s.confidence == "high"
    ]
    licensed = any(0 <= rank < RANKS["reserved"] for rank, _ in own)
    worst = max(
        (pair for pair in own if not (licensed and pair[0] == RANKS["reserved"])),
        key=lambda pair: (pair[0], -pair[1].offset),
        default=None,
    )
    least = max(RANKS[declared.family], RANKS["permissive"])
    return worst[1] if worst is not None and worst[0] > least else None


def _make_finding(
    kind: str, statement: Statement, value: str, licence: SpdxLicence, swept: SweepHits
) -> evidence.Finding:
    end = statement.offset + statement.length
    seen = swept.cut(statement.row, statement.offset, end).decode("utf-8", "replace")
    family = parse_expression(statement.spdx).family
    return evidence.Finding(
        row=statement.row,
        kind=kind,
        target=statement.spdx,
        seen=seen,
        byte_offset=statement.offset,
        byte_length=statement.length,
        attributes=_make_attributes(statement.basis, statement.confidence, value, licence, family),
    )


def _make_attributes(
    basis: str, confidence: str, value: str, declared: SpdxLicence, family: str
) -> dict[str, str]:
    short_value = value if len(value) <= 80 else value[:79] + "…"
    return {
        "basis": basis,
        "confidence": confidence,
        "declared": declared.spdx or short_value,
        "family": family or "unknown",
    }
