"""`prep explain`: what became of a document, and how it differs from the one that is kept."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline
from dedup.presets import PRESETS
from dedup.similarity import jaccard
from pipeline.core.errors import InputError
from pipeline.core.ids import doc_key
from pipeline.core.manifest import StageManifest
from pipeline.explain.explain import explain_document
from pipeline.report.side_by_side import (
    MOST_LINES,
    LinePair,
    compare_texts,
    find_first_difference,
    shorten_row,
)
from pipeline.runs.origin import make_recipe
from pipeline.runs.records import DocumentTable, RunRecords

Prep = Callable[..., Any]
HIDDEN = {"\x1b", "\x07", "\x9b", "\u202e"}
HOSTILE = 'x\x1b]0;title\x07\x9b2J \u202egnp.exe [bold]y[/bold] <script>alert("1")</script>\t&'


def key_of(run: Any, kind: str, state: str) -> str:
    """Key of a record of this kind with this end, the smallest one."""
    ends = {row["doc_key"]: row["state"] for row in run.table("documents.parquet").to_pylist()}
    made = {doc_key(r.input, r.path, r.ordinal): r.kind for r in run.corpus.records}
    return min(key for key, found in made.items() if found == kind and ends[key] == state).hex()


@pytest.fixture(scope="module")
def near(small_run: Any) -> str:
    """A near-duplicate whose text is another one than that of the kept document."""
    rows = small_run.table("clusters.parquet").to_pylist()
    return min(row["member"] for row in rows if row["kind"] == "near").hex()


def test_a_duplicate_beside_the_kept_document(small_run: Any, near: str, prep: Prep) -> None:
    row = next(
        r for r in small_run.table("clusters.parquet").to_pylist() if r["member"].hex() == near
    )
    ended = prep("explain", small_run.directory, near)
    assert ended.code == 0, ended.err
    facts = dict(line.split(maxsplit=1) for line in ended.out.splitlines() if line[:1].isalpha())
    assert facts["state"] == "duplicate (near_duplicate)"
    assert facts["kept"].startswith(row["kept"].hex())
    assert facts["kind"].startswith(f"near: {len(row['bands'])} of 9 bands shared")
    assert f"exact {row['jaccard']:.3f}" in facts["similarity"]
    assert "slimpajama" in facts["recipe"]
    assert "[-" in ended.out and "+}" in ended.out
    assert "equal lines" in ended.out


def test_json_has_it_all(small_run: Any, near: str, prep: Prep) -> None:
    found = json.loads(prep("explain", small_run.directory, near, "--json", "--all").out)
    link = found["kept_by"]
    assert link["kind"] == "near" and link["state"] == "kept" and link["index"] == ""
    assert found["recipe"]["preset"]["bands"] == 9
    texts = RunRecords(small_run.directory).texts([bytes.fromhex(near), bytes.fromhex(link["key"])])
    kept, own = texts[bytes.fromhex(link["key"])], texts[bytes.fromhex(near)]
    assert spelled(found["rows"], "left") == kept
    assert spelled(found["rows"], "right") == own
    assert link["jaccard"] == jaccard(kept, own)
    assert found["rows_total"] == len(found["rows"])
    few = json.loads(prep("explain", small_run.directory, near, "--json", "--lines", 2).out)
    assert len(few["rows"]) == 2 < few["rows_total"]


def spelled(rows: list[dict[str, Any]], side: str) -> str:
    lines = [row for row in rows if row[f"{side}_line"]]
    assert [row[f"{side}_line"] for row in lines] == list(range(1, len(lines) + 1))
    return "\n".join("".join(text for text, _ in row[side]) for row in lines)


def test_ways_to_name_a_document(small_run: Any, near: str) -> None:
    directory = small_run.directory
    place = explain_document(directory, near).record.place
    ending = place.file.rpartition("/")[2]
    for wanted in (near[:8], near.upper(), f"{place.file}:{place.line}", f"{ending}:{place.line}"):
        assert explain_document(directory, wanted).record.place == place
    parquet = explain_document(directory, "papers/part-0.parquet:34").record.place
    assert (parquet.file, parquet.line) == ("papers/part-0.parquet", 34)


def test_a_kept_document_lists_those_it_stands_for(small_run: Any, prep: Prep) -> None:
    rows = small_run.table("clusters.parquet").to_pylist()
    kept = rows[0]["kept"]
    members = {row["member"].hex() for row in rows if row["kept"] == kept}
    found = explain_document(small_run.directory, kept.hex())
    assert found.record.state == "kept" and found.kept_by is None and found.texts is None
    assert {link.key for link in found.stands_for} == members
    assert found.stands_for_total == len(members)
    assert len(explain_document(small_run.directory, kept.hex(), 1).stands_for) == 1
    ended = prep("explain", small_run.directory, kept.hex(), "--lines", 1)
    assert f"kept instead of {len(members)}" in ended.out
    assert f"{len(members) - 1} more; --all lists them" in ended.out


def test_other_ends(small_run: Any, prep: Prep) -> None:
    quarantined = prep("explain", small_run.directory, key_of(small_run, "books3", "quarantined"))
    assert "quarantine by origin-listed: its label is on list" in quarantined.out
    assert "evidence   origin label 'books3': 'Books3'" in quarantined.out
    assert "exact" in quarantined.out and "texts      equal" in quarantined.out
    marker = explain_document(small_run.directory, key_of(small_run, "marker", "quarantined"))
    assert marker.evidence[0].byte_length > 0
    short = explain_document(small_run.directory, key_of(small_run, "short", "dropped"))
    assert short.record.reason == "too_short" and short.excerpt.startswith("too short")
    bad = explain_document(small_run.directory, key_of(small_run, "bad_json", "bad_record"))
    assert (bad.record.state, bad.record.reason) == ("bad_record", "bad_json")
    assert bad.kept_by is None and bad.evidence == ()


def test_wrong_questions(small_run: Any, tmp_path: Path, prep: Prep) -> None:
    for wanted, words in (
        ("zz", "expected a document key (6 or more hex digits)"),
        ("12345", "expected a document key"),
        ("ffffff0000", "no such document in"),
        ("nowhere.jsonl:1", "FILE:LINE of a file among the inputs"),
        ("nowhere.jsonl:1", f", such as {DocumentTable(small_run.directory).files[0]}"),
        ("a.jsonl:9999", "no such document in"),
        ("\x1b[31m", r"\x1b[31m: expected a document key"),
    ):
        ended = prep("explain", small_run.directory, wanted)
        assert ended.code == 3 and words in ended.err, wanted
        assert "\x1b" not in ended.err
    with pytest.raises(InputError, match="no such run directory"):
        explain_document(tmp_path / "nowhere", "a.jsonl:1")
    with pytest.raises(InputError, match="expected a run directory"):
        explain_document(tmp_path, "a.jsonl:1")


def test_a_prefix_or_an_ending_of_several_is_refused(tmp_path: Path) -> None:
    keys = [bytes.fromhex(digits.ljust(32, "0")) for digits in ("abcdef01", "abcdef02", "abcdefff")]
    write_run(tmp_path, keys)
    records = RunRecords(tmp_path)
    with pytest.raises(InputError, match=r"3 documents match: abcdef01.*\(raw/a/x.jsonl:1\)"):
        records.find("abcdef")
    assert records.find("abcdef01").place.line == 1
    with pytest.raises(InputError, match=r"2 files end with it: raw/a/x\.jsonl, raw/b/x\.jsonl"):
        records.find("x.jsonl:1")
    assert records.find("a/x.jsonl:2").place.key == keys[1].hex()


def write_run(directory: Path, keys: list[bytes]) -> None:
    """As much of a finished run as finding documents takes."""
    rows = len(keys)
    blank = pa.array([""] * rows)
    words = ("source", "state", "reason", "decision", "rule", "split", "licence")
    inputs = {"input": ["raw", "raw"], "path": ["a/x.jsonl", "b/x.jsonl"]}
    pq.write_table(pa.table(inputs), directory / "inputs.parquet")
    documents = {
        "doc_key": pa.array(keys, pa.binary(16)),
        "representative": pa.array(keys, pa.binary(16)),
        "path_id": pa.array([0] * rows, pa.uint32()),
        "line": pa.array(range(1, rows + 1), pa.uint64()),
        "byte_offset": pa.array([0] * rows, pa.uint64()),
        "tokens": pa.array([0] * rows, pa.uint32()),
        "text_bytes": pa.array([0] * rows, pa.uint64()),
        **dict.fromkeys(words, blank),
    }
    pq.write_table(pa.table(documents), directory / "documents.parquet", row_group_size=2)
    (directory / "manifest.json").write_text("{}")


def test_after_clean_up(small_run: Any, near: str, tmp_path: Path, prep: Prep) -> None:
    copy = tmp_path / "run"
    shutil.copytree(small_run.directory, copy)
    assert prep("clean-up", copy).code == 0
    assert explain_document(copy, near) == explain_document(small_run.directory, near)


def test_damage_is_named(small_run: Any, near: str, tmp_path: Path, prep: Prep) -> None:
    copy = tmp_path / "run"
    shutil.copytree(small_run.directory, copy)
    (copy / "clusters.parquet/000000.parquet").write_bytes(b"not parquet")
    ended = prep("explain", copy, near)
    assert ended.code == 4 and "clusters.parquet/000000.parquet: missing or damaged" in ended.err


@pytest.fixture(scope="module")
def second(
    make_corpus: Callable[..., Any],
    new_shard: Callable[..., Any],
    write_prose: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Any:
    """A corpus with a source of near-duplicates only and two hostile texts."""
    corpus = make_corpus(tmp_path_factory.mktemp("second"))
    writer = new_shard(corpus, "web", "spam.jsonl")
    family = write_prose(70_000, 300)
    for number in range(120):
        writer.add("spam", f"{family} place {number}", "Spam")
    for ending in ("", " Different."):
        writer.add("hostile", f"{HOSTILE} {write_prose(71_000, 200)}{ending}{HOSTILE}", "<b>[i]")
    writer.write()
    return corpus


def test_a_run_that_the_alarm_stopped(second: Any, tmp_path: Path, prep: Prep) -> None:
    with pytest.raises(InputError, match="would be removed as duplicates"):
        pipeline.run(second.config, tmp_path, 0)
    found = explain_document(tmp_path, "spam.jsonl:7")
    assert not found.finished and found.record.state == "duplicate"
    assert found.kept_by and found.kept_by.place and found.texts
    ended = prep("explain", tmp_path, "spam.jsonl:7")
    assert "run        not finished" in ended.out and "[-" in ended.out
    inspected = prep("inspect", tmp_path, "--json")
    matrix = json.loads(inspected.out)["summary"]["matrix"]
    assert matrix["rows"][0] == "Spam" and sum(matrix["counts"][0]) == 119


@pytest.fixture(scope="module")
def unverified(second: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of it that neither mends the texts nor verifies candidates."""
    out = tmp_path_factory.mktemp("unverified") / "run"
    options = ("dedup.preset=slimpajama_exact", "dedup.max_source_share=1", "clean.fix_text=false")
    pipeline.run(second.config, out, 0, overrides=options)
    return out


