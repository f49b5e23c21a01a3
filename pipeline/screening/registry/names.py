"""Titles, names of authors and identifiers of works as catalogues, lists and file names write them,
each in one form (`"TX 3-372-564"` is `TX0003372564`).

Catalogues write `title : subtitle / responsibility` (ISBD). File names add noise: `(retail)`,
`(epub)`, `v5.0`. Of identifiers form and check digit are all that is tested. Sources: ISBN Users'
Manual (7th edition), the Library of Congress's LCCN namespace, DOI Handbook §2.2, the public
catalogue of the US Copyright Office. Everything here is a pure function of one string.
"""

import re
import unicodedata
from dataclasses import dataclass


def list_words(*lines: str) -> frozenset[str]:
    """All words of the lines."""
    return frozenset(word for line in lines for word in line.split())


_FORMATS = list_words(
    "azw azw3 cbr cbz chm djvu doc docx ebook epub epub3 fb2 htm html kfx lit lrf mobi odt pdb pdf",
    "prc rtf txt",
)
_NOISE = _FORMATS | list_words(
    "retail scan scanned ocr unabridged uk us converted conv kindle z-lib zlib z-library libgen",
    "b-ok bibliotik org com net rar zip gz zst 7z",
)
_SUFFIX = re.compile(rf"\.(?:{'|'.join(sorted(_FORMATS))}|gz|zst|zip|rar|7z)\Z", re.IGNORECASE)
_BRACKETED = re.compile(r"[(\[{]([^()\[\]{}]{1,60})[)\]}]")
_VERSION = re.compile(r"v?[0-9]{1,2}(?:\.[0-9]{1,2}){1,2}|v[0-9]{1,2}|(?:1[5-9]|20)[0-9]{2}")
_LOOSE = re.compile(
    r"(?:\s*[-,.]\s*retail|[\s.,-]+(?:e-?pub|mobi|azw3|v[0-9]+(?:\.[0-9]+)+))\Z", re.IGNORECASE
)

_DASHES = "\N{EN DASH}\N{EM DASH}"
_OTHER_TITLE = re.compile(
    r"\s*(?:[;:,]\s+or[,:;]|[;:]\s+or|,\s+or(?=\s+(?:the|a|an|how)\s))\s+", re.IGNORECASE
)
_SUBTITLE = re.compile(f"\\s*:\\s+|\\s+:\\s*|\\s+[{_DASHES}]\\s+")
_RESPONSIBILITY = re.compile(r"\s+/\s*")
_ARTICLE_LAST = re.compile(r"\A(.+), (the|a|an|le|la|les|der|die|das|el|los|las|il|lo)\Z")

_APOSTROPHES = dict.fromkeys(
    map(
        ord,
        "'\N{LEFT SINGLE QUOTATION MARK}"
        "\N{RIGHT SINGLE QUOTATION MARK}\N{MODIFIER LETTER APOSTROPHE}`\N{SOFT HYPHEN}",
    )
)
_UNDECOMPOSED = str.maketrans({
    "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ı": "i", "ħ": "h",
})  # fmt: skip

_ACCENT = re.compile("[\N{COMBINING GRAVE ACCENT}-\N{COMBINING LATIN SMALL LETTER X}]")
"""Combining marks of Latin, Greek and Cyrillic; other scripts need theirs."""

_PARTICLES = list_words(
    "af al ap av bin da dal das de del della den der des di dos du el ibn la las le lo los mac",
    "st saint san santa ten ter van vande vander vanden von zu zum zur",
)
_SUFFIXES = list_words("jr sr ii iii iv phd md dphil esq mba junior senior")
_HONORIFICS = list_words("mr mrs ms miss dr prof professor sir dame lady lord rev reverend")
_ROLES = re.compile(
    r"\A(?:written\s+)?by\s+|\s*[(\[][^)\]]*[)\]]|,?\s*\b(?:authors?|editors?|translators?)\s*\Z",
    re.IGNORECASE,
)
_AND = re.compile(r"\s*[;|]\s*|\s+(?:and|&)\s+", re.IGNORECASE)


