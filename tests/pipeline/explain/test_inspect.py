"""`prep inspect`: the clusters of a run add up, and filters choose what they say."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.explain.inspect import ClusterFilters, inspect_cluster, inspect_clusters
from pipeline.report.cluster_summary import ClusterCounts, MatrixColumn, SizeBin, of_cluster

Prep = Callable[..., Any]
ALL = ClusterFilters()


def test_sums(small_run: Any) -> None:
    """Clusters, kinds, sizes, similarities and the matrix count every row once."""
    rows = small_run.table("clusters.parquet").to_pylist()
    ends = {row["doc_key"]: row for row in small_run.table("documents.parquet").to_pylist()}
    found = inspect_clusters(small_run.directory, ALL, 10)
    summary = found.summary
    assert found.all_rows == summary.documents == len(rows)
    assert summary.clusters == len({row["kept"] for row in rows})
    assert summary.kinds == Counter(row["kind"] for row in rows)
    assert summary.states == Counter(row["member_state"] for row in rows)
    assert sum(b.clusters for b in summary.sizes) == summary.clusters
    counted = sum(b.exact + b.estimated for b in summary.similarities)
    assert counted + summary.not_computed == len(rows)
    expected = Counter(
        (ends[row["member"]]["source"], ends[row["kept"]]["source"])
        for row in rows
        if row["member_state"] == "duplicate"
    )
    matrix = summary.matrix
    for source, counts in zip(matrix.rows, matrix.counts, strict=True):
        for column, count in zip(matrix.columns, counts, strict=True):
            assert count == expected.pop((source, column.source), 0)
    assert not expected
    assert sum(shown.cluster.size - 1 for shown in found.largest) == len(rows)


def test_matrix_rows_are_the_duplicates_of_the_ledger(small_run: Any) -> None:
    ledger = small_run.json("ledger.json")["sources"]
    found = inspect_clusters(small_run.directory, ALL, 0)
    matrix = found.summary.matrix
    rows = dict(zip(matrix.rows, map(sum, matrix.counts), strict=True))
    expected = {name: source["duplicates"]["documents"] for name, source in ledger.items()}
    assert rows == {name: count for name, count in expected.items() if count}
    assert matrix.total == sum(expected.values()) > 0
    assert sum(found.compared.values()) == 187 and found.largest == ()


def test_filters(small_run: Any, prep: Prep) -> None:
    rows = small_run.table("clusters.parquet").to_pylist()
    directory = small_run.directory
    near = inspect_clusters(directory, ClusterFilters(kind="near"), 10)
    assert near.summary.documents == sum(row["kind"] == "near" for row in rows) > 0
    below = inspect_clusters(directory, ClusterFilters(max_jaccard=0.999), 10).summary.documents
    above = inspect_clusters(directory, ClusterFilters(min_jaccard=1.0), 10).summary.documents
    assert below + above == len(rows)
    papers = inspect_clusters(directory, ClusterFilters(source="papers"), 10)
    assert papers.summary.documents == 1 and papers.summary.matrix.rows == ("papers",)
    ended = prep("inspect", directory, "--kind", "chain")
    assert ended.code == 0 and "0 of 9 rows pass the filters" in ended.out
    for options, words, code in (
        (("--kind", "nearly"), "expected one of exact, near, key, chain", 2),
        (("--source", "Wikis"), "expected a source such as Wiki", 3),
        (("--min-jaccard", 0.9, "--max-jaccard", 0.8), "above --max-jaccard", 2),
        (("--cluster", "ffffff00"), "is in no cluster", 3),
        (("--cluster", "a.jsonl:1"), "is in no cluster", 3),
    ):
        ended = prep("inspect", directory, *options)
        assert ended.code == code and words in ended.err, options


def test_one_cluster(small_run: Any, prep: Prep) -> None:
    rows = small_run.table("clusters.parquet").to_pylist()
    kept = Counter(row["kept"] for row in rows).most_common(1)[0][0]
    members = {row["member"].hex(): row for row in rows if row["kept"] == kept}
    found = inspect_cluster(small_run.directory, kept.hex()[:10], ALL)
    assert {member.place.key for member in found.members} == set(members)
    assert found.shown.cluster.size == len(members) + 1
    for member in found.members:
        row = members[member.place.key]
        assert (member.jaccard, list(member.bands)) == (row["jaccard"], row["bands"])
        assert member.excerpt.startswith(found.excerpt[:50])
    values = [member.jaccard for member in found.members]
    assert values == sorted(values, key=lambda value: value or 0)
    by_member = inspect_cluster(small_run.directory, next(iter(members)), ALL)
    assert by_member == found
    place = found.members[0].place
    assert inspect_cluster(small_run.directory, f"{place.file}:{place.line}", ALL) == found
    table = prep("inspect", small_run.directory, "--cluster", kept.hex())
    assert all(key in table.out for key in members)
    value = json.loads(prep("inspect", small_run.directory, "--cluster", kept.hex(), "--json").out)
    assert len(value["members"]) == len(members)


def test_the_command(small_run: Any, prep: Prep) -> None:
    ended = prep("inspect", small_run.directory, "--top", 2)
    assert ended.code == 0
    assert "3 clusters; 9 documents replaced by another: 8 exact, 1 near" in ended.out
    assert "largest clusters" in ended.out and "sources of the documents kept instead" in ended.out
    value = json.loads(prep("inspect", small_run.directory, "--top", 2, "--json").out)
    assert len(value["largest"]) == 2 and value["summary"]["kinds"] == {"exact": 8, "near": 1}
    assert prep("inspect", small_run.directory.parent).code == 3


# -- the summary of made tables ---------------------------------------------------------------


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def table(rows: list[dict[str, Any]]) -> pa.Table:
    """Rows of clusters.parquet: the defaults and what each changes."""
    defaults = {"kind": "near", "estimate": 0.9, "jaccard": 0.9, "member_state": "duplicate",
                "index": "", "source": "a", "kept_source": "a"}  # fmt: skip
    full = [defaults | row for row in rows]
    types = {"kept": pa.binary(16), "member": pa.binary(16), "estimate": pa.float64(),
             "jaccard": pa.float64()}  # fmt: skip
    names = ["kept", "member", *defaults]
    return pa.table({n: pa.array([r[n] for r in full], types.get(n, pa.string())) for n in names})


def count(rows: list[dict[str, Any]], parts: int = 1) -> ClusterCounts:
    """The rows by whole clusters in so many parts."""
    counts = ClusterCounts(10)
    for part in range(parts):
        counts.add(table([row for row in rows if row["kept"][-1] % parts == part]))
    return counts


def row(kept: int, member: int, **changes: Any) -> dict[str, Any]:
    return {"kept": key(kept), "member": key(member), **changes}


def test_no_clusters() -> None:
    empty = count([])
    summary = empty.summarize()
    assert (summary.clusters, summary.documents, summary.matrix.total) == (0, 0, 0)
    assert summary.sizes == () and summary.similarities == () and empty.largest == []


def test_sizes_and_similarities() -> None:
    rows = [row(1, 100 + n) for n in range(9)] + [row(2, 200), row(3, 300)]
    rows[-1] |= {"jaccard": None, "estimate": None, "kind": "chain"}
    rows[-2] |= {"jaccard": None, "estimate": 1.0}
    summary = count(rows).summarize()
    assert [b for b in summary.sizes if b.clusters] == [SizeBin(2, 2, 2), SizeBin(9, 16, 1)]
    assert summary.not_computed == 1
    first, last = summary.similarities[0], summary.similarities[-1]
    assert (first.low, first.exact, last.low, last.high, last.estimated) == (0.9, 9, 1.0, 1.0, 1)
    low = count([row(1, 2, jaccard=0.82), row(1, 3, jaccard=0.3)]).summarize()
    assert [(b.low, b.exact) for b in low.similarities if b.exact] == [(0.3, 1), (0.8, 1)]


def test_an_index_is_no_source() -> None:
    """A key kept in an index is another document than one of this run with the same key."""
    rows = [row(1, 1, index="old", kept_source=None), row(1, 2, index="old", kept_source=None),
            row(1, 3, source="b")]  # fmt: skip
    counts = count(rows)
    matrix = counts.summarize().matrix
    assert matrix.columns == (MatrixColumn("a"), MatrixColumn("", "old"))
    assert dict(zip(matrix.rows, matrix.counts, strict=True)) == {"a": (0, 2), "b": (1, 0)}
    assert [(c.index, c.size) for c, _ in counts.largest] == [("old", 3), ("", 2)]
    assert len(of_cluster(table(rows), "old", key(1))) == 2


@pytest.mark.parametrize("sources", [3, 12, 13, 40])
def test_many_sources_are_folded_and_nothing_is_lost(sources: int) -> None:
    rows = []
    for source in range(sources):
        for number in range(source + 1):
            member = 1000 * (source + 1) + number
            kept_source = f"s{(source * 7) % sources}"
            changes = {"source": f"s{source}", "kept_source": kept_source}
            rows.append(row(10**6 + (source * 7) % sources, member, **changes))
    matrix = count(rows).summarize().matrix
    assert matrix.total == len(rows)
    assert len(matrix.rows) == len(matrix.columns) == len(matrix.counts) == min(sources, 12)
    assert matrix.rest_rows == matrix.rest_columns == (sources - 11 if sources > 12 else 0)
    assert matrix.rows[0] == f"s{sources - 1}" and sum(matrix.counts[0]) == sources


def test_other_states_stay_out_of_the_matrix() -> None:
    rows = [row(1, 2), row(1, 3, member_state="quarantined"), row(1, 4, member_state="dropped")]
    summary = count(rows).summarize()
    assert summary.matrix.total == 1 and summary.documents == 3
    assert count(rows).largest[0][0].size == 4


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 3), st.integers(0, 100))))
def test_parts_add_up_to_the_whole(edges: list[tuple[int, int, int]]) -> None:
    """Whatever the parts, and whichever clusters they hold."""
    rows = []
    for member, (kept, source, hundredths) in enumerate(edges, 100):
        exact = hundredths / 100 if source > 1 else None
        kind = "chain" if exact is None else "near"
        changes = {"kind": kind, "jaccard": exact, "source": f"s{source}"}
        rows.append(row(kept, member, estimate=hundredths / 100, **changes))
    whole, parted = count(rows), count(rows, parts=3)
    assert parted.summarize() == whole.summarize()
    assert parted.largest == whole.largest


def test_a_run_of_an_earlier_version(small_run: Any, tmp_path: Path, prep: Prep) -> None:
    """It has no sources of clusters; what does not need them works."""
    old = tmp_path / "old"
    shutil.copytree(small_run.directory, old)
    for part in (old / "clusters.parquet").iterdir():
        rows = pq.read_table(part).drop_columns(["source", "kept_source"])
        pq.write_table(rows, part)
    found, whole = (inspect_clusters(run, ALL, 2) for run in (old, small_run.directory))
    assert found.summary.sizes == whole.summary.sizes and found.summary.matrix.total == 8
    ended = prep("inspect", old, "--source", "Wiki")
    assert ended.code == 3 and "earlier version" in ended.err
