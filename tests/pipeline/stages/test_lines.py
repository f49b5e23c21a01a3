"""Repeated lines through the stages, run by a Runner, against dictionaries of Python strings."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup.presets import normalize
from pipeline.core import ids
from pipeline.core.journal import Journal
from pipeline.core.manifest import StageManifest
from pipeline.engine import levels
from pipeline.engine.executor import LocalExecutor
from pipeline.engine.progress import Progress
from pipeline.engine.runner import Runner
from pipeline.engine.stage import Inputs, Result, Stage, Task, arrow_output
from pipeline.runs import layout
from pipeline.runs.layout import STATES
from pipeline.runs.views.cuts import CutsOutput, LinesOutput
from pipeline.runs.views.documents import CleanOutput, KeepOutput
from pipeline.stages.cuts import cut_table_stage, cut_texts, cuts_stage
from pipeline.stages.lines import LineRules, find_repeats, units_stage

RULES = LineRules("line", 8, 2, None)
MEMORY = 1 << 20

Document = tuple[str, str, str]
"""(text, state, source)"""
Shards = tuple[tuple[Document, ...], ...]


@dataclass(frozen=True)
class DocumentsJob:
    """Documents to publish as one shard, with their states."""

    index: int
    documents: tuple[Document, ...]


def key_of(index: int, row: int) -> bytes:
    return ids.doc_key("toy", f"{index}.jsonl", row)


def _documents(job: DocumentsJob, inputs: Inputs) -> Result:
    keys = [key_of(job.index, row) for row in range(len(job.documents))]
    texts, states, sources = zip(*job.documents, strict=True) if job.documents else ((), (), ())
    documents = pa.table(
        {
            "doc_key": pa.array(keys, pa.binary(16)),
            "source": pa.array(sources, pa.string()).dictionary_encode(),
            "text": pa.array(texts, pa.large_string()),
        }
    )
    keep = pa.table({"state": pa.array([STATES.index(s) for s in states], pa.uint8())})
    outputs = (("documents", documents), ("keep", keep))
    return Result(tuple(arrow_output(f"{d}/{job.index:06d}.arrow", t) for d, t in outputs))


def publish(run: Callable[[Stage], StageManifest], shards: Shards) -> StageManifest:
    jobs = [DocumentsJob(index, documents) for index, documents in enumerate(shards)]
    return run(
        Stage(
            name="toy",
            version=1,
            function=_documents,
            tasks=tuple(Task(f"shard {j.index}", j) for j in jobs),
        )
    )


def runner_in(root: Path) -> Runner:
    return Runner(root, LocalExecutor(), Journal(root), Progress(quiet=True))


def cuts_of(root: Path, shards: Shards, rules: LineRules, memory: int) -> StageManifest:
    run = runner_in(root).run
    toy = publish(run, shards)
    clean = CleanOutput(toy)
    units = LinesOutput(run(units_stage(clean, KeepOutput(toy), rules)))
    repeats = find_repeats(units, rules, memory, run)
    cuts = run(cuts_stage(clean, units, repeats, None))
    run(cut_table_stage(CutsOutput(cuts)))
    return cuts


def expected_cuts(shards: Shards, rules: LineRules) -> dict[tuple[bytes, int, int], bytes]:
    """(doc_key, start, end) -> the key of the document where the line stays."""
    documents = sorted(
        (key_of(index, row), text)
        for index, shard in enumerate(shards)
        for row, (text, state, source) in enumerate(shard)
        if state == "kept" and (rules.sources is None or source in rules.sources)
    )
    places: dict[str, list[tuple[bytes, int, int]]] = {}
    for key, text in documents:
        start = 0
        for line in text.splitlines(keepends=True):
            end = start + len(line.encode())
            if len(normalize(line)) >= rules.min_characters:
                places.setdefault(normalize(line), []).append((key, start, end))
            start = end
    return {
        span: spans[0][0]
        for spans in places.values()
        if len({key for key, _, _ in spans}) >= rules.min_documents
        for span in spans[1:]
    }


def rows_of(root: Path, cuts: StageManifest) -> list[list[dict[str, Any]]]:
    return [Inputs(root).table(shard).to_pylist() for shard in cuts.below("cuts")]


lines = st.sampled_from(
    ["short", "the same old line", "The SAME old line!", "é was other", "x" * 9]
)
texts = st.lists(lines, max_size=5).map("\n".join)
documents = st.tuples(texts, st.sampled_from(STATES), st.sampled_from(["Wiki", "Code"]))
shards = st.lists(st.lists(documents, max_size=4).map(tuple), min_size=1, max_size=3).map(tuple)


@settings(max_examples=25)
@given(
    shards, st.integers(1, 3), st.sampled_from([None, ("Wiki",)]), st.sampled_from([640, MEMORY])
)
def test_against_the_oracle(
    tmp_path_factory: pytest.TempPathFactory, shards: Shards, min_documents: int,
    sources: tuple[str, ...] | None, memory: int,
) -> None:  # fmt: skip
    root = tmp_path_factory.mktemp("run")
    rules = replace(RULES, min_documents=min_documents, sources=sources)
    cuts = cuts_of(root, shards, rules, memory)
    expected = expected_cuts(shards, rules)
    found = rows_of(root, cuts)
    assert {
        (r["doc_key"], r["byte_start"], r["byte_end"]): r["first"] for rows in found for r in rows
    } == expected
    for index, rows in enumerate(found):
        places = [(r["row"], r["byte_start"]) for r in rows]
        assert places == sorted(places)
        assert all(r["doc_key"] == key_of(index, r["row"]) for r in rows)
    assert sum(task.counters["cuts"] for task in cuts.tasks) == len(expected)
    assert sum(task.counters["bytes"] for task in cuts.tasks) == sum(b - a for _, a, b in expected)
    table = pq.read_table(root / layout.CUTS)
    assert table.column_names == ["doc_key", "byte_start", "byte_end", "digest", "first"]
    assert len(table) == len(expected)


def corpus() -> Shards:
    banner = "Subscribe to our newsletter for more of this."
    return tuple(
        tuple((f"{banner}\nOwn text {s}/{d}.\n{banner}", "kept", "Wiki") for d in range(40))
        for s in range(3)
    )


def test_memory_changes_nothing_but_the_number_of_tasks(tmp_path: Path) -> None:
    hashes, tasks = set(), set()
    for memory in (1600, 9000, MEMORY):
        root = tmp_path / str(memory)
        hashes.add(cuts_of(root, corpus(), RULES, memory).content_hash)
        tasks.add(len(list((root / "repeats").iterdir())))
    assert len(hashes) == 1
    assert len(tasks) == 3


def test_merging_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more runs, and more shards of repeats, than one task may read."""
    plain = cuts_of(tmp_path / "plain", corpus(), RULES, 1600)
    monkeypatch.setattr(levels, "MOST_SHARDS", 2)
    merged = cuts_of(tmp_path / "merged", corpus(), RULES, 1600)
    assert merged.content_hash == plain.content_hash
    for place in ("merged_lines", "merged_repeats"):
        assert not (tmp_path / "plain" / place).exists()
        assert len(list((tmp_path / "merged" / place).iterdir())) > 2
    for path in (tmp_path / "plain/repeats").iterdir():
        assert path.read_bytes() == (tmp_path / "merged/repeats" / path.name).read_bytes()