@dataclass(frozen=True)
class Title:
    """The areas of a title: proper title, other title information, statement of responsibility."""

    title: str
    subtitle: str = ""
    responsibility: str = ""


def split_title(text: str) -> Title:
    """The areas of a title in ISBD form, or with a plain colon; an alternative title is a subtitle.

    >>> split_title("Negrophobia: an urban parable: a novel / Darius James.")
    Title(title='Negrophobia', subtitle='an urban parable: a novel', responsibility='Darius James')
    >>> split_title("Moby-Dick; or, The Whale")
    Title(title='Moby-Dick', subtitle='or, The Whale', responsibility='')
    >>> split_title("9/11")
    Title(title='9/11', subtitle='', responsibility='')
    """
    whole, *responsibility = _RESPONSIBILITY.split(" ".join(text.split()), maxsplit=1)
    other = _OTHER_TITLE.search(whole)
    plain = _SUBTITLE.search(whole)
    cut = min((match for match in (other, plain) if match), key=lambda f: f.start(), default=None)
    if cut is None or not cut.start() or cut.end() == len(whole):
        title, subtitle = whole, ""
    else:
        title, subtitle = (
            whole[: cut.start()],
            whole[cut.start() :].lstrip(f" ;:,{_DASHES}"),
        )
    by = _strip_end(responsibility[0]) if responsibility else ""
    return Title(_strip_end(title) if by or subtitle else title.strip(), _strip_end(subtitle), by)


def _strip_end(area: str) -> str:
    """An area without the full stop that ends a record; `etc.` and `Jr.` lose theirs too."""
    stripped = area.strip()
    return stripped if stripped.endswith("...") else stripped.removesuffix(".").rstrip()


def strip_noise(text: str) -> str:
    """A title or file name without what names a file, not a work: format, `(retail)`, `v5.0`, a
    year in brackets. Underscores are spaces. What would leave nothing stays.

    >>> strip_noise("James_Darius-Negrophobia_(retail)_(v5.0).epub.txt")
    'James Darius-Negrophobia'
    >>> strip_noise("Negrophobia (novel) [1992]"), strip_noise("(1984)")
    ('Negrophobia (novel)', '(1984)')
    """
    title = text.replace("_", " ")
    previous = None
    while title != previous:
        previous = title
        title = _SUFFIX.sub("", title.strip())
        title = _BRACKETED.sub(_replace_noise, title)
        title = _LOOSE.sub("", title)
    title = " ".join(title.split())
    return title if any(map(str.isalnum, title)) else " ".join(text.split())


def _replace_noise(group: re.Match[str]) -> str:
    words = re.split(r"[\s,;/+]+|(?<=[a-z])\.(?=[a-z])", group[1].lower().strip())
    is_noise = all(word.strip(".") in _NOISE or _VERSION.fullmatch(word) for word in words)
    return " " if is_noise else group[0]


def normalise_title(text: str) -> str:
    """A title or a part of one, for comparison: noise stripped, case and accents folded, `&` is
    `and`, apostrophes dropped, every other sign a space, an article at the end moved to the front.

    It does not split: `normalise_title(split_title(text).title)` is the proper title's.

    >>> normalise_title("That's blaxploitation!"), normalise_title("Time Machine, The (epub)")
    ('thats blaxploitation', 'the time machine')
    >>> normalise_title("Pride & Prejudice"), normalise_title("Les Misérables")
    ('pride and prejudice', 'les miserables')
    """
    title = _fold(strip_noise(text)).strip()
    title = _ARTICLE_LAST.sub(r"\2 \1", title)
    return _join_words(title.replace("&", " and "))


def _fold(text: str) -> str:
    compatible = unicodedata.normalize("NFKC", text).casefold().translate(_APOSTROPHES)
    if compatible.isascii():
        return compatible
    apart = unicodedata.normalize("NFKD", compatible.translate(_UNDECOMPOSED))
    return unicodedata.normalize("NFC", _ACCENT.sub("", apart))


class _WordTable(dict[int, str | int]):
    """For `str.translate`: letters, digits, marks and the characters of `keep` stay, any other is a
    space. Each character is looked at once."""

    def __init__(self, keep: str) -> None:
        self._keep = keep

    def __missing__(self, point: int) -> str | int:
        c = chr(point)
        stays = c.isalnum() or c in self._keep or unicodedata.category(c)[0] == "M"
        return self.setdefault(point, point if stays else " ")


