"""What a rule can ask about, what it can ask, and what it says.

What a rule can ask about: every detector with the attributes of its evidence rows.

An attribute is a column of the evidence, or a key of its JSON column `attributes`. `kind`,
`target`, `work_id`, `seen` and `score` exist for every detector; a name that a detector lists
itself, such as `origin.family`, reads the same row. `work` is the work of the registry that
`work_id` names, `document` the document's own record.

What a condition asks of one attribute.

    origin.family: books3                  # equal
    origin.family: [books3, bibliotik]     # one of these
    text_match.work_id: any                # there is one: not empty
    text_match.words: ">=50"               # also > <= <; numbers, and times such as "<2024-01-01"
    work.status: {not: licensed}           # the opposite, which holds for a missing value too

Text is compared exactly. A missing value, the empty text included, fulfils nothing but a `not`.

Reasons: a rule's sentence with `{DETECTOR.ATTRIBUTE}` filled in from the evidence that matched.

Values come from documents, so they are cut and shown without control characters, and braces in them
mean nothing.
"""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.core.errors import escape_text
from pipeline.core.words import did_you_mean

DECISIONS = ("allow", "review", "redact", "quarantine", "drop")
"""As in `pipeline.screening.evidence`, which needs Arrow; a test compares them."""

Type = Literal["text", "number", "time", "truth"]


@dataclass(frozen=True)
class Attribute:
    """One thing that a condition or a reason can name.

    `column` is a column of the evidence, of the works or of the documents; empty: the key `name` of
    the evidence's `attributes`. `choices`: all values there are, where that is known. A `time` is
    ISO 8601 in UTC, compared as text.
    """

    name: str
    type: Type
    meaning: str
    column: str = ""
    choices: tuple[str, ...] = ()


def _text(name: str, meaning: str, column: str = "") -> Attribute:
    return Attribute(name, "text", meaning, column)


def _choice(name: str, meaning: str, *choices: str) -> Attribute:
    return Attribute(name, "text", meaning, "", choices)


def _number(name: str, meaning: str, column: str = "") -> Attribute:
    return Attribute(name, "number", meaning, column)


def _kind(*choices: str) -> Attribute:
    return Attribute("kind", "text", "what was found", "kind", choices)


COMMON = (
    _text("kind", "what was found", "kind"),
    _text("target", "what it names, such as a family or a number", "target"),
    _text("work_id", "id of the work in the registry", "work_id"),
    _text("seen", "the text that was found, at most 200 bytes", "seen"),
    _number("score", "the detector's own score", "score"),
)
"""Attributes of every detector."""

