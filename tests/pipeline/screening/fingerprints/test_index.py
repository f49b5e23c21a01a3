"""The index: what its postings hold, that it is deterministic, and that damage is found."""

import hashlib
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import InputError, IntegrityError
from pipeline.screening.fingerprints.build import (
    PLACES,
    _find_among,
    build_index,
    load_shipped_boilerplate,
)
from pipeline.screening.fingerprints.calibrate import (
    Background,
    choose_chance,
    choose_k,
    find_kinship,
    find_published_chance,
    measure_background,
)
from pipeline.screening.fingerprints.find import find_passages
from pipeline.screening.fingerprints.index import (
    TABLES,
    FingerprintIndex,
    build_filter,
    choose_bits,
    find_first,
    pack_words,
    unpack_words,
)
from pipeline.screening.fingerprints.sketch import sketch_text
from tests.pipeline.screening.fingerprints import reference

from .conftest import Book


def postings(index: FingerprintIndex) -> list[tuple[int, int]]:
    table = index.tables["postings"]
    return list(zip(table["hash"].to_pylist(), table["position"].to_pylist(), strict=True))


def test_postings_are_the_sampled_grams(book: Book) -> None:
    texts = {"one": book(1, 2000), "two": book(2, 1500)}
    index = build_index([(name, "excerpt", text) for name, text in texts.items()])
    expected, start = [], 0
    for text in texts.values():
        expected += [(h, start + p) for h, p in reference.sketch(text, 5, 1 << 61)]
        start += len(reference.words(text))
    assert postings(index) == sorted(expected)
    assert index.starts.tolist() == [0, 2000, 3500]
    assert index.read_words(1).tolist() == [word for word, _, _ in reference.words(texts["two"])]


def test_grams_of_unrelated_works_are_left_out_and_counted(book: Book) -> None:
    saying = book(9, 60)
    texts = [f"{book(n, 3000)} {saying} {book(n + 10, 3000)}" for n in (1, 2, 3)]
    index = build_index([(str(n), "excerpt", text) for n, text in enumerate(texts)])
    holders: dict[int, set[int]] = defaultdict(set)
    for number, text in enumerate(texts):
        for gram, _ in reference.sketch(text, 5, 1 << 61):
            holders[gram].add(number)
    shared = {gram: len(works) for gram, works in holders.items() if len(works) > 1}
    assert shared
    excluded = index.tables["excluded"]
    assert dict(zip(*(excluded[n].to_pylist() for n in ("hash", "df")), strict=True)) == shared
    assert not {gram for gram, _ in postings(index)} & set(shared)


def test_editions_of_one_work_keep_what_they_share(book: Book) -> None:
    text = book(1, 6000)
    other = text.replace(" ba ", " bah ")
    works = [("first", text), ("second", other), ("third", book(2, 900))]
    found = find_passages([text[3000:9000]], works)
    assert set(found["work_id"].to_pylist()) == {"first", "second"}


def test_kinship() -> None:
    """Works 0 and 2 share 8 of the 8 grams of 2; 1 and 3 share 3 of many."""
    grams = {0: range(30), 1: range(100, 140), 2: range(8), 3: [*range(200, 240), 100, 101, 102]}
    rows = sorted((gram, work) for work, hashes in grams.items() for gram in hashes)
    gram_E, work_E = np.array(rows, np.int64).T.copy()
    assert find_kinship(gram_E, work_E, 4).tolist() == [0, 1, 0, 3]
    assert find_kinship(gram_E[:0], work_E[:0], 2).tolist() == [0, 1]


@pytest.mark.parametrize(("shared", "kin"), [(19, [0, 1]), (20, [0, 0])])
def test_kin_share_a_tenth_of_the_smaller_work(shared: int, kin: list[int]) -> None:
    rows = [(gram, work) for gram in range(shared) for work in (0, 1)]
    rows += [(gram, 0) for gram in range(shared, 1000)]
    rows += [(gram, 1) for gram in range(1000, 1200 - shared)]
    gram_E, work_E = np.array(rows, np.int64).T.copy()
    assert find_kinship(gram_E, work_E, 2).tolist() == kin


def test_few_places_of_a_gram_are_kept(book: Book) -> None:
    index = build_index([("refrain", "excerpt", f"{book(1, 30)} " * 40)])
    times = np.unique(index.postings.hashes, return_counts=True)[1]
    assert times.max() == PLACES


