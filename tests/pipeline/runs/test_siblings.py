"""Cluster siblings against a closure over all pairs, on drawn tables of edges."""

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from pipeline.runs.clusters import find_siblings

SCHEMA = pa.schema([
    ("kept", pa.binary(16)), ("member", pa.binary(16)), ("kind", pa.string()),
    ("jaccard", pa.float64()), ("estimate", pa.float64()), ("index", pa.string()),
])  # fmt: skip
DOCUMENTS = 9


def key(number: int) -> bytes:
    return bytes([number]) * 16


@st.composite
def edges(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Some edges of each kind; kept documents of an earlier index have keys of their own."""
    rows = []
    pairs = st.tuples(st.integers(0, DOCUMENTS - 1), st.integers(0, DOCUMENTS - 1))
    for kept, member in draw(st.lists(pairs, max_size=12)):
        index = draw(st.sampled_from(["", "", "old"]))
        rows.append({
            "kept": key(kept + (100 if index else 0)), "member": key(member), "index": index,
            "kind": draw(st.sampled_from(["exact", "near", "key"])),
            "jaccard": draw(st.none() | st.just(0.9)), "estimate": draw(st.none() | st.just(0.8)),
        })  # fmt: skip
    return rows


def compared(row: dict[str, Any]) -> bool:
    has_similarity = row["jaccard"] is not None or row["estimate"] is not None
    return bool(row["kind"] == "exact" or (row["kind"] == "near" and has_similarity))


def closure(rows: list[dict[str, Any]], start: set[bytes]) -> set[bytes]:
    found, size = set(start), -1
    while size != len(found):
        size = len(found)
        for row in rows:
            pair = {row["kept"], row["member"]}
            found |= pair if pair & found else set()
    return found


@given(edges(), st.sets(st.integers(0, DOCUMENTS - 1), max_size=3), st.booleans())
def test_against_a_closure(
    rows: list[dict[str, Any]], asked: set[int], only_verified: bool
) -> None:
    start = {key(number) for number in asked}
    here = [row for row in rows if not row["index"]]
    followed = [row for row in here if compared(row) or not only_verified]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clusters.parquet"
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path, row_group_size=3)
        found = find_siblings(path, sorted(start), only_verified)
    whole = closure(followed, start)
    assert {s.key for s in found.tied} == whole - start
    assert len(found.tied) == len(whole - start)
    reached = set(start)
    for sibling in found.tied:
        ties = [r for r in followed if {r["kept"], r["member"]} == {sibling.key, sibling.via}]
        assert sibling.via in reached and sibling.kind in {r["kind"] for r in ties}
        reached.add(sibling.key)
    ends = {k for r in here if {r["kept"], r["member"]} & whole for k in (r["kept"], r["member"])}
    assert [s.key for s in found.unverified] == sorted(ends - whole)
    far = {row["kept"] for row in rows if row["index"] and row["member"] in whole}
    assert {s.key for s in found.elsewhere} == far


def test_without_clusters(tmp_path: Path) -> None:
    found = find_siblings(tmp_path / "clusters.parquet", [key(1)], True)
    assert found.tied == found.elsewhere == found.unverified == ()
