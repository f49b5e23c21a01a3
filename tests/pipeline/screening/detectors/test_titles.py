"""Titles and authors, with invented works; those of Exhibit A by their names only."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.provenance.titles import quality
from dedup.text import join_texts
from pipeline.core import zstd
from pipeline.screening.detectors.title_index import TitleIndex, build_title_index
from pipeline.screening.detectors.title_words import fold_table, hash_word, hash_words
from pipeline.screening.detectors.titles import detect_titles
from pipeline.screening.evidence import FINDINGS
from pipeline.screening.registry.names import normalise_title, split_authors, split_title
from pipeline.screening.registry.works import Work, make_work_id, make_works_table

WORKS = {
    "The Zorgblat Chronicles: a novel of Vumpery": ["Quillon Marsh"],
    "Quimbledon": ["Brontë, Ada"],
    "The Secret Garden Party": ["R. D. Tolland"],
    "Feldspar and Umber: notes": ["Ursula K. Le Grand", "Tove Aster"],
    "Murmuring Quandle Brumble Oxter": ["Pell, Ivo"],
    "Night Water": [],
    "Glimmerglass Hollow / by Wren Adair.": [],
}


def _index(works: dict[str, list[str]]) -> TitleIndex:
    rows = []
    for title, authors in works.items():
        part = split_title(title)
        work_id = make_work_id(part.title, part.subtitle, authors, "")
        names = tuple(authors)
        rows.append(
            Work(
                work_id=work_id,
                title_raw=title,
                title_norm=normalise_title(part.title),
                subtitle=part.subtitle,
                authors=names,
            )
        )
    return build_title_index(make_works_table(rows))


@pytest.fixture(scope="module")
def index() -> TitleIndex:
    return _index(WORKS)


def _detected(
    index: TitleIndex, *documents: tuple[dict[str, Any] | str, str]
) -> list[dict[str, Any]]:
    metas = [meta if isinstance(meta, str) else json.dumps(meta) for meta, _ in documents]
    texts = [pa.array([text], pa.large_string()) for _, text in documents]
    batch = pa.table({
        "meta": pa.array(metas, pa.string()),
        "text": pa.chunked_array(texts, pa.large_string()),
    })  # fmt: skip
    table = detect_titles(batch, index)
    assert table.schema == FINDINGS
    rows: list[dict[str, Any]] = table.to_pylist()
    return [{**row, "attributes": json.loads(row["attributes"])} for row in rows]


FOUND = {
    "title and author": ({"title": "Quimbledon", "author": "Ada Bronte"}, "Quimbledon", "full"),
    "upper case, surname first": ({"title": "QUIMBLEDON", "author": "BRONTË, A."}, "Quimbledon",
                                  "initial"),
    "year in brackets": ({"title": "Quimbledon [1901]", "author": "Brontë, Ada"}, "Quimbledon",
                         "full"),
    "typing mistake": ({"title": "Murmuring Quandel Brumble Oxter", "author": "Ivo Pell"},
                       "Murmuring", "full"),
    "author - title": ({"filename": "Quillon Marsh - The Zorgblat Chronicles (1999).epub.txt"},
                       "The Zorgblat", "full"),
    "title - author": ({"file": "The Zorgblat Chronicles - Marsh, Quillon (retail) (v5.0).mobi"},
                       "The Zorgblat", "full"),
    "underscores": ({"path": "x/Marsh_Quillon-The_Zorgblat_Chronicles_(retail).epub"},
                    "The Zorgblat", "full"),
    "folder of the author": ({"path": "library/Ada Brontë/Quimbledon.txt"}, "Quimbledon", "full"),
    "nested and escaped": ({"book": {"name": "Quimbledon / Ada Bront\u00eb."}}, "Quimbledon",
                           "full"),
    "second author of a list": ({"title": "Feldspar & Umber", "authors": ["X Y", "Aster, Tove"]},
                                "Feldspar", "full"),
    "surname of two words": ({"title": "Feldspar and Umber", "author": "U. K. Le Grand"},
                             "Feldspar", "initial"),
    "initials together": ({"title": "The Secret Garden Party", "author": "RD Tolland"},
                          "The Secret", "initial"),
    "responsibility in the title": ({"title": "Glimmerglass Hollow", "author": "Wren Adair"},
                                    "Glimmerglass", "full"),
}  # fmt: skip


@pytest.mark.parametrize("case", FOUND)
def test_found_in_metadata(index: TitleIndex, case: str) -> None:
    meta, title, author = FOUND[case]
    (row,) = _detected(index, (meta, "Some text."))
    assert row["kind"] == "title_author"
    assert row["target"].startswith(title)
    assert (row["attributes"]["author"], row["byte_length"]) == (author, 0)
    assert row["score"] >= 0.9


def test_each_row_of_a_batch_has_its_own_metadata(index: TitleIndex) -> None:
    metas = [meta for meta, *_ in FOUND.values()]
    metas = [one for meta in metas for one in ({"title": "x", "n": "y"}, meta, {})]
    batch = {"meta": list(map(json.dumps, metas)), "text": ["Some text."] * len(metas)}
    together = detect_titles(pa.table(batch), index).to_pylist()
    alone = [_detected(index, (meta, "Some text.")) for meta in metas]
    one_each = [{**row, "row": number} for number, rows in enumerate(alone) for row in rows]
    assert len(one_each) == len(FOUND)
    assert [{**row, "attributes": json.loads(row["attributes"])} for row in together] == one_each


def test_found_in_the_first_lines(index: TitleIndex) -> None:
    text = "é\n\n  QUIMBLEDON\n\nby\n\nAda Brontë\n1901\n\nIt rained."
    (row,) = _detected(index, ("{}", text))
    data = text.encode()
    place = data[row["byte_offset"] : row["byte_offset"] + row["byte_length"]]
    assert (row["kind"], place, row["attributes"]["where"]) == (
        "title_author",
        b"QUIMBLEDON",
        "text",
    )


NOT_FOUND: dict[str, tuple[dict[str, Any], str]] = {
    "one rare word without an author": ({"title": "Quimbledon"}, ""),
    "another author": ({"title": "Quimbledon", "author": "Eve Adams"}, ""),
    "same surname, other first name": ({"title": "Quimbledon", "author": "Charlotte Brontë"}, ""),
    "another title": ({"title": "Letters", "author": "Ada Brontë"}, ""),
    "part of the words": ({"title": "The Secret Garden", "author": "R. D. Tolland"}, ""),
    "common words without an author": ({"title": "Night Water"}, ""),
    "a sentence in the text": ({}, "In Quimbledon, by Ada Brontë, it rains. " * 3),
    "more than the title": ({"title": "Quimbledon Revisited", "author": "Ada Brontë"}, ""),
    "two rare words, another author": (
        {"title": "The Zorgblat Chronicles", "author": "Eve Adams"}, ""),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_FOUND)
def test_not_found(index: TitleIndex, case: str) -> None:
    assert _detected(index, NOT_FOUND[case]) == []


def test_a_title_alone(index: TitleIndex) -> None:
    rows = _detected(
        index,
        ({"title": "the_zorgblat_chronicles.epub.txt"}, ""),
        ({"source": "x/Marsh - The Zorgblat Chronicles.epub"}, ""),
    )
    assert [(r["kind"], r["attributes"]["author"]) for r in rows] == [
        ("title", "absent"),
        ("title", "surname"),
    ]
    assert rows[0]["score"] < rows[1]["score"] < 0.9


def test_no_works() -> None:
    assert _detected(_index({}), ({"title": "Quimbledon", "author": "Ada Brontë"}, "x")) == []


def test_many_works_of_one_title() -> None:
    rows = [
        Work(
            work_id=f"w{n}",
            title_raw="Zorg Blat",
            title_norm="zorg blat",
            authors=(f"Ivo Pell{n}",),
        )
        for n in range(999)
    ]
    index = build_title_index(make_works_table(rows))
    (found,) = _detected(index, ({"title": "Zorg Blat", "author": "Ivo Pell700"}, ""))
    assert found["work_id"] == "w700"


def test_works_without_a_title() -> None:
    assert (
        _detected(_index({"!": ["Ada Brontë"]}), ({"title": "!", "author": "Ada Brontë"}, "")) == []
    )


@given(st.lists(
    st.tuples(
        st.text('{}[]":,\\u title author Quimbledon Ada Bronte-_.epub', max_size=80)
        | st.dictionaries(st.sampled_from(["title", "author", "path"]), st.text(max_size=40)),
        st.text("Quimbledon by Ada\nBrontë \x00\x1b", max_size=80),
    ), min_size=1, max_size=4,
))  # fmt: skip
@settings(max_examples=60)
def test_hostile_documents(documents: list[tuple[dict[str, Any] | str, str]]) -> None:
    for row in _detected(_index(WORKS), *documents):
        assert 0 <= row["score"] <= 1
        text = documents[row["row"]][1].encode()
        assert row["byte_offset"] + row["byte_length"] <= len(text)


def test_huge_values(index: TitleIndex) -> None:
    long = "Quimbledon " * 100_000
    names = " ".join(["Ada Brontë"] * 100_000)
    assert _detected(index, ({"title": long, "author": names}, long)) == []


@given(st.text(max_size=40), st.booleans())
def test_words_are_folded_as_the_registry_folds(text: str, ascii_only: bool) -> None:
    def hashes(value: str, is_json: bool) -> list[int]:
        flat, out = join_texts([value]), np.empty(200, np.uint64)
        end = int(flat.offsets[1])
        count = hash_words(flat.data, 0, end, is_json, fold_table(), out, 0)
        return [int(value) for value in out[:count]]

    plain = hashes(text, False)
    folded = normalise_title(f"x{text}x").split()
    if text.isascii() and not set(text) & set("&()[]{}.,_-"):
        assert hashes(f"x{text}x", False) == [hash_word(word) for word in folded]
    if all(ord(c) < 0x10000 for c in text):
        assert hashes(json.dumps(text, ensure_ascii=ascii_only)[1:-1], True) == plain


def test_quality_of_the_benchmark() -> None:
    both, _ = quality(seed=7, works=502, named=60, others=600)
    assert both.precision >= 0.98
    assert both.recall >= 0.90


@pytest.mark.shared_data
def test_books_with_title_and_author(shared_data: Path) -> None:
    folder = shared_data / "books3_like"
    with open(folder / "registry.csv", encoding="utf-8", newline="") as file:
        listed = {row["title"]: list(split_authors(row["author"])) for row in csv.DictReader(file)}
    with open(folder / "labels.csv", encoding="utf-8", newline="") as file:
        labels = list(csv.DictReader(file))
    documents = []
    for shard in sorted(folder.glob("*.zst")):
        for line in zstd.decompress(shard.read_bytes()).splitlines():
            record = json.loads(line)
            documents.append((record["meta"], record["text"]))
    named = {row: {"title", "author"} <= meta.keys() for row, (meta, _) in enumerate(documents)}
    found: dict[int, list[str]] = {}
    for finding in _detected(_index(listed), *documents):
        if finding["kind"] == "title_author" and named[finding["row"]]:
            found.setdefault(finding["row"], []).append(split_title(finding["target"]).title)
    wanted = {
        row: split_title(label["title"]).title
        for row, label in enumerate(labels)
        if named[row] and label["in_registry"] == "1"
    }
    assert len(wanted) == 107
    assert found.keys() == wanted.keys()
    assert all(set(titles) == {wanted[row]} for row, titles in found.items())
