"""Sources made of one template: boilerplate alone never makes a duplicate.

Pages that share text share minima, and where all thirteen rows of one band come from the shared
text, every page falls into one bucket. Chained without verification, the whole source goes
(marin-community/marin#6854: 99.9998 % of a source).
"""

import functools
import random

import pytest

from dedup import find_duplicates
from dedup.similarity import jaccard

WORDS = [f"{a}{b}{c}" for a in "bcdfgklm" for b in ("ara", "ino", "ule", "ova") for c in "nrst"]


def prose(seed: int, words: int) -> str:
    draw = random.Random(seed)
    return " ".join(draw.choices(WORDS, k=words))


def pages(count: int, shared: int, own: int, template: int) -> list[str]:
    """Pages of `shared` words of one template and `own` words of their own."""
    boilerplate = prose(template, shared)
    return [f"{boilerplate} {prose(1_000_000 + page, own)}" for page in range(count)]


@functools.cache
def wiping_template(preset: str, shared: int, own: int) -> int:
    """A template that, unverified, makes duplicates of a third of its pages and more."""
    for template in range(400):
        few = pages(60, shared, own, template)
        if len(find_duplicates(few, preset=preset, verify="none")) >= 20:
            return template
    raise AssertionError("no template of these sizes fills a band")


@pytest.mark.parametrize("count", [3_000, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("preset", "shared", "own"), [("slimpajama", 120, 25), ("fineweb", 60, 40)]
)
def test_thousands_of_pages_of_one_template_stay(
    preset: str, shared: int, own: int, count: int
) -> None:
    texts = pages(count, shared, own, wiping_template(preset, shared, own))
    assert jaccard(texts[0], texts[1]) < 0.8
    assert len(find_duplicates(texts, preset=preset, verify="none")) > count // 2
    assert len(find_duplicates(texts, preset=preset)) == 0


def test_true_copies_among_them_go() -> None:
    texts = pages(3_000, 60, 40, wiping_template("fineweb", 60, 40))
    copies = {row: row - 1_500 for row in range(2_500, 3_000)}
    for row, original in copies.items():
        texts[row] = texts[original].upper() + "!"
    found = find_duplicates(texts, preset="fineweb").to_pylist()
    assert {row["row"]: row["representative"] for row in found} == copies
    assert {row["jaccard"] for row in found} == {1.0}


def test_books_with_one_licence_text_stay() -> None:
    licence = prose(7, 2_900)
    books = [f"{licence} {prose(10_000 + book, 6_000)} {licence}" for book in range(40)]
    for preset in ("slimpajama", "fineweb", "strict"):
        assert len(find_duplicates(books, preset=preset)) == 0
    revised = [*books, books[3].replace("baran", "baras", 5)]
    assert find_duplicates(revised)["representative"].to_pylist() == [3]


def test_texts_without_a_shingle_never_meet() -> None:
    """Empty, blank, punctuation and tiny texts are no cluster, however many there are."""
    texts = ["", " ", "!!!", "???", "a", "a", "tiny text", "tiny text", "\n\t"] * 50
    for verify in ("none", "estimate", "exact"):
        assert len(find_duplicates(texts, verify=verify)) == 0  # type: ignore[arg-type]
