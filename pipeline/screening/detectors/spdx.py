"""What a data set says of its licence, as an SPDX expression, and how much that allows.

Identifiers, aliases and categories come from the licence index of license-expression (ScanCode's);
what it lacks, from rules for families of licences and from `licence_names`. A value is known only
if every part of it is: nothing is guessed. A licence found is a statement found, not a title.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from dedup.compiled import source_digest
from dedup.user_cache import keep_cached, read_cached
from pipeline.screening.detectors import licence_names

RANKS = {
    name: rank
    for rank, name in enumerate(
        ("public-domain", "permissive", "share-alike", "restricted", "reserved")
    )
}
"""Families of licences, by what they ask for. Restricted: no commercial use, no derivatives, no
fields of use or a proprietary licence. Reserved: no licence at all."""

_CATEGORIES = {
    "Public Domain": "public-domain",
    "Permissive": "permissive",
    "Copyleft": "share-alike",
    "Copyleft Limited": "share-alike",
    "Source-available": "restricted",
    "Free Restricted": "restricted",
    "Proprietary Free": "restricted",
    "Commercial": "restricted",
}
_LONGEST = 300
"""Characters; a longer value is a text, not a licence."""

_DEEPEST = 5
_TOKENS = re.compile(r"[()]|[^\s()]+")
_NO_TOKEN = re.compile(r"[^\w\s().+:-]")
_FILLERS = re.compile(r"\b(?:the|licen[cs]es?|licen[cs]ed|licensing|version|under|an?|terms|of)\b")
_TRAILING = re.compile(r"(?: (?:text|texts|repo|repository|code|data|dataset|content|contents))+\Z")
_REMARK = re.compile(r"[(\[]([^()\[\]]*)[)\]]")
_OR = re.compile(r"\s+or\s+|\s*[/|]\s*", re.IGNORECASE)
_AND = re.compile(r"\s+and\s+|\s*[,;&]\s*|\s+\+\s+", re.IGNORECASE)
_BARE_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)\Z")
_CC_WORDS = (
    (re.compile(r"\b(?:creative commons|ccby)\b"), "cc"),
    (re.compile(r"\battribution\b"), "by"),
    (re.compile(r"\bnon ?commercial\b"), "nc"),
    (re.compile(r"\bshare ?alike\b"), "sa"),
    (re.compile(r"\bno ?deriv(?:ative|ativework|ative work)?s?\b"), "nd"),
    (re.compile(r"\b(?:international|intl|unported|generic|universal)\b"), ""),
)
_CC = re.compile(r"(?:cc )?by((?: (?:nc|nd|sa))*)(?: (\d)(?:\.(\d))?)?(?: ([a-z]{2,3}))?\Z")
_CC_ZERO = re.compile(r"cc ?(?:zero|0)(?: 1(?:\.0)?)?(?: public domain dedication)?\Z")
_GNU = re.compile(
    r"(?:gnu )?(?P<name>agpl|lgpl|gpl|gfdl|fdl|(?:affero |lesser |library )?(?:gpl|general public)|"
    r"free documentation) ?(?P<number>\d(?:\.\d)?)?(?: ?\.0)?"
    r"(?P<later> ?\+| or (?:any )?(?:later|newer)| plus)?(?: only)?\Z"
)
_GNU_NAMES = {"a": "AGPL", "l": "LGPL", "f": "GFDL", "g": "GPL"}
_GNU_VERSIONS = {
    "GPL": {"1": "1.0", "2": "2.0", "3": "3.0"},
    "LGPL": {"2": "2.0", "2.1": "2.1", "3": "3.0"},
    "AGPL": {"1": "1.0", "3": "3.0"},
    "GFDL": {"1.1": "1.1", "1.2": "1.2", "1.3": "1.3"},
}
_OLDEST = {"GPL": "1.0", "LGPL": "2.0", "AGPL": "1.0", "GFDL": "1.1"}
_BSD = re.compile(
    r"(?:(new|modified|revised|simplified|free ?bsd|original|(?:[1-4]|two|three|four) clause) )?"
    r"bsd(?: (style|like|type))?(?: ?(0|1|2|3|4|two|three|four)(?: ?clauses?)?)?\Z"
)
_BSD_CLAUSES = {
    "new": "3", "modified": "3", "revised": "3", "simplified": "2", "freebsd": "2",
    "free bsd": "2", "original": "4", "two": "2", "three": "3", "four": "4",
}  # fmt: skip
_CC_URL = re.compile(
    r"creativecommons\.org/(?:licenses|publicdomain)/(by(?:-(?:nc|nd|sa))*|zero|mark)"
    r"(?:/(\d\.\d))?(?:/([a-z]{2,3}))?",
    re.IGNORECASE,
)
_URLS = (
    (re.compile(r"(?:opensource|spdx)\.org/licenses?/([\w.+-]+?)(?:\.html|\.php)?/?\Z"), ""),
    (re.compile(r"choosealicense\.com/licenses/([\w.+-]+)"), ""),
    (re.compile(r"gnu\.org/(?:licenses|copyleft)/(?:old-licenses/)?([al]?gpl|fdl)(-\d\.\d)?"), ""),
    (re.compile(r"apache\.org/licenses/license-(2\.0|1\.1|1\.0)"), "apache-"),
    (re.compile(r"mozilla\.org/(?:[a-z]{2}-[a-z]{2}/)?mpl/(2\.0|1\.1)"), "mpl-"),
    (re.compile(r"opendatacommons\.org/licenses/(by|odbl|pddl)"), "odc-"),
    (re.compile(r"unlicense\.org()"), "unlicense"),
)


@dataclass(frozen=True)
class SpdxLicence:
    """An SPDX expression and its family, one of `RANKS`; both empty for what is not known."""

    spdx: str = ""
    family: str = ""


UNKNOWN = SpdxLicence()


def look_up_licences(values: Iterable[str]) -> pa.Table:
    """What each distinct declared licence means.

    Columns: declared, spdx (empty when not known), known (bool), family; sorted by declared.
    """
    distinct = sorted(set(values))
    licences = [normalise_licence(value) for value in distinct]
    return pa.table(
        {
            "declared": pa.array(distinct, pa.string()),
            "spdx": pa.array([licence.spdx for licence in licences], pa.string()),
            "known": pa.array([bool(licence.spdx) for licence in licences], pa.bool_()),
            "family": pa.array([licence.family for licence in licences], pa.string()),
        }
    )


@lru_cache(maxsize=4096)
def normalise_licence(value: str) -> SpdxLicence:
    """The licence that a declared value names.

    Remarks in brackets are put aside; where the rest is not known, they are tried. A slash, a bar
    and "or" offer a choice; a comma, a semicolon, "&" and "and" ask for all.

    >>> normalise_licence("CC BY-SA 3.0 / 4.0").spdx
    'CC-BY-SA-3.0 OR CC-BY-SA-4.0'
    >>> normalise_licence("GPL-2+").spdx, normalise_licence("user comments").spdx
    ('GPL-2.0-or-later', '')
    """
    if len(value) > _LONGEST:
        return UNKNOWN
    whole = value.strip().strip("'\"")
    rest = _REMARK.sub(" ", whole).strip()
    candidates = [whole, rest, *_REMARK.findall(whole)]
    expression = next((parsed for c in candidates if c and (parsed := _find_expression(c))), "")
    return parse_expression(expression) if expression else UNKNOWN


@lru_cache(maxsize=4096)
def parse_expression(expression: str) -> SpdxLicence:
    """An SPDX expression in its canonical form, or `UNKNOWN` if it is none."""
    key = _load_index().aliases.get(expression, expression)
    if family := _find_family_of(key):  # nothing to parse, and the parser takes long to make
        return SpdxLicence(key, family)
    tree = _parse(expression)
    return SpdxLicence(tree.render(), _find_family(tree)) if tree is not None else UNKNOWN


def read_licence_address(url: str) -> str:
    """The SPDX identifier of the licence at a well-known address, or "".

    >>> read_licence_address("https://creativecommons.org/licenses/by-sa/3.0/de/legalcode")
    'CC-BY-SA-3.0-DE'
    """
    match = _CC_URL.search(url)
    if match:
        return _make_cc_identifier(match[1].lower(), match[2], (match[3] or "").upper())
    address = url.strip().lower().rstrip("/")
    for pattern, prefix in _URLS:
        if match := pattern.search(address):
            return _look_up_name(fold_name(prefix + "".join(part or "" for part in match.groups())))
    return ""


def fold_name(value: str) -> str:
    """The form in which names are compared.

    >>> fold_name("the Apache License, Version 2.0"), fold_name("CC-BY-SA-4.0")
    ('apache 2.0', 'cc by sa 4.0')
    """
    text = re.sub(r"[^a-z0-9.+]+", " ", value.casefold())
    text = re.sub(r"(?<![a-z])v\.? ?(?=\d)|(?<=pl)v ?(?=\d)", " ", _FILLERS.sub(" ", text))
    text = " ".join(text.split()).rstrip(". ")
    return _TRAILING.sub("", text)


def _find_expression(value: str) -> str:
    if "://" in value or "creativecommons.org" in value.lower():
        return read_licence_address(value)
    if identifier := _look_up_name(fold_name(value)):
        return identifier
    tree = _parse(value)
    if tree is not None:
        return str(tree.render())
    for pattern, operator in ((_AND, "AND"), (_OR, "OR")):
        parts = [part for part in pattern.split(value) if part.strip()]
        if 1 < len(parts) <= 8:
            return _join_expressions(parts, operator)
    return ""


def _join_expressions(parts: list[str], operator: str) -> str:
    """The expression of all parts, "" unless each is known. A bare version takes the name before
    it."""
    expressions: list[str] = []
    before = ""
    for part in parts:
        version = _BARE_VERSION.match(part.strip())
        if version and before:
            part = f"{re.sub(r'[ -]*v?[0-9.]+$', '', before)} {version[1]}"
        expression = _find_expression(part)
        if not expression:
            return ""
        before = part.strip()
        expression = f"({expression})" if " " in expression else expression
        if expression not in expressions:
            expressions.append(expression)
    return f" {operator} ".join(expressions)


def _look_up_name(name: str) -> str:
    return (
        licence_names.SPELLINGS.get(name)
        or _load_index().identifiers.get(name)
        or _read_cc_name(name)
        or _read_gnu_name(name)
        or _read_bsd_name(name)
        or _read_public_domain(name)
    )


def _read_cc_name(name: str) -> str:
    for pattern, short in _CC_WORDS:
        name = pattern.sub(short, name)
    name = " ".join(name.split())
    if _CC_ZERO.match(name):
        return "CC0-1.0"
    match = _CC.match(name)
    if not match or not (name.startswith("cc ") or match[1] or match[2]):
        return ""
    parts = set(match[1].split())
    kind = "-".join(["by", *(part for part in ("nc", "nd", "sa") if part in parts)])
    version = f"{match[2]}.{match[3] or 0}" if match[2] else ""
    return _make_cc_identifier(kind, version, (match[4] or "").upper())


def _make_cc_identifier(kind: str, version: str | None, port: str) -> str:
    """kind: by, by-nc-sa, zero, mark. A port without an identifier of its own is left out."""
    if kind in ("zero", "mark"):
        return "CC0-1.0" if kind == "zero" else "CC-PDM-1.0"
    if kind not in licence_names.UNVERSIONED or not version:
        return licence_names.UNVERSIONED.get(kind, "")
    identifiers = _load_index().identifiers
    for name in (f"CC-{kind}-{version}-{port}", f"CC-{kind}-{version}"):
        if identifier := identifiers.get(fold_name(name)):
            return identifier
    return licence_names.UNVERSIONED[kind]


def _read_gnu_name(name: str) -> str:
    match = _GNU.match(name)
    if not match:
        return ""
    short = match["name"].removeprefix("library ").replace("gfdl", "fdl")
    short = {"library": "l"}.get(match["name"].split()[0], short[0])
    family = _GNU_NAMES["g" if short == "g" else short]
    if not match["number"]:
        return f"{family}-{_OLDEST[family]}-or-later"
    version = _GNU_VERSIONS[family].get(match["number"].removesuffix(".0"))
    return f"{family}-{version}-{'or-later' if match['later'] else 'only'}" if version else ""


def _read_bsd_name(name: str) -> str:
    match = _BSD.match(name)
    if not match:
        return ""
    clauses = match[3] or (match[1] or "").removesuffix(" clause")
    clauses = _BSD_CLAUSES.get(clauses, clauses)
    if not clauses or match[2]:
        return licence_names.BSD
    return "0BSD" if clauses == "0" else f"BSD-{clauses}-Clause"


def _read_public_domain(name: str) -> str:
    if re.search(r"\b(?:us|usa|united states) (?:gov|government|govt)\b", name) and (
        "public domain" in name or name.endswith("work")
    ):
        return licence_names.US_GOVERNMENT
    if re.match(r"public domain mark\b", name):
        return "CC-PDM-1.0"
    return licence_names.PUBLIC_DOMAIN if re.match(r"public domain\b(?! dedication)", name) else ""


class _Index(NamedTuple):
    """Plain name to SPDX identifier, identifier to category, and former identifier to the one of
    today."""

    identifiers: dict[str, str]
    categories: dict[str, str]
    aliases: dict[str, str]


@cache
def _load_index() -> _Index:
    """Kept in the user's cache: to read the whole index and to fold its names takes longer than all
    else about a licence."""
    name = f"{source_digest(Path(__file__).parent)}-{version('license-expression')}.json"
    kept = read_cached("licences", name)
    if kept is None:
        kept = json.dumps(_read_index()).encode()
        keep_cached(kept, "licences", name)
    return _Index(*json.loads(kept))


def _read_index() -> _Index:
    from license_expression import get_license_index

    index = [
        entry
        for entry in get_license_index()
        if entry["spdx_license_key"] and entry["category"] != "Unstated License"
    ]
    categories = {entry["spdx_license_key"]: entry["category"] for entry in index}
    aliases = {
        alias: entry["spdx_license_key"]
        for entry in index
        for alias in entry["other_spdx_license_keys"]
        if " " not in alias  # as in no name of an expression
    }
    return _Index(_fold_names(index), categories, aliases)


def _fold_names(index: list[dict[str, Any]]) -> dict[str, str]:
    """Plain name to SPDX identifier; the index's own key comes before its aliases."""
    identifiers: dict[str, str] = {}
    entries = [entry for entry in index if not entry["is_exception"]]
    for key in ("spdx_license_key", "license_key"):
        for entry in entries:
            identifiers.setdefault(fold_name(entry[key]), entry["spdx_license_key"])
    for entry in entries:
        for alias in entry["other_spdx_license_keys"]:
            identifiers.setdefault(fold_name(alias), entry["spdx_license_key"])
    return {name: spdx for name, spdx in identifiers.items() if name}


