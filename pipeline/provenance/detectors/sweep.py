"""One sweep over the texts for the needles of all detectors, and windows of what was found.

A detector that looks for phrases has a tuple of needles, literal strings that stand in every place
it cares for. The stage sweeps once for all of them and hands every detector the result:

    swept = sweep_all(batch["text"], {"notice": notices.NEEDLES, "marker": markers.needles})
    detect_notices(batch, swept)

`SweepHits.hits` tells where a group's needles stand, `SweepHits.cut` the bytes around such a place,
which the detector reads with expressions over bytes: so what they find are byte offsets.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dedup.text import TextArray, Texts, texts_of
from pipeline.provenance.literals import PLACES, LiteralHits, sweep

_AT_ONCE = 1 << 16


class Hit(NamedTuple):
    """A needle at a byte offset of the text in a row."""

    row: int
    needle: str
    offset: int


@dataclass(frozen=True)
class SweepHits:
    """The texts and what a sweep found in them, by group of needles."""

    chunks: tuple[Texts, ...]
    first_rows: tuple[int, ...]
    needles: tuple[str, ...]
    found: LiteralHits
    groups: Mapping[str, Mapping[int, str]]

    def hits(self, group: str) -> Iterator[Hit]:
        """Places of the needles of one group, in order of row and offset; needles as the group
        spells them. At one place the longest needle comes first."""
        spelt = self.groups[group]
        of_group = np.isin(self.found.needle, list(spelt))
        text, needle, offset = (
            column[of_group] for column in (self.found.text, self.found.needle, self.found.offset)
        )
        length = np.array([len(n.encode()) for n in self.needles], np.int64)[needle]
        order = np.lexsort((-length, offset, text))
        for begin in range(0, len(order), _AT_ONCE):
            some = order[begin : begin + _AT_ONCE]
            columns = (text[some].tolist(), needle[some].tolist(), offset[some].tolist())
            for row, number, place in zip(*columns, strict=True):
                yield Hit(row, spelt[number], place)

    def size(self, row: int) -> int:
        """Bytes of the text in a row."""
        chunk, begin = self._place(row)
        return int(chunk.offsets[begin + 1] - chunk.offsets[begin])

    def cut(self, row: int, start: int, end: int) -> bytes:
        """text[start:end] in bytes; bounds beyond the text are moved to it."""
        chunk, begin = self._place(row)
        first, last = int(chunk.offsets[begin]), int(chunk.offsets[begin + 1])
        return chunk.data[first + max(start, 0) : min(last, first + max(end, 0))].tobytes()

    def _place(self, row: int) -> tuple[Texts, int]:
        number = bisect_right(self.first_rows, row) - 1
        return self.chunks[number], row - self.first_rows[number]


def sweep_all(
    texts: TextArray, groups: Mapping[str, Sequence[str]], places: int = PLACES
) -> SweepHits:
    """One pass over the texts for the needles of all groups; a needle may stand in several.

    >>> swept = sweep_all(["a © bc"], {"notice": ["©"], "other": ["BC"]})
    >>> list(swept.hits("other")), swept.cut(0, -5, 4).decode()
    ([Hit(row=0, needle='BC', offset=5)], 'a ©')
    """
    numbers: dict[str, int] = {}
    named = {
        group: {numbers.setdefault(_folded(needle), len(numbers)): needle for needle in needles}
        for group, needles in groups.items()
    }
    chunks = [chunk for chunk in texts_of(texts) if len(chunk)]
    first_rows = np.cumsum([0, *map(len, chunks)]).tolist()[: len(chunks)]
    found = sweep(texts, tuple(numbers), places)
    return SweepHits(tuple(chunks), tuple(first_rows), tuple(numbers), found, named)


def _folded(needle: str) -> str:
    return needle.encode().lower().decode()
