"""Renders a `Report` as one HTML file: no scripts, no requests, the same bytes every time.

Every value passes two guards on its way into the page: control, format and other invisible
characters are spelled out (`\\x1b`, `\\u202e`), then the text is HTML-escaped. Charts are inline
SVG computed here with fixed precision, coloured by style rules so that they follow dark mode.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import groupby
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from pipeline.report.model import Bin, ClusterSize, Ledger, Report, SourceRow

__all__ = ["render"]

_SHOWN_SOURCES = 60
_HIDDEN = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}  # Unicode categories that do not show
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_STATES = ("kept", "duplicates", "dropped", "quarantined", "bad")
_WIDTH, _HEIGHT = 520, 190  # of a chart, in user units
_LEFT, _TOP, _BOTTOM = 52, 10, 26


@dataclass(frozen=True)
class _Bar:
    """One histogram column; geometry in user units."""

    x: str
    width: str
    y: str
    height: str
    kept_y: str
    kept_height: str
    title: str
    label: str
    label_x: str


@dataclass(frozen=True)
class _Tick:
    """One horizontal grid line."""

    y: str
    label: str


@dataclass(frozen=True)
class _Chart:
    """A histogram ready to be drawn."""

    bars: tuple[_Bar, ...]
    ticks: tuple[_Tick, ...]
    width: int = _WIDTH
    height: int = _HEIGHT
    left: int = _LEFT


@dataclass(frozen=True)
class _Segment:
    """One part of a stacked bar: share of the whole in percent."""

    state: str
    count: int
    percent: str


def render(report: Report) -> bytes:
    """The HTML page of `report` in UTF-8; a pure function of it."""
    environment = Environment(
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "n": _number,
        "short": _short,
        "size": _size,
        "share": _share,
        "marked": _marked,
        "segments": _segments,
    }
    source = resources.files("pipeline.report").joinpath("report.html.j2").read_text("utf-8")
    total = report.ledger.total()
    dropped = {reason: count for reason, count in total.dropped.items() if count}
    page = environment.from_string(source).render(
        report=report,
        total=total,
        rows=_shown(report.ledger),
        drop_reasons=sorted(dropped, key=lambda reason: (-dropped[reason], reason)),
        imbalances=[row.source for row in (*report.ledger.sources, total) if not _balances(row)],
        cluster_bars=_cluster_bars(report.cluster_sizes),
        bytes_chart=_chart(report.document_bytes, "bytes"),
        tokens_chart=_chart(report.document_tokens, "tokens"),
    )
    return page.encode()


# -- text -------------------------------------------------------------------------------------


def _visible(value: Any) -> Any:
    """Spell out the invisible characters of a string; other values and markup stay as they are."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "".join(_spelled(c) if _is_hidden(c) else c for c in value)


def _marked(text: str) -> Markup:
    """`text` escaped, with runs of spelled-out characters set apart.

    >>> print(_marked("<b>\\x1b[31m"))
    &lt;b&gt;<span class="ctl">\\x1b</span>[31m
    """
    pieces = []
    for hidden, characters in groupby(text, key=_is_hidden):
        if hidden:
            spelled = "".join(map(_spelled, characters))
            kind = "ctl space" if spelled.strip("\\nrt") == "" else "ctl"
            pieces.append(Markup('<span class="{}">{}</span>').format(kind, spelled))
        else:
            pieces.append(escape("".join(characters)))
    return Markup("").join(pieces)


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in _HIDDEN


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _number(value: int) -> str:
    return f"{value:,}"


def _short(value: int) -> str:
    """A count for a headline: exact below a million.

    >>> _short(999_999), _short(4_778_364), _short(1_210_000_000_000)
    ('999,999', '4.78 M', '1.21 T')
    """
    for power, unit in ((12, "T"), (9, "G"), (6, "M")):
        if value >= 10**power:
            return f"{value / 10**power:.2f} {unit}"
    return _number(value)


def _size(count: int) -> str:
    """Bytes in decimal units.

    >>> _size(999), _size(16_013_598)
    ('999 B', '16.0 MB')
    """
    value, unit = float(count), 0
    while value >= 999.95 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{count:,} B"


