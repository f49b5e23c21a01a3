"""The draft of the EU summary: every field of the template, none of them blank, none invented."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from pipeline.disclosure.about import About, AboutSource
from pipeline.disclosure.disclosure import Disclosure, Field, Form, form_to_json
from pipeline.disclosure.eu_summary import eu_summary, size_band
from pipeline.disclosure.facts import HostFacts

from .conftest import RichRun, list_todos

SECTIONS = ("0", "1.1", "1.2", "1.3", "2.1", "2.2.1", "2.2.2", "2.3", "2.4", "2.5", "2.6", "3.1",
            "3.2", "3.3")  # fmt: skip


def fields(form: Form) -> dict[str, Field]:
    found = [field for section in form.sections for field in section.fields]
    assert len({field.number for field in found}) == len(found)
    return {field.number: field for field in found}


def test_all_sections_stand_there_in_order(plain_disclosure: Callable[..., Disclosure]) -> None:
    form = eu_summary(plain_disclosure())
    assert tuple(section.number for section in form.sections) == SECTIONS


def test_no_field_is_blank(plain_disclosure: Callable[..., Disclosure], rich_run: RichRun) -> None:
    for disclosure in (plain_disclosure(), rich_run.disclosure()):
        for field in fields(eu_summary(disclosure)).values():
            assert field.answer.text.strip(), field.number
            assert (field.answer.basis == "todo") == field.answer.text.startswith("TODO("), field


def test_a_full_about_leaves_nothing_open(rich_run: RichRun) -> None:
    assert list_todos(eu_summary(rich_run.disclosure())) == []


def test_tables_fill_what_they_know(plain_disclosure: Callable[..., Disclosure]) -> None:
    found = fields(eu_summary(plain_disclosure()))
    by_tables = {number for number, field in found.items() if field.answer.basis == "tables"}
    assert {"1.3.a", "1.3.b", "1.3.d", "3.1.c", "3.2.b", "3.3.a"} <= by_tables
    assert found["1.3.a"].answer.text == "text"
    assert found["1.3.b"].answer.text.startswith("less than 1 billion tokens")
    rules = found["3.2.b"].answer.table
    assert rules is not None
    assert rules.rows


def test_unverified_thresholds_are_marked(plain_disclosure: Callable[..., Disclosure]) -> None:
    found = fields(eu_summary(plain_disclosure()))
    assert "3 %" in found["2.1.c"].answer.check
    assert "10 %" in found["2.3.g"].answer.check
    assert "1,000" in found["2.3.g"].answer.check
    assert found["1.3.b"].answer.check


def test_a_kind_that_nobody_named_is_not_a_no(plain_disclosure: Callable[..., Disclosure]) -> None:
    found = fields(eu_summary(plain_disclosure()))
    for number in ("2.1.a", "2.2.1.a", "2.2.2.a"):
        assert found[number].answer.basis == "todo"
    assert "2.1.e" in found


def test_large_is_more_than_three_percent_of_the_public_tokens(
    plain_disclosure: Callable[..., Disclosure],
) -> None:
    disclosure = plain_disclosure()
    one = disclosure.facts.sources[0]
    sizes = {"giant": 1000, "edge": 31, "small": 30, "own": 5000}
    sources = tuple(replace(one, label=label, tokens=size) for label, size in sizes.items())
    kinds = {label: AboutSource(kind="public") for label in ("giant", "edge", "small")}
    about = About(sources={**kinds, "own": AboutSource(kind="private")})
    facts = replace(disclosure.facts, sources=sources)
    found = fields(eu_summary(replace(disclosure, about=about, facts=facts)))
    large, other = found["2.1.c"].answer.table, found["2.1.d"].answer.table
    assert large is not None
    assert other is not None
    whole = 1000 + 31 + 30
    assert [row[0] for row in large.rows] == [k for k in kinds if sizes[k] > 0.03 * whole]
    assert [row[0] for row in other.rows] == [k for k in kinds if sizes[k] <= 0.03 * whole]
    assert found["2.2.2.a"].answer.text == "yes"
    assert found["2.2.1.a"].answer.text == "no"


def test_top_hosts_are_a_tenth_by_size(plain_disclosure: Callable[..., Disclosure]) -> None:
    hosts = tuple(HostFacts(f"h{i:03d}.example.org", 1, 1000 - i) for i in range(250))
    disclosure = plain_disclosure()
    disclosure = replace(disclosure, facts=replace(disclosure.facts, hosts=hosts))
    table = fields(eu_summary(disclosure))["2.3.g"].answer.table
    assert table is not None
    assert [row[0] for row in table.rows] == [host.host for host in hosts[:25]]


@pytest.mark.parametrize(
    ("tokens", "band"),
    [
        (0, "less than 1 billion"), (10**9 - 1, "less than 1 billion"),
        (10**9, "1 billion to 10 trillion"), (10**13, "1 billion to 10 trillion"),
        (10**13 + 1, "more than 10 trillion"),
    ],
)  # fmt: skip
def test_size_bands(tokens: int, band: str) -> None:
    assert size_band(tokens) == f"{band} tokens"


def test_json_has_what_the_form_has(rich_run: RichRun) -> None:
    form = eu_summary(rich_run.disclosure())
    value = form_to_json(form)
    numbers = [field["number"] for section in value["sections"] for field in section["fields"]]
    assert numbers == list(fields(form))
    assert {field["basis"] for section in value["sections"] for field in section["fields"]} == {
        "about", "tables",
    }  # fmt: skip
