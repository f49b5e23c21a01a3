"""Passages of works in documents: candidates against a plain oracle, and what users rely on."""

import random
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup.text import join_texts
from pipeline.core.errors import InputError
from pipeline.screening import find_passages
from pipeline.screening.fingerprints.build import build_index
from pipeline.screening.fingerprints.find import PASSAGES
from pipeline.screening.fingerprints.index import FingerprintIndex
from pipeline.screening.fingerprints.match import BAND, find_candidates
from pipeline.screening.fingerprints.sketch import salt_hashes, sketch_text
from tests.pipeline.screening.fingerprints import reference

from .conftest import invented

Rows = list[dict[str, object]]
SALT = b"a salt"


def rows_of(texts: object, registry: object) -> Rows:
    return find_passages(texts, registry).to_pylist()


# Candidates -------------------------------------------------------------------------------------


def oracle(documents: list[str], index: FingerprintIndex) -> set[tuple[int, ...]]:
    """Candidates as `match` defines them, from the postings."""
    k, last = index.parameters.k, int(index.last)
    table = index.tables["postings"]
    places = defaultdict(list)
    for gram, at in zip(table["hash"].to_pylist(), table["position"].to_pylist(), strict=True):
        work = int(np.searchsorted(index.starts, at, "right")) - 1
        places[gram].append((work, at - int(index.starts[work])))
    found = set()
    for document, text in enumerate(documents):
        bands: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        seen: dict[tuple[int, int], list[int]] = defaultdict(list)
        previous = None
        for gram, place in reference.sketch(text, k, last + 1):
            salted = int(salt_hashes(np.array([gram], np.uint64), SALT)[0])
            for work, at in [*places[gram], *places[salted]] if gram != previous else []:
                band = (at - place) // BAND
                bands[work][band].add(gram)
                seen[work, band].append(place)
            previous = gram
        for work, grams in bands.items():
            needed = int(index.needed[work])
            scores = {
                band: max(len(grams[band] | grams.get(b, set())) for b in (band - 1, band + 1))
                for band in grams
            }
            reached = {band for band, score in scores.items() if score >= needed}
            for low in sorted(b for b in reached if b - 1 not in reached):
                high = low
                while high + 1 in reached:
                    high += 1
                in_bands = [p for b in range(low, high + 1) for p in seen[work, b]]
                best = max(scores[b] for b in range(low, high + 1))
                found.add((document, work, low, high, min(in_bands), max(in_bands), best))
    return found


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_candidates_against_the_oracle(seed: int, k: int) -> None:
    """Works of few words and documents cut out of them: many bands hold something."""
    rng = random.Random(seed)
    books = [invented(seed + n, 900, 150) for n in range(3)]
    index = build_index([
        (str(n), "excerpt", sketch_text(text, rng.choice([4, 8, 32]), k, rng.choice([None, SALT])))
        for n, text in enumerate(books)
    ])  # fmt: skip
    documents = []
    for _ in range(3):
        pieces = []
        for _ in range(rng.randrange(4)):
            words = rng.choice(books).split()
            start = rng.randrange(len(words))
            pieces += [*words[start : start + rng.randrange(400)], "something", "else"]
        documents.append(" ".join(pieces))
    candidates, _, words_N = find_candidates(join_texts(documents), index)
    found = set(zip(*(column.tolist() for column in candidates), strict=True))
    assert found == oracle(documents, index)
    assert words_N.tolist() == [len(reference.words(text)) for text in documents]


# Passages ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def books() -> dict[str, str]:
    return {f"work {n}": invented(n, 12_000) for n in range(6)}


@pytest.fixture(scope="module")
def index(books: dict[str, str]) -> FingerprintIndex:
    return build_index([(name, "excerpt", text) for name, text in books.items()])