_WORD_TABLES = {keep: _WordTable(keep) for keep in ("", "-")}


def _join_words(text: str, keep: str = "") -> str:
    """Letters, digits and marks; anything else is one space."""
    return " ".join(text.translate(_WORD_TABLES[keep]).split())


def make_author_key(name: str) -> tuple[str, str]:
    """(surname, initial of the first name), folded, of a name in either order; ("", "") for none.

    Particles belong to the surname; dates, roles, honorifics and `Jr.` do not count.

    >>> [make_author_key(name) for name in ("James, Darius, 1954-", "DARIUS JAMES", "Voltaire")]
    [('james', 'd'), ('james', 'd'), ('voltaire', '')]
    >>> make_author_key("Ursula K. Le Guin"), make_author_key("Gogh, Vincent van")
    (('le guin', 'u'), ('van gogh', 'v'))
    """
    surname, first_names = _split_name(name)
    return surname, first_names[:1]


def normalise_author(name: str) -> str:
    """The whole name, folded, first names first.

    >>> normalise_author("James, Darius, 1954-"), normalise_author("Tolkien, J.R.R.")
    ('darius james', 'j r r tolkien')
    """
    surname, first_names = _split_name(name)
    return f"{first_names} {surname}".strip()


def _split_name(name: str) -> tuple[str, str]:
    parts = [_list_name_words(part) for part in _ROLES.sub("", name.replace("_", " ")).split(",")]
    parts = [part for part in parts if part]
    if not parts:
        return "", ""
    if len(parts) > 1:
        end = _find_particles(parts[1], len(parts[1]))
        return " ".join([*parts[1][end:], *parts[0]]), " ".join(parts[1][:end])
    words = parts[0]
    start = _find_particles(words, len(words) - 1)
    return " ".join(words[start:]), " ".join(words[:start])


def _find_particles(words: list[str], place: int) -> int:
    """Where the particles that end at `place` begin; the first word is none."""
    while place > 1 and words[place - 1] in _PARTICLES:
        place -= 1
    return place


def _list_name_words(part: str) -> list[str]:
    words = _join_words(_fold(part), keep="-").split()
    words = [w.strip("-") for w in words if any(map(str.isalpha, w))]
    while len(words) > 1 and words[0] in _HONORIFICS:
        words = words[1:]
    while words and words[-1] in _SUFFIXES and len(words) != 1:
        words = words[:-1]
    return [] if len(words) == 1 and words[0] in _SUFFIXES | _HONORIFICS else words


def split_authors(text: str) -> tuple[str, ...]:
    """The names in a list of authors, as written. Names are parted by `;`, `|`, `and` or `&`; by
    commas only where each part is a whole name next to others that are.

    >>> split_authors("Darius James; Roe, Jane"), split_authors("A. Roe, B. Doe and C. Poe")
    (('Darius James', 'Roe, Jane'), ('A. Roe', 'B. Doe', 'C. Poe'))
    >>> split_authors("James, Darius"), split_authors("  ")
    (('James, Darius',), ())
    """
    parts = [" ".join(part.split()).strip(" ,") for part in _AND.split(text)]
    names = [name for part in parts for name in _split_at_commas(part, len(parts))]
    return tuple(dict.fromkeys(filter(None, names)))


def _split_at_commas(part: str, parts: int) -> list[str]:
    pieces = [piece.strip() for piece in part.split(",")]
    surname_first = pieces[0].partition(" ")[0].casefold() in _PARTICLES
    is_list = len(pieces) > 1 and len(pieces) + parts > 3 and all(" " in p for p in pieces)
    return pieces if is_list and not surname_first else [part]


