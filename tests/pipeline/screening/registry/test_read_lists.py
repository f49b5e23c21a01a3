"""CSV and works lists: columns by any of their names, lines and files that are refused."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.core.errors import InputError
from pipeline.screening.registry.entries import (
    EntryError,
    IncomingWork,
    ListEntry,
    Refusal,
    Remark,
    make_incoming_work,
)
from pipeline.screening.registry.read_lists import read_csv, read_works_list

PATH = Path("/somewhere/list.csv")


def works(text: str, read: Callable[..., object] = read_csv) -> list[IncomingWork]:
    entries = list(read(PATH, text))  # type: ignore[call-overload]
    return [make_incoming_work(entry, {}) for entry in entries if isinstance(entry, ListEntry)]


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_delimiters_and_newlines(delimiter: str, newline: str) -> None:
    rows = [["Title", "Author(s)", "ISBN"], ["Salt", '"Bell, Otto"', "0306406152"]]
    text = newline.join(delimiter.join(row) for row in rows) + newline
    (only,) = works(text)
    assert only.where == "list.csv:2"
    assert (only.work.title_norm, only.work.authors) == ("salt", ("Bell, Otto",))
    assert only.work.isbn13 == ("9780306406157",)


def test_every_field_of_a_work() -> None:
    header = ("work_id,title_raw,subtitle,authors,publisher,claimant,reg_no,reg_date,pub_date,"
              "isbn13,asin,doi,lccn,catalog_url,jurisdiction,status,basis,scope,contact,"
              "legal_hold,effective_from,effective_to,tier,text")  # fmt: skip
    row = ("salt-1,Salt,a tale,Otto Bell,Quarry,Bell Ltd,TX 3-111-333,\"Aug. 5, 1992\",1992-05,"
           "0306406152,B00ICN066A,doi:10.1000/X,n78-890351,https://example.org/1,GB,Public Domain,"
           "deed,derivatives,me@example.org,yes,2020,2030-01-31,whole-book,salt.txt")  # fmt: skip
    (only,) = works(f"{header}\n{row}\n")
    work = only.work
    assert work.work_id == "salt-1" and work.subtitle == "a tale" and only.text == "salt.txt"
    assert (work.reg_no, work.reg_date, work.pub_date) == ("TX0003111333", "1992-08-05", "1992-05")
    assert (work.doi, work.lccn, work.asin) == ("10.1000/x", "n78890351", ("B00ICN066A",))
    assert (work.status, work.scope, work.tier) == ("public_domain", "derivatives", "whole_book")
    assert work.legal_hold is True
    assert (work.effective_from, work.effective_to) == ("2020", "2030-01-31")
    assert only.given == set(header.split(",")) - {"text"} | {"title_norm"}
    assert only.remarks == ()


def test_records_of_several_lines_keep_their_number() -> None:
    text = 'title,author\n"Salt\nand Smoke",Otto Bell\n\nHarbour Songs,Una Reed\n'
    first, second = works(text)
    assert (first.where, first.work.title_raw) == ("list.csv:2", "Salt and Smoke")
    assert second.where == "list.csv:5"


def test_rows_of_another_length_are_refused() -> None:
    entries = list(read_csv(PATH, "title,author\nSalt\nHarbour,Una,Reed\nTin,Ida\n"))
    assert entries[:2] == [
        Refusal("list.csv:2", "expected 2 columns as in the header, found 1"),
        Refusal("list.csv:3", "expected 2 columns as in the header, found 3"),
    ]
    assert isinstance(entries[2], ListEntry)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a header row with a column 'title'"),
        ("Salt,Otto Bell\n", "found 'Salt,Otto Bell'"),
        ("title,autor\n", "unknown column 'autor'; did you mean 'author'?"),
        ("title,colour of cover\n", "unknown column 'colour of cover'; rename or remove it"),
        ("title,isbn,isbn13\n", "two columns mean isbn13"),
        ('title,author\n"Salt" x,Bell\n', "list.csv:2: not a row of a list"),
        ('title,author\n"Salt,Bell\n', "list.csv:2: not a row of a list"),
    ],
)
def test_files_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=r"^/somewhere/list\.csv:\d+: ") as caught:
        list(read_csv(PATH, text))
    assert message in str(caught.value)


def test_empty_columns_of_a_spreadsheet() -> None:
    (only,) = works("title,author,,\nSalt,Otto Bell,,\n")
    assert only.work.authors == ("Otto Bell",)


WORKS_LIST = """\
Works List
In re Invented Settlement

