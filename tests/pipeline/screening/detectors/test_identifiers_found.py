"""Numbers of works in texts: found where a word announces them, and only if they are right."""

import json
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.screening.detectors.notices import detect_identifiers

MakeBatch = Callable[..., pa.Table]
NONE: dict[str, str] = {}


def found_in(batch: pa.Table, works: dict[str, str] = NONE) -> list[tuple[str, str]]:
    rows = detect_identifiers(batch, works).to_pylist()
    for row in rows:
        text = batch["text"][row["row"]].as_py().encode()
        start = row["byte_offset"]
        assert text[start : start + row["byte_length"]].decode() == row["seen"]
    return [(row["kind"], row["target"]) for row in rows]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ISBN 0-306-40615-2", [("isbn", "9780306406157")]),
        ("ISBN: 9780306406157.", [("isbn", "9780306406157")]),
        ("isbn-13: 978 0 306 40615 7", [("isbn", "9780306406157")]),
        ("ISBN-10 0306406152", [("isbn", "9780306406157")]),
        ("e-ISBN (paperback): 080442957X", [("isbn", "9780804429573")]),
        ("ISBN 978\N{NON-BREAKING HYPHEN}0\N{EN DASH}306-40615-7", [("isbn", "9780306406157")]),
        (
            "ISBN 0-306-40615-2 (hbk), 0-8044-2957-X (pbk)",
            [("isbn", "9780306406157"), ("isbn", "9780804429573")],
        ),
        ("© ünï ISBN\n  0-306-40615-2", [("isbn", "9780306406157")]),
        ("doi:10.1000/182.", [("doi", "10.1000/182")]),
        ("<https://doi.org/10.1000/ABC(1)2>", [("doi", "10.1000/abc(1)2")]),
        ("DOI 10.1000/xyz, and", [("doi", "10.1000/xyz")]),
        ("\\doi{10.1000/xyz}", [("doi", "10.1000/xyz")]),
        ("doi = {10.1000/xyz},", [("doi", "10.1000/xyz")]),
        ("LCCN 85-2", [("lccn", "85000002")]),
        ("Library of Congress Control Number: 2001012345", [("lccn", "2001012345")]),
        ("Library of Congress Catalog Card No. 78-890351", [("lccn", "78890351")]),
        ("ASIN: B00ICN066A", [("asin", "B00ICN066A")]),
        ("https://www.amazon.com/dp/B00ICN066A?x", [("asin", "B00ICN066A")]),
        ("amazon.co.uk/gp/product/0306406152/", [("isbn", "9780306406157")]),
        ("Registration Number / Date: TX0001234567 / 1992-08-05", [("usco", "TX0001234567")]),
        ("Copyright registration no. TX 1-234-567", [("usco", "TX0001234567")]),
        ("Reg. No. VA-1-234-567", [("usco", "VA0001234567")]),
        ("see TX 1-234-567 there", [("usco", "TX0001234567")]),
        ("TXu 1-234-567", [("usco", "TXu001234567")]),
        ("TX 0-000-001", [("usco", "TX0000000001")]),
    ],
)
def test_found(make_batch: MakeBatch, text: str, expected: list[tuple[str, str]]) -> None:
    assert found_in(make_batch(["x", text])) == expected


@pytest.mark.parametrize(
    "text",
    [
        "ISBN 0-306-40615-3",
        "ISBN 9780306406158",
        "ISBN",
        "ISBN 123",
        "an isbnlike 0306406152",
        "0-306-40615-2 and 10.1000/182",
        "doi: see below",
        "doing 10.1000/182",
        "basin: B00ICN066A",
        "asin: increasing B00ICN06",
        "https://example.org/dp/B00ICN066A",
        "Houston, TX 77002-1234 and TX 713-853-3989",
        "Registration Number: 12-345",
        "",
    ],
)
def test_not_found(make_batch: MakeBatch, text: str) -> None:
    assert found_in(make_batch([text])) == []


def test_a_number_of_a_registry_names_its_work(make_batch: MakeBatch) -> None:
    works = {"9780306406157": "0a1b2c3d4e5f"}
    batch = make_batch(["ISBN 0-306-40615-2, ISBN 9780306406157, ISBN 0-8044-2957-X"])
    rows = detect_identifiers(batch, works).to_pylist()
    assert [(row["work_id"], row["byte_offset"]) for row in rows] == [("0a1b2c3d4e5f", 5), ("", 45)]
    assert json.loads(rows[0]["attributes"]) == {"places": 2}


def check_digit(body: str) -> str:
    """Modulus 11 with weights 10 to 2, as the ISBN Users' Manual words it."""
    remainder = -sum(weight * int(d) for weight, d in zip(range(10, 1, -1), body, strict=True)) % 11
    return "X" if remainder == 10 else str(remainder)


@given(st.from_regex("[0-9]{9}", fullmatch=True).filter(lambda digits: len(set(digits)) > 1))
def test_of_all_last_digits_one_is_right(body: str) -> None:
    texts = [f"ISBN {body}{digit}" for digit in "0123456789X"]
    batch = pa.table({"text": pa.array(texts, pa.large_string())})
    rows = detect_identifiers(batch, NONE)["row"].to_pylist()
    assert rows == ["0123456789X".index(check_digit(body))]
