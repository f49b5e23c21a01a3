"""The pages of the trainer: one file each, no script, no request; and their number formats.

What every value passes on its way into a page stands in `pipeline.core.page`.
"""

import functools
from typing import Any

from jinja2 import Environment

from pipeline.core.page import page_environment
from trainer.progress import format_size

__all__ = ["render"]

_SHARED = "trainer.report"


def render(package: str, template: str, **values: Any) -> bytes:
    """The page, in UTF-8, that a template of `package` makes of `values`."""
    return _environment(package).get_template(template).render(values).encode()


@functools.cache
def _environment(package: str) -> Environment:
    """Templates of `package`, those of this one for names that it has not."""
    return page_environment(
        (package, _SHARED),
        {
            "n": count,
            "g": format_number,
            "short": abbreviate_count,
            "size": format_size,
            "percent": format_percent,
        },
    )


def count(value: int) -> str:
    """A whole number with separators."""
    return f"{value:,}"


def format_number(value: float | None, digits: int = 4) -> str:
    """A measured number; a dash for one that is not known.

    >>> format_number(2.5863214), format_number(None)
    ('2.586', '-')
    """
    return "-" if value is None else f"{value:.{digits}g}"


def format_percent(part: float, whole: float) -> str:
    """A share.

    >>> format_percent(1, 3), format_percent(1, 100_000), format_percent(5, 5)
    ('33.3 %', '< 0.1 %', '100 %')
    """
    share = 100 * part / whole
    return "< 0.1 %" if 0 < share < 0.1 else f"{share:.3g} %"


def abbreviate_count(value: float) -> str:
    """A count for a headline: exact below ten thousand.

    >>> abbreviate_count(9_037), abbreviate_count(2_221_009_920), abbreviate_count(26_300_000_000)
    ('9,037', '2.22 G', '26.3 G')
    """
    for power, unit in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 10**power and value >= 10_000:
            return f"{value / 10**power:.3g} {unit}"
    return f"{value:,.0f}"
