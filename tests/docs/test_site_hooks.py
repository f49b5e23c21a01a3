"""Pages as the site has them. `make check` builds it, which finds links that lead nowhere."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.scripts import load

pytest.importorskip("mkdocs", reason="the extra docs is not installed")

REPOSITORY = Path(__file__).resolve().parents[2]
HOOKS = load(REPOSITORY / "docs" / "site_hooks.py")


def in_site(markdown: str, page: str) -> str:
    return HOOKS.on_page_markdown(markdown, SimpleNamespace(file=SimpleNamespace(src_uri=page)))


@pytest.mark.parametrize(
    ("page", "link", "moved"),
    [
        ("prep.md", "dedup.md#kinds", "dedup.md#kinds"),
        ("prep.md", "#limits", "#limits"),
        ("prep.md", "https://example.org/a.md", "https://example.org/a.md"),
        ("prep.md", "../SECURITY.md", "security.md"),
        ("how_to/new_data.md", "../../CONTRIBUTING.md#tests", "../contributing.md#tests"),
        ("how_to/resume.md", "../prep.md", "../prep.md"),
        ("index.md", "../examples/own_module.py", "source/examples/own_module.py.txt"),
        ("contributing.md", "docs/design.md#packages", "design.md#packages"),
        ("security.md", "tests/forked.py", "source/tests/forked.py.txt"),
        ("index.md", "make_tour.py", "source/docs/make_tour.py.txt"),
    ],
)
def test_links(page: str, link: str, moved: str) -> None:
    assert in_site(f"see [a page]({link}), x", page) == f"see [a page]({moved}), x"


def test_code_stays_as_it_is() -> None:
    code = "```\n[a](../SECURITY.md)\nb\n- c\n```\n"
    assert in_site(code, "prep.md") == code


def test_lists_get_the_empty_line_that_they_need() -> None:
    assert in_site("Limits:\n- a\n- b\n  c\n- d\n", "x.md") == "Limits:\n\n- a\n- b\n  c\n- d\n"
    table = "| a |\n| --- |\n| b |\n"
    assert in_site(table, "x.md") == table


def test_examples_of_docstrings_are_code() -> None:
    from markdown import Markdown

    lines = ["Text.", "", ">>> f(1)", "2", "", "```python", ">>> g()", "```"]
    assert HOOKS.Examples(Markdown()).run(lines) == [
        "Text.", "", "```pycon", ">>> f(1)", "2", "```", "", "```python", ">>> g()", "```", "",
    ]  # fmt: skip


def test_warnings_end_the_build() -> None:
    """With --quiet mkdocs sees no warnings, and --strict has nothing to count."""
    makefile = (REPOSITORY / "Makefile").read_text("utf-8")
    assert re.findall(r"^.*\bmkdocs build\b.*$", makefile, re.M) == [
        "MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict"
    ]
    assert re.findall(r"^\t\$\(MKDOCS\)(.*)$", makefile, re.M) == ["", ""]
