"""Lines that describe one work come together; what disagrees is told, and nothing is lost."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.screening.registry.entries import (
    EntryError,
    IncomingWork,
    ListEntry,
    make_incoming_work,
)
from pipeline.screening.registry.registry import Conflict, Merger
from pipeline.screening.registry.works import Work

ISBN, OTHER_ISBN = "9780306406157", "9780131103627"
TX, OTHER_TX = "TX0003111222", "TX0003111333"


def line(title: str, where: str = "list.csv:2", **values: str) -> IncomingWork:
    cells = {"title_raw": title, "authors": "Ida Marsh", **values}
    return make_incoming_work(ListEntry(where, cells), {})


def merged(*lines: IncomingWork, replacing: bool = False) -> tuple[list[Work], list[Conflict]]:
    merger = Merger(replacing=replacing)
    for one in lines:
        merger.add(one)
    return list(merger.works.values()), merger.conflicts


SAME = {
    "title and authors": ({}, {}),
    "title, a number on one side": ({"reg_no": TX}, {}),
    "title, other spelling": ({"authors": "Marsh, Ida"}, {}),
    "title, subtitle on one side": ({"title_raw": "The Tin Orchard: a novel"}, {}),
    "number": ({"reg_no": TX}, {"reg_no": TX, "title_raw": "Tin orchards"}),
    "ISBN": ({"isbn13": ISBN}, {"isbn13": f"{OTHER_ISBN};{ISBN}", "title_raw": "Tin Orchards"}),
    "ASIN": ({"asin": "B00ICN066A"}, {"asin": "b00icn066a", "title_raw": "Tin Orchards"}),
    "DOI": ({"doi": "10.1000/X"}, {"doi": "10.1000/x", "title_raw": "Tins"}),
    "work_id": ({"work_id": "t1"}, {"work_id": "t1", "title_raw": "Quite another"}),
}


@pytest.mark.parametrize("how", SAME)
def test_one_work(how: str) -> None:
    first, second = ({"title_raw": "The Tin Orchard", **values} for values in SAME[how])
    for pair in itertools.permutations([first, second]):
        works, conflicts = merged(
            *(line(**{"title": p.pop("title_raw"), **p}) for p in map(dict, pair))
        )
        assert len(works) == 1
        assert {c.field for c in conflicts} <= {"title"}


APART = {
    "titles": ({"title_raw": "The Tin Orchard"}, {"title_raw": "Salt"}),
    "subtitles": ({"title_raw": "Poems: first"}, {"title_raw": "Poems: second"}),
    "authors": ({"authors": "Ida Marsh"}, {"authors": "Otto Bell"}),
    "first name cut short": ({"authors": "Ida Marsh"}, {"authors": "I. Marsh"}),
    "transliterations": ({"authors": "Lev Tolstoy"}, {"authors": "Leo Tolstoi"}),
    "numbers": ({"reg_no": TX}, {"reg_no": OTHER_TX}),
    "numbers, one ISBN": ({"reg_no": TX, "isbn13": ISBN}, {"reg_no": OTHER_TX, "isbn13": ISBN}),
    "title and authors, one ISBN": (
        {"isbn13": ISBN}, {"isbn13": ISBN, "title_raw": "Salt", "authors": "Otto Bell"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", APART)
def test_two_works(how: str) -> None:
    first, second = ({"title_raw": "The Tin Orchard", **values} for values in APART[how])
    works, conflicts = merged(
        *(line(**{"title": p.pop("title_raw"), **p}) for p in (first, second))
    )
    assert len(works) == 2
    if "one ISBN" in how:
        kept = f"{ISBN} with work {works[0].work_id}"
        assert conflicts == [Conflict("list.csv:2", works[1].work_id, "isbn13", kept, ISBN)]
        assert (works[0].isbn13, works[1].isbn13) == ((ISBN,), ())


def test_a_number_joins_a_name_and_a_pseudonym() -> None:
    works, conflicts = merged(
        line("The Tin Orchard", reg_no=TX), line("The Tin Orchard", reg_no=TX, authors="A. Quill")
    )
    assert len(works) == 1
    assert [c.field for c in conflicts] == ["authors"]


def test_authors_are_compared_without_accents() -> None:
    names = ("Zoë Brontë", "Zoe Bronte")
    assert len(merged(*(line("The Tin Orchard", authors=name) for name in names))[0]) == 1


def test_a_line_adds_what_was_unknown() -> None:
    (work,), conflicts = merged(
        line("The Tin Orchard", pub_date="1992", basis="a.csv"),
        line("The Tin Orchard: a novel", reg_no="", isbn13=ISBN, work_id=line("The Tin Orchard")
             .work.work_id, pub_date="1992-05-01", claimant="Ida Marsh", basis="b.csv"),
        line("The Tin Orchard", isbn13=OTHER_ISBN, pub_date="1992-05", basis="a.csv"),
    )  # fmt: skip
    assert conflicts == []
    assert work.isbn13 == (OTHER_ISBN, ISBN) and work.basis == "a.csv; b.csv"
    assert (work.subtitle, work.pub_date, work.claimant) == ("a novel", "1992-05-01", "Ida Marsh")


CHANGES = {
    "title": ("The Tin Orchard", "The Iron Orchard", {"reg_no": TX}),
    "authors": ("Ida Marsh", "Otto Bell", {"reg_no": TX}),
    "status": ("asserted", "licensed", {}),
    "tier": ("excerpt", "whole_book", {}),
    "pub_date": ("1992", "1993", {}),
    "claimant": ("Ida Marsh", "Bell Ltd", {}),
    "reg_no": (TX, OTHER_TX, {"work_id": "t1"}),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("replacing", [False, True])
def test_what_disagrees_is_told(name: str, replacing: bool) -> None:
    old, new, both = CHANGES[name]
    field = "title_raw" if name == "title" else name
    first, second = ({"title_raw": "The Tin Orchard", **both, field: value} for value in (old, new))
    (work,), conflicts = merged(
        *(line(**{"title": p.pop("title_raw"), **p}) for p in (first, second)), replacing=replacing
    )
    kept, other = (new, old) if replacing else (old, new)
    value = getattr(work, field)
    assert ("; ".join(value) if isinstance(value, tuple) else value) == kept
    assert conflicts == [Conflict("list.csv:2", work.work_id, name, kept, other)]


def test_a_hold_is_taken_and_only_replacing_lifts_it() -> None:
    hold, lift = line("Salt", legal_hold="yes"), line("Salt", legal_hold="no")
    (work,), conflicts = merged(line("Salt"), hold)
    assert work.legal_hold and not conflicts
    (work,), conflicts = merged(hold, lift)
    assert work.legal_hold and conflicts[0].field == "legal_hold"
    (work,), _ = merged(hold, lift, replacing=True)
    assert not work.legal_hold


def test_defaults_do_not_change_what_is_known() -> None:
    (work,), conflicts = merged(line("Salt", status="licensed", tier="whole_book"), line("Salt"))
    assert (work.status, work.tier) == ("licensed", "whole_book") and not conflicts


def test_a_number_of_another_work_is_refused() -> None:
    merger = Merger()
    merger.add(line("Salt", reg_no=TX))
    with pytest.raises(EntryError, match="whose title and authors differ; correct one"):
        merger.add(line("The Tin Orchard", authors="Otto Bell", reg_no=TX))


def test_titles_without_authors_do_not_name_a_work() -> None:
    works, _ = merged(line("Salt", authors="", reg_no=TX), line("Salt", authors=""), line("Salt"))
    assert [work.authors for work in works] == [(), (), ("Ida Marsh",)]


def test_a_line_that_could_mean_two_works_is_refused() -> None:
    merger = Merger()
    merger.add(line("Salt", reg_no=TX))
    merger.add(line("Salt", reg_no=OTHER_TX))
    with pytest.raises(EntryError, match=r"could be [0-9a-f]{12} or [0-9a-f]{12}; give its"):
        merger.add(line("Salt"))


LINES = st.builds(
    line,
    st.sampled_from(["Salt", "Salt: a tale", "The Tin Orchard", "Tin Orchard, The"]),
    st.just("list.csv:2"),
    authors=st.sampled_from(["", "Ida Marsh", "Marsh, Ida", "Otto Bell"]),
    reg_no=st.sampled_from(["", TX, OTHER_TX]),
    isbn13=st.sampled_from(["", ISBN, OTHER_ISBN]),
    status=st.sampled_from(["", "licensed"]),
    pub_date=st.sampled_from(["", "1992", "1992-05", "1993"]),
)


@given(st.lists(LINES, max_size=8))
def test_the_same_lines_again_change_nothing(lines: list[IncomingWork]) -> None:
    """Whether the works were kept in memory or come from disk, in the order of their ids."""

    def add(merger: Merger) -> dict[str, Work]:
        for one in lines:
            try:
                merger.add(one)
            except EntryError:
                continue
        return dict(merger.works)

    merger = Merger()
    before = add(merger)
    assert all(work_id == work.work_id for work_id, work in before.items())
    assert add(merger) == before
    assert add(Merger(sorted(before.values(), key=lambda work: work.work_id))) == before
    numbers = [n for work in before.values() for n in (work.reg_no, *work.isbn13) if n]
    assert len(numbers) == len(set(numbers))