def test_without_verification_the_similarity_is_computed_now(unverified: Path, prep: Prep) -> None:
    found = explain_document(unverified, "spam.jsonl:7")
    found = found if found.kept_by else explain_document(unverified, "spam.jsonl:8")
    assert found.kept_by and found.texts
    assert found.kept_by.jaccard is None and found.kept_by.estimate is None
    assert found.jaccard_now == jaccard(*found.texts)
    ended = prep("explain", unverified, found.record.place.key)
    assert f"similarity computed now {found.jaccard_now:.3f}" in ended.out
    assert "No similarity was computed" in (unverified / "clusters.html").read_text()


def test_kept_in_an_earlier_index(small_run: Any, second: Any, tmp_path: Path, prep: Prep) -> None:
    overrides = (f'dedup.indexes=["{small_run.directory}"]', "dedup.max_source_share=1")
    pipeline.run(second.config, tmp_path, 0, overrides=overrides)
    name = small_run.directory.name
    found = explain_document(tmp_path, "web/a.jsonl:1")
    assert found.kept_by and found.kept_by.index == name and found.kept_by.place is None
    assert found.kept_by.key == found.record.place.key, "the same record, met again"
    assert found.stands_for == () and found.texts is None
    ended = prep("explain", tmp_path, "web/a.jsonl:1")
    assert f"in the earlier index {name}" in ended.out and "cannot be compared" in ended.out
    members = prep("inspect", tmp_path, "--cluster", found.kept_by.key)
    assert f"in the earlier index {name}" in members.out and "web/a.jsonl:1" in members.out
    assert f"index {name}" in prep("inspect", tmp_path).out
    page = (tmp_path / "clusters.html").read_text()
    assert f"<bdi>{name}</bdi>" in page and "Its text is not in this run." in page
    documents = pq.read_table(tmp_path / "documents.parquet").to_pylist()
    sources = {row["doc_key"]: row["source"] for row in documents}
    rows = pq.read_table(tmp_path / "clusters.parquet").to_pylist()
    assert {row["index"] for row in rows} == {"", name}
    for row in rows:
        assert row["source"] == sources[row["member"]]
        assert row["kept_source"] == (None if row["index"] else sources[row["kept"]])