_HYPHENS = "-\N{HYPHEN}\N{NON-BREAKING HYPHEN}\N{FIGURE DASH}\N{EN DASH}\N{EM DASH}\N{MINUS SIGN}"
_SEPARATORS = re.compile(f"[{_HYPHENS}\\s]+")
_ISBN_LABEL = re.compile(r"\s*ISBN(?:[- ]?1[03](?=[\s:#]))?\s*[:#]?\s*", re.IGNORECASE)
_ISBN10 = re.compile(r"[0-9]{9}[0-9X]")
_ISBN13 = re.compile(r"97(?:8[0-9]|9[1-9])[0-9]{9}")
_DOI_LABEL = re.compile(r"\s*(?:https?://(?:dx\.)?doi\.org/|doi\s*:?\s*)", re.IGNORECASE)
_DOI = re.compile(r"10\.[0-9]{4,9}(?:\.[0-9]+)*/[\x21-\x7e]+")
_ASIN = re.compile(r"B0[0-9A-Z]{8}")
_LCCN = re.compile(r"(?:[a-z]{0,3}[0-9]{8}|[a-z]{0,2}[0-9]{10})")
_USCO = re.compile(
    f"(TXU|VAU|PAU|SRU|PRE|TX|VA|PA|SR|SE|MW|RE)[{_HYPHENS}\\s]{{0,2}}"
    f"([0-9]{{7,10}}|[0-9]{{1,4}}(?:[{_HYPHENS}\\s][0-9]{{3}}){{1,3}})",
    re.IGNORECASE,
)
_USCO_LENGTH = 12
_USCO_WRITTEN = 7
_USCO_SHORTEST = 5


def normalise_isbn(text: str) -> str | None:
    """The 13 digits of an ISBN-10 or ISBN-13 whose check digit is right; hyphens, spaces and a
    leading "ISBN" are passed over.

    >>> [normalise_isbn(t) for t in ("0-306-40615-2", "ISBN-13: 978 0 306 40615 7", "0306406153")]
    ['9780306406157', '9780306406157', None]
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


def normalise_doi(text: str) -> str | None:
    """A DOI in lower case, without "doi:", "https://doi.org/" or punctuation after it.

    >>> [normalise_doi(t) for t in ("https://doi.org/10.1000/ABC", "doi:10.1000/182.", "10.10/x")]
    ['10.1000/abc', '10.1000/182', None]
    """
    label = _DOI_LABEL.match(text)
    number = (text[label.end() :] if label else text).strip().rstrip(".,;:\"'")
    for opening, closing in ("()", "[]", "<>"):
        if number.endswith(closing) and number.count(closing) > number.count(opening):
            number = number[:-1]
    return number.lower() if _DOI.fullmatch(number) and not number.endswith("/") else None


def normalise_asin(text: str) -> str | None:
    """An ASIN, `B0` and eight more, in capitals. It has no check digit. The ASIN of a printed book
    is its ISBN-10: see `normalise_isbn`.

    >>> normalise_asin("b00icn066a"), normalise_asin("0306406152")
    ('B00ICN066A', None)
    """
    number = text.strip().upper()
    return number if _ASIN.fullmatch(number) else None


def normalise_lccn(text: str) -> str | None:
    """A Library of Congress control number in its normal form.

    >>> [normalise_lccn(t) for t in ("n78-890351", "85-2 ", " 79139101 /AC/r932", "2001-1234567")]
    ['n78890351', '85000002', '79139101', None]
    """
    number = re.sub(r"\s", "", text).partition("/")[0].lower()
    year, hyphen, serial = number.partition("-")
    if hyphen:
        if not re.fullmatch(r"[0-9]{1,6}", serial):
            return None
        number = year + serial.zfill(6)
    return number if _LCCN.fullmatch(number) else None


def normalise_usco(text: str) -> str | None:
    """A number of the US Copyright Office as its catalogue writes it: prefix and digits, 12
    characters in all. Digits are together (seven and more) or in groups of three: a state and a
    ZIP code such as "TX 75201" is none. A low number counts where its zeros are written, seven
    digits in all.

    >>> [normalise_usco(t) for t in ("TX 3-372-564", "tx-3-372-564", "TXu 1-234-567", "TX 75201")]
    ['TX0003372564', 'TX0003372564', 'TXu001234567', None]
    >>> [normalise_usco(t) for t in ("TX 0-000-001", "TX 000-001", "TX 0-000-000")]
    ['TX0000000001', None, None]
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
