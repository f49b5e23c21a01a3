"""`prep search`, and short texts of `prep trace --text`: what a document holds is always found."""

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.core.errors import InputError
from pipeline.engine.progress import Progress
from pipeline.explain.find import LEAST_PART, find_text
from pipeline.explain.found_text import FoundText
from pipeline.explain.search import search_run
from pipeline.explain.text_search import scan_run
from pipeline.stories.repack import RepackOptions, repack_run
from tests.slow import mark_slow

QUIET = Progress(quiet=True)


@pytest.fixture(scope="module")
def texts(small_run: Any) -> dict[bytes, str]:
    """The cleaned texts of kept documents, by key."""
    documents = small_run.table("documents.parquet")
    states = dict(
        zip(documents["doc_key"].to_pylist(), documents["state"].to_pylist(), strict=True)
    )
    found: dict[bytes, str] = {}
    for path in sorted((small_run.directory / "documents").glob("*.arrow")):
        table = pa.ipc.open_file(path).read_all()
        found |= zip(table["doc_key"].to_pylist(), table["text"].to_pylist(), strict=True)
    return {key: text for key, text in found.items() if states[key] == "kept"}


def found_in(directory: Path, text: str) -> dict[bytes, FoundText]:
    return {hit.key: hit for hit in scan_run(directory, text, QUIET)[0]}


def letters(text: str) -> str:
    """What of it is in words."""
    return "".join(c for c in text if c.isalnum())


def changed_typography(text: str, rng: random.Random) -> str:
    """As a web page or a mail would show it."""
    broken = "".join(" \n " if c == " " and rng.random() < 0.2 else c for c in text)
    return broken.replace("'", "\N{RIGHT SINGLE QUOTATION MARK}").upper()


@pytest.mark.parametrize("size", mark_slow([1, 2, 5, 10, 20, 30, 50], 2, 10, 30))
def test_every_excerpt_is_found(small_run: Any, texts: dict[bytes, str], size: int) -> None:
    """Random words of random documents: as they are, and with another typography."""
    rng = random.Random(size)
    long = [key for key, text in texts.items() if len(text.split()) > size]
    for _ in range(15):
        key = rng.choice(long)
        words = texts[key].split()
        first = rng.randrange(len(words) - size)
        excerpt = " ".join(words[first : first + size])
        for given in (excerpt, changed_typography(excerpt, rng)):
            hit = found_in(small_run.directory, given)[key]
            assert hit.changed == 0 and hit.exact >= 1
            assert letters(excerpt) in map(letters, (place.match for place in hit.places))


def test_an_excerpt_cut_anywhere_is_found(small_run: Any, texts: dict[bytes, str]) -> None:
    """In the midst of words, with the white space as it is."""
    rng = random.Random(3)
    for _ in range(40):
        key = rng.choice(list(texts))
        size = rng.choice([12, 40, 90, 200])
        first = rng.randrange(max(1, len(texts[key]) - size))
        excerpt = texts[key][first : first + size]
        assert found_in(small_run.directory, excerpt)[key].changed == 0


def test_words_changed_are_counted(small_run: Any, texts: dict[bytes, str]) -> None:
    key = next(key for key, text in texts.items() if len(text.split()) > 60)
    words = texts[key].split()[20:50]
    words[7], words[15:17] = "elsewhere", []
    hit = found_in(small_run.directory, " ".join(words))[key]
    assert (hit.exact, hit.changed) == (0, 3)
    words = ["nowhere" if n % 4 == 0 else word for n, word in enumerate(words)]
    assert key not in found_in(small_run.directory, " ".join(words))


def test_short_texts_are_traced(small_run: Any, texts: dict[bytes, str]) -> None:
    """Ten words are below what fingerprints find."""
    keys = small_run.table("documents.parquet")["doc_key"].to_pylist()
    rng = random.Random(5)
    for _ in range(6):
        key = rng.choice([k for k, text in texts.items() if len(text.split()) > 60])
        words = texts[key].split()
        first = rng.randrange(len(words) - 20)
        row = keys.index(key)
        answer = find_text(small_run.directory, " ".join(words[first : first + 10]))
        assert answer.because[answer.rows.index(row)]
        assert any(re.match(r"looked for \d+ words in a row", note) for note in answer.notes)


