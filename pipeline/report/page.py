"""What the pages of a report share: their environment, charts as inline SVG of fixed precision, and
what every text about provenance says of itself.

These statements are facts about the method, never findings about a document.
`tests/pipeline/test_wording.py` requires the floor in reports and cards, and refuses verdicts in
all emitted text.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from pipeline.core.page import is_hidden, page_environment, spell_out
from pipeline.core.words import (
    abbreviate_count,
    format_bytes,
    format_count,
    format_percent,
    pluralise,
)
from pipeline.report.cluster_summary import SizeBin

if TYPE_CHECKING:
    from jinja2 import Environment

NO_MATCH = (
    "No match is not evidence of absence: only the lists and works named here were looked for, "
    "with the parameters named here."
)
MATCH = (
    "A match is a text overlap, not a finding of copying, ownership or lack of permission: "
    "quotation, licence, public domain or a common source can explain it."
)
NOT_ADVICE = "This is not legal advice."

FLOOR = (NO_MATCH, MATCH, NOT_ADVICE)
"""Stands in report.html, in the audit report and in the dataset card."""

LICENCE = (
    "A licence named here is a licence statement that was found in the data, not a title. "
    "It never outweighs a listed origin."
)
REGISTRATION = (
    "Entries of a registry are statements of those who supplied them; registration records can be "
    "wrong, incomplete or transferred, and it is not registration that creates copyright."
)
LISTS = (
    "Lists of origins state what a dated public source says; an allegation stays an allegation, "
    "and entries can be corrected or removed."
)
CHAIN = (
    "The event chain shows the order of events and that none was changed since it was begun, not "
    "that what was entered is true; its times come from a local clock."
)
DELETED = (
    "Removed means removed from the stores that are listed; weights that were trained on a "
    "document do not change. Steps show exposure, not influence or memorisation."
)
QUARANTINE = (
    "Quarantined documents are kept apart until a retention limit or a purge; a legal hold can "
    "forbid their deletion, so a purge is refused while one is set."
)
TEXT_LIMITS = (
    "Text matching does not find translations, summaries, close paraphrase, or edited passages of "
    "fewer than about 1,000 characters; passages of about 2,000 characters are found with up to a "
    "fifth of the words replaced. For measurements see docs/fingerprints.md and "
    "benchmarks/provenance/."
)
"""From the excerpt suite of the brief (word 6-grams, one hash in 8): recall 1.00 at 1,000 verbatim
characters, 0.995 at 2,000 characters with 20 % of the words substituted."""

EU_DRAFT = (
    "Draft generated from recorded metadata, following the Commission template for the public "
    "summary of training content (Article 53(1)(d) of Regulation (EU) 2024/1689). "
    "The provider is responsible for it."
)
CALIFORNIA_DRAFT = (
    "Draft generated from recorded metadata, following the list of section 3111 of the California "
    "Civil Code (AB 2013). The developer is responsible for it."
)


_PACKAGE = "pipeline.report"


@dataclass(frozen=True)
class BarPart:
    """One part of a whole, for a stacked bar and its legend: its share in percent."""

    kind: str
    label: str
    count: int
    percent: str


def parts_of(counts: Mapping[str, int], labels: Mapping[str, str] | None = None) -> list[BarPart]:
    """Counts by kind as parts of their sum, empty ones left out.

    >>> parts_of({"near": 3, "key": 0, "exact": 1})[1]
    BarPart(kind='exact', label='exact', count=1, percent='25.000')
    """
    whole = sum(counts.values())
    return [
        BarPart(kind, (labels or {}).get(kind, kind), count, f"{100 * count / whole:.3f}")
        for kind, count in counts.items()
        if count
    ]


def render_page(template: str, **values: Any) -> bytes:
    """The page that a template of this package makes of `values`, in UTF-8."""
    return report_environment().get_template(template).render(values).encode()


@functools.cache
def report_environment(package: str = _PACKAGE) -> "Environment":
    """The templates of `package`, those of the report for names that it has not."""
    return page_environment(
        (package, _PACKAGE),
        {
            "n": format_count,
            "counted": pluralise,
            "short": abbreviate_count,
            "size": format_bytes,
            "share": format_percent,
            "marked": _mark_hidden,
            "pieces": _mark_differences,
        },
    )


def _mark_hidden(text: str) -> Markup:
    """`text` escaped, with runs of spelled-out characters set apart.

    >>> print(_mark_hidden("<b>\\x1b[31m"))
    &lt;b&gt;<span class="ctl">\\x1b</span>[31m
    """
    pieces = []
    for hidden, characters in groupby(text, key=is_hidden):
        if hidden:
            escaped = "".join(map(spell_out, characters))
            kind = "ctl space" if escaped.strip("\\nrt") == "" else "ctl"
            pieces.append(Markup('<span class="{}">{}</span>').format(kind, escaped))
        else:
            pieces.append(escape("".join(characters)))
    return Markup("").join(pieces)


def _mark_differences(pieces: Sequence[tuple[str, bool]]) -> Markup:
    """Stretches of text, those that differ set apart.

    >>> print(_mark_differences([("one ", False), ("<two>", True)]))
    one <em class="differs">&lt;two&gt;</em>
    """
    marked = (
        Markup('<em class="differs">{}</em>').format(_mark_hidden(text))
        if differs
        else _mark_hidden(text)
        for text, differs in pieces
    )
    return Markup("").join(marked)


def size_label(size: SizeBin) -> str:
    """Documents in a cluster.

    >>> size_label(SizeBin(5, 8, 1)), size_label(SizeBin(2, 2, 1))
    ('5 to 8', '2')
    """
    return f"{size.low:,}" if size.low == size.high else f"{size.low:,} to {size.high:,}"


_WIDTH, _HEIGHT = 520, 190  # in user units
_LEFT, _TOP, _BOTTOM = 52, 10, 26
_MOST_LABELS = 9
_WIDEST = 72


@dataclass(frozen=True)
class ChartColumn:
    """One column to be drawn: `part` of `count` is set apart by colour."""

    label: str
    title: str
    count: int
    part: int


@dataclass(frozen=True, kw_only=True)
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
class ColumnChart:
    """A histogram ready to be drawn; ticks are (y, label) of horizontal grid lines."""

    bars: tuple[_Bar, ...]
    ticks: tuple[tuple[str, str], ...]
    width: int = _WIDTH
    height: int = _HEIGHT
    left: int = _LEFT


def chart(columns: Sequence[ChartColumn]) -> ColumnChart | None:
    """Columns with their grid; None when there is nothing to draw."""
    if not columns:
        return None
    largest = max(1, *(column.count for column in columns))
    step = _choose_step(largest)
    top = step * -(-largest // step)
    slot = min(_WIDEST, (_WIDTH - _LEFT) / len(columns))
    every = -(-len(columns) // _MOST_LABELS)
    bars = []
    for number, column in enumerate(columns):
        (y, height), (part_y, part_height) = (
            _place_column(n, top) for n in (column.count, column.part)
        )
        bar = _Bar(
            x=f"{_LEFT + (number + 0.06) * slot:.2f}",
            width=f"{slot * 0.88:.2f}",
            y=y,
            height=height,
            part_y=part_y,
            part_height=part_height,
            title=column.title,
            label=column.label if number % every == 0 else "",
        )
        bars.append(bar)
    ticks = (
        (_place_column(value, top)[0], abbreviate_count(value)) for value in range(0, top + 1, step)
    )
    return ColumnChart(tuple(bars), tuple(ticks))


def _place_column(count: int, top: int) -> tuple[str, str]:
    """Where a column of so many begins, and its height."""
    height = (_HEIGHT - _TOP - _BOTTOM) * count / top
    return f"{_HEIGHT - _BOTTOM - height:.2f}", f"{height:.2f}"


def _choose_step(largest: int) -> int:
    """A round distance between grid lines that gives at most five of them.

    >>> [_choose_step(n) for n in (1, 7, 420, 843)]
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
