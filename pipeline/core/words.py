"""Words of messages, terminals and pages: counts with their nouns, names that were meant."""

import difflib
from collections.abc import Iterable

from pipeline.core.errors import escape_text


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


def did_you_mean_or_all(name: str, known: Iterable[str]) -> str:
    """The same, or all known names when none is close.

    >>> did_you_mean_or_all("x", ["origin", "optout"])
    '; expected one of origin, optout'
    """
    names = list(known)
    every = f"; expected one of {escape_text(', '.join(names), 400)}" if names else ""
    return did_you_mean(name, names) or every
