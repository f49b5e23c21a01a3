"""Whole runs with cluster weights: copies against plain Python, books, lineage, errors."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.core import rng
from pipeline.core.errors import IntegrityError
from pipeline.core.hashes import tree_hash
from pipeline.core.ledger import ledger_from_dict
from pipeline.engine import levels
from pipeline.stages import components
from pipeline.stories.verify import verify_run
from tests.slow import mark_slow

SIZES = (1, 2, 3, 4, 5, 7, 12)
WEIGHTS = {2: 2, 4: 2.5, 6: 0, 10: 3}
EPOCHS = {"Wiki": 2, "Code": 0.5}
MIXED = (
    "mixture={epochs: {Wiki: 2, Code: 0.5}, cluster_weights: {4: 2.5, 2: 2, 6: 0, 10: 3}}",
    "splits={test: 10 %}", "read.task_bytes=32 KiB",
)  # fmt: skip
WEIGHED = (
    "mixture={weights: {Wiki: 3, Code: 1}, default: 0, tokens: 9000, cluster_weights: {2: 3}}",
)


@pytest.fixture(scope="module")
def families(
    make_corpus: Callable[..., Any], new_shard: Callable[..., Any],
    write_prose: Callable[..., str], tmp_path_factory: pytest.TempPathFactory,
) -> Any:  # fmt: skip
    """The small corpus, and texts that occur as often as `SIZES` says, of three sources in turn."""
    corpus = make_corpus(tmp_path_factory.mktemp("families"))
    writer = new_shard(corpus, "web", "families.jsonl")
    for number in range(40):
        text = write_prose(70_000 + number, 100)
        for copy in range(SIZES[number % len(SIZES)]):
            writer.add("family", text, ("Wiki", "Code", "")[(number + copy) % 3])
    writer.write()
    return corpus


@pytest.fixture(scope="module")
def mixed(families: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run as if a task could read four shards, so that sizes of clusters are merged."""
    out = tmp_path_factory.mktemp("cluster_weights") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(levels, "MOST_SHARDS", 4)
        patch.setattr(components, "_TASK_DOCUMENTS", 20)
        pipeline.run(families.config, out, 0, overrides=MIXED)
    assert (out / "merged_cluster_sizes").is_dir()
    return out


def stream(run: Path) -> Counter[bytes]:
    """How often each document is in the stream of train."""
    shards = sorted((run / "stream").glob("train-*.arrow"))
    tables = [pa.ipc.open_file(pa.memory_map(str(s))).read_all() for s in shards]
    return Counter(pa.concat_tables(tables)["doc_key"].to_pylist())


def sizes_of_clusters(rows: list[dict[str, Any]]) -> Counter[bytes]:
    """Documents by what represents them: records that became none have no representative."""
    return Counter(row["representative"] for row in rows if row["representative"])


def plain_weight(size: int) -> Fraction:
    weight = Fraction(1)
    for least in sorted(WEIGHTS):
        if size >= least:
            weight = Fraction(WEIGHTS[least])
    return weight


def plain_copies(key: bytes, epochs: Fraction, seed: int) -> int:
    halves, copies = np.frombuffer(key, np.uint64).reshape(1, 2), 0
    while True:
        drawn = rng.rank(halves, seed, f"mixture/{copies}")[0]
        if copies + Fraction(int(drawn), 1 << 64) >= epochs:
            return copies
        copies += 1


def test_every_document_as_often_as_its_cluster_says(mixed: Path) -> None:
    verify_run(mixed)
    rows = pq.read_table(mixed / "documents.parquet").to_pylist()
    sizes = sizes_of_clusters(rows)
    train = [row for row in rows if row["state"] == "kept" and row["split"] == "train"]
    expected: Counter[bytes] = Counter()
    for row in train:
        epochs = Fraction(EPOCHS.get(row["source"], 1)) * plain_weight(sizes[row["doc_key"]])
        expected[row["doc_key"]] = plain_copies(row["doc_key"], epochs, seed=7)
    assert stream(mixed) == +expected
    assert {sizes[row["doc_key"]] for row in train} >= {*SIZES}
    assert max(expected.values()) == 6


