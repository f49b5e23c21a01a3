"""Titles and authors: one form for every spelling of one, different forms for different works."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.screening.registry.names import (
    Title,
    make_author_key,
    normalise_author,
    normalise_title,
    split_authors,
    split_title,
    strip_noise,
)

TITLES = [
    ("The Tin Orchard", Title("The Tin Orchard")),
    ("The tin orchard : a novel / Ida Marsh.", Title("The tin orchard", "a novel", "Ida Marsh")),
    ("The tin orchard: poems: second series", Title("The tin orchard", "poems: second series")),
    ("Salt; or, The Long Way / by I. Marsh", Title("Salt", "or, The Long Way", "by I. Marsh")),
    ("Salt, or the Long Way", Title("Salt", "or the Long Way")),
    ("Sink or swim", Title("Sink or swim")),
    ("Trick, or treat", Title("Trick, or treat")),
    ("9/11", Title("9/11")),
    ("3:10 to Anywhere", Title("3:10 to Anywhere")),
    ("Wait...", Title("Wait...")),
    (": odd", Title(": odd")),
    ("Odd:", Title("Odd:")),
    ("  Two \n lines ", Title("Two lines")),
]


@pytest.mark.parametrize(("text", "parts"), TITLES)
def test_areas_of_a_title(text: str, parts: Title) -> None:
    assert split_title(text) == parts


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("Marsh_Ida-The_Tin_Orchard_(retail).epub", "Marsh Ida-The Tin Orchard"),
        ("The Tin Orchard - Ida Marsh.epub.txt", "The Tin Orchard - Ida Marsh"),
        ("The Tin Orchard (v5.0) (US) [2003]", "The Tin Orchard"),
        ("The Tin Orchard (retail, v1.1) {epub}", "The Tin Orchard"),
        ("The Tin Orchard-retail.mobi", "The Tin Orchard"),
        ("The Tin Orchard (a novel)", "The Tin Orchard (a novel)"),
        ("The Future of Retail", "The Future of Retail"),
        ("Version 2", "Version 2"),
        ("(1984)", "(1984)"),
        ("epub.epub", "epub"),
    ],
)
def test_noise_of_file_names(name: str, bare: str) -> None:
    assert strip_noise(name) == bare


@pytest.mark.parametrize(
    "same",
    [
        ("The Tin Orchard", "THE TIN ORCHARD!", "Tin Orchard, The", "The_Tin_Orchard_(epub)"),
        ("Don\N{RIGHT SINGLE QUOTATION MARK}t look", "don't look", "Dont Look."),
        ("Salt & Smoke", "salt and smoke"),
        ("Über den Fluß", "uber den fluss", "U\N{COMBINING DIAERESIS}ber den Fluss"),
        ("\N{LATIN SMALL LIGATURE FI}ne words", "fine words"),
        ("Mother-in-law", "mother in law"),
    ],
)
def test_titles_that_are_one(same: tuple[str, ...]) -> None:
    assert len({normalise_title(title) for title in same}) == 1


def test_titles_that_differ() -> None:
    titles = ["The Tin Orchard", "A Tin Orchard", "Tin Orchards", "Orchard Tin", "が", "か", "東京"]
    assert len({normalise_title(title) for title in titles}) == len(titles)


@pytest.mark.parametrize(
    ("key", "names"),
    [
        (("marsh", "i"), ["Ida Marsh", "Marsh, Ida", "IDA MARSH", "MARSH, IDA J.", "I. J. Marsh",
                          "Marsh, I.J.", "Marsh, Ida, 1931-2004", "by Ida Marsh", "Ida Marsh (ed.)",
                          "Marsh,Ida [pseud.]", "Dr. Ida Marsh", "Ida Marsh, PhD", "Marsh, Ida, Dr",
                          "Ida\tMarsh", "Marsh_,_Ida"]),
        (("bronte", "c"), ["Charlotte Brontë", "BRONTE, CHARLOTTE"]),
        (("king", "m"), ["Martin Luther King, Jr.", "King, Martin Luther, Jr.", "Martin King III"]),
        (("le guin", "u"), ["Ursula K. Le Guin", "Le Guin, Ursula K.", "LE GUIN, URSULA"]),
        (("van gogh", "v"), ["Vincent van Gogh", "Gogh, Vincent van", "van Gogh, V."]),
        (("oconnor", "f"), ["Flannery O'Connor", "O’CONNOR, Flannery"]),
        (("smith-jones", "a"), ["Anna Smith-Jones", "Smith-Jones, Anna"]),
        (("voltaire", ""), ["Voltaire", "VOLTAIRE", "Voltaire, 1694-1778"]),
        (("hoeg", "p"), ["Peter Høeg", "Hoeg, Peter"]),
        (("", ""), ["", " , ", "1954-", "(ed.)", "Jr."]),
    ],
)  # fmt: skip
def test_author_in_either_order(key: tuple[str, str], names: list[str]) -> None:
    assert {name: make_author_key(name) for name in names} == dict.fromkeys(names, key)


def test_authors_that_differ() -> None:
    names = ["Ida Marsh", "Otto Marsh", "Ida Marshall", "Marsh", "Ida van Marsh", "Henry James"]
    assert len({make_author_key(name) for name in names}) == len(names)


WORD = st.text("abcdefghijklmnopqrstuvwxyzéßøñ", min_size=2, max_size=8).filter(
    lambda word: (
        make_author_key(f"Xx {word}")[0] == make_author_key(word)[0] == normalise_title(word)
        and make_author_key(f"{word} Xx") == ("xx", normalise_title(word)[:1])
    )
)
"""Words with no meaning of their own in a name: no honorific, suffix, particle or role."""


@given(WORD, WORD)
def test_the_order_of_a_name_does_not_count(first: str, last: str) -> None:
    natural, library = f"{first} {last}", f"{last.upper()}, {first}"
    assert make_author_key(natural) == make_author_key(library)
    assert normalise_author(natural) == normalise_author(library)


@given(st.text())
def test_normal_forms_stay(text: str) -> None:
    once = normalise_title(text)
    assert normalise_title(once) == once
    assert all(split_authors(text)) and strip_noise(text) == strip_noise(strip_noise(text))
    make_author_key(text)
    split_title(text)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Ida Marsh", ("Ida Marsh",)),
        ("Marsh, Ida", ("Marsh, Ida",)),
        ("Marsh, Ida; Bell, Otto", ("Marsh, Ida", "Bell, Otto")),
        ("Ida Marsh and Otto Bell", ("Ida Marsh", "Otto Bell")),
        ("Ida Marsh, Otto Bell & Una Reed", ("Ida Marsh", "Otto Bell", "Una Reed")),
        ("Ida Marsh, Otto Bell, Una Reed", ("Ida Marsh", "Otto Bell", "Una Reed")),
        ("Le Guin, Ursula K.", ("Le Guin, Ursula K.",)),
        ("Ida Marsh; Ida  Marsh", ("Ida Marsh",)),
        ("Anderson Sand", ("Anderson Sand",)),
        (" ; ", ()),
    ],
)
def test_lists_of_authors(text: str, names: tuple[str, ...]) -> None:
    assert split_authors(text) == names
