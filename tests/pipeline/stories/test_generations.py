"""`pack.append`: what is finished stays byte for byte, new inputs become a generation, and all
questions are answered with every one. Texts are drawn by a seed; the last file repeats some."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.core.errors import ConfigError, InputError, IntegrityError
from pipeline.core.hashes import hash_file
from pipeline.explain import text_search
from pipeline.hdf5.read import open_dataset
from pipeline.runs.generations import list_generations
from tests.forked import Ended

WORDS = [f"{a}{b}{c}" for a in ("b", "dr", "m", "st") for b in ("a", "ee", "o") for c in "dklnrt"]

VOLATILE = {".lock", "journal", "events.jsonl", "events.head"}
"""What a run directory holds besides the data set."""


def write(path: Path, seed: int, count: int, *others: str) -> None:
    rng = random.Random(seed)
    texts = [" ".join(rng.choices(WORDS, k=120)) for _ in range(count)]
    lines = (json.dumps({"text": text}) for text in (*texts, *others))
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def first_texts(path: Path, count: int) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text().splitlines()[:count]]


def make_config(raw: Path, **changes: Any) -> dict[str, Any]:
    pack = {"append": True, "max_sequence_length": 32, "validation_share": 0.2}
    pack |= changes.pop("pack", {})
    source = {"name": "raw", "path": str(raw)}
    return {"name": "grown", "inputs": [source], "pack": pack, **changes}


def hashes(run: Path) -> dict[str, str]:
    """Every file of a run but those of later generations and of the journal."""
    skipped = VOLATILE | {"generations"}
    paths = [p for p in run.rglob("*") if p.is_file()]
    kept = [p for p in paths if p.relative_to(run).parts[0] not in skipped]
    return {p.relative_to(run).as_posix(): hash_file(p) for p in kept}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """b.jsonl first; then a.jsonl, which sorts before it and repeats three of its texts."""
    raw = tmp_path_factory.mktemp("raw")
    write(raw / "one" / "b.jsonl", 1, 40)
    shutil.copytree(raw / "one", raw / "two")
    write(raw / "two" / "a.jsonl", 2, 12, *first_texts(raw / "one" / "b.jsonl", 3))
    return raw


@pytest.fixture(scope="module")
def first(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the first file, through a link, so that the inputs can grow; read only."""
    place = tmp_path_factory.mktemp("first")
    shutil.copytree(raw / "one", place / "in")
    pipeline.run(make_config(place / "in"), place / "run", 0)
    return place