def test_clusters_parquet_has_these_sizes(mixed: Path) -> None:
    rows = pq.read_table(mixed / "documents.parquet").to_pylist()
    members = Counter(pq.read_table(mixed / "clusters.parquet")["kept"].to_pylist())
    sizes = sizes_of_clusters(rows)
    assert {key: size - 1 for key, size in sizes.items() if size > 1} == members


def test_the_books(mixed: Path) -> None:
    """By size of the cluster: documents, tokens and copies; a count that is off is found."""
    ledger = json.loads((mixed / "ledger.json").read_bytes())
    rows = pq.read_table(mixed / "documents.parquet").to_pylist()
    sizes, copies = sizes_of_clusters(rows), stream(mixed)
    found = ledger["mixture"]["Wiki"]["cluster_sizes"]
    assert {label: one["weight"] for label, one in found.items()} == {
        "1": 1, "2 to 3": 2, "4 to 5": 2.5, "6 to 9": 0, "10 or more": 3,
    }  # fmt: skip
    mine = [r for r in rows if (r["state"], r["split"], r["source"]) == ("kept", "train", "Wiki")]
    some = [row for row in mine if sizes[row["doc_key"]] in (2, 3)]
    assert found["2 to 3"]["documents"] == len(some) > 0
    assert found["2 to 3"]["tokens"] == sum(row["tokens"] for row in some)
    assert found["2 to 3"]["stream_documents"] == 4 * len(some)
    assert found["2 to 3"]["stream_tokens"] == sum(r["tokens"] * copies[r["doc_key"]] for r in some)
    assert ledger["mixture"]["Wiki"]["epochs"] == 2
    ledger_from_dict(ledger).check()
    found["2 to 3"]["stream_tokens"] += 1
    with pytest.raises(IntegrityError, match=r"mixture of 'Wiki': stream_tokens: .* by size"):
        ledger_from_dict(ledger).check()


def test_weights_of_sources_and_clusters(families: Any, tmp_path: Path) -> None:
    """Sources have their tokens, and in each of them clusters have theirs."""
    out = tmp_path / "run"
    pipeline.run(families.config, out, 0, overrides=WEIGHED)
    verify_run(out)
    rows = pq.read_table(out / "documents.parquet").to_pylist()
    sizes, copies = sizes_of_clusters(rows), stream(out)
    longest = max(row["tokens"] for row in rows)
    for source, target in (("Wiki", 6750), ("Code", 2250), ("web", 0)):
        mine = [
            r for r in rows if (r["state"], r["split"], r["source"]) == ("kept", "train", source)
        ]
        large = [sizes[row["doc_key"]] > 1 for row in mine]
        weighted = sum(r["tokens"] * (3 if several else 1)
                       for r, several in zip(mine, large, strict=True))  # fmt: skip
        for which, weight in ((False, 1), (True, 3)):
            group = [r for r, several in zip(mine, large, strict=True) if several == which]
            wanted = target * weight * sum(row["tokens"] for row in group) // weighted
            there = sum(row["tokens"] * copies[row["doc_key"]] for row in group)
            assert wanted - longest < there <= wanted


GROUPS = "groups: {wiki: source = 'Wiki', odd: tokens % 2 = 1, rest: true}"


def group_of(row: dict[str, Any]) -> str:
    if row["source"] == "Wiki":
        return "wiki"
    return "odd" if row["tokens"] % 2 else "rest"


