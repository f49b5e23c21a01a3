"""Dates as lists write them, as ISO 8601 of the precision they have."""

import re
from datetime import date

_MONTHS = {
    name: number
    for number, names in enumerate(
        ("jan january", "feb february", "mar march", "apr april", "may", "jun june", "jul july",
         "aug august", "sep sept september", "oct october", "nov november", "dec december"), 1
    )
    for name in names.split()
}  # fmt: skip
_ISO = re.compile(r"([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2}))?)?(?:T[0-9:.Z+-]*| 00:00:00)?\Z")
_MONTH_FIRST = re.compile(r"([a-z]+)\.?(?:\s+([0-9]{1,2}))?,?\s+([0-9]{4})\Z")
_DAY_FIRST = re.compile(r"([0-9]{1,2})\s+([a-z]+)\.?,?\s+([0-9]{4})\Z")
_SLASHES = re.compile(r"([0-9]{1,2})/([0-9]{1,2})/([0-9]{4})\Z")


def iso_date(text: str, month_first: bool = False) -> str | None:
    """`1992-08-05`, `1992-08` or `1992`; None for anything that is no date.

    08/05/1992 is read only where it is known that the month comes first.

    >>> iso_date("1992-08-05"), iso_date("c1992."), iso_date("Aug. 5, 1992"), iso_date("May 1992")
    ('1992-08-05', '1992', '1992-08-05', '1992-05')
    >>> iso_date("08/05/1992"), iso_date("08/05/1992", month_first=True), iso_date("1992-02-30")
    (None, '1992-08-05', None)
    """
    found = text.strip().rstrip(".").lower()
    found = re.sub(r"\A(?:c|©|\(c\)|copyright)\s*(?=[0-9])", "", found)
    if match := _ISO.match(found):
        return _checked(match[1], match[2], match[3])
    if match := _MONTH_FIRST.match(found):
        return _checked(match[3], _MONTHS.get(match[1], 0), match[2])
    if match := _DAY_FIRST.match(found):
        return _checked(match[3], _MONTHS.get(match[2], 0), match[1])
    if (match := _SLASHES.match(found)) and month_first:
        return _checked(match[3], match[1], match[2])
    return None


def _checked(year: str, month: str | int | None, day: str | None) -> str | None:
    try:
        whole = date(int(year), 1 if month is None else int(month), 1 if day is None else int(day))
    except ValueError:
        return None
    return whole.isoformat()[: 4 if month is None else 7 if day is None else 10]


def choose_finer(one: str, other: str) -> str | None:
    """The more precise of two dates of which one is the beginning of the other; None if neither is.

    >>> choose_finer("1992", "1992-08-05"), choose_finer("1992", "1993")
    ('1992-08-05', None)
    """
    longer, shorter = sorted((one, other), key=len, reverse=True)
    return longer if longer == shorter or longer.startswith(f"{shorter}-") else None