def test_text_without_its_cuts(tmp_path: Path) -> None:
    cuts = cuts_of(tmp_path, corpus(), RULES, MEMORY)
    banner = corpus()[0][0][0].partition("\n")[0]
    kept = 0
    for index, shard in enumerate(cuts.below("cuts")):
        table = Inputs(tmp_path).table(shard)
        documents = pa.ipc.open_file(tmp_path / f"documents/{index:06d}.arrow").read_all()
        after = cut_texts(documents["text"], table).to_pylist()
        assert [t.replace(banner + "\n", "") for t in after] == [
            f"Own text {index}/{d}.\n" for d in range(40)
        ]
        kept += sum(banner in text for text in after)
    assert kept == 1


def test_only_what_depends_on_it_runs_again(tmp_path: Path) -> None:
    cuts_of(tmp_path, corpus(), RULES, MEMORY)
    runner = runner_in(tmp_path)
    toy = publish(runner.run, corpus())
    clean = CleanOutput(toy)
    units = LinesOutput(runner.run(units_stage(clean, KeepOutput(toy), RULES)))
    more = replace(RULES, min_documents=200)
    repeats = find_repeats(units, more, MEMORY, runner.run)
    cuts = runner.run(cuts_stage(clean, units, repeats, None))
    assert runner.reused == ["toy", "lines"]
    assert [task.counters["cuts"] for task in cuts.tasks] == [0, 0, 0]


def test_paragraphs(tmp_path: Path) -> None:
    notice = "All rights reserved by\nthe owners of this page."
    shards = ((
        (f"One.\n\n{notice}\n\nTwo.", "kept", "Wiki"),
        (f"Three.\n \n{notice}", "kept", "Wiki"),
        (f"{notice} And more.", "kept", "Wiki"),
        (notice, "duplicate", "Wiki"),
    ),)  # fmt: skip
    cuts = cuts_of(tmp_path, shards, LineRules("paragraph", 20, 2, None), MEMORY)
    [[row]] = rows_of(tmp_path, cuts)
    text = shards[0][row["row"]][0]
    assert text[row["byte_start"] : row["byte_end"]].rstrip() == notice