def test_hostile_texts_are_shown_as_text(unverified: Path, prep: Prep) -> None:
    rows = pq.read_table(unverified / "documents.parquet").to_pylist()
    ends = {row["state"]: row["doc_key"].hex() for row in rows if row["source"] == "<b>[i]"}
    assert set(ends) == {"kept", "duplicate"}
    key = ends["duplicate"]
    explained = (("explain", key), ("explain", key, "--all"), ("explain", key, "--json"))
    for command, *options in (*explained, ("inspect", "--cluster", key), ("inspect",)):
        ended = prep(command, unverified, *options)
        assert ended.code == 0, ended.err
        assert not HIDDEN & set(ended.out)
        assert "<b>[i]" in ended.out
    whole = prep("explain", unverified, key, "--all").out
    assert r"x\x1b]0;title\x07\x9b2J \u202egnp.exe [bold]y[/bold]" in whole
    page = (unverified / "clusters.html").read_text()
    assert not HIDDEN & set(page)
    assert "<script" not in page and "<b>[i]" not in page
    assert "&lt;script&gt;" in page and "&lt;b&gt;[i]" in page


def test_recipe_in_words() -> None:
    assert make_recipe({}) is None
    preset = asdict(PRESETS["fineweb"])
    signatures = StageManifest("signatures", "", {"settings": {"preset": preset, "key": "url"}}, ())
    rules = {"settings": {"verify": "exact", "threshold": 0.75}}
    found = make_recipe({"signatures": signatures, "clusters": StageManifest("", "", rules, ())})
    assert found and found.words.startswith("fineweb: ")
    assert found.words.endswith("; or the same meta.url; a duplicate from exact J = 0.75")


