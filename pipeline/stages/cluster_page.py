"""Fills the page of duplicate clusters from published tables and the texts of what it shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core import ids
from pipeline.core.manifest import Shard
from pipeline.provenance.cluster_summary import Cluster, of_cluster, select_largest
from pipeline.provenance.cluster_table import (
    find_mentioned_keys,
    read_bands,
    read_clusters,
    with_sources,
)
from pipeline.provenance.quarantined import IN_QUARANTINE, QUARANTINED
from pipeline.provenance.records import texts_of
from pipeline.provenance.side_by_side import find_first_difference
from pipeline.report.clusters import ClusterExcerpt, MemberExcerpt, SourceShare
from pipeline.report.model import Sample, excerpt
from pipeline.stage import Inputs

_CLUSTERS = 10
_MEMBERS = 5
_READ_BYTES = 1 << 18
"""What is read of a text; a difference behind it is not shown."""


@dataclass(frozen=True)
class ClusterTables:
    """clusters.parquet with sources, the documents it names, and the names of raw shards."""

    path: Path
    clusters: pa.Table
    documents: pa.Table
    files: Sequence[str]


@dataclass(frozen=True)
class _Document:
    """What the page needs of one document; of a quarantined one no text."""

    sample: Sample
    state: str
    text: str
    whole: bool


def load(path: Path, documents: pa.Table, files: Sequence[str]) -> ClusterTables:
    """The tables behind the page; `documents` has one row per record of the run."""
    clusters = read_clusters(path)
    named = documents.filter(pc.is_in(documents["doc_key"], find_mentioned_keys(clusters)))
    return ClusterTables(path, with_sources(clusters, named), named, files)


def source_shares(documents: pa.Table) -> tuple[SourceShare, ...]:
    """By source: documents that reached dedup, and how many of them were duplicates."""
    reached = documents.filter(pc.is_valid(documents["representative"]))
    counts = reached.group_by(["source", "state"], use_threads=False).aggregate([([], "count_all")])
    found: dict[str, list[int]] = {}
    for row in counts.to_pylist():
        share = found.setdefault(row["source"], [0, 0])
        share[0] += row["count_all"]
        share[1] += row["count_all"] if row["state"] == "duplicate" else 0
    return tuple(SourceShare(source, *share) for source, share in sorted(found.items()))


def shown_clusters(
    tables: ClusterTables, texts: Sequence[Shard], inputs: Inputs
) -> tuple[ClusterExcerpt, ...]:
    """The largest clusters with their least similar members; reads the texts of these only."""
    chosen = [
        (cluster, of_cluster(tables.clusters, cluster.index, bytes.fromhex(cluster.kept)))
        for cluster in select_largest(tables.clusters, _CLUSTERS)
    ]
    rows = [(cluster, members.slice(0, _MEMBERS).to_pylist()) for cluster, members in chosen]
    keys = {row["member"] for _, members in rows for row in members}
    bands = read_bands(tables.path, sorted(keys))
    keys |= {bytes.fromhex(cluster.kept) for cluster, _ in rows if not cluster.index}
    documents = _documents(tables, sorted(keys), texts, inputs)
    return tuple(_shown(cluster, members, bands, documents) for cluster, members in rows)


def _documents(
    tables: ClusterTables, keys: list[bytes], shards: Sequence[Shard], inputs: Inputs
) -> dict[bytes, _Document]:
    wanted = pa.array(keys, pa.binary(ids.KEY_BYTES))
    texts: dict[bytes, str] = {}
    for shard in shards:
        texts |= texts_of(inputs.table(shard, ["doc_key", "text"]), wanted, _READ_BYTES)
    found = {}
    for row in tables.documents.filter(pc.is_in(tables.documents["doc_key"], wanted)).to_pylist():
        key, hidden = row["doc_key"], row["state"] == QUARANTINED
        text = "" if hidden else texts[key]
        line = row["line"] or row["byte_offset"]
        file = tables.files[row["path_id"]]
        said = IN_QUARANTINE if hidden else excerpt(text)
        sample = Sample(key.hex(), row["source"], file, line, said)
        whole = not hidden and row["text_bytes"] <= _READ_BYTES
        found[key] = _Document(sample, row["state"], text, whole)
    return found


def _shown(
    cluster: Cluster, members: list[dict[str, Any]], bands: dict[bytes, tuple[int, ...]],
    documents: dict[bytes, _Document],
) -> ClusterExcerpt:  # fmt: skip
    kept = None if cluster.index else documents[bytes.fromhex(cluster.kept)]
    shown = tuple(
        _member(row, bands[row["member"]], documents[row["member"]], kept) for row in members
    )
    if kept is None:
        return ClusterExcerpt(cluster, None, "kept", shown)
    return ClusterExcerpt(cluster, kept.sample, kept.state, shown)


def _member(
    row: dict[str, Any], bands: tuple[int, ...], document: _Document, kept: _Document | None
) -> MemberExcerpt:
    different = None
    if kept and QUARANTINED not in (kept.state, document.state):
        different = find_first_difference(kept.text, document.text)
    kept_passage, passage = different or ((), ())
    equal = kept is not None and different is None and kept.whole and document.whole
    return MemberExcerpt(
        document.sample, row["kind"], row["member_state"], bands, row["estimate"], row["jaccard"],
        equal, kept_passage, passage,
    )  # fmt: skip