def test_a_passage_is_found_where_it_stands(books: dict[str, str], index: FingerprintIndex) -> None:
    passage = " ".join(books["work 3"].split()[5000:5300])
    before, after = invented(100, 1500), invented(101, 1200)
    text = f"{before} „Über“ {passage} — {after}"
    (row,) = rows_of([invented(102, 900), text], index)
    start, end = row["byte_start"], row["byte_end"]
    data = text.encode()
    at = data.index(passage.encode())
    assert (row["row"], row["work_id"]) == (1, "work 3")
    assert at - 20 <= start <= at
    assert abs(end - at - len(passage.encode())) <= 20
    assert 300 <= row["longest_run_words"] <= 303
    assert row["hits"] >= 296
    assert row["document_fraction"] == pytest.approx(300 / 3001, abs=0.002)


def test_longest_run_is_really_common(books: dict[str, str], index: FingerprintIndex) -> None:
    words = books["work 1"].split()[200:700]
    words[100], words[260], words[300:310] = "one", "another", ["more"]
    (row,) = rows_of([" ".join(words)], index)
    assert row["longest_run_words"] == max(b - a - 1 for a, b in pairwise([-1, 100, 260, 300, 491]))


def test_passages_apart_are_rows_of_their_own(
    books: dict[str, str], index: FingerprintIndex
) -> None:
    one, two = (books["work 2"].split()[at : at + 150] for at in (1000, 7000))
    other = books["work 4"].split()[50:200]
    filler = [invented(200 + n, 400).split() for n in range(4)]
    pieces = [filler[0], two, filler[1], one, filler[2], other, filler[3]]
    rows = rows_of([" ".join(word for piece in pieces for word in piece)], index)
    assert [row["work_id"] for row in rows] == ["work 2", "work 2", "work 4"]
    starts = [row["byte_start"] for row in rows]
    assert starts == sorted(starts)
    shares = [row["document_fraction"] for row in rows]
    assert shares[0] == shares[1] == pytest.approx(300 / 2050, abs=0.01)
    assert shares[2] == pytest.approx(150 / 2050, abs=0.01)


def test_a_whole_work_is_one_row(books: dict[str, str], index: FingerprintIndex) -> None:
    (row,) = rows_of([books["work 5"]], index)
    assert row["byte_start"] == 0
    assert row["byte_end"] >= len(books["work 5"]) - 1
    assert row["document_fraction"] == 1
    assert row["longest_run_words"] == 12_000


def test_unrelated_text_is_not_matched(index: FingerprintIndex) -> None:
    assert rows_of([invented(300 + n, 5000) for n in range(40)], index) == []


