"""Where documents say they come from: labels, paths and metadata, and what only looks alike."""

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from pipeline.screening.detectors.lists import OriginList, load_shipped_origins
from pipeline.screening.detectors.origin import OriginIndex, detect_origin

MakeBatch = Callable[..., pa.Table]
INDEX = OriginIndex((load_shipped_origins(),))
DIGEST = "Qm" + "a1" * 22


def found_in(batch: pa.Table, paths: dict[int, str] | None = None) -> list[tuple[int, str, str]]:
    rows = detect_origin(batch, INDEX, paths or {}).to_pylist()
    assert all((row["byte_offset"], row["byte_length"]) == (0, 0) for row in rows)
    return [(row["row"], row["kind"], row["target"]) for row in rows]


@pytest.mark.parametrize(
    ("label", "kind", "family"),
    [
        ("Books3", "label", "books3"),
        ("BOOKS3", "label", "books3"),
        ("pile/Books3", "label", "books3"),
        ("Library Genesis", "label", "libgen"),
        ("library_genesis", "label", "libgen"),
        ("Anna\N{RIGHT SINGLE QUOTATION MARK}s Archive", "label", "annas_archive"),
        ("Sci Hub", "label", "scihub"),
        ("BookCorpus2", "label", "bookcorpus"),
        ("libgen.rs", "host", "libgen"),
        ("someone/the_pile_books3_minus_gutenberg", "repository", "books3"),
    ],
)
def test_source_labels(make_batch: MakeBatch, label: str, kind: str, family: str) -> None:
    batch = make_batch(["a", "b", "c"], sources=["Wikipedia (en)", label, label])
    assert found_in(batch) == [(1, kind, family), (2, kind, family)]


@pytest.mark.parametrize("label", ["Books", "Books30", "My books3 notes", "Wikipedia", "Gutenberg"])
def test_other_labels(make_batch: MakeBatch, label: str) -> None:
    assert found_in(make_batch(["a"], sources=[label])) == []


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({"pile_set_name": "Books3"}, [("label", "books3")]),
        ({"a": [{"Dataset": "bibliotik"}]}, [("label", "bibliotik")]),
        ({"url": "https://libgen.is/book/index.php"}, [("host", "libgen")]),
        ({"url": "HTTP://WWW.SCI-HUB.SE/10.1/x"}, [("host", "scihub")]),
        ({"links": ["https://web.archive.org/web/1/http://b-ok.cc/x"]}, [("host", "zlibrary")]),
        ({"file": "/data/Books3/part/a.txt"}, [("path", "books3")]),
        ({"file": "C:\\corpora\\books3\\a.txt"}, [("path", "books3")]),
        ({"url": "https://a.example/x/books3.tar.gz?raw=1"}, [("path", "books3")]),
        ({"title": "Surname - A Title (1999).epub.txt"}, [("filename", "ebook_file_name")]),
        ({"title": "a_title.epub.txt"}, [("filename", "ebook_file_name")]),
        ({"name": "Surname - A Title (1999, House).mobi"}, [("filename", "ebook_file_name")]),
        (
            {"source": "books3/Surname - A Title.epub.txt"},
            [("filename", "ebook_file_name"), ("path", "books3")],
        ),
        ({"url": "magnet:?dn=x&xt=urn:btih:" + "a" * 40}, [("magnet", "magnet")]),
        ({"url": "https://a.example/b.torrent"}, [("magnet", "torrent")]),
        ({"url": f"https://gate.example/ipfs/{DIGEST}/x"}, [("magnet", "ipfs")]),
        (
            {"from": "https://huggingface.co/datasets/someone/the_pile_books3"},
            [("repository", "books3")],
        ),
        ({"from": "hf://datasets/bookcorpus/bookcorpus"}, [("repository", "bookcorpus")]),
        (
            {"repo": "defunct-datasets/the_pile_books3"},
            [("label", "books3"), ("repository", "books3")],
        ),
    ],
)  # fmt: skip
def test_metadata(make_batch: MakeBatch, meta: Any, expected: list[tuple[str, str]]) -> None:
    for text in (json.dumps(meta), json.dumps(meta).replace("/", "\\/")):
        batch = make_batch(["a", "b"], metas=["{}", text])
        assert found_in(batch) == [(1, kind, target) for kind, target in expected]


