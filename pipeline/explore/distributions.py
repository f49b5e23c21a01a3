"""Distributions of lengths and signals: how many documents have which values, of all that the
filters let pass but for those of the column itself.

A bar is an address of the list, with the limits of its bin as a range.
"""

import math
from dataclasses import dataclass, replace

from pipeline.core.errors import ConfigError, escape_text
from pipeline.explore.conditions import ListFilters, ValueRange
from pipeline.explore.explorer import Explorer


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
    return [*explorer.table.about.bounds]


def make_distribution(explorer: Explorer, filters: ListFilters, column: str) -> Distribution:
    """The distribution of a column under filters. Raises ConfigError for an unknown column."""
    if column not in explorer.table.about.bounds:
        names = ", ".join(explorer.table.about.bounds)
        raise ConfigError(f"chart={escape_text(column, 80)}: expected a column of numbers: {names}")
    low, high = explorer.table.about.bounds[column]
    edges, is_log = explorer.table.about.bins[column]
    hits = explorer.search(filters.words).hits if filters.words.strip() else None
    others = replace(filters.without_range(column), words="")
    counts = explorer.table.count_bins(others, hits, column)
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
