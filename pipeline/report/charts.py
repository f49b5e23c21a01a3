"""Histograms as inline SVG: geometry with fixed precision; colours come from style rules."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.core.figures import abbreviate_count

__all__ = ["ChartColumn", "ColumnChart", "chart", "format_power"]

_WIDTH, _HEIGHT = 520, 190  # in user units
_LEFT, _TOP, _BOTTOM = 52, 10, 26
_MOST_LABELS = 9


@dataclass(frozen=True)
class ChartColumn:
    """One column to be drawn: `part` of `count` is set apart by colour."""

    label: str
    title: str
    count: int
    part: int


@dataclass(frozen=True)
class _Bar:
    """One column; geometry in user units."""

    x: str
    width: str
    y: str
    height: str
    part_y: str
    part_height: str
    title: str
    label: str


@dataclass(frozen=True)
class _Tick:
    """One horizontal grid line."""

    y: str
    label: str


@dataclass(frozen=True)
class ColumnChart:
    """A histogram ready to be drawn."""

    bars: tuple[_Bar, ...]
    ticks: tuple[_Tick, ...]
    width: int = _WIDTH
    height: int = _HEIGHT
    left: int = _LEFT


def chart(columns: Sequence[ChartColumn]) -> ColumnChart | None:
    """Columns with their grid; None when there is nothing to draw."""
    if not columns:
        return None
    largest = max(1, *(column.count for column in columns))
    step = _nice_step(largest)
    top = step * -(-largest // step)
    slot = (_WIDTH - _LEFT) / len(columns)
    every = -(-len(columns) // _MOST_LABELS)
    bars = tuple(
        _bar(column, _LEFT + (i + 0.06) * slot, slot * 0.88, top, i % every == 0)
        for i, column in enumerate(columns)
    )
    return ColumnChart(
        bars, tuple(_Tick(_y(v, top), abbreviate_count(v)) for v in range(0, top + 1, step))
    )


def _bar(column: ChartColumn, x: float, width: float, top: int, labelled: bool) -> _Bar:
    return _Bar(
        x=f"{x:.2f}",
        width=f"{width:.2f}",
        y=_y(column.count, top),
        height=f"{_height(column.count, top):.2f}",
        part_y=_y(column.part, top),
        part_height=f"{_height(column.part, top):.2f}",
        title=column.title,
        label=column.label if labelled else "",
    )


def _height(count: int, top: int) -> float:
    return (_HEIGHT - _TOP - _BOTTOM) * count / top


def _y(count: int, top: int) -> str:
    return f"{_HEIGHT - _BOTTOM - _height(count, top):.2f}"


def _nice_step(largest: int) -> int:
    """A round distance between grid lines that gives at most five of them.

    >>> [_nice_step(n) for n in (1, 7, 420, 843)]
    [1, 2, 100, 200]
    """
    step = 1
    while largest > 5 * step:
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return step


def format_power(value: int) -> str:
    """A power of two in short.

    >>> format_power(512), format_power(4096)
    ('512', '4 Ki')
    """
    for prefix in ("", " Ki", " Mi", " Gi"):
        if value < 1024:
            return f"{value}{prefix}"
        value //= 1024
    return f"{value} Ti"
