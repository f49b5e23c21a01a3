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

from pipeline.core.figures import abbreviate_count, format_bytes, format_count, format_percent
from pipeline.core.page import is_hidden, page_environment, spell_out
from pipeline.core.words import pluralise
from pipeline.provenance.cluster_summary import SizeBin

__all__ = [
    "BarPart",
    "parts_of",
    "render_page",
    "report_environment",
    "size_label",
]

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
def report_environment(package: str = _PACKAGE) -> Environment:
    """The templates of `package`, those of the report for names that it has not."""
    return page_environment(
        (package, _PACKAGE),
        {
            "n": format_count,
            "counted": pluralise,
            "short": abbreviate_count,
            "size": format_bytes,
            "share": format_percent,
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


def size_label(size: SizeBin) -> str:
    """Documents in a cluster.

    >>> size_label(SizeBin(5, 8, 1)), size_label(SizeBin(2, 2, 1))
    ('5 to 8', '2')
    """
    return f"{size.low:,}" if size.low == size.high else f"{size.low:,} to {size.high:,}"
