"""Runs that `prep repack` made: claims and questions are answered from the run they came from."""

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.stories.repack import repack_run
from pipeline.stories.verify import verify_run
from pipeline.takedown.claims import load_claim
from pipeline.takedown.copies import open_run_tables
from pipeline.takedown.plan import plan_takedown

from .conftest import ends, planned, text_of, write_claim

Prep = Callable[..., Any]


@pytest.fixture
def packed(copied: Path, tmp_path: Path) -> Path:
    return repack_run(copied, tmp_path / "packed", workers=0).directory


def excerpts(run: Path, place: Path, count: int) -> list[str]:
    """Files with passages of half a document or more, or all of it, drawn at random."""
    draw = random.Random(str(run.name))
    rows = [r for r in ends(run).values() if r["state"] == "kept" and r["text_bytes"] > 900]
    names = []
    for number, row in enumerate(draw.sample(rows, count)):
        words = text_of(run, row["doc_key"].hex()).split(" ")
        start = draw.randrange(0, max(1, len(words) // 3))
        names.append(f"{number}.txt")
        (place / names[-1]).write_text(" ".join(words[start:] if number % 2 else words))
    return names


def test_a_claim_by_text_takes_the_same_documents(
    copied: Path, packed: Path, tmp_path: Path, prep: Prep
) -> None:
    names = excerpts(copied, tmp_path, 8)
    here = planned(packed, tmp_path, texts=names)
    there = planned(copied, tmp_path, texts=names)
    assert here.taken.equals(there.taken)
    assert here.nothing == there.nothing
    assert len(here.taken) >= 4
    assert here.splits == there.splits
    assert any("apply the claim there too" in left.instruction for left in here.outside)
    claim = write_claim(tmp_path, texts=names)
    ended = prep("takedown", claim, "--run", packed, "--apply", "--by", "J. Doe")
    assert ended.code == 0, ended.err
    verify_run(packed)
    taken = pq.read_table(packed / "takedowns/c1.parquet")
    assert taken.equals(here.taken)


def test_after_the_claim_was_applied_where_the_texts_were(
    copied: Path, packed: Path, tmp_path: Path, prep: Prep
) -> None:
    """The texts are gone there; the record of the same claim says which documents they were."""
    claim = write_claim(tmp_path, texts=excerpts(copied, tmp_path, 6))
    before = plan_takedown(open_run_tables(packed), load_claim(claim)).taken
    ended = prep("takedown", claim, "--run", copied, "--apply", "--by", "J. Doe")
    assert ended.code == 0, ended.err
    after = plan_takedown(open_run_tables(packed), load_claim(claim))
    assert after.taken.drop_columns("text_key").equals(before.drop_columns("text_key"))
    assert after.nothing == ()
    again = plan_takedown(open_run_tables(copied), load_claim(claim))
    assert (len(again.taken), again.earlier) == (0, len(before))


@pytest.mark.parametrize("what", ["texts", "urls", "works"])
def test_the_run_it_came_from_is_elsewhere(
    copied: Path, packed: Path, tmp_path: Path, prep: Prep, what: str
) -> None:
    """Exit 3 naming it, for what needs the texts; packing again from there mends it."""
    (tmp_path / "t.txt").write_text("some text")
    item = {"texts": "t.txt", "urls": "https://example.org/x", "works": "c0ffee"}[what]
    claim = write_claim(tmp_path, **{what: [item]})
    moved = copied.rename(tmp_path / "moved")
    key = next(iter(ends(packed))).hex()
    for command in (
        ("takedown", claim, "--run", packed),
        ("explain", packed, key),
        ("inspect", packed),
        ("trace", packed, "--text", tmp_path / "t.txt"),
    ):
        ended = prep(*command)
        assert ended.code == 3
        assert f"no longer in {copied}" in ended.err
        assert len(ended.err.splitlines()) == 1
    by_key = planned(packed, tmp_path, documents=[key])
    assert by_key.taken["doc_key"].to_pylist() == [bytes.fromhex(key)]
    assert any("no clusters.parquet" in item for item in by_key.nothing)
    assert prep("repack", moved, "--out", packed).code == 0
    assert prep("explain", packed, key).code == 0
    assert f"no longer in {copied}" not in prep("takedown", claim, "--run", packed).err
    shutil.rmtree(packed / "journal")
    ended = prep("explain", packed, key)
    assert (ended.code, "did not note" in ended.err) == (3, True)


def test_another_run_in_its_place_is_not_asked(
    copied: Path, packed: Path, tmp_path: Path, prep: Prep, make_corpus: Callable[..., Any]
) -> None:
    other = make_corpus(tmp_path / "other", (("web", "a.jsonl"), ("papers", "part-0.parquet")))
    shutil.rmtree(copied)
    assert prep("run", other.config, "--out", copied, "--workers", 0).code == 0
    ended = prep("explain", packed, next(iter(ends(packed))).hex())
    assert (ended.code, "other documents by now" in ended.err) == (3, True)


def test_explain_and_inspect_say_what_they_say_of_that_run(
    copied: Path, packed: Path, prep: Prep
) -> None:
    rows = random.Random(3).sample(sorted(ends(packed)), 12)
    for key in rows:
        here, there = (
            json.loads(prep("explain", run, key.hex(), "--json").out) for run in (packed, copied)
        )
        assert here.pop("origin") == str(copied)
        assert there.pop("origin") is None
        assert here == there
    assert "packed from" in prep("explain", packed, rows[0].hex()).out
    assert prep("inspect", packed).out == prep("inspect", copied).out


def test_a_claim_names_files_below_its_own_directory_only(
    copied: Path, tmp_path: Path, prep: Prep
) -> None:
    text = text_of(copied, excerpt_key(copied))
    secret, inbox, texts = (tmp_path / name for name in ("secret", "inbox", "texts"))
    for place in (secret, inbox / "deep", texts):
        place.mkdir(parents=True)
        (place / "t.txt").write_text(text)
    (inbox / "link.txt").symlink_to(secret / "t.txt")
    (inbox / "linked").symlink_to(secret)
    (inbox / "inner.txt").symlink_to("deep/t.txt")
    refused = ("../secret/t.txt", str(secret / "t.txt"), "link.txt", "linked/t.txt", "deep/../../x",
               "/etc/passwd", "../inbox2/t.txt", "/proc/self/environ")  # fmt: skip
    for name in refused:
        ended = prep("takedown", write_claim(inbox, texts=[name]), "--run", copied)
        assert ended.code == 3, name
        assert f"what.texts: {name}: not below {inbox}" in ended.err
        assert "--texts-from" in ended.err
        assert text[:20] not in ended.err
    for name in ("deep/t.txt", "inner.txt", str(inbox / "deep/t.txt"), "deep/../deep/t.txt"):
        ended = prep("takedown", write_claim(inbox, texts=[name]), "--run", copied)
        assert ended.code == 0, ended.err
    ended = prep("takedown", write_claim(inbox, texts=["deep"]), "--run", copied)
    assert (ended.code, "expected a file with a text" in ended.err) == (3, True)
    claim = write_claim(inbox, texts=["t.txt"])
    assert prep("takedown", claim, "--run", copied, "--texts-from", texts).code == 0
    claim = write_claim(inbox, texts=["../inbox/deep/t.txt"])
    ended = prep("takedown", claim, "--run", copied, "--texts-from", texts)
    assert (ended.code, f"not below {texts}" in ended.err) == (3, True)
    (tmp_path / "alias").symlink_to(inbox)  # the directory itself may be a link
    claim = write_claim(tmp_path / "alias", texts=["deep/t.txt"])
    assert prep("takedown", claim, "--run", copied).code == 0


def excerpt_key(run: Path) -> str:
    rows = [r for r in ends(run).values() if r["state"] == "kept" and r["text_bytes"] > 900]
    return str(rows[0]["doc_key"].hex())


def test_texts_that_were_deleted_are_not_a_claim_that_matches_nothing(
    copied: Path, tmp_path: Path, prep: Prep
) -> None:
    claim = write_claim(tmp_path, texts=excerpts(copied, tmp_path, 1), urls=["https://a.example/b"])
    shutil.rmtree(copied / "documents")
    ended = prep("takedown", claim, "--run", copied)
    assert ended.code == 3
    assert re.search(r"no documents/.*urls and texts of the claim cannot be looked for", ended.err)