def test_same_works_same_bytes(tmp_path: Path, book: Book) -> None:
    works = [("a", "excerpt", book(1, 2000)), ("b", "whole_book", book(2, 4000)),
             ("c", "excerpt", sketch_text(book(3, 1000), 8, 5, b"salt"))]  # fmt: skip
    sums = []
    for name in ("one", "two"):
        build_index(works).save(tmp_path / name)
        files = sorted((tmp_path / name).iterdir())
        sums.append([(f.name, hashlib.sha256(f.read_bytes()).hexdigest()) for f in files])
    assert sums[0] == sums[1]
    assert len(sums[0]) == len(TABLES) + 1


def test_saved_and_loaded(tmp_path: Path, book: Book) -> None:
    index = build_index([("a", "excerpt", book(1, 2000)), ("b", "excerpt", book(2, 2000))])
    index.save(tmp_path / "index")
    loaded = FingerprintIndex.load(tmp_path / "index")
    assert loaded.parameters == index.parameters
    assert all(loaded.tables[name].equals(index.tables[name]) for name in TABLES)
    texts = [book(1, 2000)[1000:4000], book(5, 500)]
    assert find_passages(texts, tmp_path / "index").equals(find_passages(texts, index))
    assert not loaded.postings.hashes.flags.owndata


def test_no_index_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no index of fingerprints here"):
        FingerprintIndex.load(tmp_path)


@pytest.mark.parametrize("name", [*TABLES])
def test_damage_is_found(tmp_path: Path, book: Book, name: str) -> None:
    build_index([("a", "excerpt", book(1, 500))]).save(tmp_path)
    path = tmp_path / f"{name}.arrow"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match=rf"{name}.arrow: damaged"):
        FingerprintIndex.load(tmp_path)
    path.unlink()
    with pytest.raises(IntegrityError, match=rf"{name}.arrow: missing"):
        FingerprintIndex.load(tmp_path)


def test_of_another_normalisation(book: Book) -> None:
    index = build_index([("a", "excerpt", book(1, 500))])
    tables = dict(index.tables)
    stated = tables["works"].schema.metadata[b"fingerprints"]
    other = stated.replace(b'"normalisation": 1', b'"normalisation": 9')
    tables["works"] = tables["works"].replace_schema_metadata({b"fingerprints": other})
    with pytest.raises(IntegrityError, match="has normalisation 9, expected 1"):
        FingerprintIndex.of_tables(tables)
    tables["works"] = tables["works"].replace_schema_metadata(None)
    with pytest.raises(IntegrityError, match="no parameters"):
        FingerprintIndex.of_tables(tables)


def test_works_that_cannot_be_indexed(book: Book) -> None:
    text = book(1, 300)
    with pytest.raises(InputError, match="work a: given twice"):
        build_index([("a", "excerpt", text), ("a", "excerpt", text)])
    with pytest.raises(InputError, match="its tier is 'novel', expected excerpt or whole_book"):
        build_index([("a", "novel", text)])
    sketches = sketch_text(text, 8, 5), sketch_text(text)
    with pytest.raises(InputError, match="its sketch has k = 6, expected 5"):
        build_index([("a", "excerpt", sketches[0]), ("b", "excerpt", sketches[1])])
    salted = replace(sketch_text(text, salt=b"salt"), salt=b"")
    with pytest.raises(InputError, match="the salt is missing"):
        build_index([("a", "excerpt", salted)])


def test_k_is_that_of_the_sketches(book: Book) -> None:
    works = [("a", "excerpt", book(1, 300)), ("b", "excerpt", sketch_text(book(2, 300), k=6))]
    assert build_index(works).parameters.k == 6
    assert build_index(works[:1]).parameters.k == 5
    assert (choose_k(100), choose_k(101)) == (5, 6)


def test_whole_books_need_little_room(book: Book) -> None:
    text = book(1, 120_000, 30_000)
    sizes = {}
    for tier in ("excerpt", "whole_book"):
        index = build_index([("a", tier, text)])
        sizes[tier] = index.tables["postings"].nbytes + index.tables["filter"].nbytes
    assert sizes["whole_book"] < sizes["excerpt"] / 40
    assert sizes["excerpt"] < 330e3 * len(text) / 1e6