@pytest.fixture(scope="module")
def grown(first: Path, raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a second generation; read only."""
    place = tmp_path_factory.mktemp("grown")
    shutil.copytree(first, place, dirs_exist_ok=True)
    shutil.copy2(raw / "two" / "a.jsonl", place / "in")
    pipeline.run(make_config(place / "in"), place / "run", 0)
    return place


def test_the_first_generation_stays_byte_for_byte(first: Path, grown: Path) -> None:
    before, after = hashes(first / "run"), hashes(grown / "run")
    assert before and after == before
    generations = list_generations(grown / "run")
    assert [g.number for g in generations] == [0, 1]
    own = pq.read_table(generations[1].directory / "sources.parquet")["path"].to_pylist()
    assert own == ["a.jsonl"]


def test_documents_of_the_first_keep_their_keys_and_splits(first: Path, grown: Path) -> None:
    """And new ones have the keys that one run of both files gives them."""
    whole = make_config(grown / "in", pack={"append": False})
    pipeline.run(whole, first / "whole", 0)
    columns = ["doc_key", "path_id", "line"]
    expected = pq.read_table(first / "whole" / "documents.parquet", columns=columns)
    keys = set(expected["doc_key"].to_pylist())
    of_both = [
        pq.read_table(g.directory / "documents.parquet", columns=columns)["doc_key"].to_pylist()
        for g in list_generations(grown / "run")
    ]
    assert set(of_both[0]) | set(of_both[1]) == keys and not set(of_both[0]) & set(of_both[1])


def test_new_copies_of_old_documents_are_duplicates(grown: Path) -> None:
    run = grown / "run"
    table = pq.read_table(list_generations(run)[1].directory / "documents.parquet")
    states = dict(zip(table["line"].to_pylist(), table["state"].to_pylist(), strict=True))
    assert [states[line] for line in (13, 14, 15)] == ["duplicate"] * 3
    assert {states[line] for line in range(1, 13)} == {"kept"}
    explained = pipeline.open_run(run).explain("a.jsonl:13")
    assert explained.kept_by is not None and explained.kept_by.place is not None
    assert explained.kept_by.place.file.endswith("b.jsonl")
    assert explained.kept_by.index == "generation 0"
    stands_for = pipeline.open_run(run).explain(explained.kept_by.key).stands_for
    assert [link.index for link in stands_for] == ["generation 1"]


def test_parts_of_old_documents_go(tmp_path: Path) -> None:
    """With containment, whose samples stay although `keep: minimal` deletes what no run needs."""
    write(tmp_path / "in" / "b.jsonl", 1, 12)
    parts = [text[: len(text) * 3 // 4] for text in first_texts(tmp_path / "in" / "b.jsonl", 3)]
    config = make_config(
        tmp_path / "in", dedup={"containment": {"drop": True}}, clean={"min_length": 0}
    ) | {"keep": "minimal"}
    pipeline.run(config, tmp_path / "run", 0)
    write(tmp_path / "in" / "c.jsonl", 2, 4, *parts)
    pipeline.run(config, tmp_path / "run", 0)
    later = list_generations(tmp_path / "run")[1].directory
    table = pq.read_table(later / "documents.parquet")
    assert table["reason"].to_pylist() == [""] * 4 + ["contained_duplicate"] * 3
    assert {row["index"] for row in pq.read_table(later / "clusters.parquet").to_pylist()} == {
        "generation 0"
    }


def test_the_same_command_does_nothing_more(grown: Path, tmp_path: Path) -> None:
    shutil.copytree(grown, tmp_path, dirs_exist_ok=True)
    again = pipeline.run(make_config(tmp_path / "in"), tmp_path / "run", 0)
    assert again.generation == 1 and set(again.reused) == set(again.stages)
    assert hashes(tmp_path / "run") == hashes(grown / "run")


def test_a_run_made_before_append_was_set_stays_too(raw: Path, tmp_path: Path) -> None:
    """Its manifest as well, when the same command finds nothing new; a change is named all the same
    once a later generation has the settings on record."""
    shutil.copytree(raw / "one", tmp_path / "in")
    run, config = tmp_path / "run", make_config(tmp_path / "in")
    pipeline.run(make_config(tmp_path / "in", pack={"append": False}), run, 0)
    before = hashes(run)
    pipeline.run(config, run, 0)
    assert hashes(run) == before
    with pytest.raises(ConfigError, match=r"stage clean changes \(settings.min_length\)"):
        pipeline.run({**config, "clean": {"min_length": 100}}, run, 0)
    shutil.copy2(raw / "two" / "a.jsonl", tmp_path / "in")
    pipeline.run(config, run, 0)
    pipeline.run(config, run, 0)
    assert hashes(run) == before
    with pytest.raises(ConfigError, match=r"clean\.min_length was 200, now 100"):
        pipeline.run({**config, "clean": {"min_length": 100}}, run, 0)


def test_as_an_index_a_run_has_all_its_generations(grown: Path, tmp_path: Path) -> None:
    write(tmp_path / "in" / "n.jsonl", 9, 3, *first_texts(grown / "in" / "a.jsonl", 2))
    other = make_config(tmp_path / "in", dedup={"indexes": [str(grown / "run")]})
    pipeline.run(other, tmp_path / "run", 0)
    table = pq.read_table(tmp_path / "run" / "clusters.parquet")
    assert table["index"].to_pylist() == ["run/000001"] * 2


@pytest.mark.parametrize("form", ["sample", "vsl", "corpus"])
def test_a_generation_depends_on_no_workers_and_no_earlier_bytes(
    raw: Path, tmp_path: Path, form: str
) -> None:
    found = []
    for workers in (0, 1):
        place = tmp_path / str(workers)
        shutil.copytree(raw / "one", place / "in")
        config = make_config(place / "in", pack={"format": form})
        pipeline.run(config, place / "run", 0)
        shutil.copy2(raw / "two" / "a.jsonl", place / "in")
        pipeline.run(config, place / "run", workers if form == "sample" else 0)
        pipeline.verify(place / "run", lineage=20)
        found.append(hashes(list_generations(place / "run")[1].directory))
    assert found[0] == found[1]


def test_verify_checks_every_generation(grown: Path, tmp_path: Path) -> None:
    names = [check.name for check in pipeline.verify(grown / "run")]
    assert "hdf5/train" in names and "generation 1, hdf5/train" in names
    assert names[-1] == "generations"
    shutil.copytree(grown, tmp_path, dirs_exist_ok=True)
    shard = next((tmp_path / "run" / "generations").rglob("examples_*.h5"))
    damaged = bytearray(shard.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    shard.write_bytes(damaged)
    with pytest.raises(IntegrityError, match=r"000001.*examples"):
        pipeline.verify(tmp_path / "run")
    pipeline.run(make_config(tmp_path / "in"), tmp_path / "run", 0)
    assert pipeline.verify(tmp_path / "run")


CHANGES = {
    "clean.min_length was 200, now 100": {"clean": {"min_length": 100}},
    "pack.max_sequence_length was 32, now 64": {"pack": {"max_sequence_length": 64}},
    'dedup.prefer was [], now ["longest"]': {"dedup": {"prefer": ["longest"]}},
    "filters.gopher was null": {"filters": {"gopher": {}}},
    "seed was 1, now 2": {"seed": 2},
}


@pytest.mark.parametrize("words", CHANGES)
def test_a_change_that_would_alter_a_generation_is_named(grown: Path, words: str) -> None:
    before = hashes(grown / "run")
    with pytest.raises(ConfigError) as refused:
        pipeline.run(make_config(grown / "in", **CHANGES[words]), grown / "run", 0)
    assert words in str(refused.value) and "--replace" in str(refused.value)
    assert "generation 0 would not stay as it is" in str(refused.value)
    assert hashes(grown / "run") == before


def test_changed_and_missing_inputs_are_named(grown: Path, tmp_path: Path) -> None:
    shutil.copytree(grown, tmp_path, dirs_exist_ok=True)
    config, old = make_config(tmp_path / "in"), tmp_path / "in" / "b.jsonl"
    text = old.read_text()
    old.write_text(text.replace("a", "b", 1))
    with pytest.raises(InputError, match=r"generation 0 would not stay.*b\.jsonl has other bytes"):
        pipeline.run(config, tmp_path / "run", 0)
    old.unlink()
    with pytest.raises(InputError, match=r"b\.jsonl was read for generation 0.*--replace"):
        pipeline.run(config, tmp_path / "run", 0)
    old.write_text(text)
    assert len(pipeline.run(config, tmp_path / "run", 0).reused) > 20


def test_new_files_without_a_new_document_are_refused(grown: Path, tmp_path: Path) -> None:
    """And change nothing; they go with the next file that has one."""
    shutil.copytree(grown, tmp_path, dirs_exist_ok=True)
    write(tmp_path / "in" / "c.jsonl", 0, 0, *first_texts(grown / "in" / "b.jsonl", 3))
    config, before = make_config(tmp_path / "in"), hashes(tmp_path / "run")
    with pytest.raises(InputError, match=r"3 duplicates.*leave the new files out"):
        pipeline.run(config, tmp_path / "run", 0)
    assert hashes(tmp_path / "run") == before and len(pipeline.verify(tmp_path / "run")) > 20
    write(tmp_path / "in" / "d.jsonl", 6, 2)
    assert pipeline.run(config, tmp_path / "run", 0).generation == 2


def test_without_append_nothing_is_overwritten(grown: Path) -> None:
    config = make_config(grown / "in", pack={"append": False})
    with pytest.raises(ConfigError, match=r"holds 2 generations.*--replace"):
        pipeline.run(config, grown / "run", 0)


def test_replace_packs_everything_again(grown: Path, tmp_path: Path) -> None:
    shutil.copytree(grown, tmp_path, dirs_exist_ok=True)
    config = make_config(tmp_path / "in")
    pipeline.run(config, tmp_path / "run", 0, replace=True)
    pipeline.run(config, tmp_path / "whole", 0)
    assert not (tmp_path / "run" / "generations").exists()
    assert hashes(tmp_path / "run") == hashes(tmp_path / "whole")


def test_trace_names_rows_of_both(grown: Path) -> None:
    run = pipeline.open_run(grown / "run")
    for generation in list_generations(grown / "run"):
        dataset = open_dataset(generation.directory / "hdf5" / "train")
        table = pq.read_table(generation.directory / "documents.parquet")
        names = {key.hex() for key in table["doc_key"].to_pylist()}
        file = f"{generation.place}hdf5/train/{dataset.shards[0].name}"
        for row in range(dataset.shards[0].rows):
            spans = run.trace(file=file, row=row)
            assert {span.document for span in spans} <= names
            place = f"{spans[0].file}[{row}]"
            assert run.trace(file=place) == spans
    words = " ".join(first_texts(grown / "in" / "a.jsonl", 1)[0].split()[:9])
    assert [found.traced.line for found in run.search(words).documents] == [1]


def test_an_index_of_words_covers_both(
    grown: Path, prep: Callable[..., Ended], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(grown / "run", run)
    words = " ".join(first_texts(grown / "in" / "a.jsonl", 1)[0].split()[:9])
    plain = prep("search", run, words, "--json")
    assert prep("search", run, "--index").code == 0
    assert all((each.directory / "word_index").is_dir() for each in list_generations(run))
    indexed = prep("search", run, words, "--json")
    assert plain.code == indexed.code == 0 and plain.out == indexed.out
    assert prep("verify", run).code == 0


def test_pages_of_common_words_go_through_both(
    grown: Path, prep: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One generation after the other, each in its order."""
    run = tmp_path / "run"
    shutil.copytree(grown / "run", run)
    assert prep("search", run, "--index").code == 0
    monkeypatch.setattr(text_search, "_FEW", 0)
    words = max(first_texts(grown / "in" / "a.jsonl", 1)[0].split()[:9], key=len)
    for query in (words, words[:1]):
        whole = pipeline.search(run, query)
        every = [found.traced.doc for found in whole.documents]
        first = len(pq.read_table(run / "documents.parquet"))
        assert every == sorted(every) and every[0] < first <= every[-1]
        size = len(every) // 5
        pages = [pipeline.search(run, query, limit=size, skip=n * size) for n in range(7)]
        assert [found.traced.doc for page in pages for found in page.documents] == every
        assert whole.is_exact and whole.total == len(every) == pages[-1].total


def test_status_log_and_plan(grown: Path, prep: Callable[..., Ended], tmp_path: Path) -> None:
    status = json.loads(prep("status", grown / "run", "--json").out)
    assert [g["generation"] for g in status["generations"]] == [1]
    assert status["finished"] and status["generations"][0]["finished"]
    log = json.loads(prep("log", grown / "run", "--json").out)
    assert {entry["generation"] for entry in log} == {0, 1}
    said = prep("inspect", grown / "run")
    assert "generation 0" in said.err and "generations/000001" in said.err


def test_what_is_handed_on_has_both(
    grown: Path, prep: Callable[..., Ended], tmp_path: Path
) -> None:
    run, tokens = grown / "run", 0
    for generation in list_generations(run):
        ledger = json.loads((generation.directory / "ledger.json").read_bytes())
        tokens += sum(split["tokens"] for split in ledger["splits"].values())
    files = [f["path"] for f in json.loads(prep(
        "push", run, "hf://datasets/me/x", "--dry-run", "--json").out)]  # fmt: skip
    assert "hdf5/train/data_params.json" in files
    assert "generations/000001/hdf5/train/data_params.json" in files
    converted = json.loads(
        prep("convert", run, "--to", "bin", "--out", tmp_path / "b", "--json").out
    )
    assert converted["tokens"] == tokens
    assert prep("disclose", run, "--out", tmp_path / "d", "--only", "card").code == 0
    card = (tmp_path / "d" / "README.md").read_text()
    assert "generations/000001/hdf5/train/*.lineage.parquet" in card and f"{tokens:,}" in card


CLAIM = """\
id: c1
claimant: Example Press
received: 2026-03-01
basis: a registered work
what: {{documents: ["{}"]}}
"""


def test_a_takedown_reaches_copies_in_other_generations(
    grown: Path, prep: Callable[..., Ended], tmp_path: Path
) -> None:
    """The claim names the copy, which is no row of any data set; the next generation then appends
    to what was masked, and has no text of it either."""
    shutil.copytree(grown, tmp_path, dirs_exist_ok=True)
    run, claim = tmp_path / "run", tmp_path / "claim.yaml"
    claim.write_text(CLAIM.format("a.jsonl:13"))
    text = first_texts(tmp_path / "in" / "b.jsonl", 1)[0]
    assert any(text.encode() in p.read_bytes() for p in run.rglob("*.arrow"))
    applied = prep("takedown", claim, "--run", run, "--apply", "--by", "me", "--json")
    assert [record["generation"] for record in json.loads(applied.out)] == [0, 1]
    assert not any(text.encode() in p.read_bytes() for p in run.rglob("*.arrow"))
    assert open_dataset(run / "hdf5" / "train").takedowns + open_dataset(
        run / "hdf5" / "validation").takedowns == ("c1",)  # fmt: skip
    pipeline.verify(run)
    write(tmp_path / "in" / "c.jsonl", 3, 5, text)
    made = pipeline.run(make_config(tmp_path / "in"), run, 0)
    assert made.generation == 2
    assert not any(text.encode() in p.read_bytes() for p in run.rglob("*.arrow"))
    pipeline.verify(run)
    assert len(pipeline.run(make_config(tmp_path / "in"), run, 0).reused) == len(made.stages)


def test_cleaned_up_runs_can_be_appended_to(
    first: Path, raw: Path, prep: Callable[..., Ended], tmp_path: Path
) -> None:
    shutil.copytree(first, tmp_path, dirs_exist_ok=True)
    assert prep("clean-up", tmp_path / "run").code == 0
    shutil.copy2(raw / "two" / "a.jsonl", tmp_path / "in")
    assert pipeline.run(make_config(tmp_path / "in"), tmp_path / "run", 0).generation == 1


def test_what_could_not_be_appended_to_is_refused_at_once(raw: Path, tmp_path: Path) -> None:
    """Before the first run, by the plan too, rather than when new files come."""
    config = make_config(raw / "one", mixture={"weights": {"raw": 1.0}})
    for ask in (pipeline.plan, pipeline.run):
        with pytest.raises(ConfigError, match=r"mixture\.weights are shares of a whole data set"):
            ask(config, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
