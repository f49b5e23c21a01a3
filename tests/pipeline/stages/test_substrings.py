"""Repeated passages through the stages, run by a Runner, against dictionaries of windows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dedup.substrings
from dedup.arrays import U32, U64
from pipeline.core.manifest import StageManifest
from pipeline.engine import levels
from pipeline.engine.stage import Inputs
from pipeline.runs import layout
from pipeline.runs.layout import STATES
from pipeline.runs.views.cuts import CutsOutput
from pipeline.runs.views.documents import CleanOutput, KeepOutput
from pipeline.stages.cuts import cut_table_stage, cut_texts, cuts_stage
from pipeline.stages.substrings import find_substrings
from pipeline.stages.windows import SubstringRules
from tests.dedup.plain_substrings import find_matches, find_repeats
from tests.pipeline.stages.test_lines import Shards, key_of, publish, runner_in

RULES = SubstringRules(32, None)
MEMORY = 1 << 20
PLACES = ("shared_seeds", "windows", "repeated_windows", "substrings")

Cut = tuple[bytes, int, int, bytes, int]
"""Document, its bytes from and to, the document where they are first, and the byte there."""


def cuts_of(root: Path, shards: Shards, rules: SubstringRules, memory: int) -> StageManifest:
    run = runner_in(root).run
    toy = publish(run, shards)
    clean = CleanOutput(toy)
    found = find_substrings(clean, KeepOutput(toy), rules, memory, run)
    cuts = run(cuts_stage(clean, None, (), None, found))
    run(cut_table_stage(CutsOutput(cuts)))
    return cuts


def documents_of(shards: Shards, rules: SubstringRules) -> list[tuple[bytes, bytes]]:
    """Keys and texts that are compared, by key."""
    return sorted(
        (key_of(index, row), text.encode())
        for index, shard in enumerate(shards)
        for row, (text, state, source) in enumerate(shard)
        if state == "kept" and (rules.sources is None or source in rules.sources)
    )


def expected_cuts(shards: Shards, rules: SubstringRules) -> list[Cut]:
    documents = documents_of(shards, rules)
    keys, texts = [key for key, _ in documents], [text for _, text in documents]
    matches = find_matches(find_repeats(texts, rules.least), texts, rules.least)
    return [(keys[n], low, high, keys[first], start) for n, low, high, first, start in matches]


def table_of(root: Path) -> list[Cut]:
    rows = pq.read_table(root / layout.CUTS).to_pylist()
    assert all(row["digest"] is None for row in rows)
    names = ("doc_key", "byte_start", "byte_end", "first", "first_start")
    return [tuple(row[name] for name in names) for row in rows]


parts = st.sampled_from(
    [
        "the first passage of a few bytes, é",
        "another passage that is as long 漢字",
        "x" * 90,
        "y",
        "éé",
    ]
)
texts = st.lists(parts, max_size=5).map("".join)
documents = st.tuples(texts, st.sampled_from([*STATES, "kept"]), st.sampled_from(["Wiki", "Code"]))
shards = st.lists(st.lists(documents, max_size=4).map(tuple), min_size=1, max_size=3).map(tuple)


@settings(max_examples=25)
@given(shards, st.sampled_from([None, ("Wiki",)]), st.sampled_from([12800, MEMORY]))
def test_against_the_oracle(
    tmp_path_factory: pytest.TempPathFactory, shards: Shards, sources: tuple[str, ...] | None,
    memory: int,
) -> None:  # fmt: skip
    root = tmp_path_factory.mktemp("run")
    rules = replace(RULES, sources=sources)
    cuts = cuts_of(root, shards, rules, memory)
    expected = expected_cuts(shards, rules)
    assert sorted(table_of(root)) == expected
    assert sum(task.counters["cuts"] for task in cuts.tasks) == len(expected)
    covered = {(key, byte) for key, low, high, *_ in expected for byte in range(low, high)}
    assert sum(task.counters["bytes"] for task in cuts.tasks) == len(covered)


def corpus() -> Shards:
    """Documents that share a passage, some of which repeat it; among them one of 5 kB."""
    notice = "Subscribe to our newsletter for more of this, every second week."
    long = " ".join(f"word{i * i}" for i in range(150))
    return tuple(
        (
            *((f"{notice}\nOwn text {s}/{d}.\n{notice}{s}", "kept", "Wiki") for d in range(8)),
            (f"{s}{long}{notice}", "kept", "Wiki"),
        )
        for s in range(3)
    )


def test_memory_changes_nothing_but_the_number_of_tasks(tmp_path: Path) -> None:
    hashes, tasks = set(), set()
    for memory in (60_000, 180_000, MEMORY):
        root = tmp_path / str(memory)
        hashes.add(cuts_of(root, corpus(), RULES, memory).content_hash)
        tasks.add(tuple(len(list((root / place).iterdir())) for place in PLACES))
    assert len(hashes) == 1 and len(tasks) == 3
    assert sorted(table_of(tmp_path / "60000")) == expected_cuts(corpus(), RULES)


def test_merging_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more runs, blocks and ranges than one task may read."""
    plain = cuts_of(tmp_path / "plain", corpus(), RULES, 25_000)
    monkeypatch.setattr(levels, "MOST_SHARDS", 2)
    merged = cuts_of(tmp_path / "merged", corpus(), RULES, 25_000)
    assert merged.content_hash == plain.content_hash
    for place in ("seeds", "shared_seeds", "windows", "repeated_windows"):
        assert not (tmp_path / f"plain/merged_{place}").exists()
        assert len(list((tmp_path / f"merged/merged_{place}").iterdir())) > 1


