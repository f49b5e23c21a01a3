"""The California disclosure: the twelve items of section 3111 (a)."""

from collections.abc import Callable

from pipeline.disclosure.california import california_disclosure
from pipeline.disclosure.disclosure import Disclosure

from .conftest import RichRun, list_todos


def test_the_twelve_items(plain_disclosure: Callable[..., Disclosure]) -> None:
    (section,) = california_disclosure(plain_disclosure()).sections
    numbers = [field.number for field in section.fields]
    assert list(dict.fromkeys(numbers)) == [str(number) for number in range(1, 13)]
    assert all(field.answer.text for field in section.fields)
    assert section.fields[0].answer.basis == "todo"


def test_a_full_about_leaves_nothing_open(rich_run: RichRun) -> None:
    disclosure = rich_run.disclosure()
    form = california_disclosure(disclosure)
    assert list_todos(form) == []
    found = {field.number: field.answer.text for field in form.sections[0].fields}
    assert f"{disclosure.facts.kept:,} documents" in found["3"]
    licensed = [label for label, s in disclosure.about.sources.items() if s.kind == "licensed"]
    assert found["6"] == f"licensed: {', '.join(licensed)}"
