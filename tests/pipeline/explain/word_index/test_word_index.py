"""The index of words: what it leaves of a run, and that a search with it finds what one without it
finds."""

import json
import random
import re
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline
from dedup.text import join_texts
from pipeline.core import storage
from pipeline.core.errors import InputError
from pipeline.core.manifest import Shard, StageManifest, TaskRecord, write_manifest, write_sealed
from pipeline.engine.progress import Progress
from pipeline.engine.runner import manifest_path
from pipeline.engine.stage import arrow_output
from pipeline.explain import text_search
from pipeline.explain.found_text import FoundText
from pipeline.explain.search import search_run
from pipeline.explain.text_scan import make_query
from pipeline.explain.text_search import SearchScope, TextSearch, scan_run
from pipeline.explain.word_index import lookup
from pipeline.explain.word_index.lookup import StaleIndex, WordIndex, open_word_index
from pipeline.explain.word_index.spellings import find_spellings
from pipeline.runs import layout
from pipeline.stories import word_index
from pipeline.stories.verify import verify_run
from pipeline.stories.word_index import index_words

QUIET = Progress(quiet=True)
PIECES = ["the", "The", "THE", "cat", "concat", "catalogue", "été", "ÉTÉ", "e\u0301te\u0301", "x_y",
          "don't", "東京", "東", "ไทย", "Straße", "STRASSE", "ﬁne", "fine", "a", "I", "3.14", "½",
          "co-\noperate", "cooperate", "soft\u00adhyphen", "!=", "--", "\u200b", "𝐛𝐨𝐥𝐝", "İ",
          "Σας"]  # fmt: skip
SEPARATORS = [" ", "  ", "\n", "", ", ", "-", "\u3000", ". "]


def plain_spellings(text: str) -> set[str]:
    """By a regular expression: runs of letters and digits, unspaced letters each alone."""
    unspaced = "\u0e00-\u0eff\u3041-\u312f\u4e00-\u9fff"
    words = re.findall(rf"[{unspaced}]|[^\W_{unspaced}]+", text)
    lower = str.maketrans({chr(n): chr(n + 32) for n in range(65, 91)})
    return {word.translate(lower) for word in words if word.isalnum()}


@settings(max_examples=200)
@given(st.lists(st.lists(st.sampled_from([*PIECES, *SEPARATORS])).map("".join), max_size=6))
def test_spellings_against_a_regular_expression(texts: list[str]) -> None:
    found = find_spellings(join_texts(texts))
    names = found.texts.to_pylist()
    assert len(set(names)) == len(names) == len(set(found.hashes.tolist()))
    pairs = [(names[s], row) for s, row in zip(found.spelling, found.row, strict=True)]
    assert len(set(pairs)) == len(pairs)
    by_row = [{name for name, row in pairs if row == number} for number in range(len(texts))]
    assert by_row == [plain_spellings(text) for text in texts]


def make_home(directory: Path, shards: list[list[str]]) -> Path:
    """What a search reads of a run: documents shards, their manifest, and the commit."""
    directory.mkdir()
    tasks = []
    for number, texts in enumerate(shards):
        keys = [number.to_bytes(8) + row.to_bytes(8) for row in range(len(texts))]
        table = pa.table({
            "doc_key": pa.array(keys, pa.binary(16)),
            "text": pa.array(texts, pa.large_string()),
            "text_bytes": pa.array([len(text.encode()) for text in texts], pa.uint64()),
        })  # fmt: skip
        output = arrow_output(layout.shard("documents", number, "arrow"), table)
        done = storage.publish(directory / output.path, output.data)
        shard = Shard(
            path=output.path, size=done.size, hash=done.hash, content_hash="", end=output.end
        )
        tasks.append(TaskRecord(str(number), (shard,)))
    clean = StageManifest("clean", "0", {"settings": {"fix_text": False}}, tuple(tasks))
    write_manifest(manifest_path(directory, "clean"), clean)
    write_sealed(directory / layout.MANIFEST, {"config": "made", "story": "prepare"})
    return directory


def search_both(
    home: Path, words: str, patch: pytest.MonkeyPatch
) -> tuple[tuple[list[FoundText], SearchScope], tuple[list[FoundText], SearchScope]]:
    """With the index, which must be there, and without it."""
    assert isinstance(open_word_index(home), WordIndex)
    with patch.context() as without:
        without.setattr(text_search, "open_index", lambda *_: None)
        plain = scan_run(home, words, QUIET)
    return scan_run(home, words, QUIET), plain