def test_windows_with_equal_hashes_and_other_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With hashes of four bits, nearly all of what is compared is different, and none of it is cut:
    the bytes of every cut are those of the place where they stay."""
    whole = dedup.substrings.hash_candidates

    def hash_badly(*arguments: Any) -> tuple[U64, U32]:
        digest, place = whole(*arguments)
        return digest >> np.uint64(60) << np.uint64(60), place

    monkeypatch.setattr(dedup.substrings, "hash_candidates", hash_badly)
    cuts_of(tmp_path, corpus(), RULES, MEMORY)
    texts, found = dict(documents_of(corpus(), RULES)), table_of(tmp_path)
    for key, low, high, first, start in found:
        assert texts[key][low:high] == texts[first][start : start + high - low]
    assert 0 < len(found) < len(expected_cuts(corpus(), RULES))


@settings(max_examples=25)
@given(shards)
def test_every_byte_that_is_cut_stays_somewhere(
    tmp_path_factory: pytest.TempPathFactory, shards: Shards
) -> None:
    """From any byte that is cut the places where it is first lead to one that is not."""
    root = tmp_path_factory.mktemp("run")
    cuts_of(root, shards, RULES, MEMORY)
    place = {
        (key, byte): (first, start + byte - low)
        for key, low, high, first, start in table_of(root)
        for byte in range(low, high)
    }
    texts = dict(documents_of(shards, RULES))
    for at in place:
        there = place[at]
        while there in place:
            assert place[there] < there
            there = place[there]
        assert texts[there[0]][there[1]] == texts[at[0]][at[1]]


def test_text_without_its_cuts(tmp_path: Path) -> None:
    cuts = cuts_of(tmp_path, corpus(), RULES, MEMORY)
    notice = corpus()[0][0][0].partition("\n")[0]
    after = []
    for index, shard in enumerate(cuts.below("cuts")):
        documents = pa.ipc.open_file(tmp_path / f"documents/{index:06d}.arrow").read_all()
        after += cut_texts(documents["text"], Inputs(tmp_path).table(shard)).to_pylist()
    assert sum(text.count(notice) for text in after) == 1
    assert sum(len(text.encode()) for text in after) == sum(
        len(text) for _, text in documents_of(corpus(), RULES)
    ) - sum(task.counters["bytes"] for task in cuts.tasks)


def test_only_what_depends_on_it_runs_again(tmp_path: Path) -> None:
    cuts_of(tmp_path, corpus(), RULES, MEMORY)
    runner = runner_in(tmp_path)
    toy = publish(runner.run, corpus())
    rules = replace(RULES, least=40)
    find_substrings(CleanOutput(toy), KeepOutput(toy), rules, MEMORY, runner.run)
    assert runner.reused == ["toy"]
    again = runner_in(tmp_path)
    publish(again.run, corpus())
    find_substrings(CleanOutput(toy), KeepOutput(toy), rules, MEMORY, again.run)
    assert again.reused == [
        "toy", "seeds", "shared_seeds", "windows", "repeated_windows", "substrings",
    ]  # fmt: skip
