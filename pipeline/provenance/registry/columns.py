"""The names that lists give to the fields of a work."""

import difflib
import re

_NAMES = {
    "work_id": "work id | work key",
    "title_raw": "title | title raw | work title | title of work | book title | full title | "
                 "application title",
    "subtitle": "subtitle | sub title",
    "authors": "author | authors | author s | author name | author names | creator | creators | "
               "written by",
    "publisher": "publisher | publisher name | imprint",
    "claimant": "claimant | claimants | copyright claimant | copyright claimants | "
                "copyright owner | rightsholder | rights holder | owner",
    "reg_no": "registration number | reg no | registration no | registration | reg number | "
              "registration numbers | copyright registration number | copyright registration | "
              "copyright reg no | us copyright registration number | usco registration number | "
              "us registration number | registration number s | tx number",
    "reg_date": "registration date | reg date | date of registration | "
                "effective date of registration | copyright registration date",
    "pub_date": "publication date | pub date | date of publication | publication year | "
                "year of publication | pub year | year | published",
    "isbn13": "isbn | isbn13 | isbn 13 | isbn10 | isbn 10 | isbns | isbn s | isbn number | "
              "isbn asin | isbn or asin | asin isbn | isbn or asin number | isbn13 s",
    "asin": "asin | asins",
    "doi": "doi",
    "lccn": "lccn | loc control number",
    "catalog_url": "catalog url | catalogue url | catalog link | usco link | url | link",
    "jurisdiction": "jurisdiction | country",
    "status": "status",
    "basis": "basis",
    "scope": "scope",
    "contact": "contact | contact email | email",
    "legal_hold": "legal hold | hold",
    "effective_from": "effective from",
    "effective_to": "effective to",
    "tier": "tier",
    "text": "text | text file | text path",
}  # fmt: skip
"""Field of a work -> names of columns, folded. `text` is a path, not a field."""

_FIELD_OF = {name.strip(): field for field, names in _NAMES.items() for name in names.split("|")}


def field_of(column: str) -> str | None:
    """The field that a column's name means.

    >>> field_of("Author(s)"), field_of("ISBN / ASIN"), field_of("title_raw"), field_of("colour")
    ('authors', 'isbn13', 'title_raw', None)
    """
    return _FIELD_OF.get(_folded(column))


def find_nearest(column: str) -> str | None:
    """The known name of a column that is most like an unknown one, if any is."""
    close = difflib.get_close_matches(_folded(column), _FIELD_OF, n=1, cutoff=0.7)
    return close[0].replace(" ", "_") if close else None


def _folded(column: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", column.lower().replace(".", "")).strip()
