"""Decisions of several detectors as one: the most severe, the first of equal ones, all evidence."""

import pyarrow as pa

from pipeline.screening.evidence import DECISION_SCHEMA
from pipeline.screening.policy.propagation import select_worst


def table(*rows: tuple[int, str, str]) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {"doc_id": d, "doc_key": d.to_bytes(16, "big"), "decision": decision, "rule": rule,
             "reason": "", "evidence": [f"{rule}{d}"]}
            for d, decision, rule in rows
        ],
        DECISION_SCHEMA,
    )  # fmt: skip


def test_three_detectors() -> None:
    found = select_worst(
        table((1, "review", "a"), (2, "allow", "a"), (5, "drop", "a")),
        table((1, "quarantine", "b"), (3, "drop", "b")),
        table((1, "quarantine", "c"), (2, "drop", "c"), (3, "review", "c"), (4, "drop", "c")),
    ).to_pylist()
    assert [(d["doc_id"], d["decision"], d["rule"], d["evidence"]) for d in found] == [
        (1, "quarantine", "b", ["a1", "b1", "c1"]), (2, "drop", "c", ["a2", "c2"]),
        (3, "drop", "b", ["b3", "c3"]), (4, "drop", "c", ["c4"]), (5, "drop", "a", ["a5"]),
    ]  # fmt: skip


def test_one_and_none() -> None:
    assert select_worst(table()).equals(table())
    assert select_worst(table(), table((1, "drop", "b"))).equals(table((1, "drop", "b")))
