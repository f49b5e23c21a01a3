"""The pages of the trainer: one file each, no script, no request.

Every value passes two guards on its way into a page: characters that do not show are spelled out
(`\\x1b`, `\\u202e`), then the text is HTML-escaped.
"""

import functools
import unicodedata
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from trainer.progress import size

__all__ = ["render"]

_HIDDEN = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}  # Unicode categories that do not show
_SHARED = "trainer.report"


def render(package: str, template: str, **values: Any) -> bytes:
    """The page, in UTF-8, that a template of `package` makes of `values`."""
    return _environment(package).get_template(template).render(values).encode()


@functools.cache
def _environment(package: str) -> Environment:
    """Templates of `package`, those of this one for names that it has not."""

    def template(name: str) -> str:
        own = resources.files(package).joinpath(name)
        found = own if own.is_file() else resources.files(_SHARED).joinpath(name)
        return found.read_text("utf-8")

    environment = Environment(
        autoescape=True,
        finalize=_visible,
        loader=FunctionLoader(template),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "n": count,
        "g": significant,
        "short": short,
        "size": size,
        "percent": percent,
    }
    return environment


def _visible(value: Any) -> Any:
    """Spell out the characters of a string that do not show; other values and markup stay."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in _HIDDEN else c
        for c in value
    )


def count(value: int) -> str:
    """A whole number with separators."""
    return f"{value:,}"


def significant(value: float | None, digits: int = 4) -> str:
    """A measured number; a dash for one that is not known.

    >>> significant(2.5863214), significant(None)
    ('2.586', '-')
    """
    return "-" if value is None else f"{value:.{digits}g}"


def percent(part: float, whole: float) -> str:
    """A share.

    >>> percent(1, 3), percent(1, 100_000), percent(5, 5)
    ('33.3 %', '< 0.1 %', '100 %')
    """
    share = 100 * part / whole
    return "< 0.1 %" if 0 < share < 0.1 else f"{share:.3g} %"


def short(value: float) -> str:
    """A count for a headline: exact below ten thousand.

    >>> short(9_037), short(2_221_009_920), short(26_300_000_000)
    ('9,037', '2.22 G', '26.3 G')
    """
    for power, unit in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 10**power and value >= 10_000:
            return f"{value / 10**power:.3g} {unit}"
    return f"{value:,.0f}"
