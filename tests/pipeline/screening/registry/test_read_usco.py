"""Records of the US Copyright Office: wrapped lines, several records, page headers, gaps."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import InputError
from pipeline.screening.registry.entries import (
    EntryError,
    IncomingWork,
    ListEntry,
    Refusal,
    make_incoming_work,
)
from pipeline.screening.registry.read_lists import read_csv, read_usco, read_works_list

PATH = Path("/somewhere/exhibit.txt")


def works(text: str) -> list[IncomingWork]:
    return [make_incoming_work(e, {}) for e in read_usco(PATH, text) if isinstance(e, ListEntry)]


def test_records(records_txt: Path) -> None:
    first, second = works(records_txt.read_text("utf-8"))
    assert (first.where, second.where) == ("exhibit.txt:1", "exhibit.txt:15")
    one, two = first.work, second.work
    assert (one.title_norm, one.subtitle, one.authors) == (
        "the tin orchard",
        "a novel",
        ("Ida Marsh",),
    )
    assert (one.reg_no, one.reg_date, one.pub_date) == ("TX0003111222", "1992-08-05", "1992-05-01")
    assert (one.claimant, one.publisher, one.jurisdiction) == ("Ida Marsh", "Quarry Press", "US")
    assert (two.title_norm, two.authors) == ("quiet machines", ("Una Reed",))
    assert (two.reg_no, two.isbn13) == ("TX0004000111", ("9780306406157",))


def test_exhibit_with_page_headers_and_links() -> None:
    text = (
        "EXHIBIT A\n\n"
        "Registration Number / Date\n"
        "TX0003111222 / 1992-08-05\n"
        "Title\n"
        "The tin orchard: an urban\n"
        "Case 3:99-cv-00001-XX   Document 1-1   Filed 01/02/99   Page 2 of 3\n"
        "\f\n"
        "parable: a novel / Ida Marsh.\n"
        "Copyright Claimant\n"
        "Ida Marsh\n"
        "https://example.org/detailed-record/voyager_1\n"
    )
    (only,) = works(text)
    assert only.work.title_raw == "The tin orchard: an urban parable: a novel / Ida Marsh."
    assert only.work.claimant == "Ida Marsh"
    assert only.work.catalog_url == "https://example.org/detailed-record/voyager_1"


def test_names_are_the_authors_when_the_title_names_none() -> None:
    text = (
        "Title: Salt\nRegistration Number: TX 3-111-333\nRegistration Date: 1994-02-01\n"
        "Names: Bell, Otto, 1950-\n       Reed, Una\nISBN: 0306406152\n      9780306406157\n"
    )
    (only,) = works(text)
    assert only.work.authors == ("Bell, Otto, 1950-", "Reed, Una")
    assert only.work.isbn13 == ("9780306406157",) and only.remarks == ()
    assert (only.work.reg_no, only.work.reg_date) == ("TX0003111333", "1994-02-01")


def test_records_parted_by_rules_or_by_nothing() -> None:
    block = "Title: Salt {0}\nRegistration Number / Date: TX000311133{0} / 1994-02-01\n"
    for between in ("", "\n", "------\n", "\nRecord 2 of 3\n\n", "=====\nsome heading\n"):
        found = works(between.join(block.format(i) for i in range(3)))
        assert [work.work.title_raw for work in found] == ["Salt 0", "Salt 1", "Salt 2"]


def test_a_wrapped_title_may_hold_the_name_of_a_field() -> None:
    text = (
        "Type of Work:  Text\nTitle:         Harbour songs: a book of\n"
        "               Notes: and more / Una Reed.\nNotes:         none\n"
        "Registration Number / Date: TX0003111333 / 1994-02-01\n"
    )
    (only,) = works(text)
    assert only.work.title_raw == "Harbour songs: a book of Notes: and more / Una Reed."


def test_a_record_without_a_title_is_refused() -> None:
    text = "Registration Number / Date: TX0003111333 / 1994-02-01\nCopyright Claimant: Una Reed\n"
    (only,) = read_usco(PATH, text)
    assert isinstance(only, Refusal)
    assert only.where == "exhibit.txt:1" and "TX0003111333" in only.why


@pytest.mark.parametrize("text", ["", "nothing here\n", "Notes: a\nDescription: b\n"])
def test_a_file_without_records_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="Registration Number / Date"):
        list(read_usco(PATH, text))


PIECES = st.sampled_from([
    "Title", "Title:", "Registration Number / Date:", "TX0003111333 / 1994", "\n", "\n\n", "Names:",
    "---", "Salt / Bell", "\f", " ", "\t", "x: y", '"', ",", "title,author\n",
])  # fmt: skip


@given(st.lists(PIECES | st.text(max_size=5), max_size=20).map("".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing else than what the readers and `make_incoming_work` promise to raise; every entry has
    a line."""
    for read in (read_usco, read_csv, read_works_list):
        try:
            entries = list(read(PATH, text))
        except InputError:
            continue
        for entry in entries:
            assert 1 <= int(entry.where.split(":")[1]) <= text.count("\n") + text.count("\r") + 1
            if isinstance(entry, ListEntry):
                with contextlib.suppress(EntryError):
                    assert make_incoming_work(entry, {}).work.title_norm