@cache
def _load_licensing() -> Any:
    from license_expression import get_spdx_licensing

    return get_spdx_licensing()


def _parse(value: str) -> Any:
    if not _is_well_formed(value):
        return None
    from license_expression import ExpressionError

    try:
        tree = _load_licensing().parse(value)
    except ExpressionError:
        return None
    is_known = all(
        key in licence_names.FAMILIES or key in _load_index().categories
        for key in _load_licensing().license_keys(tree)
    )
    return tree if is_known else None


def _is_well_formed(value: str) -> bool:
    """Whether names and operators alternate and brackets match: the parser is not made for less."""
    depth, name_next = 0, True
    for word in _TOKENS.findall(value):
        is_operator = word.lower() in ("and", "or", "with")
        if word == "(" or not (is_operator or word == ")"):
            if not name_next:
                return False
            depth += word == "("
            name_next = word == "("
        else:
            if name_next:
                return False
            depth -= word == ")"
            name_next = word != ")"
        if not 0 <= depth <= _DEEPEST:
            return False
    return depth == 0 and not name_next and not _NO_TOKEN.search(value)


def _find_family(tree: Any) -> str:
    """Of a choice the family that asks least, of several licences together the one that asks most;
    "" where one part says nothing."""
    if not tree.args:
        return _find_family_of(str(getattr(tree, "license_symbol", tree).key))
    families = [_find_family(part) for part in tree.args]
    if not all(families):
        return ""
    choose = min if tree.operator.strip() == "OR" else max
    return str(choose(families, key=lambda family: RANKS[family]))


def _find_family_of(key: str) -> str:
    category = _load_index().categories.get(key, "")
    return licence_names.FAMILIES.get(key) or _CATEGORIES.get(category, "")