Title,Author,ISBN/ASIN,Registration Number,Registration Date,Publisher,Claimant,Import ID
The Tin Orchard,Ida Marsh,"978-0-306-40615-7 (pbk.); B00ICN066A",TX 3-111-222,08/05/1992,Quarry,,1
Salt,Otto Bell,N/A,TX3111333; TX3111444,1994,,Bell Estate,2
"""


def test_works_list() -> None:
    entries = list(read_works_list(PATH, WORKS_LIST))
    assert entries[0] == Remark("list.csv:4", "columns ignored: Import ID")
    first, second = works(WORKS_LIST, read_works_list)
    assert first.work.isbn13 == ("9780306406157",) and first.work.asin == ("B00ICN066A",)
    assert (first.work.reg_date, first.work.publisher) == ("1992-08-05", "Quarry")
    assert second.work.reg_no == "TX0003111333" and second.work.claimant == "Bell Estate"
    assert [r.text for r in second.remarks] == [
        "reg_no: TX0003111333 is used, TX0003111444 left out"
    ]


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ({"title_raw": ""}, "no title"),
        ({"title_raw": "?!"}, "no letter or digit"),
        ({"title_raw": "Salt", "status": "asert"}, "did you mean 'asserted'"),
        ({"title_raw": "Salt", "tier": "all"}, "expected one of excerpt, whole_book"),
        ({"title_raw": "Salt", "legal_hold": "maybe"}, "expected true or false"),
        ({"title_raw": "Salt", "effective_to": "soon"}, "expected a date"),
        ({"title_raw": "Salt", "work_id": "a/b"}, "work_id 'a/b'"),
        ({"title_raw": "Salt", "claimant": "x" * 10_001}, "10,001 characters"),
        ({"title_raw": "Salt\x1b[31m"}, r"control character \x1b"),
    ],
)
def test_lines_that_are_refused(cells: dict[str, str], why: str) -> None:
    with pytest.raises(EntryError) as caught:
        make_incoming_work(ListEntry("list.csv:2", cells), {})
    assert why in str(caught.value)


def test_of_two_registration_numbers_one_is_left_out() -> None:
    cells = {"title_raw": "Salt", "reg_no": "TX 3-111-222; TX 3-111-333"}
    found = make_incoming_work(ListEntry("list.csv:2", cells), {})
    assert found.work.reg_no == "TX0003111222"
    assert [r.text for r in found.remarks] == [
        "reg_no: TX0003111222 is used, TX0003111333 left out"
    ]


def test_values_that_are_left_out() -> None:
    cells = {
        "title_raw": "Salt", "isbn13": "0306406153, 9780306406157", "reg_no": "A 123",
        "pub_date": "08/05/1992", "doi": "n/a", "lccn": "x",
    }  # fmt: skip
    found = make_incoming_work(ListEntry("list.csv:2", cells), {})
    assert found.work.isbn13 == ("9780306406157",)
    assert (found.work.reg_no, found.work.pub_date, found.work.lccn) == ("", "", "")
    texts = " | ".join(remark.text for remark in found.remarks)
    for part in (
        "'0306406153': neither an ISBN",
        "reg_no 'A 123'",
        "pub_date '08/05/1992'",
        "lccn 'x'",
    ):
        assert part in texts
    assert len(found.remarks) == 4 and {r.where for r in found.remarks} == {"list.csv:2"}


def test_ids_depend_on_the_work_not_on_spelling() -> None:
    def work_id(title: str, author: str, number: str = "") -> str:
        cells = {"title_raw": title, "authors": author, "reg_no": number}
        return make_incoming_work(ListEntry("x:1", cells), {}).work.work_id

    one = work_id("The Tin Orchard: a novel", "Marsh, Ida", "TX 3-111-222")
    assert one == work_id("THE TIN ORCHARD : A Novel / Ida Marsh.", "", "TX0003111222")
    assert len(one) == 12 and int(one, 16) >= 0
    others = {
        work_id("The Tin Orchard: a novel", "Marsh, Ida"),
        work_id("The Tin Orchard: poems", "Marsh, Ida", "TX 3-111-222"),
        work_id("The Tin Orchard: a novel", "Marsh, Otto", "TX 3-111-222"),
    }
    assert len(others | {one}) == 4
