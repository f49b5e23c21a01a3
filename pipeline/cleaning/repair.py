"""Suspect lines: what ftfy makes of each, found with as little of ftfy as will do.

Let f be one round of ftfy's loop over a line, so that ftfy(t) = ftfy(f(t)), and call t clean if the
scan finds nothing suspect in it: then ftfy(t) is what the scan wrote.

* Only entities are in doubt: with u = unescape_html(t) and no entity left in u, f(t) = f(u), since
  unescaping comes first. If u is clean, ftfy(t) = ftfy(u) is known.
* Only the normal form is in doubt: f(t) = n = NFC of what the scan wrote. If n = t, that is the
  end; if n is clean, ftfy(t) = ftfy(n) is known.
* Anything else, or a text that turns out to be several lines (a line feed can come from `&#10;` or
  a carriage return): `ftfy.fix_and_explain` on the line as it came.

Each u and n is scanned again, those of all lines together. ftfy also cuts every 1,000,000
characters of a longer line, which no repair reaches across: such a document is several spans.
"""

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dedup.arrays import I64, U8
from dedup.compiled import kernel
from dedup.text import Texts
from pipeline.cleaning.scan import (
    CONTINUED,
    DOCUMENT,
    DOUBT,
    ENTITY,
    ESCAPED,
    FLAGS,
    LINE_END,
    LINE_IN,
    OUT_END,
    OUT_START,
    SPAN,
    UNESCAPED,
    UNESCAPES,
    ScanResult,
    scan_spans,
)
from pipeline.cleaning.tables import Tables

SEGMENT = 1_000_000
"""ftfy's `max_decode_length`, in characters."""


@dataclass(frozen=True, eq=False)
class TextSpans:
    """N spans of D documents. bounds (N + 1,) int64, bytes; kinds (N,) uint8; first (D + 1,) int64:
    the first span of each document.
    """

    bounds: I64
    kinds: U8
    first: I64

    def pieces(self, most: int) -> Iterator[tuple[int, int]]:
        """Ranges of whole documents, of `most` bytes or one document if that is longer."""
        ends = self.bounds[self.first]
        start, last = 0, len(ends) - 1
        while start < last:
            stop = int(np.searchsorted(ends, ends[start] + most, side="right")) - 1
            stop = max(stop, start + 1)
            yield start, stop
            start = stop


def list_spans(texts: Texts, segment: int = SEGMENT) -> TextSpans:
    """The spans of all documents; the bounds of the texts themselves where no line is so long."""
    offsets = texts.offsets
    long = np.flatnonzero(np.diff(offsets) > segment)
    cuts = [_cuts(texts.data, int(offsets[i]), int(offsets[i + 1]), segment) for i in long]
    numbers = np.zeros(len(texts), np.int64)
    numbers[long] = [len(places) for places in cuts]
    first = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(numbers + 1, out=first[1:])
    kinds = np.full(first[-1], CONTINUED, np.uint8)
    kinds[first[:-1]] = DOCUMENT
    if not numbers.any():
        return TextSpans(offsets, kinds, first)
    bounds = np.sort(np.concatenate([offsets, *cuts]), kind="stable")
    return TextSpans(bounds, kinds, first)


@kernel
def _cuts(data: U8, start: int, end: int, segment: int) -> I64:
    """Where the text data[start:end] is cut: after `segment` characters without a line feed."""
    cuts = np.empty(1 + (end - start) // segment, np.int64)
    count = 0
    characters = 0
    for i in range(start, end):
        characters += data[i] & 0xC0 != 0x80
        if characters > segment:
            cuts[count] = i
            count += 1
            characters = 1
        if data[i] == 0x0A:
            characters = 0
    return cuts[:count].copy()


_ROUNDS = 3
"""An entity, the normal form of what it gave, and the answer."""


@dataclass(kw_only=True)
class _Line:
    """A suspect line on its way: ftfy makes the same of `text`, which was scanned, as of it."""

    original: str
    unescapes: bool
    text: str
    written: str
    flags: int
    fixed: str | None = None

    def advance(self) -> None:
        """Set `fixed`, or the next `text` to scan."""
        following = self._following()
        if not self.flags or following == self.text:
            self.fixed = following
        elif following is None or "\n" in following[:-1]:
            self.ask_ftfy()
        else:
            self.text = following

    def ask_ftfy(self) -> str:
        """Set `fixed` the slow way."""
        import ftfy

        unescape = "auto" if self.unescapes else False
        config = ftfy.TextFixerConfig(explain=False, unescape_html=unescape)
        self.fixed = fixed = str(ftfy.fix_and_explain(self.original, config).text)
        return fixed

    def _following(self) -> str | None:
        if not self.flags:
            return self.written
        if self.flags & DOUBT:
            return None
        if self.flags & ENTITY:
            from ftfy.fixes import unescape_html

            unescaped = unescape_html(self.text)
            return None if self.text != self.original or unescaped == self.text else unescaped
        return unicodedata.normalize("NFC", self.written)


def fix_lines(data: U8, scanned: ScanResult, suspects: I64, tables: Tables) -> list[bytes]:
    """What each of these suspect lines of a scan over `data` becomes, as UTF-8."""
    lines = [_line(data, scanned, row) for row in suspects]
    unfixed = lines
    for _ in range(_ROUNDS):
        for line in unfixed:
            line.advance()
        unfixed = [line for line in unfixed if line.fixed is None]
        _scan_again(unfixed, tables)
    return [(line.ask_ftfy() if line.fixed is None else line.fixed).encode() for line in lines]


def _line(data: U8, scanned: ScanResult, row: I64) -> _Line:
    text = data[row[LINE_IN] : row[LINE_END]].tobytes().decode()
    copied = scanned.out[row[OUT_START] : row[OUT_END]].tobytes().decode()
    flags = int(row[FLAGS])
    return _Line(
        original=text,
        unescapes=bool(flags & UNESCAPES),
        text=text,
        written=copied,
        flags=flags & ~UNESCAPES,
    )


def _scan_again(lines: list[_Line], tables: Tables) -> None:
    if not lines:
        return
    texts = [line.text.encode() for line in lines]
    kinds = np.array([UNESCAPED if line.unescapes else ESCAPED for line in lines], np.uint8)
    bounds = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=bounds[1:])
    scanned = scan_spans(np.frombuffer(b"".join(texts), np.uint8), bounds, kinds, tables)
    flags = dict(scanned.suspects[:, [SPAN, FLAGS]].tolist())
    out = scanned.out.tobytes()
    for number, line in enumerate(lines):
        start, end = scanned.bounds[number : number + 2].tolist()
        line.written = out[start:end].decode()
        line.flags = flags.get(number, 0) & ~UNESCAPES
