"""Forms: numbered sections of fields, each with its answer and what that rests on.

A field is never blank: what nobody said and no table knows is a TODO. The same form becomes
Markdown and JSON.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.provenance.disclosure.about import Answer

BASES = {
    "about": "about.yaml",
    "tables": "tables of the run",
    "todo": "to be filled in",
}


@dataclass(frozen=True)
class Table:
    """Rows of words under a header."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Field:
    """One question. `check`: what to compare with the official text before this is handed on."""

    number: str
    question: str
    answer: Answer
    check: str = ""
    table: Table | None = None


@dataclass(frozen=True)
class Section:
    """Fields under a heading."""

    number: str
    title: str
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Form:
    """A whole form, with the statements that head it."""

    title: str
    statements: tuple[str, ...]
    sections: tuple[Section, ...]


def todos(form: Form) -> Iterator[str]:
    """What is still to be filled in."""
    for section in form.sections:
        for field in section.fields:
            if field.answer.basis == "todo":
                yield field.answer.text


def as_json(form: Form) -> dict[str, Any]:
    """Plain data: sections with fields, each with its basis."""
    return {
        "title": form.title,
        "statements": list(form.statements),
        "sections": [
            {"number": s.number, "title": s.title, "fields": [_field(f) for f in s.fields]}
            for s in form.sections
        ],
    }


def _field(field: Field) -> dict[str, Any]:
    value: dict[str, Any] = {
        "number": field.number,
        "question": field.question,
        "answer": field.answer.text,
        "basis": field.answer.basis,
    }
    if field.check:
        value["check"] = field.check
    if field.table:
        value["table"] = {"header": list(field.table.header),
                          "rows": [list(row) for row in field.table.rows]}  # fmt: skip
    return value