words_of = st.lists(st.sampled_from(PIECES), min_size=1, max_size=14)
texts_of = st.lists(
    st.tuples(st.sampled_from(PIECES), st.sampled_from(SEPARATORS)).map("".join), max_size=20
).map("".join)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(texts_of, max_size=7), min_size=1, max_size=3), st.data())
def test_a_search_with_the_index_finds_the_same(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[str]], data: st.DataObject
) -> None:
    """Whatever the texts are: parts of words, other cases, accents, signs, changed words."""
    home = make_home(tmp_path_factory.mktemp("index") / "run", shards)
    every = [text for texts in shards for text in texts if text.strip()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_index, "PAIRS_PER_SHARD", data.draw(st.sampled_from([3, 1 << 26])))
        patch.setattr(word_index, "MOST_SHARDS", data.draw(st.sampled_from([1, 512])))
        patch.setattr(text_search, "_FEW", data.draw(st.sampled_from([0, 3, 1 << 10])))
        patch.setattr(text_search, "_FIRST_READ", 2)
        patch.setattr(lookup, "_ROWS_PER_TEXT", data.draw(st.sampled_from([0, 1, 1 << 11])))
        patch.setattr(lookup, "_MOST_ROWS", data.draw(st.sampled_from([0, 1, 1 << 23])))
        index_words(home, 0)
        for _ in range(4):
            words = " ".join(data.draw(words_of))
            if every and data.draw(st.booleans()):
                text = data.draw(st.sampled_from(every))
                first = data.draw(st.integers(0, len(text) - 1))
                words = text[first : first + data.draw(st.integers(1, 60))]
            if words.strip():
                indexed, plain = search_both(home, words, patch)
                assert indexed == plain, words