@pytest.mark.parametrize("most_shards", mark_slow([4, 512], 512))
def test_groups_take_the_place_of_sources(
    most_shards: int, families: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs of a group times the weight of the cluster; the books by group and size."""
    monkeypatch.setattr(levels, "MOST_SHARDS", most_shards)
    epochs = {"wiki": Fraction(2), "odd": Fraction(1, 2), "rest": Fraction(1)}
    given = "epochs: {wiki: 2, odd: 0.5}, cluster_weights: {4: 2.5, 2: 2, 6: 0, 10: 3}"
    mixture = f"mixture={{{GROUPS}, {given}}}"
    pipeline.run(families.config, tmp_path, 0, overrides=(mixture, *MIXED[1:]))
    verify_run(tmp_path)
    rows = pq.read_table(tmp_path / "documents.parquet").to_pylist()
    sizes, copies = sizes_of_clusters(rows), stream(tmp_path)
    train = [row for row in rows if row["state"] == "kept" and row["split"] == "train"]
    expected: Counter[bytes] = Counter()
    for row in train:
        wanted = epochs[group_of(row)] * plain_weight(sizes[row["doc_key"]])
        expected[row["doc_key"]] = plain_copies(row["doc_key"], wanted, seed=7)
    assert copies == +expected
    found = json.loads((tmp_path / "ledger.json").read_bytes())["mixture"]
    assert set(found) == set(epochs)
    for name, account in found.items():
        few = [r for r in train if group_of(r) == name and sizes[r["doc_key"]] in (2, 3)]
        assert account["cluster_sizes"]["2 to 3"]["documents"] == len(few) > 0
        assert account["cluster_sizes"]["2 to 3"]["stream_tokens"] == sum(
            row["tokens"] * copies[row["doc_key"]] for row in few
        )
        assert account["epochs"] == epochs[name]


def test_weights_of_groups_and_clusters(families: Any, tmp_path: Path) -> None:
    """Groups that are the sources are mixed as the sources are, cluster by cluster."""
    groups = "groups: {Wiki: source = 'Wiki', Code: source = 'Code', web: true}"
    runs = {"sources": WEIGHED[0], "groups": WEIGHED[0].replace("{", f"{{{groups}, ", 1)}
    for name, mixture in runs.items():
        pipeline.run(families.config, tmp_path / name, 0, overrides=(mixture,))
    assert stream(tmp_path / "groups") == stream(tmp_path / "sources")
    by_source, by_group = (
        json.loads((tmp_path / name / "ledger.json").read_bytes())["mixture"] for name in runs
    )
    for name, expression in (("Wiki", "source = 'Wiki'"), ("Code", "source = 'Code'")):
        assert by_group[name] == {**by_source[name], "group": expression}


def test_documents_of_an_earlier_run_count_for_nobody(
    mixed: Path, write_prose: Callable[..., str], tmp_path: Path
) -> None:
    """Clusters are those of the documents that are new."""
    texts = [write_prose(70_006, 100)] * 3 + [write_prose(80_000 + i, 100) for i in (0, 1, 1, 1, 2)]
    raw = tmp_path / "later.jsonl"
    raw.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    config = {
        "name": "later",
        "inputs": [{"name": "later", "path": raw}],
        "dedup": {"indexes": [mixed]},
        "mixture": {"cluster_weights": {2: 4}},
        "pack": {"validation_share": 0, "max_sequence_length": 64},
    }
    pipeline.run(config, tmp_path / "run", 0)
    rows = pq.read_table(tmp_path / "run" / "documents.parquet").to_pylist()
    assert [row["state"] for row in rows].count("duplicate") == 5
    copies = stream(tmp_path / "run")
    assert sorted(copies.values()) == [1, 1, 4]
    (repeated,) = {row["representative"] for row in rows[4:7]}
    assert copies[repeated] == 4


def test_what_commands_answer(mixed: Path, prep: Callable[..., Any]) -> None:
    """`prep trace` has every copy of a document, `prep explain` says why there are so many."""
    rows = pq.read_table(mixed / "documents.parquet").to_pylist()
    sizes, copies = sizes_of_clusters(rows), stream(mixed)
    key = max(copies, key=copies.__getitem__).hex()
    (document,) = pipeline.trace(mixed, document=key).documents
    assert document.copies == copies[bytes.fromhex(key)] == 6
    found = prep("trace", mixed, "--document", key, "--json")
    places = {tuple(p[n] for n in ("file", "row")) for p in json.loads(found.out)["places"]}
    assert len(places) >= 2
    for file, row in sorted(places):
        spans = pipeline.trace(mixed, file=file, row=row)
        assert key in {span.document for span in spans}
    explained = prep("explain", mixed, key)
    size = sizes[bytes.fromhex(key)]
    assert f"counts 3 times, by mixture.cluster_weights for a cluster of {size}" in explained.out
    removed = next(r for r in rows if r["state"] == "duplicate")["doc_key"].hex()
    assert "cluster_weights" not in prep("explain", mixed, removed).out
    assert "<td>10 or more</td>" in (mixed / "report.html").read_text()


def test_a_run_prints_its_clusters(families: Any, mixed: Path, prep: Callable[..., Any]) -> None:
    overrides = [word for setting in MIXED for word in ("--set", setting)]
    ended = prep("plan", families.config, "--out", mixed, *overrides)
    assert ended.code == 0
    assert "cluster_classes" in ended.out
    ended = prep("run", families.config, "--out", mixed, "--workers", 0, *overrides)
    assert ended.code == 0, ended.err
    table = ended.out.partition("the same by size of the cluster")[2]
    assert table.index("6 to 9") < table.index("10 or more")


def test_scratch_and_tasks_change_nothing(mixed: Path, families: Any, tmp_path: Path) -> None:
    """Sizes that no task had to merge, and scratch that is deleted early."""
    out = tmp_path / "run"
    pipeline.run(families.config, out, 0, overrides=(*MIXED, "keep=minimal"))
    assert not (out / "cluster_sizes").exists()
    assert not (out / "clusters").exists()
    for name in ("hdf5", "mixture", "documents.parquet"):
        assert tree_hash(out / name) == tree_hash(mixed / name)


def test_another_weight_reuses_the_tokens(mixed: Path, families: Any, tmp_path: Path) -> None:
    out = shutil.copytree(mixed, tmp_path / "run")
    again = pipeline.run(
        families.config, out, 0, overrides=(*MIXED, "mixture.cluster_weights.10=1")
    )
    assert {"clusters", "cluster_sizes", "tokenize", "documents"} <= set(again.reused)
    assert not {"mixture", "scatter", "gather"} & set(again.reused)
    verify_run(out)


@pytest.mark.parametrize(
    ("settings", "code", "message"),
    [
        (
            ["mixture={cluster_weights: {2: 2}}", "dedup.preset=none"], 2,
            "mixture: expected no cluster_weights: dedup.preset is none",
        ),
        (["mixture={cluster_weights: {1: 0}}"], 3, "no document would be left in train"),
        (
            ["mixture={weights: {Wiki: 1}, default: 1, cluster_weights: {1: 0}}"], 3,
            "source 'Wiki' has no document left in train",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be(
    settings: list[str], code: int, message: str, families: Any, tmp_path: Path,
    prep: Callable[..., Any],
) -> None:  # fmt: skip
    overrides = [word for setting in settings for word in ("--set", setting)]
    ended = prep("run", families.config, "--out", tmp_path / "run", "--workers", 0, *overrides)
    assert ended.code == code, ended.err
    assert message in ended.err
    assert "Traceback" not in ended.err


def test_nothing_is_appended(mixed: Path, families: Any, prep: Callable[..., Any]) -> None:
    """New documents would change the clusters of rows that stay."""
    before = tree_hash(mixed)
    overrides = [word for s in (*MIXED, "pack.append=true") for word in ("--set", s)]
    ended = prep("run", families.config, "--out", mixed, "--workers", 0, *overrides)
    assert ended.code == 2
    assert "pack.append: mixture.cluster_weights go by the size of clusters" in ended.err
    assert tree_hash(mixed) == before


@pytest.mark.slow
def test_workers_change_nothing(families: Any, tmp_path: Path, two_workers: int) -> None:
    hashes = set()
    for workers in (0, two_workers):
        out = tmp_path / str(workers)
        pipeline.run(families.config, out, workers, overrides=MIXED)
        hashes.add(tree_hash(out))
    assert len(hashes) == 1