@pytest.mark.parametrize(
    "meta",
    [
        {"title": "Bibliotik"},
        {"title": "Books3", "author": "LibGen"},
        {"title": "https://libgen.is"},
        {"url": "https://en.wikipedia.org/wiki/Sci-Hub"},
        {"url": "https://en.wikipedia.org/wiki/Bibliotik/"},
        {"url": "https://notlibgen.is.example.org/x"},
        {"url": "https://libgen.is.example.org/x"},
        {"url": "https://libgen.is@example.org/x"},
        {"url": "https://example.org/?next=https://libgen.is"},
        {"url": "https://man.example/libgen.h.html"},
        {"file": "src/libgen.py"},
        {"file": "data/books3_like/a.txt"},
        {"file": "manual.epub"},
        {"note": "Books3 is described here"},
        {"pile_set_name": "Books30"},
        {"url": "https://huggingface.co/datasets/someone/not_the_pile_books3"},
        {"url": "https://ipfs.example/docs/ipfs/intro"},
        {"text": "magnet:?xt=urn:btih:" + "a" * 40},
    ],
)
def test_metadata_that_only_looks_alike(make_batch: MakeBatch, meta: Any) -> None:
    assert found_in(make_batch(["a"], metas=[json.dumps(meta)])) == []


def test_escaped_letters_do_not_hide_a_host(make_batch: MakeBatch) -> None:
    meta = '{"url": "https:\\u002f\\u002f\\u006cibgen.is\\u002fx"}'
    assert found_in(make_batch(["a"], metas=[meta])) == [(0, "host", "libgen")]


def test_broken_metadata_is_read_as_one_string(make_batch: MakeBatch) -> None:
    metas = ['{"url": "https://libgen.is/x', "[" * 100_000 + '"libgen.is"', '"\\ud800 libgen"']
    assert found_in(make_batch(["a"] * 3, metas=metas)) == [(0, "host", "libgen")]


def test_a_long_file_name_takes_no_time(make_batch: MakeBatch) -> None:
    name = json.dumps("a - " * 50_000 + "(2001.epub")
    assert found_in(make_batch(["a"], metas=[f'{{"file": {name}}}'])) == []


def test_paths_of_input_files(make_batch: MakeBatch) -> None:
    paths = {0: "pile/00.jsonl.zst", 1: "bibliotik/01.jsonl", 2: "x/Name - Title (2001).epub.txt"}
    batch = make_batch(["a"] * 4, path_ids=[0, 1, 2, 9])
    expected = [(1, "path", "bibliotik"), (2, "filename", "ebook_file_name")]
    assert found_in(batch, paths) == expected


def test_what_label_and_metadata_say_alike_is_one_finding(make_batch: MakeBatch) -> None:
    batch = make_batch(["a"], sources=["Books3"], metas=['{"pile_set_name": "Books3"}'])
    table = detect_origin(batch, INDEX, {})
    assert table["seen"].to_pylist() == ["Books3"]
    assert table["attributes"].to_pylist() == ['{"list":"origins","list_version":"1"}']


def test_a_declared_licence_changes_nothing(make_batch: MakeBatch) -> None:
    meta = '{"pile_set_name": "Books3", "license": "mit"}'
    batch = make_batch(["a"] * 100, sources=["Books3"] * 100, metas=[meta] * 100)
    assert found_in(batch) == [(row, "label", "books3") for row in range(100)]


def test_the_entry_that_matched_names_its_list(make_batch: MakeBatch) -> None:
    own = OriginList.model_validate({
        "name": "own", "version": "7",
        "families": (
            {"family": "libgen", "basis": "Order of 2031", "domains": ("mirror.example",)},
        ),
    })  # fmt: skip
    index = OriginIndex((load_shipped_origins(), own))
    metas = ['{"url": "https://mirror.example"}', '{"url": "https://libgen.is"}']
    table = detect_origin(make_batch(["a", "b"], metas=metas), index, {})
    assert table["target"].to_pylist() == ["libgen", "libgen"]
    names = [json.loads(about)["list"] for about in table["attributes"].to_pylist()]
    assert names == ["own", "origins"]
