"""`prep inspect`: the clusters of a run add up, and filters choose what they say."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from pipeline.core.errors import IntegrityError
from pipeline.explain.inspect import ClusterFilters, inspect_cluster, inspect_clusters
from pipeline.report.cluster_summary import (
    MatrixColumn,
    SizeBin,
    of_cluster,
    select_largest,
    summarize,
)
from pipeline.runs.clusters import find_mentioned_keys, with_sources

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
    """Clusters with sources: every row (kept, member, source, kept_source) and what it changes."""
    defaults = {"kind": "near", "estimate": 0.9, "jaccard": 0.9, "member_state": "duplicate",
                "index": ""}  # fmt: skip
    full = [defaults | row for row in rows]
    ends = {row["member"]: row["source"] for row in full}
    ends |= {row["kept"]: row["kept_source"] for row in full if not row["index"]}
    types = {"kept": pa.binary(16), "member": pa.binary(16), "estimate": pa.float64(),
             "jaccard": pa.float64()}  # fmt: skip
    names = ["kept", "member", *defaults]
    clusters = pa.table(
        {n: pa.array([r[n] for r in full], types.get(n, pa.string())) for n in names}
    )
    keys = pa.array(list(ends), pa.binary(16))
    documents = pa.table({"doc_key": keys, "source": pa.array(list(ends.values()), pa.string())})
    assert set(find_mentioned_keys(clusters).to_pylist()) == set(ends)
    return with_sources(clusters, documents)


def row(kept: int, member: int, **changes: Any) -> dict[str, Any]:
    return {"kept": key(kept), "member": key(member), "source": "a", "kept_source": "a", **changes}


def test_no_clusters() -> None:
    empty = table([])
    summary = summarize(empty)
    assert (summary.clusters, summary.documents, summary.matrix.total) == (0, 0, 0)
    assert summary.sizes == () and summary.similarities == () and select_largest(empty, 10) == []


def test_sizes_and_similarities() -> None:
    rows = [row(1, 100 + n) for n in range(9)] + [row(2, 200), row(3, 300)]
    rows[-1] |= {"jaccard": None, "estimate": None, "kind": "chain"}
    rows[-2] |= {"jaccard": None, "estimate": 1.0}
    summary = summarize(table(rows))
    assert [b for b in summary.sizes if b.clusters] == [SizeBin(2, 2, 2), SizeBin(9, 16, 1)]
    assert summary.not_computed == 1
    first, last = summary.similarities[0], summary.similarities[-1]
    assert (first.low, first.exact, last.low, last.high, last.estimated) == (0.9, 9, 1.0, 1.0, 1)
    low = summarize(table([row(1, 2, jaccard=0.82), row(1, 3, jaccard=0.3)]))
    assert [(b.low, b.exact) for b in low.similarities if b.exact] == [(0.3, 1), (0.8, 1)]


def test_an_index_is_no_source() -> None:
    """A key kept in an index is another document than one of this run with the same key."""
    rows = [row(1, 1, index="old", kept_source=None), row(1, 2, index="old", kept_source=None),
            row(1, 3, source="b")]  # fmt: skip
    rows[0]["source"] = "a"
    found = table(rows)
    matrix = summarize(found).matrix
    assert matrix.columns == (MatrixColumn("a"), MatrixColumn("", "old"))
    assert dict(zip(matrix.rows, matrix.counts, strict=True)) == {"a": (0, 2), "b": (1, 0)}
    clusters = select_largest(found, 10)
    assert [(c.index, c.size) for c in clusters] == [("old", 3), ("", 2)]
    assert len(of_cluster(found, "old", key(1))) == 2


@pytest.mark.parametrize("sources", [3, 12, 13, 40])
def test_many_sources_are_folded_and_nothing_is_lost(sources: int) -> None:
    rows = []
    for source in range(sources):
        for number in range(source + 1):
            member = 1000 * (source + 1) + number
            kept_source = f"s{(source * 7) % sources}"
            changes = {"source": f"s{source}", "kept_source": kept_source}
            rows.append(row(10**6 + (source * 7) % sources, member, **changes))
    matrix = summarize(table(rows)).matrix
    assert matrix.total == len(rows)
    assert len(matrix.rows) == len(matrix.columns) == len(matrix.counts) == min(sources, 12)
    assert matrix.rest_rows == matrix.rest_columns == (sources - 11 if sources > 12 else 0)
    assert matrix.rows[0] == f"s{sources - 1}" and sum(matrix.counts[0]) == sources


def test_other_states_stay_out_of_the_matrix() -> None:
    rows = [row(1, 2), row(1, 3, member_state="quarantined"), row(1, 4, member_state="dropped")]
    summary = summarize(table(rows))
    assert summary.matrix.total == 1 and summary.documents == 3
    assert select_largest(table(rows), 1)[0].size == 4


def test_documents_that_are_missing_are_damage() -> None:
    rows = pa.table(
        {
            "kept": pa.array([key(1)], pa.binary(16)), "member": pa.array([key(2)], pa.binary(16)),
            "index": pa.array([""]), "jaccard": pa.array([1.0]), "estimate": pa.array([1.0]),
        }
    )  # fmt: skip
    documents = pa.table({"doc_key": pa.array([key(2)], pa.binary(16)), "source": ["a"]})
    with pytest.raises(IntegrityError, match="not in this run"):
        with_sources(rows, documents)
