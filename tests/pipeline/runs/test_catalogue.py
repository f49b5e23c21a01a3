"""What the catalogue declares against what real runs write."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.manifest import Shard, read_manifest
from pipeline.engine import levels, runner
from pipeline.engine.stage import Inputs
from pipeline.runs import parts
from pipeline.runs.catalogue import (
    CAUSES,
    CHANGED_BY_TAKEDOWNS,
    PLACES,
    SCRATCH,
    STAGES,
    STORIES,
    is_off_by_default,
)
from pipeline.stages import components
from pipeline.takedown.scrub import STORES
from tests.forked import load_everything, prep_in_fork
from tests.stages import stages_by_default

SECRET = "quagmirequincunx"
PAGES = {"report.html", "clusters.html"}
WRITTEN_BY_TAKEDOWNS = {"hdf5", "records", "cleaned"}


def test_entries_name_places_causes_and_stages_that_exist() -> None:
    for entry in STAGES.values():
        assert set(entry.writes) <= PLACES.keys(), entry.name
        assert set(entry.called_for_by) <= CAUSES.keys(), entry.name
    told = {name for story in STORIES.values() for name in story.stages}
    assert told == STAGES.keys()
    used = {cause for entry in STAGES.values() for cause in entry.called_for_by}
    assert used == CAUSES.keys()


def test_every_place_is_written_by_a_stage() -> None:
    written = {name for entry in STAGES.values() for name in entry.writes}
    assert PLACES.keys() - written == {"manifests", "manifest.json"}


def test_a_takedown_reaches_every_place_with_text() -> None:
    lasting = {p.name for p in PLACES.values() if p.holds_text and not p.is_intermediate}
    assert lasting == {*STORES, *PAGES, *WRITTEN_BY_TAKEDOWNS}
    for place in PLACES.values():
        assert not place.text_column or place.name in STORES


def test_stages_after_one_that_a_takedown_changes_are_changed_too() -> None:
    """All that is made from kept documents stands behind `keep`, but for reports and accounts."""
    stages = STORIES["prepare"].stages
    behind = {*stages[stages.index("lines") :]} - {"tokenizer", "sources", "account", "report"}
    assert behind <= CHANGED_BY_TAKEDOWNS


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


READS = "reads.txt"


def note_reads(log: Path, patch: pytest.MonkeyPatch) -> None:
    """Note the stage and the place of every shard that a task opens, forks included."""
    stage, open_shard, perform = [""], Inputs.path, runner._perform

    def noting(self: Inputs, shard: Shard) -> Path:
        with open(log, "a") as file:
            file.write(f"{stage[0]} {shard.path.partition('/')[0]}\n")
        return open_shard(self, shard)

    def performing(call: Any) -> Any:
        stage[0] = call.record_path.parent.name
        try:
            return perform(call)
        finally:
            stage[0] = "no-stage"

    patch.setattr(Inputs, "path", noting)
    patch.setattr(runner, "_perform", performing)


@pytest.fixture(scope="module")
def every_run(
    make_corpus: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory,
    monkeypatch_module: pytest.MonkeyPatch,
) -> list[Path]:  # fmt: skip
    """A run of every command that makes a run directory, of a corpus with the secret word in a few
    texts, every optional stage called for; some as if a task could read two shards only."""
    tmp_path = tmp_path_factory.mktemp("catalogue")
    made = make_corpus(tmp_path / "corpus")
    raw = made.root / "raw" / "web" / "d.jsonl"
    lines = raw.read_text().splitlines()
    for number in (3, 9):
        record = json.loads(lines[number])
        record["text"] = f"{SECRET} {record['text']} mailto someone@{SECRET}.org"
        lines.append(json.dumps(record))
    raw.write_text("\n".join(lines) + "\n")
    (made.root / "eval.jsonl").write_text(json.dumps({"question": record["text"]}) + "\n")
    config = made.config.read_text().replace("task_bytes: 100000", "task_bytes: 8 KiB")
    config = config.replace("max_bad_share: 10 %", "max_bad_share: 40 %")
    made.config.write_text(
        config
        + "lines: {unit: line, min_documents: 2, min_characters: 1}\n"
        + "decontaminate: {sets: [eval.jsonl], n: 5, min_words: 3}\n"
        + "filters: {c4: {min_sentences: 0}, action: report}\n"
        + "clean: {mask: [email]}\n"
        + "mixture: {cluster_weights: {2: 2}}\n"
    )
    vsl = made.root / "vsl.yaml"
    packed = (
        made.config.read_text()
        .replace("mixture: {", "mixture: {weights: {web: 2.0}, default: 1.0, ")
        .replace("pack:\n", "pack:\n  format: vsl\n")
    )
    vsl.write_text(packed)
    names = ("run", "vsl", "plain", "dedup", "clean", "screen", "export")
    runs = {name: tmp_path / name for name in names}
    shards = made.root / "raw" / "web" / "d.jsonl"
    load_everything()
    note_reads(tmp_path / READS, monkeypatch_module)
    monkeypatch_module.setattr(components, "_TASK_DOCUMENTS", 3)
    monkeypatch_module.setattr(levels, "MOST_TOGETHER", 1)
    monkeypatch_module.setattr(parts, "RECORDS", 20)
    many = levels.MOST_SHARDS
    passages = (
        "--set", "dedup.substrings={cut: true, min_bytes: 50}",
        "--set", "dedup.containment={drop: true}",
    )  # fmt: skip
    for most, *command in (
        (2, "run", made.config, "--out", runs["run"], *passages),
        (many, "run", vsl, "--out", runs["vsl"], *passages),
        (many, "run", made.config, "--out", runs["plain"], "--set", "mixture={}"),
        (many, "dedup", shards, "--out", runs["dedup"], "--substrings", 50, "--containment", 0.9),
        (many, "clean", shards, "--out", runs["clean"]),
        (many, "export", runs["vsl"], "--out", tmp_path / "other", "--format", "jsonl"),
        (2, "export", runs["run"], "--out", runs["export"], "--format", "jsonl"),
    ):
        monkeypatch_module.setattr(levels, "MOST_SHARDS", most)
        ended = prep_in_fork(*command, "--workers", 0)
        assert ended.code == 0, ended.err
    searched = shutil.copytree(runs["clean"], tmp_path / "searched")
    assert prep_in_fork("search", searched, "--index", "--workers", 0).code == 0
    return [path for path in runs.values() if path.exists()] + [Path(searched, "word_index")]


def test_tasks_read_the_scratch_that_the_catalogue_says(every_run: list[Path]) -> None:
    """What is deleted early depends on it. These runs have no review, takedown, redaction, corpus,
    or repeats, seeds, windows, containers or decisions that spread in several shards; and where
    there are many shards they have a mixture."""
    lines = (every_run[0].parent / READS).read_text().split("\n")[:-1]
    reads = {(stage, place) for stage, place in map(str.split, lines) if place in SCRATCH}
    reads = {(stage, place) for stage, place in reads if stage in STAGES}
    declared = {
        (entry.name, place)
        for entry in STAGES.values()
        for place in (*entry.needs, *entry.instead.values())
    }
    assert reads <= declared
    assert declared - reads == {
        ("decisions", "reviews"), ("decisions", "withheld"), ("cuts", "redactions"),
        ("redactions", "decisions"), ("redactions", "verdicts"),
        *(("pack", place) for place in ("stream", "merged", "shuffle", "tokens")),
        ("merge", "tokens"),
        ("merge_repeats", "repeats"), ("cuts", "merged_repeats"),
        ("merge_shared_seeds", "shared_seeds"), ("windows", "merged_shared_seeds"),
        ("merge_repeated_windows", "repeated_windows"), ("substrings", "merged_repeated_windows"),
        ("merge_spread", "spread"), ("verdicts", "merged_spread"),
        ("merge_givers", "givers"), ("spread", "merged_givers"),
        ("merge_containers", "containers"), ("containments", "merged_containers"),
    }  # fmt: skip


def test_real_runs_write_what_the_catalogue_says(every_run: list[Path]) -> None:
    seen: dict[str, set[str]] = {}
    for run in every_run:
        for path in (run / "manifests").glob("*.json"):
            manifest = read_manifest(path)
            assert manifest is not None
            places = {shard.path.partition("/")[0] for shard in manifest.shards}
            seen.setdefault(path.stem, set()).update(places)
        story = json.loads((run / "manifest.json").read_bytes())["story"]
        stages = json.loads((run / "manifest.json").read_bytes())["stages"]
        order = [stage["stage"] for stage in stages]
        expected = [name for name in STORIES[story].stages if name in order]
        if run.name == "vsl":  # its inverse is made from what was packed
            for name in filter(order.__contains__, ("inverse", "merge_inverse", "inverse_runs")):
                expected.insert(expected.index("pack"), expected.pop(expected.index(name)))
        assert order == expected
        assert {n for n in STORIES[story].stages if not is_off_by_default(n)} - set(order) <= {
            "decisions", "evidence", "verdicts", "rows", "screen", "registry",
        }  # fmt: skip
        for file in run.iterdir():
            outside = {"events.jsonl", "events.head", ".lock", "journal"}
            assert file.name in {*PLACES, *outside}, file
    for stage, places in seen.items():
        assert places <= {*STAGES[stage].writes}, stage
    written = {place for places in seen.values() for place in places}
    assert {"pieces", "overlap", "lines", "cuts", "bins", "mixture", "masked", "records",
            "cleaned", "hdf5"} <= written  # fmt: skip
    assert set(stages_by_default()) <= seen.keys()


def test_text_is_found_only_where_the_catalogue_says(every_run: list[Path]) -> None:
    """Most Arrow files, JSON and pages are not compressed: a word of a text is found as it is."""
    found = set()
    word = re.compile(SECRET.encode())
    for run in every_run:
        for path in run.rglob("*"):
            if path.is_file() and word.search(path.read_bytes()):
                found.add(path.relative_to(run).parts[0])
    assert {"documents", "records", "report.html"} <= found
    for name in found:
        assert PLACES[name].holds_text, name
