"""Scaling efficiency, observed and modelled, as one inline SVG; geometry with fixed precision."""

import math
from collections.abc import Iterator, Sequence
from html import escape

from wafer_backend.performance_model.validation import SpeedRow, TableComparison

_WIDTH, _PANEL, _TOP, _LEFT, _RIGHT = 720, 300, 40, 60, 250  # user units
_HEIGHT = _PANEL - 90
_LOW, _HIGH, _STEP = 0.88, 1.02, 0.04
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777")


def svg(comparisons: Sequence[TableComparison]) -> str:
    """One panel per table: dots are the paper's, lines simulated, hold-out columns shaded."""
    panels = [
        f'<g transform="translate(0 {i * _PANEL})">{"".join(_panel(comparison))}</g>'
        for i, comparison in enumerate(comparisons)
    ]
    height = len(comparisons) * _PANEL
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="11">'
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>{"".join(panels)}</svg>\n'
    )


def _panel(comparison: TableComparison) -> Iterator[str]:
    most = comparison.systems[-1]
    yield _text(_LEFT, 18, f"{comparison.title}, divided by the number of systems", bold=True)
    last = max(comparison.calibrated)
    edge = (_x(last, most) + _x(2 * last, most)) / 2
    yield (
        f'<rect x="{edge:.1f}" y="{_TOP}" width="{_WIDTH - _RIGHT - edge + 10:.1f}" '
        f'height="{_HEIGHT}" fill="#f0f0f0"/>'
    )
    yield _text(edge + 4, _TOP + 12, "hold-out")
    yield from _axes(comparison, most)
    for i, row in enumerate(comparison.rows):
        yield from _row(row, comparison.systems, _COLOURS[i % len(_COLOURS)])
        y = _TOP + 12 + 16 * i
        yield f'<circle cx="{_WIDTH - _RIGHT + 24}" cy="{y - 4}" r="4" fill="{_colour(i)}"/>'
        yield _text(_WIDTH - _RIGHT + 34, y, row.name.split(", sub-batch")[0])
    y = _TOP + 12 + 16 * len(comparison.rows)
    yield _text(_WIDTH - _RIGHT + 20, y, "dot: observed (paper); line: simulated")
    yield _text(_WIDTH - _RIGHT + 20, y + 16, comparison.constants)


def _axes(comparison: TableComparison, most: int) -> Iterator[str]:
    right = _WIDTH - _RIGHT + 10
    for i in range(int((_HIGH - _LOW) / _STEP) + 1):
        value = _LOW + i * _STEP
        ideal = "#000" if abs(value - 1) < _STEP / 4 else "#ddd"
        y = _y(value)
        yield f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="{ideal}" stroke-width="0.7"/>'
        yield _text(_LEFT - 34, y + 4, f"{value:.0%}")
    yield _text(_LEFT + 4, _y(1.0) - 4, "ideal linear")
    for systems in comparison.systems:
        yield _text(_x(systems, most) - 4, _TOP + _HEIGHT + 16, str(systems))
    yield _text(_LEFT, _TOP + _HEIGHT + 34, "CS-2 systems")


def _row(row: SpeedRow, systems: Sequence[int], colour: str) -> Iterator[str]:
    most = systems[-1]
    points = [
        (_x(n, most), _y(modelled / n)) for n, modelled in zip(systems, row.modelled, strict=True)
    ]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    yield f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.2"/>'
    for n, observed in zip(systems, row.observed, strict=True):
        title = escape(f"{row.name}: {observed:.2f} at {n}")
        yield (
            f'<circle cx="{_x(n, most):.1f}" cy="{_y(observed / n):.1f}" r="3.5" fill="{colour}" '
            f'fill-opacity="0.75"><title>{title}</title></circle>'
        )


def _x(systems: int, most: int) -> float:
    span = _WIDTH - _RIGHT - _LEFT - 20
    return _LEFT + 10 + span * math.log2(systems) / math.log2(most)


def _y(efficiency: float) -> float:
    return _TOP + _HEIGHT * (_HIGH - efficiency) / (_HIGH - _LOW)


def _colour(row: int) -> str:
    return _COLOURS[row % len(_COLOURS)]


def _text(x: float, y: float, text: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{weight}>{escape(text)}</text>'
