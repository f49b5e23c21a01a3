"""Evidence, policies and a run directory made by hand."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core import ids
from pipeline.core.storage import canonical_json
from pipeline.screening.evidence import DECISION_SCHEMA, EVIDENCE_SCHEMA
from pipeline.screening.policy.rules import DEFAULT, Policy, load_policy

Make = Callable[..., Any]

WORKS = pa.table({
    "work_id": ["w-asserted", "w-verified", "w-licensed", "w-open"],
    "status": ["asserted", "verified", "licensed", "public_domain"],
    "legal_hold": [False, True, False, False],
    "title_raw": ["The Lantern of Tarn", "Quiet Rivers", "A Manual of Kites", "Old Songs"],
})  # fmt: skip


def key_of(number: int) -> bytes:
    """The key of document `number`; ascending numbers have ascending keys."""
    return number.to_bytes(16, "big")


def row(document: int, number: int, detector: str, kind: str = "", **given: Any) -> dict[str, Any]:
    """A row of evidence; keywords are columns, or else attributes."""
    columns = {name: given.pop(name) for name in [*EVIDENCE_SCHEMA.names] if name in given}
    text = json.dumps(given, sort_keys=True, separators=(",", ":")) if given else ""
    return {
        "evidence_id": f"{key_of(document).hex()}-p{number}", "doc_id": document,
        "doc_key": key_of(document), "detector": detector, "rule": "", "kind": kind, "target": "",
        "work_id": "", "seen": "", "byte_offset": 0, "byte_length": 0, "score": None,
        "attributes": text, **columns,
    }  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """EVIDENCE_SCHEMA."""
    return pa.Table.from_pylist(list(rows), schema=EVIDENCE_SCHEMA)


def decisions_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """DECISION_SCHEMA; what is not given is empty."""
    whole = [
        {"rule": "", "reason": "", "evidence": [], "propagated_from": None,
         "doc_key": key_of(r["doc_id"]), **r}
        for r in rows
    ]  # fmt: skip
    return pa.Table.from_pylist(whole, schema=DECISION_SCHEMA)


@pytest.fixture(scope="session")
def make_row() -> Make:
    return row


@pytest.fixture(scope="session")
def make_evidence() -> Make:
    return table


@pytest.fixture(scope="session")
def make_decisions() -> Make:
    return decisions_table


@pytest.fixture(scope="session")
def make_key() -> Make:
    return key_of


@pytest.fixture(scope="session")
def works() -> pa.Table:
    return WORKS


@pytest.fixture(scope="session")
def default_policy() -> Policy:
    return load_policy(DEFAULT)


@pytest.fixture
def write_policy(tmp_path: Path) -> Callable[[str], Path]:
    """A policy file of these rules, one per line of YAML flow mappings."""

    def write(rules: str) -> Path:
        path = tmp_path / "policy.yaml"
        path.write_text(f"version: 1\nrules:\n{rules}")
        return path

    return write


TEXTS = {
    1: "A plain page about kites and the wind that carries them.",
    2: "The lantern of Tarn hung low, and nobody dared to call it by its name.",
    3: "The lantern of Tarn hung low, and nobody dared to call it by that name.",
    4: "Wörter mit Umlauten, und eine Seite über Flüsse.",
}
CLUSTER_SCHEMA = pa.schema([
    ("kept", pa.binary(16)), ("member", pa.binary(16)), ("kind", pa.string()),
    ("bands", pa.list_(pa.uint8())), ("estimate", pa.float64()), ("jaccard", pa.float64()),
    ("member_state", pa.string()), ("index", pa.string()),
])  # fmt: skip


@pytest.fixture(scope="session")
def cluster_schema() -> pa.Schema:
    return CLUSTER_SCHEMA


@pytest.fixture
def run(tmp_path: Path, default_policy: Policy) -> Path:
    """A finished run of four documents. 1 was dropped by a filter and only names a family, 2 has a
    listed origin and is a near-duplicate of 3, which is kept, 4 has nothing. Decided by a policy
    that does not spread."""
    from pipeline.screening.policy.evaluation import evaluate_policy
    from pipeline.screening.policy.propagation import select_worst

    directory = tmp_path / "run"
    (directory / "documents").mkdir(parents=True)
    pq.write_table(pa.table({"input": ["web"], "path": ["a.jsonl"]}), directory / "inputs.parquet")
    (directory / "manifest.json").write_bytes(canonical_json({}))
    (directory / "policy.json").write_bytes(canonical_json(default_policy.model_dump(mode="json")))
    numbers = list(TEXTS)
    live = pa.table({
        "doc_key": pa.array(map(key_of, numbers), pa.binary(16)),
        "text_key": pa.array([ids.text_key(t.encode()) for t in TEXTS.values()], pa.binary(16)),
        "source": ["Wiki", "Books", "Wiki", "Wiki"],
        "text": pa.array(list(TEXTS.values()), pa.large_string()),
    })  # fmt: skip
    path = str(directory / "documents/000000.arrow")
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, live.schema) as writer:
        writer.write_table(live)
    evidence = table([
        row(1, 0, "marker", "mention", target="libgen", seen="libgen"),
        row(1, 0, "gopher", rule="gopher_word_count", evidence_id=f"{key_of(1).hex()}-f0"),
        row(2, 0, "origin", "label", target="books3", list="origins", list_version="1"),
    ])  # fmt: skip
    filters = decisions_table([
        {"doc_id": 1, "decision": "drop", "rule": "gopher_word_count", "reason": "words",
         "evidence": [f"{key_of(1).hex()}-f0"]}
    ])  # fmt: skip
    decisions = select_worst(evaluate_policy(default_policy, evidence), filters)
    pq.write_table(evidence.drop_columns(["doc_id"]), directory / "evidence.parquet")
    pq.write_table(decisions.drop_columns(["doc_id"]), directory / "decisions.parquet")
    states = ["dropped", "quarantined", "kept", "kept"]
    pq.write_table(
        live.drop_columns(["text", "text_key"])
        .append_column("path_id", pa.array([0] * 4, pa.uint32()))
        .append_column("line", pa.array(numbers, pa.uint64()))
        .append_column("byte_offset", pa.array([0] * 4, pa.uint64()))
        .append_column("licence", pa.array(["mit", "mit", "", ""]))
        .append_column("state", pa.array(states))
        .append_column("reason", pa.array([""] * 4))
        .append_column("decision", pa.array(["drop", "quarantine", "allow", "allow"]))
        .append_column("rule", pa.array(["gopher_word_count", "origin-listed", "", ""]))
        .append_column("split", pa.array(["", "", "train", "train"]))
        .append_column("representative", pa.array([key_of(n) for n in (1, 3, 3, 4)], pa.binary(16)))
        .append_column("text_bytes", pa.array([len(t.encode()) for t in TEXTS.values()]))
        .append_column("tokens", pa.array([0, 0, 20, 10], pa.uint32())),
        directory / "documents.parquet",
    )
    member = {
        "kept": key_of(3), "member": key_of(2), "kind": "near", "bands": [0], "estimate": 0.9,
        "jaccard": 0.91, "member_state": "quarantined", "index": "",
    }  # fmt: skip
    clusters = pa.Table.from_pylist([member], schema=CLUSTER_SCHEMA)
    pq.write_table(clusters, directory / "clusters.parquet")
    return directory
