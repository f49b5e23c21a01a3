"""Identifiers: right forms are found in every spelling, a wrong digit is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.screening.registry.names import (
    normalise_asin,
    normalise_doi,
    normalise_isbn,
    normalise_lccn,
    normalise_usco,
)

DIGITS = st.integers(0, 9)
REFUSED = {
    "isbn": [
        "", "ISBN", "0306406153", "9780306406158", "978030640615", "030640615", "97803064061577",
        "9790060115615", "0000000000", "0306406152a", "x306406152", "０３０６４０６１５２", "12-34",
    ],
    "usco": [
        "", "TX", "A 123456", "TX 75201", "Dallas, TX 75201", "TX 75201-1234", "TX 972-555-1234",
        "TX0000000000",
        "TX 12345678901", "XX0003372564", "TX 3-372-56", "TX 33-72-564", "TEXAS 3-372-564",
        "PA 12", "TX0003372564 / 1992-08-05", "TX 0-000-000", "TX 000-001", "TX 1", "TX 0-00-001",
    ],
    "doi": ["", "10.10/x", "11.1000/x", "10.1000", "10.1000/", "doi:", "10.1000/a b"],
    "asin": ["", "B0", "BACKGROUND", "0306406152", "B00ICN066", "B00ICN066AA", "b00-cn066a"],
    "lccn": ["", "abc", "2001-1234567", "abcd12345678", "85-", "123456789"],
}  # fmt: skip


def isbn10_check(body: list[int]) -> str:
    """By the definition: 10 a1 + 9 a2 + … + 2 a9 + check is a multiple of 11."""
    for check in range(11):
        if (sum((10 - i) * d for i, d in enumerate(body)) + check) % 11 == 0:
            return "0123456789X"[check]
    raise AssertionError


def isbn13_of(body: list[int]) -> str:
    """By the definition: digits with weights 1 and 3 in turn are a multiple of 10."""
    for check in range(10):
        whole = [*body, check]
        if sum(d * (1, 3)[i % 2] for i, d in enumerate(whole)) % 10 == 0:
            return "".join(map(str, whole))
    raise AssertionError


@given(st.lists(DIGITS, min_size=9, max_size=9).filter(lambda d: len(set(d)) > 1))
def test_isbn10_is_its_isbn13(body: list[int]) -> None:
    text = "".join(map(str, body)) + isbn10_check(body)
    expected = isbn13_of([9, 7, 8, *body])
    assert normalise_isbn(text) == normalise_isbn(expected) == expected
    assert normalise_isbn(f"ISBN {text[0]}-{text[1:4]}-{text[4:9]}-{text[9].lower()}") == expected
    assert normalise_isbn(f"ISBN-13: 978\N{EN DASH}{expected[3:5]} {expected[5:]}") == expected


@given(st.lists(DIGITS, min_size=9, max_size=9), st.integers(0, 9), DIGITS, st.booleans())
def test_a_changed_digit_is_refused(body: list[int], place: int, digit: int, short: bool) -> None:
    right = "".join(map(str, body)) + isbn10_check(body) if short else isbn13_of([9, 7, 8, *body])
    at = place if short else place + 3
    wrong = f"{right[:at]}{digit}{right[at + 1 :]}"
    assert wrong == right or normalise_isbn(wrong) is None


@given(st.lists(DIGITS, min_size=9, max_size=9), st.integers(0, 8))
def test_exchanged_neighbours_of_an_isbn10_are_refused(body: list[int], place: int) -> None:
    right = "".join(map(str, body)) + isbn10_check(body)
    wrong = right[:place] + right[place + 1] + right[place] + right[place + 2 :]
    assert wrong == right or normalise_isbn(wrong) is None


@given(st.text())
def test_any_text_gives_a_normal_form_or_none(text: str) -> None:
    for function in (normalise_isbn, normalise_doi, normalise_asin, normalise_lccn, normalise_usco):
        found = function(text)
        assert found is None or function(found) == found


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    function = {
        "isbn": normalise_isbn,
        "usco": normalise_usco,
        "doi": normalise_doi,
        "asin": normalise_asin,
        "lccn": normalise_lccn,
    }[name]
    assert {text: function(text) for text in REFUSED[name]} == dict.fromkeys(REFUSED[name])


@given(st.sampled_from(["TX", "VA", "PA", "SR", "SE", "MW", "RE"]), st.integers(10_000, 9_999_999))
def test_registration_numbers_in_every_spelling(prefix: str, number: int) -> None:
    expected = f"{prefix}{number:010d}"
    grouped = f"{number:,}"
    assert normalise_usco(expected) == normalise_usco(expected.lower()) == expected
    for between in ("-", " ", "\N{EN DASH}"):
        spelt = grouped.replace(",", between)
        assert (
            normalise_usco(f"{prefix}{between}{spelt}")
            == normalise_usco(f" {prefix} {spelt} ")
            == expected
        )


@given(st.sampled_from(["TX", "TXu"]), st.integers(1, 9_999_999))
def test_seven_digits_are_a_registration_number_however_low(prefix: str, number: int) -> None:
    """Every spelling of `TX[- ]?\\d-?\\d{3}-?\\d{3}`."""
    expected, digits = f"{prefix}{number:0{12 - len(prefix)}d}", f"{number:07d}"
    for between in ("", " ", "-"):
        for dash in ("", "-"):
            spelt = f"{prefix}{between}{digits[0]}{dash}{digits[1:4]}{dash}{digits[4:]}"
            assert normalise_usco(spelt) == expected


def test_registration_numbers_of_unpublished_works() -> None:
    assert normalise_usco("TXU 1-234-567") == normalise_usco("TXu001234567") == "TXu001234567"
    assert normalise_usco("PAu-2-345-678") == "PAu002345678"
    assert normalise_usco("PRE000001234") == "PRE000001234"
    assert normalise_usco("RE 123-456") == "RE0000123456"


def test_doi_in_brackets_and_with_brackets() -> None:
    assert normalise_doi("10.1016/S0140-6736(20)30183-5") == "10.1016/s0140-6736(20)30183-5"
    assert normalise_doi("10.1000/182)") == "10.1000/182"
    assert normalise_doi("http://dx.doi.org/10.1000.10/A<1>,") == "10.1000.10/a<1>"


@pytest.mark.parametrize(
    ("text", "normal"),
    [("n78-890351", "n78890351"), ("n 78890351 ", "n78890351"), ("85000002", "85000002"),
     ("85-2", "85000002"), ("2001-000002", "2001000002"), ("75-425165//r75", "75425165"),
     ("sh 85026371", "sh85026371")],
)  # fmt: skip
def test_lccn_as_the_library_of_congress_has_it(text: str, normal: str) -> None:
    assert normalise_lccn(text) == normal
