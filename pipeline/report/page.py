"""What the pages of a report share: number formats, and texts with what does not show set apart.

What every value passes on its way into a page stands in `pipeline.core.page`.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from jinja2 import Environment
from markupsafe import Markup, escape

from pipeline.core.page import is_hidden, page_environment, spell_out
from pipeline.core.words import pluralise
from pipeline.provenance.cluster_summary import SizeBin

__all__ = [
    "BarPart",
    "abbreviate_count",
    "parts_of",
    "render_page",
    "report_environment",
    "size_label",
]

_PACKAGE = "pipeline.report"

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


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
def report_environment(package: str = _PACKAGE) -> Environment:
    """The templates of `package`, those of the report for names that it has not."""
    return page_environment(
        (package, _PACKAGE),
        {
            "n": number,
            "counted": pluralise,
            "short": abbreviate_count,
            "size": _size,
            "share": _share,
            "marked": _marked,
            "pieces": _pieces,
        },
    )


def _marked(text: str) -> Markup:
    """`text` escaped, with runs of spelled-out characters set apart.

    >>> print(_marked("<b>\\x1b[31m"))
    &lt;b&gt;<span class="ctl">\\x1b</span>[31m
    """
    pieces = []
    for hidden, characters in groupby(text, key=is_hidden):
        if hidden:
            shown = "".join(map(spell_out, characters))
            kind = "ctl space" if shown.strip("\\nrt") == "" else "ctl"
            pieces.append(Markup('<span class="{}">{}</span>').format(kind, shown))
        else:
            pieces.append(escape("".join(characters)))
    return Markup("").join(pieces)


def _pieces(pieces: Sequence[tuple[str, bool]]) -> Markup:
    """Stretches of text, those that differ set apart.

    >>> print(_pieces([("one ", False), ("<two>", True)]))
    one <em class="differs">&lt;two&gt;</em>
    """
    marked = (
        Markup('<em class="differs">{}</em>').format(_marked(text)) if differs else _marked(text)
        for text, differs in pieces
    )
    return Markup("").join(marked)


def number(value: int) -> str:
    return f"{value:,}"


def abbreviate_count(value: int) -> str:
    """A count for a headline: exact below a million.

    >>> abbreviate_count(999_999), abbreviate_count(4_778_364), abbreviate_count(1_210_000_000_000)
    ('999,999', '4.78 M', '1.21 T')
    """
    for power, unit in ((12, "T"), (9, "G"), (6, "M")):
        if value >= 10**power:
            return f"{value / 10**power:.2f} {unit}"
    return number(value)


def size_label(size: SizeBin) -> str:
    """Documents in a cluster.

    >>> size_label(SizeBin(5, 8, 1)), size_label(SizeBin(2, 2, 1))
    ('5 to 8', '2')
    """
    return f"{size.low:,}" if size.low == size.high else f"{size.low:,} to {size.high:,}"


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