def _share(part: int, whole: int) -> str:
    """`part` of `whole` in percent.

    >>> _share(1, 3), _share(1, 100_000), _share(0, 0)
    ('33.3 %', '< 0.1 %', '-')
    """
    if whole == 0:
        return "-"
    if 0 < part * 1000 < whole:
        return "< 0.1 %"
    return f"{100 * part / whole:.1f} %"


# -- tables -----------------------------------------------------------------------------------


def _balances(row: SourceRow) -> bool:
    return row.documents == row.dropped_total + row.quarantined + row.duplicates + row.kept


def _shown(ledger: Ledger) -> list[SourceRow]:
    """The sources with most records, the rest summed up in one row."""
    rows = sorted(ledger.sources, key=lambda row: (-row.records, row.source))
    if len(rows) <= _SHOWN_SOURCES:
        return rows
    rest = rows[_SHOWN_SOURCES - 1 :]
    summed = Ledger(tuple(rest)).total()
    summed = SourceRow(**{**vars(summed), "source": f"{len(rest):,} smaller sources"})
    return [*rows[: _SHOWN_SOURCES - 1], summed]


def _segments(row: SourceRow) -> list[_Segment]:
    """The terminal states of a source as parts of a bar, empty ones left out."""
    counts = {state: getattr(row, state) for state in _STATES} | {"dropped": row.dropped_total}
    whole = sum(counts.values())
    return [
        _Segment(state, count, f"{100 * count / whole:.3f}")
        for state, count in counts.items()
        if count
    ]


def _cluster_bars(sizes: Sequence[ClusterSize]) -> list[tuple[str, int, str]]:
    """(label, clusters, bar length in percent) by size 2, 3, 4, 5-8, 9-16, ..."""
    counts: dict[tuple[int, int], int] = {}
    for entry in sizes:
        high = entry.size if entry.size <= 4 else 1 << (entry.size - 1).bit_length()
        low = entry.size if entry.size <= 4 else high // 2 + 1
        counts[low, high] = counts.get((low, high), 0) + entry.clusters
    top = max(counts.values(), default=1)
    return [
        (f"{low:,}" if low == high else f"{low:,} to {high:,}", count, f"{100 * count / top:.2f}")
        for (low, high), count in sorted(counts.items())
    ]


# -- charts -----------------------------------------------------------------------------------


def _chart(bins: Sequence[Bin], unit: str) -> _Chart | None:
    """Columns of a histogram with its grid; None when there is nothing to draw."""
    if not bins:
        return None
    largest = max(1, *(b.count for b in bins))
    step = _nice_step(largest)
    top = step * -(-largest // step)
    plot_height = _HEIGHT - _TOP - _BOTTOM
    slot = (_WIDTH - _LEFT) / len(bins)

    def height(count: int) -> float:
        return plot_height * count / top

    bars = []
    every = 1 if len(bins) <= 9 else 2
    for i, b in enumerate(bins):
        x = _LEFT + i * slot
        bars.append(
            _Bar(
                x=f"{x + slot * 0.06:.2f}",
                width=f"{slot * 0.88:.2f}",
                y=f"{_TOP + plot_height - height(b.count):.2f}",
                height=f"{height(b.count):.2f}",
                kept_y=f"{_TOP + plot_height - height(b.kept):.2f}",
                kept_height=f"{height(b.kept):.2f}",
                title=f"{b.low:,} to {b.high - 1:,} {unit}: {b.count:,} documents, {b.kept:,} kept",
                label=_binary(b.low) if i % every == 0 else "",
                label_x=f"{x + slot * 0.06:.2f}",
            )
        )
    ticks = [
        _Tick(f"{_TOP + plot_height - height(value):.2f}", _short(value))
        for value in range(0, top + 1, step)
    ]
    return _Chart(tuple(bars), tuple(ticks))


def _nice_step(largest: int) -> int:
    """A round distance between grid lines that gives at most five of them.

    >>> [_nice_step(n) for n in (1, 7, 420, 843)]
    [1, 2, 100, 200]
    """
    step = 1
    while largest > 5 * step:
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return step


def _binary(value: int) -> str:
    """A power of two in short.

    >>> _binary(512), _binary(4096)
    ('512', '4 Ki')
    """
    for prefix in ("", " Ki", " Mi", " Gi"):
        if value < 1024:
            return f"{value}{prefix}"
        value //= 1024
    return f"{value} Ti"
