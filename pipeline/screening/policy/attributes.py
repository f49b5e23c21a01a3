"""What a rule can ask about, what a condition asks of one attribute, and the sentence of a rule.

    origin.family: books3                  # equal
    origin.family: [books3, bibliotik]     # one of these
    text_match.work_id: any                # there is one: not empty
    text_match.words: ">=50"               # also > <= <; numbers, and times such as "<2024-01-01"
    work.status: {not: licensed}           # the opposite, which holds for a missing value too

Text is compared exactly. A missing value, the empty text included, fulfils nothing except a `not`.

A reason is a sentence with `{DETECTOR.ATTRIBUTE}` filled in from the evidence that matched. Values
come from documents, so they are cut and shown without control characters, and braces in them mean
nothing.
"""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipeline.core.errors import escape_text
from pipeline.core.words import did_you_mean
from pipeline.screening.detectors import catalogue
from pipeline.screening.detectors.catalogue import COMMON, DOCUMENT, WORK, Attribute
from pipeline.screening.detectors.plug_ins import list_attributes, load_installed_detectors

OWN = {name: entry.own_attributes for name, entry in catalogue.DETECTORS.items()}
"""Attributes that are a built-in detector's own."""

WORK_DETECTORS = tuple(name for name, entry in catalogue.DETECTORS.items() if entry.names_works)
"""Detectors whose evidence names works of a registry."""

LISTED = tuple(name for name, entry in catalogue.DETECTORS.items() if entry.shows_listed_origin)
"""Detectors whose evidence says that a listed collection is where the document comes from."""

RECORDS = {"work": WORK, "document": DOCUMENT}
"""What rules can ask about besides detectors: the registry's work, the document's own record."""


def list_detectors() -> list[str]:
    """The detectors that a rule can ask about: the built-in ones, then those of plug-ins."""
    return [*OWN, *load_installed_detectors()]


def find_attributes(namespace: str) -> tuple[Attribute, ...] | None:
    """What rules can ask about a detector, its own attributes first, or about a `work` or
    `document`; None for an unknown name. Raises ConfigError for a broken plug-in."""
    if namespace in RECORDS:
        return RECORDS[namespace]
    own = OWN.get(namespace)
    if own is None and namespace in load_installed_detectors():
        own = list_attributes(namespace)
    if own is None:
        return None
    own_names = {attribute.name for attribute in own}
    return (*own, *(attribute for attribute in COMMON if attribute.name not in own_names))


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


def make_test(attribute: Attribute, expected: object) -> Holds:
    """The test of a condition's value. Raises ConditionError."""
    if expected == "any":
        return lambda value: value is not None and value != ""
    if isinstance(expected, dict):
        if list(expected) != ["not"]:
            raise ConditionError("expected `not` as the only key")
        inner = make_test(attribute, expected["not"])
        return lambda value: not inner(value)
    if isinstance(expected, list):
        if not expected:
            raise ConditionError("the list is empty, so nothing could match")
        tests = [_make_single_test(attribute, item) for item in expected]
        return lambda value: any(test(value) for test in tests)
    return _make_single_test(attribute, expected)


def _make_single_test(attribute: Attribute, expected: object) -> Holds:
    match attribute.type:
        case "truth" if isinstance(expected, bool):
            return lambda value: value is expected
        case "number" if _is_number(expected):
            return lambda value: _is_number(value) and value == expected
        case "text" if isinstance(expected, str):
            return _make_equality_test(attribute, expected)
        case "number" | "time" if isinstance(expected, str):
            return _make_comparison(attribute, expected)
    raise ConditionError(f"expected {_EXPECTED[attribute.type]}")


def _make_equality_test(attribute: Attribute, expected: str) -> Holds:
    if expected == "" or _COMPARISON.fullmatch(expected) or expected == "any":
        raise ConditionError(f"expected {_EXPECTED['text']}")
    if attribute.choices and expected not in attribute.choices:
        raise ConditionError(
            f"no such value{did_you_mean(expected, attribute.choices)}; "
            f"expected one of {', '.join(attribute.choices)}"
        )
    return lambda value: bool(value == expected)


def _make_comparison(attribute: Attribute, expression: str) -> Holds:
    match = _COMPARISON.fullmatch(expression)
    form = _NUMBER if attribute.type == "number" else _TIME
    if match is None or not form.fullmatch(match[2]):
        raise ConditionError(f"expected {_EXPECTED[attribute.type]}")
    compare = _SIGNS[match[1]]
    if attribute.type == "number":
        number = float(match[2])
        return lambda value: _is_number(value) and bool(compare(value, number))
    time = match[2]
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
    """A reason: texts around fields, one more than there are fields."""

    texts: tuple[str, ...]
    fields: tuple[TemplateField, ...]

    def fill(self, values: tuple[Any, ...]) -> str:
        """The reason with these values, one for each field, None for a missing one."""
        words = [*map(_format_value, values), ""]
        return "".join(t + v for t, v in zip(self.texts, words, strict=True))


def parse_reason(reason: str, readable: tuple[str, ...]) -> Template:
    """The template of a rule that has evidence of the `readable` namespaces. Raises ConditionError
    for an unknown name or a brace that belongs to none."""
    texts, names = _FIELD.split(reason)[::2], _FIELD.split(reason)[1::2]
    if any("{" in text or "}" in text for text in texts):
        raise ConditionError("a brace without its partner; expected {DETECTOR.ATTRIBUTE}")
    return Template(tuple(texts), tuple(_find_field(name, readable) for name in names))


def _find_field(name: str, readable: tuple[str, ...]) -> TemplateField:
    namespace, _, rest = name.partition(".")
    if namespace not in readable:
        raise ConditionError(
            f"{{{escape_text(name)}}}: the rule has no condition on {escape_text(namespace)!r}; "
            f"expected one of {', '.join(readable)}"
        )
    attributes = find_attributes(namespace) or ()
    attribute = next((a for a in attributes if a.name == rest), None)
    if attribute is None:
        names = [a.name for a in attributes]
        raise ConditionError(
            f"{{{escape_text(name)}}}: {namespace} has no such attribute"
            f"{did_you_mean(rest, names)}; expected one of {', '.join(names)}"
        )
    return TemplateField(namespace, attribute)


def _format_value(value: Any) -> str:
    """A value in words.

    >>> [_format_value(value) for value in (1234, 0.23456, True, None, "a" + chr(10) + "b")]
    ['1,234', '0.235', 'true', 'unknown', 'a\\\\nb']
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
