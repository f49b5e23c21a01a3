"""Printing to a terminal: text from data shows as text, never as markup or control characters."""

import json
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.markup import escape

from pipeline.core.errors import escape_text

_PLAIN_WIDTH = 240

out = Console(highlight=False, width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
"""Standard output; wide when it is no terminal."""


def format_cell(text: str) -> str:
    """Text from data for a table cell: cut, without control characters, without markup."""
    return escape(escape_text(text))


def print_line(line: str) -> None:
    """One whole line, which may hold text from data, whatever the width of the terminal."""
    out.print(escape_text(line, len(line)), markup=False, soft_wrap=True)


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """One line for each (name, value); empty values are left out."""
    for name, value in facts:
        if value:
            print_line(f"{name:<11}{value}")


def print_json(value: Any) -> None:
    """Plain data as ASCII JSON."""
    out.print_json(json.dumps(value), ensure_ascii=True)


def format_similarity(value: float | None) -> str:
    """A Jaccard similarity, or a dash for an unknown one.

    >>> format_similarity(0.93217), format_similarity(None)
    ('0.932', '-')
    """
    return "-" if value is None else f"{value:.3f}"
