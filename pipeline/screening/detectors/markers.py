"""Detector `marker`: names, hosts and links of listed collections in the text.

`download`: the text says that it came from there, in a line of its own, in "this book was
downloaded from NAME", as a lone link near an end, or as its first or last words. `mention`: it
names the collection in any other way; one finding for each family, with the number of its places.
docs/detectors.md has the exact forms. Names are compared as listed, in their own script.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pipeline.screening.detectors.lists import (
    Family,
    HostPatterns,
    ListedFamily,
    OriginList,
    list_entries,
    list_spellings,
    normalise_host,
)
from pipeline.screening.detectors.sweep import Hit, SweepHits, sweep_all
from pipeline.screening.evidence import Finding, findings_table

GROUP = "marker"
EDGE_BYTES = 2000
"""How near to an end of the text a line that only names a host has to be."""

_WINDOW = 300
_PHRASE = 120
_WORK = rb"(?:e-?book|book|file|document|copy|pdf|epub|text|edition|version|work|paper|article)"
_SUBJECT = rb"(?:this|the)\s+" + _WORK + rb"\s+(?:was|is|has\s+been)\s+"
_VERB = (
    rb"(?:down-?loaded|scanned(?:\s+(?:and|&)\s+(?:up-?loaded|ocr'?e?d))?|up-?loaded|provided"
    rb"|obtained|shared|ripped|released|converted|brought\s+to\s+you)"
    rb"(?:\s+for\s+free)?\s+(?:from|by|via|at|on|through)"
)
_CONVERTER = rb"e-?book\s+converter\s+demo(?:\s+watermarks?)?"
_OPENING = rb"[\s:\-(\[<\"'\xe2\x80\x90-\x9f]*"
_SAYS_SO = re.compile(rb"(?:" + _SUBJECT + rb")?" + _VERB + rb"|" + _CONVERTER, re.IGNORECASE)
_SAYS_SO_BEFORE = re.compile(
    rb"((?:" + _SUBJECT + rb")?" + _VERB + rb"|" + _CONVERTER + rb")" + _OPENING + rb"\Z",
    re.IGNORECASE,
)
_WITH_SUBJECT = re.compile(_SUBJECT, re.IGNORECASE)
_SOURCE = re.compile(rb"\bsource\s*[:=]", re.IGNORECASE)
_LINK = re.compile(
    rb"(?:[a-z]{3,6}://|www\.)[^\s)\]>]+|(?:[a-z0-9-]+\.)+[a-z]{2,}(?:[/?#][^\s)\]>]*)?",
    re.IGNORECASE,
)
_CLOSING = re.compile(rb"\s*\([^()\r\n]{1,60}\)")
_HOST_BYTES = re.compile(rb"[A-Za-z0-9._-]+")
_HOST_BEFORE = re.compile(rb"[A-Za-z0-9._-]*\Z")
_DIGEST = re.compile(rb"[0-9a-f]{32}(?![0-9a-f])", re.IGNORECASE)
_LINE_END = re.compile(rb"[\r\n]")


@dataclass(frozen=True)
class _Token:
    """A listed name, host or link: bytes [start, end) of the text in a row."""

    row: int
    start: int
    end: int
    form: str
    entry: ListedFamily

    def make_finding(self, kind: str, start: int, seen: bytes, **more: int) -> Finding:
        return Finding(
            row=self.row,
            kind=kind,
            target=self.entry.family,
            seen=seen.decode(errors="ignore"),
            byte_offset=start,
            byte_length=len(seen),
            attributes=self.entry.attributes(form=self.form, **more),
        )


class MarkerIndex:
    """What lists of origins name in texts. forms: each needle, in lower case, with its form and
    entry."""

    def __init__(self, lists: Sequence[OriginList]) -> None:
        entries = list_entries(lists)
        self._hosts = HostPatterns((d, entry) for entry, f in entries for d in f.domains)
        self._not_names: dict[str, list[tuple[int, bytes]]] = {}
        self.forms: dict[str, tuple[str, ListedFamily]] = {}
        for entry, family in entries:
            for needle, form in _list_needles(family):
                self.forms.setdefault(needle.lower(), (form, entry))
                for word in map(str.lower, family.not_names):
                    if needle.lower() in word:
                        before = len(word.partition(needle.lower())[0].encode())
                        self._not_names.setdefault(needle.lower(), []).append(
                            (before, word.encode())
                        )
        names = [n.encode() for n, (form, _) in self.forms.items() if form == "name"]
        longest_first = sorted(names, key=len, reverse=True)
        self._names = re.compile(b"|".join(map(re.escape, longest_first)) or b"(?!)", re.IGNORECASE)

    def read_token(self, swept: SweepHits, hit: Hit) -> _Token | None:
        """The name, host or link at a hit, unless it is part of something else."""
        form, entry = self.forms[hit.needle]
        end = hit.offset + len(hit.needle.encode())
        before = swept.cut(hit.row, hit.offset - _WINDOW, hit.offset)
        after = swept.cut(hit.row, end, end + _WINDOW)
        if form == "link":
            digest = _DIGEST.match(after)
            return _Token(hit.row, hit.offset, end + digest.end(), form, entry) if digest else None
        if self._is_other(swept, hit):
            return None
        host = _complete_host(before, swept.cut(hit.row, hit.offset, end), after)
        if form == "name":
            is_part = host or before[-1:].isalnum() or after[:1].isalnum()
            return None if is_part else _Token(hit.row, hit.offset, end, form, entry)
        of_host = self._hosts.find(host[0]) if host else None
        if host is None or of_host is None:
            return None
        start = hit.offset - host[1]
        return _Token(hit.row, start, start + len(host[0]), form, of_host)

    def is_alone(self, line: bytes) -> bool:
        """Whether a line holds nothing but links, listed names and words that say so."""
        rest = line
        for expression in (_LINK, self._names, _SAYS_SO, _SOURCE):
            rest = expression.sub(b" ", rest)
        return not any(character.isalnum() for character in rest.decode(errors="replace"))

    def _is_other(self, swept: SweepHits, hit: Hit) -> bool:
        """Whether the hit lies in a word that means something else."""
        return any(
            swept.cut(hit.row, hit.offset - place, hit.offset - place + len(word)).lower() == word
            for place, word in self._not_names.get(hit.needle, ())
        )


def detect_markers(batch: pa.Table, index: MarkerIndex, swept: SweepHits | None = None) -> pa.Table:
    """FINDINGS of the texts of a batch. `swept`: a sweep over `batch["text"]` that has
    `index.forms` as its group `marker`; without it, the texts are swept here."""
    swept = swept or sweep_all(batch["text"], {GROUP: tuple(index.forms)})
    return findings_table(_find_markers(swept, index))


def _find_markers(swept: SweepHits, index: MarkerIndex) -> Iterator[Finding]:
    mentions: dict[tuple[int, ListedFamily], tuple[_Token, int]] = {}
    row, covered = -1, 0
    for hit in swept.hits(GROUP):
        if hit.row != row:
            row, covered = hit.row, 0
        if hit.offset < covered:
            continue
        token = index.read_token(swept, hit)
        if token is None:
            continue
        download = _find_download(swept, index, token)
        if download:
            covered = download.byte_offset + download.byte_length
            yield download
            continue
        covered = token.end
        first, count = mentions.get((row, token.entry), (token, 0))
        mentions[row, token.entry] = (first, count + 1)
    for token, count in mentions.values():
        seen = swept.cut(token.row, token.start, token.end)
        yield token.make_finding("mention", token.start, seen, places=count)


def _find_download(swept: SweepHits, index: MarkerIndex, token: _Token) -> Finding | None:
    """The statement around a token that says where the text came from, if there is one."""
    start, line, is_whole = _cut_line(swept, token)
    is_near = min(start, swept.size(token.row) - start - len(line)) <= EDGE_BYTES
    if is_whole and index.is_alone(line):
        if _SAYS_SO.search(line) or (is_near and (token.form != "name" or _LINK.search(line))):
            return token.make_finding("download", start, line)
        return None
    before = line[max(0, token.start - start - _PHRASE) : token.start - start]
    after = line[token.end - start :]
    says = _SAYS_SO_BEFORE.search(before)
    if says is None:
        return _find_bracketed_host(swept, token)
    begin = token.start - len(before) + says.start(1)
    closing = _CLOSING.match(after)
    end = token.end + (closing.end() if closing and _LINK.search(closing[0]) else 0)
    is_at_an_end = _is_first(swept, token.row, begin) or _is_last(swept, token.row, end)
    opens_a_line = begin == start and is_near and token.form != "name"
    if is_at_an_end or opens_a_line or _WITH_SUBJECT.match(says[1]):
        return token.make_finding("download", begin, swept.cut(token.row, begin, end))
    return None


def _find_bracketed_host(swept: SweepHits, token: _Token) -> Finding | None:
    """`[host]` as the first or the last word of the text."""
    start, end = token.start - 1, token.end + 1
    seen = swept.cut(token.row, start, end)
    if token.form != "host" or not (seen.startswith(b"[") and seen.endswith(b"]")):
        return None
    if _is_first(swept, token.row, start) or _is_last(swept, token.row, end):
        return token.make_finding("download", start, seen)
    return None


def _is_first(swept: SweepHits, row: int, start: int) -> bool:
    return start <= _WINDOW and not swept.cut(row, 0, start).strip()


def _is_last(swept: SweepHits, row: int, end: int) -> bool:
    is_near = end + _WINDOW >= swept.size(row)
    return is_near and not swept.cut(row, end, end + _WINDOW).strip(b" \t\r\n.")


def _cut_line(swept: SweepHits, token: _Token) -> tuple[int, bytes, bool]:
    """(start, bytes, whether both ends are those of a line) without white space around them; at
    most `_WINDOW` bytes before and after the token."""
    before = swept.cut(token.row, token.start - _WINDOW, token.start)
    after = swept.cut(token.row, token.end, token.end + _WINDOW)
    breaks = list(_LINE_END.finditer(before))
    begins = bool(breaks) or token.start <= _WINDOW
    before = before[breaks[-1].end() :] if breaks else before
    stop = _LINE_END.search(after)
    ends = stop is not None or token.end + _WINDOW >= swept.size(token.row)
    after = after[: stop.start()] if stop else after
    line = before + swept.cut(token.row, token.start, token.end) + after
    start = token.start - len(before) + len(line) - len(line.lstrip())
    return start, line.strip(), begins and ends


def _complete_host(before: bytes, middle: bytes, after: bytes) -> tuple[str, int] | None:
    """The host of which `middle` is a part, in lower case, and how many bytes of it come before."""
    left = _HOST_BEFORE.search(before)
    right = _HOST_BYTES.match(after)
    prefix = (left[0] if left else b"").lstrip(b".-_")
    whole = (prefix + middle + (right[0] if right else b"")).rstrip(b".-_").decode(errors="ignore")
    host = normalise_host(whole) if whole.isascii() else None
    return (host, len(prefix)) if host else None


def _list_needles(family: Family) -> Iterator[tuple[str, str]]:
    """Needles of a family and their forms; hosts before names, which may spell the same."""
    yield from ((domain.removesuffix("*"), "host") for domain in family.domains)
    yield from ((link, "link") for link in family.links)
    yield from ((name, "name") for name in list_spellings(family.names))