def test_every_part_from_a_length_on_is_traced(
    small_run: Any, write_prose: Callable[..., str]
) -> None:
    """Of a longer text, whose other words no document holds."""
    rng = random.Random(7)
    words = write_prose(92_000, 200).split()
    for _ in range(8):
        first = rng.randrange(len(words) - LEAST_PART)
        part = " ".join(words[first : first + LEAST_PART])
        answer = find_text(small_run.directory, f"Lorem ipsum dolor {part} sit amet")
        (why, *_) = [why for why in answer.because if why.startswith("a passage (")]
        said = re.search(r"\((\d+) words in a row; \d+\.\d% of the document and \d", why)
        assert said and int(said[1]) >= LEAST_PART


def test_what_is_not_looked_at_is_said(small_run: Any) -> None:
    _, searched = scan_run(small_run.directory, "nothing has these words", QUIET)
    shards = (small_run.directory / "documents").glob("*.arrow")
    rows = sum(len(pa.ipc.open_file(path).read_all()) for path in shards)
    assert searched.documents + searched.quarantined == rows
    assert rows + searched.never_documents == len(small_run.table("documents.parquet"))
    assert searched.quarantined and searched.never_documents


def test_a_repack_is_searched_in_its_run(
    small_run: Any, texts: dict[bytes, str], tmp_path: Path
) -> None:
    origin = Path(shutil.copytree(small_run.directory, tmp_path / "run"))
    repack_run(origin, tmp_path / "packed", RepackOptions(max_sequence_length=64), 0)
    key, text = next((key, text) for key, text in texts.items() if len(text.split()) > 30)
    words = " ".join(text.split()[5:25])
    answer = search_run(tmp_path / "packed", words)
    (found,) = [d for d in answer.documents if d.traced.document == key.hex()]
    assert found.of_words and 0 < len(set(found.rows)) <= found.traced.rows
    assert answer.searched.home == origin.resolve()
    assert find_text(tmp_path / "packed", words).rows
    shutil.rmtree(origin / "documents")
    with pytest.raises(InputError, match="no documents/"):
        search_run(tmp_path / "packed", words)
    (tmp_path / "packed/journal/events.jsonl").unlink()
    with pytest.raises(InputError, match="made by `prep repack`"):
        search_run(tmp_path / "packed", words)


def test_the_command(small_run: Any, texts: dict[bytes, str], prep: Callable[..., Any]) -> None:
    key, text = next((key, text) for key, text in texts.items() if len(text.split()) > 30)
    words = " ".join(text.split()[5:25])
    shown = prep("search", small_run.directory, words.lower())
    assert shown.code == 0, shown.err
    assert key.hex() in shown.out and "[[" in shown.out and "  in train/" in shown.out
    assert "search: " in shown.err
    answer = json.loads(prep("search", small_run.directory, words, "--json").out)
    (document,) = [d for d in answer["documents"] if d["document"] == key.hex()]
    assert document["place"] in shown.out and document["state"] == "kept"
    (place, *_) = document["places"]
    data = text.encode()[place["start"] : place["stop"]].decode()
    assert letters(data) == letters(words) == letters(place["match"])
    assert document["in_rows"] and document["of_words"] and document["exact"] >= 1
    few = json.loads(prep("search", small_run.directory, "the", "--limit", 2, "--json").out)
    assert len(few["documents"]) == 2 < few["documents_total"]
    whole = json.loads(prep("search", small_run.directory, "the", "--json").out)
    assert whole["total_is_exact"] and len(whole["documents"]) == whole["documents_total"]
    page = prep("search", small_run.directory, "the", "--skip", 2, "--limit", 2)
    assert whole["documents"][3]["document"] in page.out
    assert f"and {len(whole['documents']) - 4} more documents (--limit, --skip 4," in page.out


def test_nothing_found(small_run: Any, prep: Callable[..., Any], tmp_path: Path) -> None:
    shown = prep("search", small_run.directory, "no such words were ever written here")
    assert shown.code == 0
    assert "no document contains these words" in shown.out
    assert re.search(r"looked for 7 words in a row, .* in the texts of \d+ documents", shown.out)
    assert prep("search", small_run.directory, " ").code == 3
    assert prep("search", tmp_path, "word").code == 3
