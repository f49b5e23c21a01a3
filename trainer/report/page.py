"""The pages of the trainer: one file each, no script, no request; and their number formats.

What every value passes on its way into a page stands in `pipeline.core.page`.
"""

import functools
from typing import Any

from jinja2 import Environment

from pipeline.core.figures import abbreviate_count, format_bytes, format_count, format_percent
from pipeline.core.page import page_environment

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
            "n": format_count,
            "g": format_number,
            "short": abbreviate_count,
            "size": format_bytes,
            "percent": format_percent,
        },
    )


def format_number(value: float | None, digits: int = 4) -> str:
    """A measured number; a dash for one that is not known.

    >>> format_number(2.5863214), format_number(None)
    ('2.586', '-')
    """
    return "-" if value is None else f"{value:.{digits}g}"