EDITS: dict[str, Callable[[list[str], random.Random], list[str]]] = {
    "as it is": lambda words, rng: words,
    "a fifth replaced": lambda words, rng: [
        f"new{rng.random()}" if rng.random() < 0.2 else w for w in words
    ],
    "a tenth deleted": lambda words, rng: [w for w in words if rng.random() >= 0.1],
    "halves exchanged": lambda words, rng: words[len(words) // 2 :] + words[: len(words) // 2],
}


@pytest.mark.parametrize("name", EDITS)
def test_edited_passages_are_found(
    name: str, books: dict[str, str], index: FingerprintIndex
) -> None:
    rng = random.Random(5)
    texts, expected = [], []
    for number in range(40):
        work = rng.choice(list(books))
        at = rng.randrange(11_000)
        edited = EDITS[name](books[work].split()[at : at + 350], rng)
        texts.append(f"{invented(400 + number, 1500)} {' '.join(edited)} {invented(500, 900)}")
        expected.append(work)
    found = {(row["row"], row["work_id"]) for row in rows_of(texts, index)}
    assert found == set(enumerate(expected))


def test_a_work_of_cut_lines_capitals_and_quotes(
    books: dict[str, str], index: FingerprintIndex
) -> None:
    words = books["work 0"].split()[100:400]
    long = [n for n, word in enumerate(words) if len(word) > 6]
    for n in long[::3]:
        words[n] = f"{words[n][:3]}-\n{words[n][3:]}"
    text = "“" + " ".join(words).upper().replace(" ", "\r\n", 60) + "”"
    (row,) = rows_of([text], index)
    assert row["longest_run_words"] == 300


def test_only_a_sketch_is_known(books: dict[str, str]) -> None:
    works = [(name, "excerpt", sketch_text(text, 8, 5)) for name, text in books.items()]
    index = build_index(works)
    assert index.parameters.m_sketch > index.parameters.m
    passage = " ".join(books["work 3"].split()[5000:5600])
    (row,) = rows_of([f"{invented(100, 900)} {passage} {invented(101, 900)}"], index)
    assert row["work_id"] == "work 3"
    assert 480 < row["longest_run_words"] <= 600
    assert row["document_fraction"] == pytest.approx(600 / 2400, abs=0.03)


def test_salted_and_plain_works_mix(books: dict[str, str]) -> None:
    salts = [None, b"one salt", b"another"]
    works = [
        (name, "excerpt", sketch_text(text, 8, 5, salts[n % 3]))
        for n, (name, text) in enumerate(books.items())
    ]
    works.append(("text", "excerpt", invented(77, 8000)))
    index = build_index(works)
    texts = [" ".join(text.split()[3000:3500]) for text in [*books.values(), invented(77, 8000)]]
    found = [(row["row"], row["work_id"]) for row in rows_of(texts, index)]
    assert found == list(enumerate([*books, "text"]))


LOST: dict[str, Callable[[list[str]], list[str]]] = {
    "translated": lambda words: [f"t{sorted(set(words)).index(word)}" for word in words],
    "in other words": lambda words: [w if n % 3 else f"other{n}" for n, w in enumerate(words)],
    "30 words of it": lambda words: words[:30],
    "letters inserted": lambda words: [f"{word[:1]}x{word[1:]}" for word in words],
    "letters swapped": lambda words: [word.replace("a", "4").replace("o", "0") for word in words],
}


@pytest.mark.parametrize("name", LOST)
def test_what_is_not_found(name: str, books: dict[str, str], index: FingerprintIndex) -> None:
    words = books["work 1"].split()[5000:5600]
    before, after = invented(100, 900), invented(101, 900)
    whole, lost = (f"{before} {' '.join(some)} {after}" for some in (words, LOST[name](words)))
    assert [row["row"] for row in rows_of([whole, lost], index)] == [0]


def test_a_passage_that_unrelated_works_share_is_found_in_none() -> None:
    shared = invented(9, 300)
    texts = [f"{invented(20 + n, 3000)} {shared} {invented(30 + n, 3000)}" for n in (1, 2)]
    document = f"{invented(50, 500)} {shared} {invented(51, 500)}"
    assert len(rows_of([document], [("1", texts[0])])) == 1
    assert rows_of([document], [(str(n), text) for n, text in enumerate(texts)]) == []


def test_the_tier_of_whole_books_finds_no_passages() -> None:
    texts = [invented(n, 60_000, 20_000) for n in range(2)]
    index = build_index([(str(n), "whole_book", text) for n, text in enumerate(texts)])
    words = texts[1].split()
    starts = range(0, 56_000, 4_000)
    short = [" ".join(words[at : at + 350]) for at in starts]
    long = [" ".join(words[at : at + 3600]) for at in starts]
    assert rows_of(short, index) == []
    assert [row["row"] for row in rows_of(long, index)] == list(range(len(long)))


def test_whole_books_are_found_sparsely() -> None:
    texts = [invented(n, 60_000, 20_000) for n in range(3)]
    index = build_index([(str(n), "whole_book", text) for n, text in enumerate(texts)])
    edited = " ".join(w for n, w in enumerate(texts[1].split()) if n % 50)
    rows = rows_of([invented(9, 30_000, 20_000), edited], index)
    assert [(row["row"], row["work_id"]) for row in rows] == [(1, "1")]
    assert rows[0]["document_fraction"] > 0.9


def test_scripts_without_spaces() -> None:
    rng = random.Random(3)
    letters = [chr(c) for c in range(0x4E00, 0x5200)]
    work = "".join(rng.choices(letters, k=6000))
    other = "".join(rng.choices(letters, k=3000))
    passage = work[2000:2400]
    lines = "。\n".join(passage[i : i + 30] for i in range(0, 400, 30))
    (row,) = rows_of([other, f"{other}「{lines}」{other[:500]}"], [("漢", work)])
    assert (row["row"], row["work_id"]) == (1, "漢")
    assert row["longest_run_words"] == 400


def test_texts_come_in_any_form(books: dict[str, str], index: FingerprintIndex) -> None:
    texts = [books["work 1"][5000:9000], "", books["work 2"][100:4000] + "é"]
    expected = find_passages(texts, index)
    assert expected.schema == PASSAGES
    assert expected["row"].to_pylist() == [0, 2]
    for kind in (pa.string(), pa.large_string()):
        array = pa.array(["before", *texts], kind)
        assert find_passages(array.slice(1), index).equals(expected)
        chunks = pa.chunked_array([array[1:2], array[:0], array[2:]])
        assert find_passages(chunks, index).equals(expected)
    assert find_passages(pa.chunked_array([], pa.string()), index).equals(expected[:0])


def test_registries_come_in_any_form(
    tmp_path: Path, books: dict[str, str], index: FingerprintIndex
) -> None:
    texts = [books["work 1"][5000:9000]]
    expected = find_passages(texts, index)
    index.save(tmp_path / "index")
    for registry in (books.items(), tmp_path / "index", str(tmp_path / "index")):
        assert find_passages(texts, registry).equals(expected)


def test_a_registry_directory(tmp_path: Path, books: dict[str, str]) -> None:
    from pipeline.screening.registry import load_registry
    from pipeline.screening.registry.importing import ImportOptions, import_works

    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "The Tin Orchard.txt").write_text(books["work 1"], "utf-8")
    (tmp_path / "works.csv").write_text("title,author\nThe Tin Orchard,Ida Marsh\n", "utf-8")
    import_works([tmp_path / "works.csv"], tmp_path / "claims", ImportOptions(texts=texts))
    registry = load_registry(tmp_path / "claims")
    documents = [invented(60, 500), books["work 1"][9000:13000]]
    found = find_passages(documents, tmp_path / "claims")
    assert found["row"].to_pylist() == [1]
    assert found["work_id"].to_pylist() == registry.works["work_id"].to_pylist()
    assert find_passages(documents, registry).equals(found)


