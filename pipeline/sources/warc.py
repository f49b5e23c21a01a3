"""Read WET files and other WARC files of extracted text: every conversion record is a document.

Responses hold HTML, not text, which `pipeline.sources.pages` reads where the config asks for it: a
file that has responses and no conversion record is refused. Request, metadata and information
records are no documents. The framing is parsed here because it has to be: lines and blocks of
bounded length, an exact place for every record, and an error where a record is cut off.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator

from pipeline.core.errors import InputError, escape_text
from pipeline.sources.raw_format import StreamFormat
from pipeline.sources.record import START, BadRecord, Place, Record, RecordError, RecordRules
from pipeline.sources.text import text_record

_NOT_SPACE = re.compile(rb"\S")
_LONGEST_LINE = 1 << 16
_MOST_HEADER_LINES = 1000
_MARKUP = ("response", "resource", "revisit")
META_HEADERS = {"url": "warc-target-uri", "date": "warc-date", "record_id": "warc-record-id"}
"""Key of meta -> the record header that fills it."""


def read_warc(
    path: str, blocks: Iterator[bytes], rules: RecordRules, start: Place | None = None
) -> Iterator[Record | BadRecord]:
    """Every conversion record, good or bad, in file order; `start` is where the blocks begin in
    a file that is not read whole. Raises InputError when the framing is broken, and for a file of
    responses."""
    skipped: Counter[str] = Counter()
    found = False
    for place, body, headers in read_bodies(path, blocks, rules, start, "conversion", skipped):
        found = True
        yield make_item(place, body, headers, rules)
    markup = sum(skipped[kind] for kind in _MARKUP)
    if start is None and markup and not found:
        raise InputError(
            f"{path}: {markup:,} responses and no extracted text; give the WET files, or `format: "
            "pages`, which extracts the text (docs/readers.md)"
        )


def read_bodies(
    path: str,
    blocks: Iterator[bytes],
    rules: RecordRules,
    start: Place | None,
    wanted: str,
    skipped: Counter[str],
) -> Iterator[tuple[Place, bytes | None, dict[str, str]]]:
    """The place, the block (None: above `rules.max_document_bytes`) and the headers of every record
    of one type; counts the types of all others in `skipped`."""
    begin = start or START
    stream = _WarcBytes(path, blocks, begin)
    ordinal = begin.ordinal
    while stream.next_record():
        offset, line = stream.offset, stream.line
        headers = stream.headers(offset)
        length = _length(path, offset, headers)
        kind = headers.get("warc-type", "")
        if kind != wanted:
            stream.skip(length)
            skipped[kind] += 1
            continue
        body = stream.read(length) if length <= rules.max_document_bytes else None
        if body is None:
            stream.skip(length)
        yield Place(ordinal, line, offset, stream.offset - offset), body, headers
        ordinal += 1


def make_item(
    place: Place, text: bytes | None, headers: dict[str, str], rules: RecordRules
) -> Record | BadRecord:
    """The record of a text, None for one that is too large."""
    meta = {key: headers[name] for key, name in META_HEADERS.items() if name in headers}
    try:
        if text is None:
            raise RecordError("too_large")
        return text_record(place, text, rules, meta, json.dumps(meta, ensure_ascii=False))
    except RecordError as refused:
        return BadRecord(place, str(refused))


def _length(path: object, start: int, headers: dict[str, str]) -> int:
    stated = headers.get("content-length", "")
    if not (stated.isascii() and stated.isdigit() and len(stated) < 19):
        raise InputError(
            f"{path}: the record at byte {start:,} has the Content-Length {escape_text(stated)!r}; "
            "expected a number of bytes"
        )
    return int(stated)


class _WarcBytes:
    """The bytes of a WARC file, where the next of them stands (byte offset, 1-based line), and
    lines and blocks of bounded length."""

    def __init__(self, path: object, blocks: Iterator[bytes], begin: Place) -> None:
        self._path = path
        self._blocks = blocks
        self._held = b""
        self._at = 0
        self.offset = begin.byte_offset
        self.line = begin.line

    def next_record(self) -> bool:
        """Go to the version line of the next record; False at the end of the file."""
        while self._at < len(self._held) or self._refill():
            match = _NOT_SPACE.search(self._held, self._at)
            stop = match.start() if match else len(self._held)
            self._pass(self._held[self._at : stop])
            if match:
                return True
        return False

    def headers(self, start: int) -> dict[str, str]:
        """The header fields of the record that begins here, at `start`; names in lower case."""
        version = self._line() or b""
        if not version.startswith(b"WARC/"):
            raise InputError(
                f"{self._path}: byte {start:,}: expected a record that begins with WARC/1.0; got "
                f"{escape_text(version[:40].decode(errors='replace'))!r}"
            )
        headers: dict[str, str] = {}
        name = ""
        for _ in range(_MOST_HEADER_LINES):
            line = self._line()
            if line is None:
                raise self._cut_off()
            if not line.strip():
                return headers
            text = line.decode(errors="replace")
            if text[0] in " \t" and name:
                headers[name] += " " + text.strip()
                continue
            name, colon, value = text.partition(":")
            name = name.strip().lower()
            if not colon:
                raise InputError(
                    f"{self._path}: byte {start:,}: expected header lines such as "
                    f"WARC-Type: conversion; got {escape_text(text.strip(), 40)!r}"
                )
            headers[name] = value.strip()
        raise InputError(
            f"{self._path}: byte {start:,}: more than {_MOST_HEADER_LINES} header lines"
        )

    def read(self, count: int) -> bytes:
        """Exactly so many bytes. Raises InputError at the end of the file."""
        return b"".join(self._take(count))

    def skip(self, count: int) -> None:
        """Pass over so many bytes without holding them."""
        for _ in self._take(count):
            pass

    def _take(self, count: int) -> Iterator[bytes]:
        while count:
            if self._at == len(self._held) and not self._refill():
                raise self._cut_off()
            piece = self._held[self._at : self._at + count]
            self._pass(piece)
            count -= len(piece)
            yield piece

    def _line(self) -> bytes | None:
        """The next line with its end, or None at the end of the file."""
        pieces: list[bytes] = []
        length = 0
        while self._at < len(self._held) or self._refill():
            end = self._held.find(b"\n", self._at)
            stop = len(self._held) if end < 0 else end + 1
            pieces.append(self._held[self._at : stop])
            self._pass(pieces[-1])
            length += len(pieces[-1])
            if length > _LONGEST_LINE:
                raise InputError(
                    f"{self._path}: byte {self.offset:,}: expected the header of a WARC record; "
                    f"got a line of over {_LONGEST_LINE:,} bytes"
                )
            if end >= 0:
                break
        return b"".join(pieces) if pieces else None

    def _pass(self, piece: bytes) -> None:
        """Go past a piece of what is held."""
        self._at += len(piece)
        self.offset += len(piece)
        self.line += piece.count(b"\n")

    def _refill(self) -> bool:
        self._held, self._at = next(self._blocks, b""), 0
        return bool(self._held)

    def _cut_off(self) -> InputError:
        return InputError(f"{self._path}: cut off in the middle of a record")


WARC = StreamFormat(
    name="warc",
    suffixes={".warc": 1.0, ".wet": 1.0},
    has_fields=False,
    read=read_warc,
    parts="records",
    trailing_bytes=4,
)
"""Behind a record are two line ends of two bytes."""
