"""Words and numbers of messages, terminals and pages: counts with their nouns, names that were
meant, and numbers as people read them; a number that is unknown is a dash.
"""

import difflib
from collections.abc import Iterable, Sequence

from pipeline.core.errors import ConfigError, escape_text

_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_TIME_UNITS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))


def format_count(value: int) -> str:
    """A whole number with separators.

    >>> format_count(4355)
    '4,355'
    """
    return f"{value:,}"


def abbreviate_count(value: float) -> str:
    """A count for a headline: exact below a million.

    >>> abbreviate_count(999_999), abbreviate_count(4_778_364), abbreviate_count(26_300_000_000)
    ('999,999', '4.78 M', '26.3 G')
    """
    for power, unit in ((12, "T"), (9, "G"), (6, "M")):
        if value >= 10**power:
            return f"{value / 10**power:.3g} {unit}"
    return f"{value:,.0f}"


def format_bytes(size: float) -> str:
    """A size in decimal units.

    >>> format_bytes(999), format_bytes(16_013_598), format_bytes(154.24e9)
    ('999 B', '16.0 MB', '154.2 GB')
    """
    if size < 1000:
        return f"{size:,.0f} B"
    unit = 0
    while size >= 999.95 and unit < len(_BYTE_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:,.1f} {_BYTE_UNITS[unit]}"


def format_percent(part: float, whole: float) -> str:
    """A share.

    >>> format_percent(1, 3), format_percent(1, 100_000), format_percent(5, 5), format_percent(0, 0)
    ('33.3 %', '< 0.1 %', '100.0 %', '-')
    """
    if not whole:
        return "-"
    share = 100 * part / whole
    return "< 0.1 %" if 0 < share < 0.1 else f"{share:.1f} %"


def format_duration(seconds: float) -> str:
    """A span of time in its two largest units; below ten seconds with a tenth.

    >>> [format_duration(s) for s in (0, 0.274, 9.8, 59.4, 257, 18_720, 273_600)]
    ['0.0s', '0.3s', '9.8s', '59s', '4m17s', '5h12m', '3d4h']
    """
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f}s"
    whole = round(seconds)
    for length, unit, part, smaller in _TIME_UNITS:
        if whole >= length:
            rest = whole % length // part
            return f"{whole // length:,}{unit}" + (f"{rest}{smaller}" if rest else "")
    return f"{whole}s"


def pluralise(number: int, noun: str) -> str:
    """A count with its noun, one of it or more.

    >>> pluralise(0, "row"), pluralise(1, "row"), pluralise(1200, "copy"), pluralise(2, "sketch")
    ('0 rows', '1 row', '1,200 copies', '2 sketches')
    >>> pluralise(30, "day")
    '30 days'
    """
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{number:,} {noun[:-1]}ies"
    return f"{number:,} {noun}{'es' if noun.endswith(('s', 'sh', 'ch', 'x')) else 's'}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The known name that is closest to a mistyped one, as the end of a message; empty when none is
    close. Case does not count.

    >>> did_you_mean("Orgin", ["origin", "optout"]), did_you_mean("x", ["origin"])
    ("; did you mean 'origin'?", '')
    """
    names = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), names, n=1)
    return f"; did you mean {escape_text(names[close[0]])!r}?" if close else ""


def require_choice(option: str, value: str, choices: Sequence[str]) -> None:
    """Raise ConfigError, with the choice that was meant, unless `value` is one of them."""
    if value not in choices:
        raise ConfigError(
            f"{option} {escape_text(value, 40)}: expected one of {', '.join(choices)}"
            f"{did_you_mean(value, choices)}"
        )


def did_you_mean_or_all(name: str, known: Iterable[str]) -> str:
    """The same, or all known names when none is close.

    >>> did_you_mean_or_all("x", ["origin", "optout"])
    '; expected one of origin, optout'
    """
    names = list(known)
    every = f"; expected one of {escape_text(', '.join(names), 400)}" if names else ""
    return did_you_mean(name, names) or every
