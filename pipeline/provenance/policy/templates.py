"""Reasons: a rule's sentence with `{DETECTOR.ATTRIBUTE}` filled in from the evidence that matched.

Values come from documents, so they are cut and shown without control characters, and braces in them
mean nothing.
"""

import re
from dataclasses import dataclass
from typing import Any

from pipeline.core.errors import escape_text
from pipeline.core.words import did_you_mean
from pipeline.provenance.policy.attributes import NAMESPACES, Attribute
from pipeline.provenance.policy.conditions import ConditionError

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
