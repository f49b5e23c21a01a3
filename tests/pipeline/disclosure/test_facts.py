"""The facts of a run against a plain recount of its tables."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core.errors import InputError, IntegrityError
from pipeline.disclosure.counts import CountedDocuments
from pipeline.disclosure.facts import Facts
from pipeline.disclosure.publish import read_disclosure_facts, read_run_manifests

from .conftest import PASSAGE, TITLE, WORKS, RichRun


@pytest.fixture(scope="module")
def rows(rich_run: RichRun) -> list[dict[str, Any]]:
    return pq.read_table(rich_run.directory / "documents.parquet").to_pylist()


@pytest.fixture(scope="module")
def facts(rich_run: RichRun) -> Facts:
    return read_disclosure_facts(read_run_manifests(rich_run.directory))


def test_sources_and_licences(facts: Facts, rows: list[dict[str, Any]]) -> None:
    kept = [row for row in rows if row["state"] == "kept"]
    tokens, licences = Counter[str](), Counter[str]()
    for row in kept:
        tokens[row["source"]] += row["tokens"]
        licences[row["licence"]] += row["tokens"]
    assert {s.label: s.tokens for s in facts.sources if s.tokens} == dict(tokens)
    assert {one.statement: one.tokens for one in facts.licences} == dict(licences)
    assert sum(one.documents for s in facts.sources for one in s.licences) == len(kept)
    assert facts.kept == len(kept)
    assert facts.tokens == sum(tokens.values())
    assert all({"web", "papers"} >= set(s.inputs) for s in facts.sources)


def test_decisions_and_flows(facts: Facts, rows: list[dict[str, Any]], rich_run: RichRun) -> None:
    decided = pq.read_table(rich_run.directory / "decisions.parquet/000000.parquet").to_pylist()
    assert {(d.rule, d.decision): d.documents for d in facts.decisions} == dict(
        Counter((row["rule"], row["decision"]) for row in decided)
    )
    assert sum(d.propagated for d in facts.decisions) == 1
    by_rule = {d.rule: d for d in facts.decisions}
    assert by_rule["text-of-a-registered-work"].reason == ""
    assert by_rule["named-like-a-work"].quotes
    assert by_rule["reviewed-quarantine"].quotes
    assert not by_rule["opt-out"].quotes
    assert sum(f.documents for f in facts.flows) == sum(bool(row["rule"]) for row in rows)
    assert dict(facts.screened) == dict(Counter(row["decision"] for row in rows if row["decision"]))


def test_hosts_are_those_of_one_column(tmp_path: Path) -> None:
    """Of the first such column, as they are: no list of public suffixes joins them."""
    hosts = ["https://a.Example.co.uk/x", "b.example.co.uk", "", None]
    table = pa.table({
        **dict.fromkeys(("doc_key", "source", "path_id", "licence", "text_bytes", "state",
                         "reason", "decision", "rule", "split", "tokens"), [""] * 4),
        "meta_uri": ["https://c.example"] * 4, "meta_domain": hosts,
    })  # fmt: skip
    pq.write_table(table, tmp_path / "documents.parquet")
    (part,) = CountedDocuments(tmp_path).parts(["host"])
    found = part["host"].to_pylist()
    assert found == ["a.example.co.uk", "b.example.co.uk", None, None]


def test_what_left(facts: Facts, rows: list[dict[str, Any]]) -> None:
    gone = Counter((row["state"], row["reason"]) for row in rows if row["state"] != "kept")
    assert {(one.state, one.reason): one.documents for one in facts.removed} == dict(gone)


def test_works(facts: Facts) -> None:
    first, second = facts.works
    assert (first.work_id, first.title, first.documents) == (WORKS[0], TITLE, 3)
    assert first.decisions == (("quarantine", 3),)
    assert [p.byte_length for p in first.passages] == [900, 899, 898]
    assert first.passages[0].seen == PASSAGE[:200] or first.passages[0].seen == PASSAGE
    assert first.passages[0].attributes["longest_run_words"] == 120
    assert (second.work_id, second.passages, second.status) == (WORKS[1], (), "licensed")


def test_opt_outs_hosts_registry_and_events(facts: Facts, rows: list[dict[str, Any]]) -> None:
    (signal,) = facts.optouts
    assert (signal.signal, signal.status, signal.documents) == ("robots.txt", "reserved", 2)
    assert (signal.captured, signal.decisions) == ("2025-06-01", (("drop", 2),))
    kept = [row for row in rows if row["state"] == "kept"]
    sizes = Counter[str]()
    for row in kept:
        sizes[row["meta_url"].split("/")[2].lower()] += row["text_bytes"]
    assert [(h.host, h.bytes) for h in facts.hosts] == sorted(
        sizes.items(), key=lambda item: (-item[1], item[0])
    )
    assert facts.registry is not None
    assert (facts.registry.works, facts.registry.compared) == (3, 2)
    assert facts.registry.statuses == (("asserted", 2), ("licensed", 1))
    assert ("m", "3") in facts.registry.parameters
    assert [(one.kind, one.version, one.entries) for one in facts.lists] == [
        ("origins", "1", 2), ("captured opt-outs", "", 3),
    ]  # fmt: skip
    assert facts.events is not None
    assert (facts.events.kinds, facts.events.number) == ((("review", 1), ("screening", 2)), 3)


def test_lineage_covers_every_token_that_is_not_padding(facts: Facts, rich_run: RichRun) -> None:
    for split in facts.splits:
        params = json.loads(
            (rich_run.directory / f"hdf5/{split.name}/data_params.json").read_bytes()
        )
        assert split.covered == split.labels == params["h5_dataset_stats"]["loss_valid_tokens"]


def test_clusters(facts: Facts, rows: list[dict[str, Any]], rich_run: RichRun) -> None:
    table = pq.read_table(rich_run.directory / "clusters.parquet").to_pylist()
    clusters: dict[bytes, set[bytes]] = {}
    for row in table:
        clusters.setdefault(row["kept"], {row["kept"]}).add(row["member"])
    matched = {row["doc_key"] for row in rows if row["decision"] not in ("", "allow")}
    hit = [members for members in clusters.values() if members & matched]
    found = facts.clusters
    assert (found.clusters, found.members) == (len(clusters), sum(map(len, clusters.values())))
    assert (found.affected, found.affected_members) == (len(hit), sum(map(len, hit)))


def test_columns_that_an_older_run_lacks(small_run: Any, tmp_path: Path) -> None:
    """Evidence as runs had it before there were works, spans and attributes."""
    directory = tmp_path / "run"
    shutil.copytree(small_run.directory, directory)
    key = pq.read_table(directory / "documents.parquet", columns=["doc_key"])["doc_key"][0].as_py()
    evidence = {"evidence_id": ["x-0"], "doc_key": pa.array([key], pa.binary(16)),
                "detector": ["origin"], "rule": ["listed"], "target": ["Label"],
                "byte_offset": pa.array([0], pa.uint64()),
                "byte_length": pa.array([0], pa.uint64()), "declared_licence": ["mit"]}  # fmt: skip
    pq.write_table(pa.table(evidence), directory / "evidence.parquet/000000.parquet")
    decisions = {"doc_key": pa.array([key], pa.binary(16)), "decision": ["review"],
                 "rule": ["listed"], "reason": ["on a list"], "evidence": [["x-0"]]}  # fmt: skip
    pq.write_table(pa.table(decisions), directory / "decisions.parquet/000000.parquet")
    facts = read_disclosure_facts(read_run_manifests(directory))
    assert [(e.detector, e.kind, e.rows) for e in facts.evidence] == [("origin", "listed", 1)]
    assert [(d.rule, d.propagated, d.quotes) for d in facts.decisions] == [("listed", 0, False)]
    assert facts.works == facts.optouts == ()


def test_what_is_no_finished_run(small_run: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no manifest\.json: not a finished run"):
        read_run_manifests(tmp_path)
    directory = tmp_path / "run"
    shutil.copytree(small_run.directory, directory)
    (directory / "documents.parquet/000000.parquet").write_bytes(b"PAR1")
    with pytest.raises(IntegrityError, match=r"000000\.parquet: missing or damaged"):
        read_disclosure_facts(read_run_manifests(directory))