def test_boilerplate_is_in_no_posting(book: Book) -> None:
    notice = book(50, 300)
    text = f"{notice} {book(1, 3000)}"
    index = build_index([("a", "excerpt", text)], boilerplate=[notice])
    unwanted = {gram for gram, _ in reference.sketch(notice, 5, 1 << 64)}
    assert not unwanted & {gram for gram, _ in postings(index)}
    assert set(index.boilerplate.tolist()) == unwanted
    assert len(find_passages([notice], index)) == 0
    row = find_passages([f"{book(51, 200)} {text}"], index).to_pylist()[0]
    assert row["longest_run_words"] <= 3000 + 5


@given(st.lists(st.integers(0, 9)), st.sets(st.integers(0, 9)))
def test_hashes_among_ascending_ones(hashes: list[int], ascending: set[int]) -> None:
    ordered = sorted(ascending)
    found = _find_among(np.array(ordered, np.uint64), np.array(hashes, np.uint64))
    assert found.tolist() == [ordered.index(h) if h in ascending else -1 for h in hashes]


@pytest.mark.parametrize("salt", [b"", b"salt"])
def test_boilerplate_is_in_no_posting_of_a_sketch(book: Book, salt: bytes) -> None:
    notice, own = book(8, 400), book(1, 3000)
    sketch = sketch_text(f"{own} {notice}", 1, 5, salt)
    index = build_index([("one", "excerpt", sketch)], boilerplate=[notice])
    kept = [place for _, place in postings(index)]
    assert max(kept) < 3000
    assert len(kept) == 2996 + 4, "all grams that begin in the work's own words"


def test_shipped_boilerplate_is_small_and_not_kept_without_need(book: Book) -> None:
    assert 8 < len(load_shipped_boilerplate()) < 30
    assert sum(map(len, load_shipped_boilerplate())) < 60_000
    assert len(build_index([("a", "excerpt", book(1, 3000))]).boilerplate) == 0


def test_background() -> None:
    """Two works of 2 pieces and one of 1; a gram of pieces 0 of work 0 and 0 of work 2."""
    words = np.array([5000, 4000, 300])
    found = measure_background(
        np.array([10, 20]), np.array([0, 0]), np.array([0, 2]), np.array([0, 1, 2]), words
    )
    assert found == Background(pairs=2 * 2 + 2 * 2 + 1 * 2, hit=2)
    kin = measure_background(
        np.array([10, 20]), np.array([0, 0]), np.array([0, 2]), np.array([0, 1, 0]), words
    )
    assert kin == Background(pairs=2 * 1 + 2 * 2 + 1 * 1, hit=0)


def test_chance_is_measured_where_that_is_enough() -> None:
    assert choose_chance(5, Background(1000, 19)) == find_published_chance(5) == 0.037
    assert choose_chance(5, Background(1000, 20)) == 0.02


def test_stored_words() -> None:
    rng = np.random.default_rng(1)
    for distinct in (1, 300, 70_000):
        words = rng.integers(0, 1 << 63, distinct, np.uint64)[rng.integers(0, distinct, 80_000)]
        vocabulary, numbers = pack_words(words)
        assert (unpack_words(vocabulary, numbers, len(words)) == words).all()
    with pytest.raises(ValueError, match="stored words are damaged"):
        unpack_words(vocabulary[:8], numbers, len(words))
    with pytest.raises(ValueError, match="stored words are damaged"):
        unpack_words(vocabulary, b"not zstd", len(words))


def test_filter_passes_what_it_holds() -> None:
    rng = np.random.default_rng(2)
    hashes = np.unique(rng.integers(0, 1 << 61, 4000, np.uint64))
    bits = build_filter(hashes, 512)

    def passes(key: np.uint64) -> bool:
        wanted = choose_bits(key)
        return bool(bits[(key >> np.uint64(20)) & np.uint64(511)] & wanted == wanted)

    assert all(passes(key) for key in hashes)
    others = rng.integers(0, 1 << 61, 4000, np.uint64)
    assert sum(passes(key) for key in others) < 400
    places = [find_first(hashes, key) for key in others[:100]]
    assert places == np.searchsorted(hashes, others[:100]).tolist()
