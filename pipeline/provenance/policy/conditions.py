"""What a condition asks of one attribute.

    origin.family: books3                  # equal
    origin.family: [books3, bibliotik]     # one of these
    text_match.work_id: any                # there is one: not empty
    text_match.words: ">=50"               # also > <= <; numbers, and times such as "<2024-01-01"
    work.status: {not: licensed}           # the opposite, which holds for a missing value too

Text is compared exactly. A missing value, the empty text included, fulfils nothing but a `not`.
"""

import operator
import re
from collections.abc import Callable
from typing import Any

from pipeline.core.words import did_you_mean
from pipeline.provenance.policy.attributes import Attribute

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


def holds(attribute: Attribute, wanted: object) -> Holds:
    """The test that a condition's value stands for. Raises ConditionError."""
    if wanted == "any":
        return _is_there
    if isinstance(wanted, dict):
        if list(wanted) != ["not"]:
            raise ConditionError("expected `not` as the only key")
        inner = holds(attribute, wanted["not"])
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
