"""Bins of the values of a column, for its histogram.

A bin holds the values above its lower edge and up to its upper one, as ranges of a list do. Numbers
that span more than two powers of ten are binned by powers of two. The bin of every document is a
column of the table, so that a histogram counts one byte of each document.
"""

import math
from collections.abc import Sequence

_BINS = 40
_WIDE = 100
_PER_OCTAVE = 2


def choose_edges(low: float, high: float, is_whole: bool) -> tuple[tuple[float, ...], bool]:
    """Edges of bins that hold all values from `low` to `high`, ascending, and whether they are
    powers of two.

    >>> choose_edges(0, 3, True)
    ((-1, 0, 1, 2, 3), False)
    >>> choose_edges(1, 200, True)[0][:5], choose_edges(0.0, 1.0, False)[0][-1]
    ((0, 1, 2, 3, 4), 1.0)
    """
    if is_whole and low >= 0 and high > _WIDE * max(low, 1):
        powers = range(int(_PER_OCTAVE * math.log2(high)) + 2)
        steps = sorted({round(2 ** (power / _PER_OCTAVE)) for power in powers})
        below = [step for step in steps if step < low][-1:] or [0 if low > 0 else -1]
        inside = [step for step in steps if low <= step < high]
        zero = [0] if low == 0 else []
        return (*below, *zero, *inside, int(high)), True
    if is_whole and high - low < _BINS:
        return tuple(range(int(low) - 1, int(high) + 1)), False
    width = (high - low) / _BINS or 1.0
    if is_whole:
        width = math.ceil(width)
        count = math.ceil((high - low + 1) / width)
        return tuple(int(low) - 1 + width * n for n in range(count + 1)), False
    between = [low + width * n for n in range(1, _BINS)] if high > low else []
    return (low - width, *between, high), False


def number_bins(value: str, edges: Sequence[float], kind: str) -> str:
    """SQL for the number of the bin, from 1, that has a value of this type; null where none has.

    >>> number_bins("x", (0, 1, 2), "bigint")
    'case when x <= 2::bigint then case when x <= 1::bigint then 1 else 2 end end'
    """

    def halve(first: int, stop: int) -> str:
        if stop - first == 1:
            return str(stop)
        middle = (first + stop) // 2
        below, above = halve(first, middle), halve(middle, stop)
        return f"case when {value} <= {edges[middle]!r}::{kind} then {below} else {above} end"

    last = len(edges) - 1
    return f"case when {value} <= {edges[last]!r}::{kind} then {halve(0, last)} end"