OWN: dict[str, tuple[Attribute, ...]] = {
    "artefact": (
        _kind("file", "text"),
        _text("family", "the listed family, such as bibliotik", "target"),
        _text("list", "name of the list that has the hash"),
        _text("list_version", "version of the list"),
    ),
    "origin": (
        _kind("label", "host", "path", "filename", "magnet", "repository"),
        _text("family", "the listed family, such as books3", "target"),
        _text("list", "name of the list; shapes: not a list, but the form of a file name or link"),
        _text("list_version", "version of the list"),
    ),
    "marker": (
        _kind("download", "mention"),
        _text("family", "the listed family that the text names", "target"),
        _choice("form", "how it is named", "name", "host", "link"),
        _number("places", "how often the text mentions it"),
        _text("list", "name of the list"),
        _text("list_version", "version of the list"),
    ),
    "identifier": (
        _kind("isbn", "doi", "lccn", "asin", "usco"),
        _number("places", "how often it is in the text"),
    ),
    "notice": (
        _kind("copyright", "rights_reserved", "reproduction", "cip", "public_domain_statement"),
        _text("holder", "who is named in a copyright line"),
        _number("year", "the latest year of a copyright line"),
        _number("places", "how often it is in the text"),
    ),
    "licence": (
        _kind("declared", "statement", "conflict"),
        _text("spdx", "an SPDX expression", "target"),
        _text("declared", "what the metadata declares"),
        _choice("family", "kind of licence", "public-domain", "permissive",
                "share-alike", "restricted", "reserved", "unknown"),
        _text("basis", "what the statement was recognised by"),
        _choice("confidence", "high: the text states it about itself", "high", "low"),
    ),
    "optout": (
        _kind("signal", "listed"),
        _text("signal", "the kind of signal or of list entry, such as robots or domain"),
        _choice("status", "what it says", "reserved", "allowed"),
        Attribute("captured_at", "time", "when it was captured"),
        _choice("timing", "capture before or after acquisition", "before", "after", "unknown"),
        Attribute("acquired_at", "time", "when the document was acquired, as its metadata says"),
        _text("url", "the address it was captured for"),
        _text("agents", "the user agents that are refused"),
        _text("policy", "the address of a rights policy"),
        _text("note", "note in the local list"),
    ),
    "title_author": (
        _kind("title_author", "title"),
        _number("title_score", "similarity of the titles, 0 to 1"),
        _choice("author", "how much of the author's name agrees", "full", "initial", "surname",
                "absent"),
        _number("rare_words", "number of rare words in both titles"),
        _text("where", "where it was found: a key of the metadata, or text"),
    ),
    "text_match": (
        _number("hits", "fingerprints in one diagonal band", "score"),
        _number("document_fraction", "share of the document's words that match the work, 0 to 1"),
        _number("work_fraction", "share of the work's words that match the document, 0 to 1"),
        _number("longest_run_words", "longest run of equal words, estimated if not verified"),
        _number("words", "words of the passage, including edited ones"),
        _choice("tier", "the index tier of the work", "excerpt", "whole_book"),
        _number("containment", "share of the passage that is in the work, 0 to 1"),
        Attribute("verified", "truth", "whether the passage was compared with the reference text"),
    ),
    "review": (
        _kind("current", "outdated"),
        Attribute("decision", "text", "what a person decided", "target", DECISIONS),
        _text("by", "who decided"),
        _text("note", "why, in words"),
        _number("event", "number of the event in the event log"),
    ),
}  # fmt: skip
"""Attributes that are a detector's own."""

DETECTORS: dict[str, tuple[Attribute, ...]] = {
    name: (*own, *(a for a in COMMON if a.name not in {o.name for o in own}))
    for name, own in OWN.items()
}
"""Attributes by detector, its own ones first."""

WORK = (
    Attribute("status", "text", "status of the work in the registry", "status",
              ("asserted", "verified", "licensed", "public_domain")),
    Attribute("legal_hold", "truth", "whether copies must be kept", "legal_hold"),
    _text("title", "title of the work, as registered", "title_raw"),
)  # fmt: skip
DOCUMENT = (
    _text("source", "the source label", "source"),
    _text("licence", "the licence that the metadata declares", "licence"),
)
NAMESPACES: dict[str, tuple[Attribute, ...]] = {**DETECTORS, "work": WORK, "document": DOCUMENT}

WORK_DETECTORS = ("identifier", "title_author", "text_match")
"""Detectors whose evidence names works of a registry."""

LISTED = ("artefact", "origin")
"""Detectors whose evidence says that a listed collection is where the document comes from."""

DECIDE_FOR_THEMSELVES = {
    "eval_overlap": "decontaminate.action",
    "filter": "filters.action",
    "filters": "filters.action",
    "gopher": "filters.action",
    "c4": "filters.action",
    "language": "filters.action",
    "custom": "filters.action",
}
"""Evidence that no rule reads, and the key of the config that says what follows from it."""


Holds = Callable[[Any], bool]
"""Whether a value of the attribute, or None for a missing one, fulfils a condition."""

_COMPARISON = re.compile(r"(>=|<=|>|<)\s*(\S+)")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9:.]+Z?)?")
_SIGNS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_EXPECTED = {
    "text": "text, a list of texts, any, or {not: …}",
    "number": "a number, a comparison such as '>=50', any, or {not: …}",
    "time": "a comparison such as '<2024-01-01', any, or {not: …}",
    "truth": "true, false, any, or {not: …}",
}


class ConditionError(ValueError):
    """A condition that means nothing; the message says what was expected."""


def make_test(attribute: Attribute, wanted: object) -> Holds:
    """The test that a condition's value stands for. Raises ConditionError."""
    if wanted == "any":
        return _is_there
    if isinstance(wanted, dict):
        if list(wanted) != ["not"]:
            raise ConditionError("expected `not` as the only key")
        inner = make_test(attribute, wanted["not"])
        return lambda value: not inner(value)
    if isinstance(wanted, list):
        if not wanted:
            raise ConditionError("the list is empty, so nothing could match")
        tests = [_one(attribute, item) for item in wanted]
        return lambda value: any(test(value) for test in tests)
    return _one(attribute, wanted)