def test_a_directory_of_neither(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no registry of works here"):
        find_passages(["text"], tmp_path)


def test_a_registry_without_works() -> None:
    assert rows_of(["some text of some words"], []) == []


def test_short_and_empty_works() -> None:
    assert rows_of(["a b c", ""], [("a", ""), ("b", "a b c")]) == []


def test_one_word_over_and_over(books: dict[str, str]) -> None:
    """Neither a hit for each place nor a passage."""
    works = [*books.items(), ("dull", "ba " * 5000)]
    rows = rows_of(["ba " * 200_000, "ba do " * 100_000], works)
    assert [row["work_id"] for row in rows] in ([], ["dull"])


@pytest.mark.shared_data
def test_real_excerpts(shared_data: Path) -> None:
    """A small form of benchmarks/provenance/excerpts.py; one article quotes a work for real."""
    from benchmarks.provenance.edits import Vocabulary, edits
    from benchmarks.provenance.excerpts import overlaps_of, plant, read_corpus

    files = [str(shared_data / "pile_sample" / f"{n:02d}.jsonl.zst") for n in (2, 8)]
    corpus = read_corpus(files, [], "Gutenberg (PG-19)")
    index = build_index([(title, "excerpt", text) for title, text in corpus.works.items()])
    suite = edits(Vocabulary(text[:100_000] for text in corpus.works.values()))
    for name in ("reflow", "words 20%", "OCR 5%", "drop 30% sentences", "shuffle sentences"):
        planted = plant(corpus, suite[name], 50, 2000, random.Random(1))
        assert (overlaps_of(planted, index) > 0.5).mean() >= 0.98
    (row,) = rows_of(pa.array(corpus.unrelated, pa.large_string()), index)
    assert (row["work_id"], row["longest_run_words"]) == ("moby dick or the whale", 22)
    assert row["document_fraction"] < 0.05
