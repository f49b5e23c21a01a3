"""Printing to a terminal: text from data shows as text, never as markup or control characters."""

import json
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipeline.core.errors import escape_text
from pipeline.core.mirror.paths import name_urls

_PLAIN_WIDTH = 240

out = Console(
    highlight=False, emoji=False, width=None if sys.stdout and sys.stdout.isatty() else _PLAIN_WIDTH
)
"""Standard output; wide when it is no terminal."""


def format_cell(text: str) -> str:
    """Text from data for a table cell: cut, without control characters, without markup."""
    return escape(escape_text(text))


def print_line(line: str) -> None:
    """One whole line, which may hold text from data, whatever the width of the terminal."""
    out.print(escape_text(name_urls(line), len(line)), markup=False, soft_wrap=True)


def show_table(
    columns: Iterable[str],
    rows: Iterable[Iterable[object]],
    title: str = "",
    total: Iterable[object] | None = None,
) -> None:
    """Rows of text from data under `columns`, a line before the `total`; nothing where there is no
    row. Columns after `>` hold numbers: they are justified to the right, and stay whole on a narrow
    terminal."""
    table = Table(title=title or None, title_justify="left")
    names = list(columns)
    for name in names:
        table.add_column(
            name.removeprefix(">"), justify="right" if name.startswith(">") else "left"
        )
    for row in rows:
        table.add_row(*(format_cell(str(cell)) for cell in row))
    if not table.row_count:
        return
    if total is not None:
        table.add_section()
        table.add_row(*map(str, total))
    out.print(table, soft_wrap=any(name.startswith(">") for name in names))


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """One line for each (name, value); empty values are left out."""
    for name, value in facts:
        if value:
            print_line(f"{name:<11}{value}")


def print_json(value: Any) -> None:
    """Plain data as ASCII JSON."""
    out.print_json(name_urls(json.dumps(value)), ensure_ascii=True)


def format_similarity(value: float | None) -> str:
    """A Jaccard similarity, or a dash for an unknown one.

    >>> format_similarity(0.93217), format_similarity(None)
    ('0.932', '-')
    """
    return "-" if value is None else f"{value:.3f}"