# -- texts side by side -----------------------------------------------------------------------

LINES = st.lists(
    st.sampled_from(["", "one two", "one  two\t", "three", "a b c d", "東京 a"]), max_size=9
)


@given(LINES, LINES)
def test_rows_spell_both_texts(left: list[str], right: list[str]) -> None:
    a, b = "\n".join(left), "\n".join(right)
    rows = compare_texts(a, b, context=None)
    for side, text in (("left", a), ("right", b)):
        lines = [row for row in rows if getattr(row, f"{side}_line")]
        assert "\n".join("".join(t for t, _ in getattr(row, side)) for row in lines) == text
    equal = [row for row in rows if not row.differs]
    assert all(row.left == row.right for row in equal)
    assert (a == b) == (len(equal) == len(rows))
    near = compare_texts(a, b)
    assert sum(row.skipped or 1 for row in near) == len(rows)
    assert [row for row in near if row.differs] == [row for row in rows if row.differs]


@given(st.text("ab \n", max_size=60), st.text("ab \n", max_size=60))
def test_the_first_difference_is_shown(left: str, right: str) -> None:
    found = find_first_difference(left, right, before=5, length=20)
    assert (found is None) == (left == right)
    if found:
        assert any(differs for side in found for _, differs in side)
        for side, text in zip(found, (left, right), strict=True):
            assert "".join(t for t, _ in side).strip("…") in text


@pytest.mark.parametrize("words", [3, 20, 60, 900])
def test_words_added_at_the_head_are_the_only_difference(words: int) -> None:
    text = " ".join(f"word{n}" for n in range(1000))
    added = " ".join(f"new{n}" for n in range(words)) + " "
    for left, right in ((text, added + text), (text + " end", added + text + " other")):
        found = find_first_difference(left, right)
        assert found is not None
        assert not any(differs for _, differs in found[0])
        assert all(added.startswith(piece) for piece, differs in found[1] if differs)
        assert all(200 < len("".join(piece for piece, _ in side)) <= 281 for side in found)


def test_long_lines_and_texts_stay_short() -> None:
    long = "word " * 5000
    row = next(row for row in compare_texts(long + "end", long + "tail") if row.differs)
    assert sum(len(text) for text, _ in shorten_row(row).left) < 100
    many = "\n".join(map(str, range(MOST_LINES * 2)))
    other = "\n".join(f"{n} x" for n in range(MOST_LINES * 2))
    assert len(compare_texts(many, other)) == MOST_LINES * 2
    assert (
        shorten_row(LinePair(1, 1, (("x" * 2000, True),), ()))
        .left[0][0]
        .endswith("(1,400 more characters)")
    )


def test_lines_are_paired_by_their_words() -> None:
    rows = compare_texts("alpha beta gamma\nsame", "new line here\nalpha beta delta\nsame")
    assert [(row.left_line, row.right_line) for row in rows] == [(0, 1), (1, 2), (2, 3)]
    assert rows[1].left == (("alpha beta ", False), ("gamma", True))