@pytest.fixture(scope="module")
def indexed_run(small_run: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small run with an index in shards of few words."""
    home = tmp_path_factory.mktemp("indexed") / "run"
    shutil.copytree(small_run.directory, home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_index, "PAIRS_PER_SHARD", 2000)
        index_words(home, 0)
    return home


def test_excerpts_of_a_run_are_found_alike(
    indexed_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random excerpts, quarantined texts among them; of longer ones some words are changed."""
    rng, texts = random.Random(4), []
    for store in ("documents", "quarantine"):
        for path in sorted((indexed_run / store).glob("*.arrow")):
            texts += [t for t in pa.ipc.open_file(path).read_all()["text"].to_pylist() if t]
    narrowed = 0
    for _ in range(60):
        words = rng.choice(texts).split()
        size = rng.choice([1, 2, 3, 8, 20])
        first = rng.randrange(max(1, len(words) - size))
        excerpt = words[first : first + size]
        if size >= 8:
            excerpt[rng.randrange(size)] = "elsewhere"
        indexed, plain = search_both(indexed_run, " ".join(excerpt), monkeypatch)
        assert indexed == plain and indexed[0]
        index = open_word_index(indexed_run)
        assert isinstance(index, WordIndex)
        rows = index.find_candidates(make_query(" ".join(excerpt)))
        narrowed += len(rows) < index.counts.rows
    assert narrowed > 20
    assert any(text.in_quarantine for text in search_both(indexed_run, "a", monkeypatch)[0][0])


def test_a_search_that_reads_too_much_is_refused(indexed_run: Path, small_run: Any) -> None:
    with pytest.raises(InputError, match="--index"):
        TextSearch(small_run.directory, "bibliotik", QUIET, most_bytes=10_000)
    for words in ("bibliotik", "lantern", "!="):
        TextSearch(indexed_run, words, QUIET, most_bytes=10_000)


@pytest.mark.parametrize(
    ("words", "is_exact"),
    [("lantern", True), ("Lan", True), ("island valley", False), ("a", False)],
)
def test_common_words_come_page_by_page(
    indexed_run: Path, monkeypatch: pytest.MonkeyPatch, words: str, is_exact: bool
) -> None:
    """Every page is what all documents have there, and costs no more texts than it shows."""
    read: list[int] = []
    scan = text_search.find_in_texts

    def noting(documents: pa.Table, *others: Any) -> Any:
        read.append(len(documents))
        return scan(documents, *others)

    every = [hit.key.hex() for hit in scan_run(indexed_run, words, QUIET)[0]]
    assert len(every) > 12
    size = max(4, len(every) // 9)
    monkeypatch.setattr(text_search, "_FEW", 5)
    monkeypatch.setattr(text_search, "_FIRST_READ", size)
    monkeypatch.setattr(text_search, "find_in_texts", noting)
    paged: list[str] = []
    while True:
        read.clear()
        answer = search_run(indexed_run, words, most=size, skip=len(paged))
        paged += [document.traced.document for document in answer.documents]
        assert answer.total >= len(every) and (not is_exact or sum(read) == len(answer.documents))
        if len(answer.documents) < size:
            break
        assert answer.is_exact == is_exact
    assert paged == every and (answer.total, answer.is_exact) == (len(every), True)
    whole = search_run(indexed_run, words)
    assert [d.traced.document for d in whole.documents] == every and whole.is_exact


def test_few_texts_are_read(indexed_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    scan = text_search.find_in_texts

    def noting(documents: pa.Table, held: pa.Table, *others: Any) -> Any:
        read.append(len(documents) + len(held))
        return scan(documents, held, *others)

    monkeypatch.setattr(text_search, "find_in_texts", noting)
    hits, _ = scan_run(indexed_run, "bibliotik is only mentioned", QUIET)
    assert len(hits) == 1 and sum(read) == 1


def test_workers_and_runs_make_the_same_bytes(
    indexed_run: Path, tmp_path: Path, two_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Path(shutil.copytree(indexed_run, tmp_path / "run"))
    monkeypatch.setattr(word_index, "PAIRS_PER_SHARD", 2000)
    before = {p.name: p.read_bytes() for p in (home / "word_index/words").iterdir()}
    assert len(before) > 2
    shutil.rmtree(home / "word_index")
    index_words(home, two_workers)
    assert {p.name: p.read_bytes() for p in (home / "word_index/words").iterdir()} == before
    assert not (home / "word_index/word_runs").exists()
    again = index_words(home, 0)
    assert set(again.reused) == {"word_runs", "words"}
    assert verify_run(home)


def test_an_index_of_other_texts_is_not_used(
    indexed_run: Path, make_corpus: Callable[..., Any], tmp_path: Path, prep: Callable[..., Any]
) -> None:
    """After texts changed, half of it lost, or another Unicode: said, and all texts are read."""
    corpus = make_corpus(tmp_path / "corpus")
    out = tmp_path / "run"
    pipeline.run(corpus.config, out, 0)
    assert prep("search", out, "--index", "--workers", 0).code == 0
    found = prep("search", out, "bibliotik is only mentioned")
    assert found.code == 0 and "not used" not in found.err
    raw = corpus.root / "raw/web/d.jsonl"
    line = json.dumps({"text": "Bibliotik is only mentioned, " * 9, "meta": {}})
    raw.write_text(raw.read_text() + line + "\n")
    pipeline.run(corpus.config, out, 0)
    assert isinstance(open_word_index(out), StaleIndex)
    found = prep("search", out, "bibliotik is only mentioned")
    assert found.code == 0 and found.out.count("[[ibliotik") + found.out.count("ibliotik") >= 2
    assert "texts of the run changed" in found.err and "--index" in found.err
    assert "2 more" not in found.out and "web/d.jsonl" in found.out
    found = prep("search", out, "bibliotik is only mentioned", "--index", "--workers", 0)
    assert found.code == 0 and "not used" not in found.err and "web/d.jsonl" in found.out
    (out / "word_index/manifest.json").unlink()
    assert open_word_index(out) == StaleIndex("it is not finished")


def test_another_unicode_makes_it_stale(indexed_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_word_index(indexed_run), WordIndex)
    monkeypatch.setattr(lookup, "UNICODE", "99.0")
    stale = open_word_index(indexed_run)
    assert isinstance(stale, StaleIndex) and "Unicode" in stale.why
    assert unicodedata.unidata_version


def test_a_takedown_deletes_the_index(
    indexed_run: Path, tmp_path: Path, prep: Callable[..., Any]
) -> None:
    """It has words of the text."""
    home = Path(shutil.copytree(indexed_run, tmp_path / "run"))
    [hit] = scan_run(home, "bibliotik is only mentioned", QUIET)[0]
    claim = tmp_path / "c1.yaml"
    claim.write_text(
        "id: c1\nclaimant: Example Press\nreceived: 2026-03-01\nbasis: asked\n"
        f"what:\n  documents: [{hit.key.hex()}]\n"
    )
    planned = prep("takedown", claim, "--run", home)
    assert "word_index" in planned.out
    assert prep("takedown", claim, "--run", home, "--apply", "--by", "Jane").code == 0
    assert not (home / "word_index").exists()
    assert not scan_run(home, "bibliotik is only mentioned", QUIET)[0]
    index_words(home, 0)
    assert isinstance(open_word_index(home), WordIndex)
    assert not scan_run(home, "bibliotik is only mentioned", QUIET)[0]
    assert b"bibliotik" not in b"".join(
        p.read_bytes() for p in (home / "word_index").rglob("*.arrow")
    )
