"""Download markers and mentions of listed collections in texts."""

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.core import zstd
from pipeline.screening.detectors.lists import load_shipped_origins
from pipeline.screening.detectors.markers import MarkerIndex, detect_markers

MakeBatch = Callable[..., pa.Table]
INDEX = MarkerIndex((load_shipped_origins(),))
DIGEST = "0123456789abcdef" * 2
STORY = "It was a bright cold morning, and the clocks had stopped. " * 100
LINES = STORY.replace(". ", ".\n")


def found_in(batch: pa.Table) -> list[tuple[int, str, str]]:
    rows = detect_markers(batch, INDEX).to_pylist()
    for row in rows:
        text = batch["text"][row["row"]].as_py().encode()
        start = row["byte_offset"]
        assert text[start : start + row["byte_length"]].decode().startswith(row["seen"])
    return [(row["row"], row["kind"], row["target"]) for row in rows]


@pytest.mark.parametrize(
    ("marker", "family"),
    [
        ("Downloaded from Bibliotik", "bibliotik"),
        ("SCANNED AND UPLOADED BY BIBLIOTIK", "bibliotik"),
        ("This book was downloaded from Z-Library (z-lib.org)", "zlibrary"),
        ("This e-book is provided by Library Genesis.", "libgen"),
        ("[libgen.rs]", "libgen"),
        ("http://b-ok.org/", "zlibrary"),
        ("www.libgen.is", "libgen"),
        ("Source: the-eye.eu/public/Books/", "the_eye"),
        ("ebook converter DEMO - annas-archive.org", "annas_archive"),
        (f"Library Genesis https://libgen.is/book/index.php?md5={DIGEST}", "libgen"),
        (f"http://mirror.example/get.php?md5={DIGEST}", "libgen"),
        ("*** downloaded from Anna\N{RIGHT SINGLE QUOTATION MARK}s Archive ***", "annas_archive"),
    ],
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\n\n"])
def test_markers_at_the_ends_of_a_text(
    make_batch: MakeBatch, marker: str, family: str, line_end: str
) -> None:
    texts = [marker + line_end + LINES, LINES + line_end + marker, marker]
    found = found_in(make_batch(texts))
    assert found == [(row, "download", family) for row in range(3)]


@pytest.mark.parametrize(
    "text",
    [
        "This book was downloaded from Z-Library (z-lib.org) " + STORY,
        STORY + "Downloaded from Bibliotik",
        "Downloaded from Bibliotik " + STORY,
        STORY + "[libgen.rs]",
        "[libgen.rs] " + STORY,
        STORY + "As said, this copy was downloaded from LibGen, and then " + STORY,
        LINES + "\nDownloaded from Bibliotik\n" + LINES,
    ],
)
def test_markers_where_lines_were_joined(make_batch: MakeBatch, text: str) -> None:
    (found,) = found_in(make_batch([text]))
    assert found[1] == "download"


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("Sci-Hub\n\nSci-Hub is a web site. " + STORY, "scihub"),
        ("Articles that were downloaded from Sci-Hub were counted. " + STORY, "scihub"),
        (STORY + "Some went to libgen.is and found it there. " + STORY, "libgen"),
        (LINES + "\nhttps://libgen.is/x\n" + LINES, "libgen"),
        (LINES + "a complaint names the library\ngenesis site", "libgen"),
        ("A. Doe (2001). Retrieved from sci-hub.se\n" + STORY, "scihub"),
        ("The set Books3 is described here. " + STORY, "books3"),
        (STORY + "用LibGen下载" + STORY, "libgen"),
    ],
)
def test_mentions(make_batch: MakeBatch, text: str, family: str) -> None:
    assert found_in(make_batch([text])) == [(0, "mention", family)]


@pytest.mark.parametrize(
    "text",
    [
        "#include <libgen.h>\nchar *dirname(char *path);",
        "\\usetikzlibrary{arrows}",
        "Fragments from Books 3.1 and 4.1-3 are preserved.",
        "https://notlibgen.is.example.org/ and https://libgen.is.example.org/",
        "libgenesis, biblibgen, bibliotike",
        "the eye.eu, a bibliotek, Bibliotikk",
        "open libgen.py and libgen.so and link with -llibgen",
        "/index.php?md5=short",
        "B-OK. The 1lib and the singlelogin. page",
        "Downloaded from B\N{CYRILLIC SMALL LETTER BYELORUSSIAN-UKRAINIAN I}bliotik",
        "D o w n l o a d e d   f r o m   B i b l i o t i k",
        "",
    ],
)
def test_what_only_looks_alike(make_batch: MakeBatch, text: str) -> None:
    assert found_in(make_batch([text])) == []


def test_a_mention_counts_its_places(make_batch: MakeBatch) -> None:
    table = detect_markers(make_batch(["About Sci-Hub: sci hub, scihub, sci-hub.se."]), INDEX)
    (row,) = table.to_pylist()
    assert (row["seen"], row["byte_offset"]) == ("Sci-Hub", 6)
    assert json.loads(row["attributes"]) == {
        "form": "name", "list": "origins", "list_version": "1", "places": 4,
    }  # fmt: skip


def test_a_marker_in_another_language_is_a_mention(make_batch: MakeBatch) -> None:
    assert found_in(make_batch(["Heruntergeladen von Bibliotik"])) == [(0, "mention", "bibliotik")]


def test_a_link_at_the_end_reads_like_a_download_marker(make_batch: MakeBatch) -> None:
    text = "Links of ours\n" + LINES + "\nhttps://libgen.is"
    assert found_in(make_batch([text])) == [(0, "download", "libgen")]


def test_past_64_places_of_a_phrase_nothing_is_read(make_batch: MakeBatch) -> None:
    texts = ["Bibliotik. " * n + LINES + "\nDownloaded from Bibliotik" for n in (63, 64)]
    assert found_in(make_batch(texts)) == [
        (0, "mention", "bibliotik"),
        (0, "download", "bibliotik"),
        (1, "mention", "bibliotik"),
    ]


def test_both_kinds_in_one_text(make_batch: MakeBatch) -> None:
    text = "Downloaded from Bibliotik\n" + LINES + "He had read of Bibliotik in the news."
    assert found_in(make_batch([text])) == [
        (0, "download", "bibliotik"),
        (0, "mention", "bibliotik"),
    ]


def records(folder: Path, pattern: str) -> Iterator[dict[str, str]]:
    for path in sorted(folder.glob(pattern)):
        for line in zstd.decompress(path.read_bytes()).splitlines():
            yield json.loads(line)


@pytest.mark.shared_data
def test_all_planted_markers_are_found_and_nothing_else(
    shared_data: Path, make_batch: MakeBatch
) -> None:
    folder = shared_data / "books3_like"
    texts = [record["text"] for record in records(folder, "*.jsonl.zst")]
    with open(folder / "labels.csv", encoding="utf-8", newline="") as file:
        planted = [bool(row["planted_marker"]) for row in csv.DictReader(file)]
    found = found_in(make_batch(texts))
    assert {kind for _, kind, _ in found} == {"download"}
    assert [row for row, _, _ in found] == [row for row, marked in enumerate(planted) if marked]


@pytest.mark.shared_data
def test_ordinary_texts_have_no_download_marker(shared_data: Path, make_batch: MakeBatch) -> None:
    texts = [record["text"] for record in records(shared_data / "pile_sample", "0[08].jsonl.zst")]
    assert "download" not in {kind for _, kind, _ in found_in(make_batch(texts))}
