"""Where ftfy cuts a document besides its line feeds: every 1,000,000 characters of a longer line.

A cut separates: no repair reaches across it, but whether a `<` was seen does. So a document becomes
one span for the scan, or several if it has such lines.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dedup.arrays import I64, U8
from dedup.compiled import kernel
from dedup.text import Texts
from pipeline.cleaning.scan import CONTINUED, DOCUMENT

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


def spans_of(texts: Texts, segment: int = SEGMENT) -> TextSpans:
    """The spans of all documents; the bounds of the texts themselves where no line is so long."""
    offsets = texts.offsets
    long = np.flatnonzero(np.diff(offsets) > segment)
    cuts = [_cuts(texts.data, int(offsets[i]), int(offsets[i + 1]), segment) for i in long]
    numbers = np.zeros(len(texts), np.int64)
    numbers[long] = [len(found) for found in cuts]
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
    found = 0
    held = 0
    for i in range(start, end):
        held += data[i] & 0xC0 != 0x80
        if held > segment:
            cuts[found] = i
            found += 1
            held = 1
        if data[i] == 0x0A:
            held = 0
    return cuts[:found].copy()
