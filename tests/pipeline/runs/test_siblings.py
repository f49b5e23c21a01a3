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
            "kind": draw(st.sampled_from(["exact", "near", "key"] + ["contained"] * (not index))),
            "jaccard": draw(st.none() | st.just(0.9)), "estimate": draw(st.none() | st.just(0.8)),
        })  # fmt: skip
    return rows


def compared(row: dict[str, Any]) -> bool:
    has_similarity = row["jaccard"] is not None or row["estimate"] is not None
    return row["kind"] in ("exact", "contained") or (row["kind"] == "near" and has_similarity)


def closure(
    rows: list[dict[str, Any]], free: set[bytes], wholes: set[bytes]
) -> tuple[set[bytes], set[bytes]]:
    """What these lead to, and what is reached only because it holds something: from there no edge
    leads to a part."""
    free, wholes, size = set(free), set(wholes), None
    while size != (size := (len(free), len(wholes))):
        for row in rows:
            is_part = row["kind"] == "contained"
            for at, to, goes_up in (("member", "kept", True), ("kept", "member", False)):
                if row[at] in free:
                    (wholes if is_part and goes_up else free).add(row[to])
                elif row[at] in wholes and not (is_part and not goes_up):
                    wholes.add(row[to])
                wholes -= free
    return free, wholes


NUMBERS = st.sets(st.integers(0, DOCUMENTS - 1), max_size=3)


@given(edges(), NUMBERS, NUMBERS, st.booleans())
def test_against_a_closure(
    rows: list[dict[str, Any]], asked: set[int], of_wholes: set[int], only_verified: bool
) -> None:
    start, begun = {key(number) for number in asked}, {key(number) for number in of_wholes}
    start -= begun
    here = [row for row in rows if not row["index"]]
    followed = [row for row in here if compared(row) or not only_verified]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clusters.parquet"
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path, row_group_size=3)
        found = find_siblings(path, sorted(start | begun), only_verified, begun)
    free, wholes = closure(followed, start, begun)
    assert {s.key for s in found.tied if not s.is_whole} == free - start
    assert {s.key for s in found.tied if s.is_whole} == wholes - begun
    assert len(found.tied) == len(free - start) + len(wholes - begun)
    for sibling in found.tied:
        ties = [r for r in followed if {r["kept"], r["member"]} == {sibling.key, sibling.via}]
        assert sibling.via in free | wholes and sibling.kind in {r["kind"] for r in ties}
    reached = free | wholes
    tied = [r for r in here if r["kind"] != "contained"]
    ends = {k for r in tied if {r["kept"], r["member"]} & reached for k in (r["kept"], r["member"])}
    assert [s.key for s in found.unverified] == sorted(ends - reached)
    far = {row["kept"] for row in rows if row["index"] and row["member"] in reached}
    assert {s.key for s in found.elsewhere} == far


def test_without_clusters(tmp_path: Path) -> None:
    found = find_siblings(tmp_path / "clusters.parquet", [key(1)], True)
    assert found.tied == found.elsewhere == found.unverified == ()