def _is_there(value: Any) -> bool:
    return value is not None and value != ""


def _one(attribute: Attribute, wanted: object) -> Holds:
    """The test that a single plain value stands for."""
    match attribute.type:
        case "truth" if isinstance(wanted, bool):
            return lambda value: value is wanted
        case "number" if _is_number(wanted):
            return lambda value: _is_number(value) and value == wanted
        case "text" if isinstance(wanted, str):
            return _equals(attribute, wanted)
        case "number" | "time" if isinstance(wanted, str):
            return _comparison(attribute, wanted)
    raise ConditionError(f"expected {_EXPECTED[attribute.type]}")


def _equals(attribute: Attribute, wanted: str) -> Holds:
    if wanted == "" or _COMPARISON.fullmatch(wanted) or wanted == "any":
        raise ConditionError(f"expected {_EXPECTED['text']}")
    if attribute.choices and wanted not in attribute.choices:
        raise ConditionError(
            f"no such value{did_you_mean(wanted, attribute.choices)}; "
            f"expected one of {', '.join(attribute.choices)}"
        )
    return lambda value: bool(value == wanted)


def _comparison(attribute: Attribute, wanted: str) -> Holds:
    found = _COMPARISON.fullmatch(wanted)
    form = _NUMBER if attribute.type == "number" else _TIME
    if found is None or not form.fullmatch(found[2]):
        raise ConditionError(f"expected {_EXPECTED[attribute.type]}")
    compare = _SIGNS[found[1]]
    if attribute.type == "number":
        number = float(found[2])
        return lambda value: _is_number(value) and bool(compare(value, number))
    time = found[2]
    return lambda value: isinstance(value, str) and value != "" and bool(compare(value, time))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


MOST_CHARACTERS = 80
"""Of one value in a reason."""

_FIELD = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class TemplateField:
    """One `{namespace.attribute}` of a template."""

    namespace: str
    attribute: Attribute


@dataclass(frozen=True)
class Template:
    """A reason: texts, one more than there are fields, that stand around them."""

    texts: tuple[str, ...]
    fields: tuple[TemplateField, ...]

    def filled(self, values: tuple[Any, ...]) -> str:
        """The reason with these values, one for each field, None for a missing one."""
        shown = [*map(_shown, values), ""]
        return "".join(t + v for t, v in zip(self.texts, shown, strict=True))


def template(reason: str, readable: tuple[str, ...]) -> Template:
    """The template of a rule that has evidence of the `readable` namespaces. Raises ConditionError
    for an unknown name or a brace that belongs to none."""
    texts, names = _FIELD.split(reason)[::2], _FIELD.split(reason)[1::2]
    if any("{" in text or "}" in text for text in texts):
        raise ConditionError("a brace without its partner; expected {DETECTOR.ATTRIBUTE}")
    return Template(tuple(texts), tuple(_field(name, readable) for name in names))


def _field(name: str, readable: tuple[str, ...]) -> TemplateField:
    namespace, _, rest = name.partition(".")
    if namespace not in readable:
        raise ConditionError(
            f"{{{escape_text(name)}}}: the rule has no condition on {escape_text(namespace)!r}; "
            f"expected one of {', '.join(readable)}"
        )
    attribute = next((a for a in NAMESPACES[namespace] if a.name == rest), None)
    if attribute is None:
        names = [a.name for a in NAMESPACES[namespace]]
        raise ConditionError(
            f"{{{escape_text(name)}}}: {namespace} has no such attribute"
            f"{did_you_mean(rest, names)}; expected one of {', '.join(names)}"
        )
    return TemplateField(namespace, attribute)


def _shown(value: Any) -> str:
    """A value in words.

    >>> _shown(1234), _shown(0.23456), _shown(True), _shown(None), _shown("a" + chr(10) + "b")
    ('1,234', '0.235', 'true', 'unknown', 'a\\\\nb')
    """
    match value:
        case None | "":
            return "unknown"
        case bool():
            return "true" if value else "false"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if value.is_integer() else f"{value:.3g}"
    return escape_text(str(value), MOST_CHARACTERS)
