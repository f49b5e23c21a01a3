"""The audit report: one file that loads nothing; what the public edition holds back."""

import html
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from pipeline.disclosure.about import About
from pipeline.disclosure.audit import audit_page
from pipeline.disclosure.disclosure import Disclosure, cut_preview
from pipeline.report import page as wording

from .conftest import AUTHOR, OPTED_OUT, PASSAGE, REVIEWER, TITLE, WORKS, RichRun

HOSTILE = '</td><script>alert("x")</script>\u202e\x1b[31m & "quotes"'


def page(disclosure: Disclosure) -> str:
    return audit_page(disclosure).decode()


def words(text: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", " ", text))


def test_it_is_one_file_that_loads_nothing(rich_run: RichRun) -> None:
    text = page(rich_run.disclosure(public=False))
    assert "default-src 'none'" in text
    assert re.findall(r"<(?:script|link|img|iframe|object|embed)\b", text) == []
    assert re.findall(r"""(?:src|href)=(?!"#)|url\(|@import""", text) == []
    assert len(text) < 200_000


def test_the_same_input_gives_the_same_bytes(rich_run: RichRun) -> None:
    assert audit_page(rich_run.disclosure()) == audit_page(rich_run.disclosure())


def test_the_public_edition_names_no_person_and_shows_no_passage(rich_run: RichRun) -> None:
    text = words(page(rich_run.disclosure(public=True)))
    assert "public edition" in text
    for secret in (TITLE, AUTHOR, PASSAGE[:30], OPTED_OUT, REVIEWER, "claims@example.org"):
        assert secret not in text, secret
    assert WORKS[0] in text
    assert len(re.findall(r"sha256 [0-9a-f]{16}", text)) == 4


def test_the_internal_edition_shows_fifteen_words(rich_run: RichRun) -> None:
    text = words(page(rich_run.disclosure(public=False)))
    assert TITLE in text
    assert AUTHOR in text
    assert OPTED_OUT in text
    assert cut_preview(PASSAGE) in text
    assert " ".join(PASSAGE.split()[:16]) not in text
    assert "can contain personal data" in text


@pytest.mark.parametrize("public", [True, False])
def test_floor_and_limits(rich_run: RichRun, public: bool) -> None:
    text = words(page(rich_run.disclosure(public=public)))
    for statement in (*wording.FLOOR, wording.TEXT_LIMITS, wording.CHAIN, wording.DELETED):
        assert statement in text


def test_what_a_run_without_registry_says(plain_disclosure: Callable[..., Disclosure]) -> None:
    text = words(page(plain_disclosure()))
    assert "No registry of works was used" in text
    assert "No captured signal is about a document" in text
    assert "This run has no event log." not in text, "its screening is an event"
    assert wording.TEXT_LIMITS not in text


def test_counts_stand_in_it(rich_run: RichRun) -> None:
    disclosure = rich_run.disclosure()
    text = words(page(disclosure))
    facts = disclosure.facts
    for source in facts.sources:
        assert re.search(rf"{source.label}\s.*?\s{source.tokens:,}\s", text, re.S)
    assert facts.identity.run in text
    assert facts.events is not None
    assert facts.events.head in text


def test_hostile_labels_stay_text(rich_run: RichRun) -> None:
    disclosure = rich_run.disclosure(about=About(name=HOSTILE))
    sources = tuple(replace(s, label=HOSTILE) for s in disclosure.facts.sources)
    flows = tuple(replace(f, source=HOSTILE, rule=HOSTILE) for f in disclosure.facts.flows)
    facts = replace(disclosure.facts, sources=sources, flows=flows)
    text = page(replace(disclosure, facts=facts))
    assert "<script" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_a_preview_is_capped_in_words_and_letters() -> None:
    assert cut_preview("漢" * 400) == "漢" * 30 + " …"
    assert cut_preview("a " * 15) == " ".join("a" * 15)
    assert "\x1b" not in cut_preview("one \x1b[31m two")
