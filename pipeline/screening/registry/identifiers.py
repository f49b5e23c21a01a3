"""Identifiers of works: each function gives the normal form of a candidate (`"TX 3-372-564"`), or
None.

Form and check digit are all that is tested. Sources: ISBN Users' Manual (7th edition), the Library
of Congress's LCCN namespace, DOI Handbook §2.2, the public catalogue of the US Copyright Office.
"""

import re

__all__ = ["asin", "doi", "isbn13", "lccn", "usco"]

_DASHES = "-\N{HYPHEN}\N{NON-BREAKING HYPHEN}\N{FIGURE DASH}\N{EN DASH}\N{EM DASH}\N{MINUS SIGN}"
_SEPARATORS = re.compile(f"[{_DASHES}\\s]+")
_ISBN_LABEL = re.compile(r"\s*ISBN(?:[- ]?1[03](?=[\s:#]))?\s*[:#]?\s*", re.IGNORECASE)
_ISBN10 = re.compile(r"[0-9]{9}[0-9X]")
_ISBN13 = re.compile(r"97(?:8[0-9]|9[1-9])[0-9]{9}")
_DOI_LABEL = re.compile(r"\s*(?:https?://(?:dx\.)?doi\.org/|doi\s*:?\s*)", re.IGNORECASE)
_DOI = re.compile(r"10\.[0-9]{4,9}(?:\.[0-9]+)*/[\x21-\x7e]+")
_ASIN = re.compile(r"B0[0-9A-Z]{8}")
_LCCN = re.compile(r"(?:[a-z]{0,3}[0-9]{8}|[a-z]{0,2}[0-9]{10})")
_USCO = re.compile(
    f"(TXU|VAU|PAU|SRU|PRE|TX|VA|PA|SR|SE|MW|RE)[{_DASHES}\\s]{{0,2}}"
    f"([0-9]{{7,10}}|[0-9]{{1,4}}(?:[{_DASHES}\\s][0-9]{{3}}){{1,3}})",
    re.IGNORECASE,
)
_USCO_LENGTH = 12
_USCO_WRITTEN = 7
_USCO_SHORTEST = 5


def isbn13(text: str) -> str | None:
    """The 13 digits of an ISBN-10 or ISBN-13 whose check digit is right; hyphens, spaces and a
    leading "ISBN" are passed over.

    >>> isbn13("0-306-40615-2"), isbn13("ISBN-13: 978 0 306 40615 7"), isbn13("0306406153")
    ('9780306406157', '9780306406157', None)
    """
    label = _ISBN_LABEL.match(text)
    digits = _SEPARATORS.sub("", text[label.end() :] if label else text).upper()
    if not digits.isascii() or len(set(digits)) < 2:
        return None
    if _ISBN10.fullmatch(digits):
        values = [10 if digit == "X" else int(digit) for digit in digits]
        if sum((10 - place) * value for place, value in enumerate(values)) % 11:
            return None
        body = f"978{digits[:9]}"
        return body + _find_check_digit(body)
    if _ISBN13.fullmatch(digits) and _find_check_digit(digits[:12]) == digits[12]:
        return digits
    return None


def _find_check_digit(body: str) -> str:
    total = sum(int(digit) * (3 if place % 2 else 1) for place, digit in enumerate(body))
    return str(-total % 10)


def doi(text: str) -> str | None:
    """A DOI in lower case, without "doi:", "https://doi.org/" or punctuation after it.

    >>> doi("https://doi.org/10.1000/ABC.123"), doi("doi:10.1000/182."), doi("10.10/x")
    ('10.1000/abc.123', '10.1000/182', None)
    """
    label = _DOI_LABEL.match(text)
    number = (text[label.end() :] if label else text).strip().rstrip(".,;:\"'")
    for opening, closing in ("()", "[]", "<>"):
        if number.endswith(closing) and number.count(closing) > number.count(opening):
            number = number[:-1]
    return number.lower() if _DOI.fullmatch(number) and not number.endswith("/") else None


def asin(text: str) -> str | None:
    """An ASIN, `B0` and eight more, in capitals. It has no check digit. The ASIN of a printed book
    is its ISBN-10: see `isbn13`.

    >>> asin("b00icn066a"), asin("0306406152")
    ('B00ICN066A', None)
    """
    number = text.strip().upper()
    return number if _ASIN.fullmatch(number) else None


def lccn(text: str) -> str | None:
    """A Library of Congress control number in its normal form.

    >>> lccn("n78-890351"), lccn("85-2 "), lccn(" 79139101 /AC/r932"), lccn("2001-1234567")
    ('n78890351', '85000002', '79139101', None)
    """
    number = re.sub(r"\s", "", text).partition("/")[0].lower()
    year, hyphen, serial = number.partition("-")
    if hyphen:
        if not re.fullmatch(r"[0-9]{1,6}", serial):
            return None
        number = year + serial.zfill(6)
    return number if _LCCN.fullmatch(number) else None


def usco(text: str) -> str | None:
    """A number of the US Copyright Office as its catalogue writes it: prefix and digits, 12
    characters in all. Digits are together (seven and more) or in groups of three: a state and a
    ZIP code such as "TX 75201" is none. A low number counts where its zeros are written, seven
    digits in all.

    >>> usco("TX 3-372-564"), usco("tx-3-372-564"), usco("TXu 1-234-567"), usco("TX 75201")
    ('TX0003372564', 'TX0003372564', 'TXu001234567', None)
    >>> usco("TX 0-000-001"), usco("TX 000-001"), usco("TX 0-000-000")
    ('TX0000000001', None, None)
    """
    match = _USCO.fullmatch(text.strip())
    if match is None:
        return None
    prefix = match[1].upper()
    if prefix.endswith("U"):
        prefix = prefix[:2] + "u"
    digits = _SEPARATORS.sub("", match[2])
    room = _USCO_LENGTH - len(prefix)
    number = digits.lstrip("0")
    if not number or len(number) > room:
        return None
    is_whole = len(digits) >= _USCO_WRITTEN or len(number) >= _USCO_SHORTEST
    return prefix + number.zfill(room) if is_whole else None
