"""Curves and scatters as inline SVG: geometry with fixed precision; colours come from style rules.

No library and no script: a page opens anywhere, prints, and the same numbers give the same bytes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["Chart", "Curve", "Point", "curves", "scatter"]

Scale = Literal["linear", "log"]
Point = tuple[float, float]

WIDTH, WIDE, HEIGHT = 520, 1080, 230  # in user units
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 10, 30
_MOST_POINTS = 400
_LONE_POINTS = 60


@dataclass(frozen=True)
class Curve:
    """Values to be drawn. `label`: for the legend; `dots`: also as dots, for few values."""

    label: str
    points: Sequence[Point]
    dots: bool = False


@dataclass(frozen=True)
class Tick:
    """One grid line: where, and its label."""

    at: str
    label: str


@dataclass(frozen=True)
class Dot:
    """One value, with the text shown when the mouse is over it."""

    x: str
    y: str
    title: str
    kind: str


@dataclass(frozen=True)
class CurvePath:
    """A curve: its line, and the band of the values that a point of it stands for."""

    label: str
    line: str
    band: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart ready to be drawn."""

    curves: tuple[CurvePath, ...]
    dots: tuple[Dot, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    x_label: str
    width: int
    height: int = HEIGHT
    left: int = _LEFT
    bottom: int = HEIGHT - _BOTTOM

    @property
    def right(self) -> int:
        """The right end of the grid."""
        return self.width - _RIGHT


@dataclass(frozen=True)
class _Axis:
    """Values [low, high] on user units from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    scale: Scale

    def at(self, value: float) -> float:
        low, high, value = (self._on_scale(v) for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def _on_scale(self, value: float) -> float:
        return math.log(value) if self.scale == "log" else value

    def ticks(self) -> tuple[Tick, ...]:
        values = _decades(self.low, self.high) if self.scale == "log" else []
        if len(values) < 3:
            values = _round_values(self.low, self.high)
        return tuple(Tick(f"{self.at(v):.2f}", _label(v)) for v in values)


def curves(given: Iterable[Curve], *, scale: Scale = "linear", width: int = WIDTH) -> Chart | None:
    """Curves over steps; None when nothing can be drawn. Many values are drawn as means with a
    band from least to largest, on a logarithmic axis only those above 0."""
    kept = []
    for curve in given:
        points = [
            (x, y)
            for x, y in curve.points
            if math.isfinite(x) and math.isfinite(y) and (scale == "linear" or y > 0)
        ]
        if points:
            kept.append(Curve(curve.label, points, curve.dots))
    if not kept:
        return None
    x, y = _axes([p for curve in kept for p in curve.points], "linear", scale, width)
    dots = [
        Dot(f"{x.at(a):.2f}", f"{y.at(b):.2f}", f"{c.label}: {b:.6g} at {a:,.0f}", f"c{index}")
        for index, c in enumerate(kept)
        for a, b in (c.points if c.dots and len(c.points) <= _LONE_POINTS else ())
    ]
    drawn = tuple(_drawn(curve, x, y) for curve in kept)
    return Chart(
        curves=drawn,
        dots=tuple(dots),
        x_ticks=x.ticks(),
        y_ticks=y.ticks(),
        x_label="step",
        width=width,
    )


@dataclass(frozen=True)
class ScatterPoint:
    """A point of a scatter: its text, and `kind`, the style rule that colours it."""

    x: float
    y: float
    title: str
    kind: str = ""


def scatter(
    points: Sequence[ScatterPoint], lost: Sequence[ScatterPoint] = (), *, scale: Scale, x_label: str
) -> Chart | None:
    """Points, and those `lost` that have an x but no y, on the upper edge; None without points."""
    every = [(p.x, p.y) for p in points]
    every += [(p.x, every[0][1]) for p in lost if every]
    if not every:
        return None
    x, y = _axes(every, scale, "linear", WIDTH)
    dots = [Dot(f"{x.at(p.x):.2f}", f"{y.at(p.y):.2f}", p.title, p.kind) for p in points]
    dots += [Dot(f"{x.at(p.x):.2f}", f"{_TOP:.2f}", p.title, p.kind) for p in lost]
    return Chart(
        curves=(),
        dots=tuple(dots),
        x_ticks=x.ticks(),
        y_ticks=y.ticks(),
        x_label=x_label,
        width=WIDTH,
    )


def _axes(
    points: Sequence[Point], x_scale: Scale, y_scale: Scale, width: int
) -> tuple[_Axis, _Axis]:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    return (
        _Axis(*_room(min(xs), max(xs), x_scale, 0.02), _LEFT, width - _RIGHT, x_scale),
        _Axis(*_room(min(ys), max(ys), y_scale, 0.05), HEIGHT - _BOTTOM, _TOP, y_scale),
    )


def _room(low: float, high: float, scale: Scale, share: float) -> tuple[float, float]:
    """The interval with some room around it, never empty."""
    if low == high:
        half = abs(low) / 2 or 1.0
        return low - half, high + half
    if scale == "log":
        factor = (high / low) ** share
        return low / factor, high * factor
    return low - share * (high - low), high + share * (high - low)


def _drawn(curve: Curve, x: _Axis, y: _Axis) -> CurvePath:
    count = min(len(curve.points), _MOST_POINTS)
    bins: list[list[Point]] = [[] for _ in range(count)]  # neighbours, in sizes that differ by one
    for index, point in enumerate(curve.points):
        bins[index * count // len(curve.points)].append(point)
    xs = [sum(at for at, _ in each) / len(each) for each in bins]
    ys = [[value for _, value in each] for each in bins]
    band = ""
    if len(curve.points) > count:
        upper, lower = (list(zip(xs, map(end, ys), strict=True)) for end in (max, min))
        band = _path([*upper, *reversed(lower)], x, y) + "Z"
    middle = zip(xs, (sum(values) / len(values) for values in ys), strict=True)
    return CurvePath(curve.label, _path(middle, x, y), band)


def _path(points: Iterable[Point], x: _Axis, y: _Axis) -> str:
    return "M" + "L".join(f"{x.at(a):.2f},{y.at(b):.2f}" for a, b in points)


def _label(value: float) -> str:
    """A round value, without an exponent where it is short.

    >>> _label(25_000.0), _label(0.002), _label(5e-7), _label(2e9)
    ('25000', '0.002', '5e-07', '2e+09')
    """
    return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.4g}"


def _round_values(low: float, high: float) -> list[float]:
    """At most seven round values in [low, high].

    >>> _round_values(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    raw = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(k * step, 12 - math.floor(math.log10(step))) for k in range(first, last + 1)]


def _decades(low: float, high: float) -> list[float]:
    """Powers of ten in [low, high], with 2 and 5 times them where those are few.

    >>> _decades(1.0, 1000.0)
    [1.0, 10.0, 100.0, 1000.0]
    >>> _decades(3e-3, 3e-2)
    [0.005, 0.01, 0.02]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        values = [float(f"{f}e{p}") for p in powers for f in factors]
        values = [v for v in values if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]
        if len(values) >= 4:
            break
    return values if len(values) <= 12 else values[:: len(values) // 8 + 1]
