"""The worst decision of a star holds for all of it: against a reference in plain Python."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core import ids
from pipeline.core.ids import table_hash
from pipeline.screening.evidence import DECISION_SCHEMA, DECISIONS
from pipeline.screening.policy.evaluation import evaluate_policy
from pipeline.screening.policy.propagation import number_decisions, propagate
from pipeline.screening.policy.rules import Policy, PolicyRule, Propagation

Make = Callable[..., Any]
NOT_LISTED = {"not": ["artefact", "origin"]}


def policy_of(min_jaccard: float = 0.8, mode: str = "worst") -> Policy:
    """A rule for each decision, one that stays with its copy, one of a person."""
    rules = [
        PolicyRule(
            id=decision, when={"marker.kind": "any", **NOT_LISTED}, decision=decision, reason="r"
        )
        for decision in DECISIONS
    ]
    rules.append(PolicyRule(id="stays", when={"marker.kind": "any"}, decision="drop", reason="r",
                      propagate=False))  # fmt: skip
    rules += [
        PolicyRule(id=f"person-{d}", when={"review.decision": d}, decision=d, reason="r")
        for d in ("allow", "review")
    ]
    spread = Propagation(min_jaccard=min_jaccard, mode=mode)
    return Policy(version=1, rules=tuple(rules), propagate=spread)


RULES = {**{d: d for d in DECISIONS}, "stays": "drop", "person-allow": "allow",
         "person-review": "review", "gopher_word_count": "drop"}  # fmt: skip


def reference(
    decisions: list[dict[str, Any]], clusters: list[dict[str, Any]], min_jaccard: float
) -> dict[bytes, tuple[str, str, bytes | None]]:
    """key -> (decision, rule, propagated_from), one star at a time."""
    own = {d["doc_key"]: d for d in decisions}
    found = {k: (d["decision"], d["rule"], None) for k, d in own.items()}
    stars: dict[tuple[bytes, str], set[bytes]] = {}
    for edge in clusters:
        known = edge["jaccard"] is not None and edge["jaccard"] >= min_jaccard
        if edge["kind"] == "exact" or known:
            star = stars.setdefault((edge["kept"], edge["index"]), set())
            star.update({edge["member"]} | ({edge["kept"]} if not edge["index"] else set()))
    for star in stars.values():
        spreading = [
            (-DECISIONS.index(own[k]["decision"]), k)
            for k in star
            if k in own and own[k]["rule"] in ("review", "quarantine", "drop", "person-review")
        ]
        if not spreading:
            continue
        rank, giver = min(spreading)
        for key in star:
            held = own.get(key)
            if held and held["rule"] == "person-allow":
                continue
            if -rank > (DECISIONS.index(held["decision"]) if held else 0):
                found[key] = (own[giver]["decision"], own[giver]["rule"], giver)
    return found


@st.composite
def corpora(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Decisions about some of twelve documents, and stars over them: 0, 1, 2 are kept here, 100 in
    an earlier index."""
    decided = draw(st.lists(st.sampled_from(range(12)), unique=True))
    decisions = []
    for number in decided:
        rule = draw(st.sampled_from(sorted(RULES)))
        decisions.append({"doc_id": number, "decision": RULES[rule], "rule": rule,
                          "reason": "because", "evidence": [f"e{number}"]})  # fmt: skip
    edges = []
    for member in draw(st.lists(st.sampled_from(range(3, 12)), unique=True)):
        kept = draw(st.sampled_from([0, 1, 2, 100]))
        kind = draw(st.sampled_from(["exact", "near", "key", "chain"]))
        jaccard = draw(st.sampled_from([None, 0.5, 0.79, 0.8, 0.93, 1.0]))
        edges.append((kept, member, kind, jaccard, "old" if kept == 100 else ""))
    return decisions, edges


def clusters_of(edges: list[tuple[Any, ...]], schema: pa.Schema, key: Make) -> pa.Table:
    rows = [
        {"kept": key(kept), "member": key(member), "kind": kind, "bands": [], "estimate": 0.9,
         "jaccard": jaccard, "member_state": "duplicate", "index": index}
        for kept, member, kind, jaccard, index in edges
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=schema)


@given(corpus=corpora(), min_jaccard=st.sampled_from([0.0, 0.8, 1.0]), order=st.randoms())
def test_against_the_reference(
    corpus: Any, min_jaccard: float, order: Any,
    cluster_schema: pa.Schema, make_decisions: Make, make_key: Make,
) -> None:  # fmt: skip
    rows, edges = corpus
    order.shuffle(edges)
    decisions = make_decisions(rows)
    clusters = clusters_of(edges, cluster_schema, make_key)
    policy = policy_of(min_jaccard)
    found = propagate(decisions, clusters, policy)
    assert found.schema == DECISION_SCHEMA
    told = {
        d["doc_key"]: (d["decision"], d["rule"], d["propagated_from"]) for d in found.to_pylist()
    }
    assert told == reference(decisions.to_pylist(), clusters.to_pylist(), min_jaccard)
    keys = found["doc_key"].to_pylist()
    assert keys[: len(rows)] == decisions["doc_key"].to_pylist()
    assert keys[len(rows) :] == sorted(keys[len(rows) :])
    assert len(set(keys)) == len(keys)
    assert table_hash(propagate(found, clusters, policy)) == table_hash(found)
    assert propagate(decisions, clusters, policy_of(min_jaccard, "none")).equals(decisions)


