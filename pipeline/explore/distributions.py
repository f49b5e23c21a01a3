"""Distributions of lengths and signals: how many documents have which values, of all that the
filters let pass but for those of the column itself.

A bin holds the values above its lower edge and up to its upper one, as ranges of a list do, so a
bar is an address of the list. Numbers that span more than two powers of ten are binned by powers of
two.
"""

import math
from dataclasses import dataclass, replace

from pipeline.core.errors import ConfigError, escape_text
from pipeline.explore.conditions import ListFilters, ValueRange
from pipeline.explore.explorer import Explorer

_BINS = 40
_WIDE = 100
_PER_OCTAVE = 2


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bin and its documents; whether it is in the range that is chosen; its height, of 100."""

    limits: ValueRange
    documents: int
    is_chosen: bool
    height: str

    @property
    def top(self) -> str:
        """Where it begins from above, of 100."""
        return f"{100 - float(self.height):.2f}"

    @property
    def low(self) -> str:
        """The lower bound as it is in an address."""
        return self.limits.text.split(":")[-2]

    @property
    def high(self) -> str:
        """The upper bound as it is in an address."""
        return self.limits.text.split(":")[-1]


@dataclass(frozen=True)
class Distribution:
    """The bars of a column; where it is binned by powers of two, `is_log`; its ends in words."""

    column: str
    bars: tuple[Bar, ...]
    is_log: bool
    first: str
    last: str


def list_columns(explorer: Explorer) -> list[str]:
    """The columns of numbers, lengths first."""
    return [*explorer.table.bounds]


def make_distribution(explorer: Explorer, filters: ListFilters, column: str) -> Distribution:
    """The distribution of a column under filters. Raises ConfigError for an unknown column."""
    if column not in explorer.table.bounds:
        names = ", ".join(explorer.table.bounds)
        raise ConfigError(f"chart={escape_text(column, 80)}: expected a column of numbers: {names}")
    low, high = explorer.table.bounds[column]
    edges, is_log = choose_edges(low, high, explorer.table.is_whole(column))
    hits = explorer.search(filters.words).rows.tobytes() if filters.words.strip() else None
    others = replace(filters.without_range(column), words="")
    counts = explorer.table.histogram(others, hits, column, edges)
    chosen = next((r for r in filters.ranges if r.column == column), None)
    top = max([1, *counts])
    bars = []
    for number, (first, last, count) in enumerate(zip(edges[:-1], edges[1:], counts, strict=True)):
        # The first edge is below every value.
        limits = ValueRange(column, None if number == 0 else first, last)
        bars.append(
            Bar(
                limits=limits,
                documents=count,
                is_chosen=chosen is not None and _is_within(limits, chosen),
                height=f"{max(100 * count / top, 1 if count else 0):.2f}",
            )
        )
    return Distribution(column, tuple(bars), is_log, f"{low:,.8g}", f"{high:,.8g}")


def _is_within(bin_limits: ValueRange, chosen: ValueRange) -> bool:
    """Whether a chosen range holds a bin.

    >>> _is_within(ValueRange("x", None, 4), ValueRange("x", None, 4)), _is_within(
    ...     ValueRange("x", 4, 8), ValueRange("x", None, 4)
    ... )
    (True, False)
    """
    low = -math.inf if bin_limits.low is None else bin_limits.low
    least = -math.inf if chosen.low is None else chosen.low
    high = math.inf if bin_limits.high is None else bin_limits.high
    most = math.inf if chosen.high is None else chosen.high
    return least <= low and high <= most


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
