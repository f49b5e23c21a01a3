"""What the toolkit says about provenance: facts about matching, never verdicts about documents.

Everything it emits is collected (templates, documents of `prep disclose`, reports, shipped rules
and lists, the help of every command, the manuals, the sentences in the code) and searched for words
that would be a finding of law or a promise. A phrase that needs such a word stands in ALLOWED, with
the reason.
"""

import ast
import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from pipeline.commands import app
from pipeline.disclosure.about import about_template
from pipeline.disclosure.publish import write_disclosure
from pipeline.report import page

PACKAGE = Path(app.__file__).parents[1]
REPOSITORY = PACKAGE.parent

MANUALS = ("registry", "detectors", "policy", "trace", "fingerprints", "disclosure", "takedown",
           "quarantine", "review", "provenance")  # fmt: skip
"""docs/NAME.md, those that are there."""

FORBIDDEN = {
    "infringing": r"\binfring\w*",
    "legal": r"\b(?:il)?legal(?:ly|ity)?\b",
    "clean as a verdict": r"\b(?:is|are|was|were|be|been|being|stays?|certified|fully|entirely|"
                          r"guaranteed)\s+clean\b(?!-)|\bclean\s+(?:checkpoint|bill|room)\b",
    "safe to train": r"\bsafe\s+(?:to|for)\s+(?:train|use|training)\b",
    "copyright-free": r"\b(?:copyright|rights)[- ]free\b",
    "compliant": r"\bcompliant\b",
    "no pirated content": r"\bpirat\w*",
    "unlearned": r"\bunlearn\w*",
    "stolen": r"\bstolen\b",
}  # fmt: skip

ALLOWED = {
    "not legal advice": "the disclaimer itself",
    "none of this is legal advice": "the disclaimer itself",
    "legal hold": "the name of a state in which nothing may be deleted",
    "legal-hold": "the name of an option for it",
    "illegal content": "the heading of section 3.2 of the Commission template",
}
"""Phrases with such a word, and why they may stand."""


def emitted(text: str) -> str:
    """A text as one line of plain words, without the phrases that may stand."""
    plain = " ".join(html.unescape(text).split())
    for phrase in ALLOWED:
        plain = re.sub(re.escape(phrase), "…", plain, flags=re.IGNORECASE)
    return plain


def verdicts(text: str) -> list[str]:
    """Forbidden words with what stands around them."""
    plain = emitted(text)
    return [
        f"{name}: …{plain[max(0, found.start() - 60) : found.end() + 40]}…"
        for name, pattern in FORBIDDEN.items()
        for found in re.finditer(pattern, plain, re.IGNORECASE)
    ]


def templates() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.j2")):
        yield path.relative_to(REPOSITORY).as_posix(), path.read_text("utf-8")


def shipped() -> Iterator[tuple[str, str]]:
    """Rules and lists that come with the toolkit."""
    for path in sorted((PACKAGE / "screening").rglob("*.yaml")):
        yield path.relative_to(REPOSITORY).as_posix(), path.read_text("utf-8")


def manuals() -> Iterator[tuple[str, str]]:
    for name in MANUALS:
        path = REPOSITORY / "docs" / f"{name}.md"
        if path.exists():
            yield f"docs/{name}.md", path.read_text("utf-8")


def helps() -> Iterator[tuple[str, str]]:
    """The help of every command and of its options."""
    yield from _helps(typer.main.get_command(app.app), "prep")


def _helps(command: Any, name: str) -> Iterator[tuple[str, str]]:
    options = [str(getattr(option, "help", None) or "") for option in command.params]
    yield f"{name} --help", "\n".join([command.help or "", command.epilog or "", *options])
    for child, below in getattr(command, "commands", {}).items():
        yield from _helps(below, f"{name} {child}")


def sentences() -> Iterator[tuple[str, str]]:
    """Texts in the code: whatever is no docstring can be printed."""
    rooms = ("commands", "disclosure", "explain", "lineage", "quarantine", "report", "runs",
             "screening", "takedown")  # fmt: skip
    files = [path for room in rooms for path in sorted((PACKAGE / room).rglob("*.py"))]
    for path in files:
        tree = ast.parse(path.read_text("utf-8"))
        alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [
            node.value for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            and id(node) not in alone and " " in node.value
        ]  # fmt: skip
        yield path.relative_to(REPOSITORY).as_posix(), "\n".join(texts)


SOURCES = {"templates": templates, "shipped": shipped, "manuals": manuals, "helps": helps,
           "sentences": sentences}  # fmt: skip


@pytest.fixture(scope="module")
def documents(small_run: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Everything `prep disclose` writes about the small run, both editions, and its reports."""
    found = {"about template": about_template()}
    for public in (True, False):
        out = tmp_path_factory.mktemp("disclosed")
        write_disclosure(small_run.directory, out, public=public)
        for path in out.iterdir():
            found[f"{path.name} ({'public' if public else 'internal'})"] = path.read_text("utf-8")
    for name in ("report.html", "clusters.html"):
        found[name] = (small_run.directory / name).read_text("utf-8")
    return found


@pytest.mark.parametrize("kind", list(SOURCES))
def test_texts_pass_no_verdict(kind: str) -> None:
    found = dict(SOURCES[kind]())
    assert found
    assert {name: verdicts(text) for name, text in found.items() if verdicts(text)} == {}


def test_documents_pass_no_verdict(documents: dict[str, str]) -> None:
    assert len(documents) == 17
    assert {name: verdicts(text) for name, text in documents.items() if verdicts(text)} == {}


@pytest.mark.parametrize(
    "name",
    [
        "report.html", "audit.html (public)", "audit.html (internal)", "README.md (public)",
        "README.md (internal)", "eu_training_summary.md (public)", "california_ab2013.md (public)",
        "croissant.json (public)",
    ],
)  # fmt: skip
def test_the_floor_stands_in(documents: dict[str, str], name: str) -> None:
    text = " ".join(html.unescape(documents[name]).split())
    assert [statement for statement in page.FLOOR if statement not in text] == []


def test_the_floor_says_what_it_must() -> None:
    text = " ".join(page.FLOOR).lower()
    assert "no match is not evidence of absence" in text
    assert "a match is a text overlap" in text
    assert "not legal advice" in text


def test_the_manual_of_disclosure_is_there() -> None:
    assert "docs/disclosure.md" in dict(manuals())


@pytest.mark.parametrize(
    "text",
    [
        "this copy is infringing", "the data set is legal", "it is legally fine",
        "the run is clean", "safe to train on", "copyright-free texts", "AI Act compliant",
        "no pirated content", "the model has unlearned it", "stolen books", "last clean checkpoint",
    ],
)  # fmt: skip
def test_verdicts_are_found(text: str) -> None:
    assert verdicts(text) != []


@pytest.mark.parametrize(
    "text",
    [
        "This is not legal advice.", "a legal hold forbids it", "`prep clean-up` deletes them",
        "cleaned text", "the clean stage", "the complaint alleges that",
    ],
)  # fmt: skip
def test_plain_words_are_left_alone(text: str) -> None:
    assert verdicts(text) == []


def test_every_allowance_is_needed() -> None:
    """Each phrase holds a word that is refused without it."""
    patterns = FORBIDDEN.values()
    assert [p for p in ALLOWED if not any(re.search(f, p, re.IGNORECASE) for f in patterns)] == []