def test_what_a_row_says(cluster_schema: pa.Schema, make_decisions: Make, make_key: Make) -> None:
    """Decision, rule and evidence are those of the other document; the reason names it."""
    rows = [
        {"doc_id": 5, "decision": "quarantine", "rule": "quarantine", "reason": "listed",
         "evidence": ["e5", "f5"]},
        {"doc_id": 6, "decision": "review", "rule": "review", "reason": "named",
         "evidence": ["e6"]},
    ]  # fmt: skip
    edges = [(0, 5, "near", 0.934, ""), (0, 6, "near", 0.8801, ""), (0, 7, "exact", None, "")]
    found = propagate(
        make_decisions(rows), clusters_of(edges, cluster_schema, make_key), policy_of()
    )
    told = {d["doc_key"]: d for d in found.to_pylist()}
    giver = make_key(5).hex()
    for number, jaccard in ((0, "0.934"), (6, "0.880"), (7, "0.934")):
        row = told[make_key(number)]
        assert (row["decision"], row["rule"], row["evidence"]) == (
            "quarantine", "quarantine", ["e5", "f5"],
        )  # fmt: skip
        assert row["reason"] == f"same cluster as {giver}, Jaccard {jaccard}: listed"
        assert row["propagated_from"] == make_key(5)
    assert told[make_key(5)]["reason"] == "listed"
    assert [d["doc_id"] for d in found.to_pylist()] == [5, 6, None, None]


def test_numbered(cluster_schema: pa.Schema, make_decisions: Make, make_key: Make) -> None:
    rows = [{"doc_id": 5, "decision": "drop", "rule": "drop", "reason": "r", "evidence": []}]
    clusters = clusters_of([(1, 5, "exact", None, "")], cluster_schema, make_key)
    found = propagate(make_decisions(rows), clusters, policy_of())
    documents = pa.table({
        "doc_id": pa.array([1, 5, 9], pa.uint64()),
        "doc_key": pa.array(map(make_key, (1, 5, 9)), pa.binary(16)),
    })  # fmt: skip
    for table in (found, found.drop_columns(["doc_id"])):
        known = number_decisions(table, documents)
        assert known.schema == DECISION_SCHEMA
        assert known["doc_id"].to_pylist() == [1, 5]
        assert known["doc_key"].to_pylist() == [make_key(1), make_key(5)]


def test_the_shipped_policy_spreads_a_listed_origin(
    default_policy: Policy, make_row: Make, make_evidence: Make, cluster_schema: pa.Schema,
    make_key: Make,
) -> None:  # fmt: skip
    """The copy without a label is quarantined with the labelled one; a mention stays where it is;
    what a person allowed stays allowed."""
    evidence = make_evidence([
        make_row(2, 0, "origin", "label", target="books3"),
        make_row(3, 0, "review", "current", target="allow", by="A. Reader", note="ours"),
        make_row(5, 0, "marker", "mention", target="libgen"),
    ])  # fmt: skip
    edges = [(1, 2, "near", 0.9, ""), (1, 3, "exact", None, ""), (4, 5, "exact", None, "")]
    clusters = clusters_of(edges, cluster_schema, make_key)
    found = propagate(evaluate_policy(default_policy, evidence), clusters, default_policy)
    assert {d["doc_key"]: d["rule"] for d in found.to_pylist()} == {
        make_key(1): "origin-listed", make_key(2): "origin-listed",
        make_key(3): "reviewed-allow", make_key(5): "marker-mention",
    }  # fmt: skip


def test_empty(cluster_schema: pa.Schema, make_decisions: Make, make_key: Make) -> None:
    nothing = cluster_schema.empty_table()
    assert len(propagate(make_decisions([]), nothing, policy_of())) == 0
    one = make_decisions([{"doc_id": 1, "decision": "drop", "rule": "drop"}])
    assert propagate(one, nothing, policy_of()).equals(one)
    edges = clusters_of([(1, 2, "chain", 0.9, "")], cluster_schema, make_key)
    weak = clusters_of([(1, 2, "near", None, "")], cluster_schema, make_key)
    assert len(propagate(one, weak, policy_of())) == 1
    assert len(propagate(one, edges, policy_of())) == 2


def test_many_documents(cluster_schema: pa.Schema) -> None:
    """Two hundred thousand documents in stars of five, a tenth of them decided; every star with a
    decided document ends decided as a whole."""
    rng = np.random.default_rng(4)
    count, size = 200_000, 5
    keys = ids.keys_from_u64(rng.integers(0, 1 << 63, (count, 2), np.uint64))
    kept = np.repeat(np.arange(0, count, size), size - 1)
    member = np.delete(np.arange(count), np.arange(0, count, size))
    clusters = pa.table({
        "kept": keys.take(pa.array(kept)), "member": keys.take(pa.array(member)),
        "kind": pa.array(["near"] * len(member)), "jaccard": pa.array(np.full(len(member), 0.9)),
        "index": pa.array([""] * len(member)),
    })  # fmt: skip
    decided = np.flatnonzero(rng.random(count) < 0.1)
    rank = rng.choice([1, 3, 4], len(decided))
    rule = pa.array(DECISIONS).take(pa.array(rank))
    decisions = pa.table({
        "doc_id": pa.array(decided.astype(np.uint64)), "doc_key": keys.take(pa.array(decided)),
        "decision": rule, "rule": rule, "reason": rule,
        "evidence": pa.ListArray.from_arrays(
            pa.array(np.arange(len(decided) + 1, dtype=np.int32)), rule
        ),
        "propagated_from": pa.nulls(len(decided), pa.binary(16)),
    }, schema=DECISION_SCHEMA)  # fmt: skip
    found = propagate(decisions, clusters, policy_of())
    worst = np.zeros(count // size, np.int64)
    np.maximum.at(worst, decided // size, rank)
    places = {key: n for n, key in enumerate(keys.to_pylist())}
    told = {places[d["doc_key"]]: d["decision"] for d in found.to_pylist()}
    assert told == {n: DECISIONS[worst[n // size]] for n in range(count) if worst[n // size]}
