"""Every statement of the limits links to a test that fails when it stops being true.

Limits are what is under a heading "Limits", and paragraphs and lists that begin with "Limits:".
The form is that of docs/guarantees.md: `([`test_name`](../tests/…))`, in README `(tests/…)`.
"""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SECTION = re.compile(r"^(?:#+ Limits.*\n((?:(?!#).*\n?)*)|Limits:(.*(?:\n.+)*))", re.M)
TABLE_HEAD = re.compile(r"^\|.*\n\| --.*\n", re.M)
TEST = re.compile(r"\[`test_\w+`\]\((?:\.\./)?tests/[^)]+\.py\)")
FILES = [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]
PAGES = [path for path in FILES if SECTION.search(path.read_text())]


def untied(page: str) -> list[str]:
    """The list items, rows of tables and paragraphs of its limits that name no test."""
    sections = [TABLE_HEAD.sub("", "".join(found)) for found in SECTION.findall(page)]
    parts = [p for section in sections for p in re.split(r"\n\s*\n|\n(?=[-*|] )", section)]
    return [part.strip() for part in parts if part.strip() and not TEST.search(part)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_limits_are_tied_to_tests(page: Path) -> None:
    """That the named tests exist is checked by `test_named_tests_exist`."""
    assert untied(page.read_text()) == []


def test_the_pages_with_limits_are_found() -> None:
    found = {page.name for page in PAGES}
    assert {"dedup.md", "guarantees.md", "transports.md"} <= found
    moved = {
        "filters.md", "models.md", "performance_model.md", "plan.md", "prep.md", "provenance.md",
        "readers.md", "takedown.md",
    }  # fmt: skip
    assert moved <= found, "the limits that README had"


def test_what_counts_as_tied() -> None:
    tied = "([`test_a`](../tests/docs/test_limits.py))"
    parts = [
        "# A",
        "## Limits",
        f"- One. {tied}\n- Two,\n  on two lines.",
        "Three.",
        f"| a | b |\n| --- | --- |\n| Four. | {tied} |\n| Five. | |",
        "## B",
        "- Six.",
        f"Limits: seven {tied}",
        "Eight.",
        f"Limits:\n- Nine. {tied}\n- Ten.",
        "Eleven.",
        "Limits: twelve,\non two lines.",
    ]
    page = "\n\n".join(parts) + "\n"
    assert untied(page) == [
        "- Two,\n  on two lines.", "Three.", "| Five. | |", "- Ten.", "twelve,\non two lines.",
    ]  # fmt: skip
