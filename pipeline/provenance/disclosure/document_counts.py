"""Counts over documents.parquet and clusters.parquet: sources, licences, rules, hosts, clusters."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.core.ledger import Ledger
from pipeline.provenance.disclosure.facts import (
    ClusterFacts,
    DecisionFacts,
    Flow,
    HostFacts,
    LicenceFacts,
    RemovalFacts,
    SourceFacts,
)
from pipeline.provenance.disclosure.match_counts import Matches
from pipeline.provenance.evidence import DECISIONS

_COLUMNS = ("doc_key", "source", "path_id", "licence", "text_bytes", "state", "reason", "decision",
            "rule", "split", "tokens")  # fmt: skip
_WEB = ("meta_url", "meta_domain", "meta_host", "meta_uri")
"""Typed metadata columns that name where a document stood on the web, the first that is there."""
_HOST = r"(?i)^(?:[a-z][a-z0-9+.-]*:)?(?://)?(?:[^/@?#]*@)?(?P<host>[a-z0-9.-]+\.[a-z0-9-]+)"


def read_documents(directory: Path) -> pa.Table:
    """documents.parquet with the columns that are counted; `host` (lower case, null for none) from
    the metadata of the documents, where the run has kept any."""
    path = directory / layout.DOCUMENTS
    names = pq.read_schema(path).names
    web = next((name for name in _WEB if name in names), None)
    table = pq.read_table(path, columns=[*_COLUMNS, *([web] if web else [])])
    hosts: Any = pa.nulls(len(table), pa.string())
    if web and pa.types.is_string(table[web].type):
        hosts = pc.utf8_lower(pc.struct_field(pc.extract_regex(table[web], _HOST), "host"))
    return table.select(list(_COLUMNS)).append_column("host", hosts)


def sources_of(documents: pa.Table, ledger: Ledger, directory: Path) -> tuple[SourceFacts, ...]:
    """The sources of the ledger, those with most tokens first."""
    kept = _kept(documents)
    licences: dict[str, list[LicenceFacts]] = {}
    for row in _grouped(kept, ["source", "licence"]):
        licences.setdefault(row["source"], []).append(_licence(row))
    paths = pq.read_table(directory / layout.SOURCES, columns=["path_id", "input"])
    inputs = _inputs_by_source(documents, paths)
    rows = [
        SourceFacts(
            label=name,
            records=s.records.documents,
            bad=sum(t.documents for t in s.bad.values()),
            documents=s.documents.documents,
            dropped=sum(t.documents for t in s.dropped.values()),
            quarantined=s.quarantined.documents,
            duplicates=s.duplicates.documents,
            kept=s.kept.documents,
            bytes_kept=s.kept.bytes,
            tokens=s.tokens,
            inputs=inputs.get(name, ()),
            licences=tuple(licences.get(name, ())),
        )
        for name, s in ledger.sources.items()
    ]
    return tuple(sorted(rows, key=lambda s: (-s.tokens, -s.bytes_kept, s.label)))


def _inputs_by_source(documents: pa.Table, paths: pa.Table) -> dict[str, tuple[str, ...]]:
    names = pc.take(
        paths["input"],
        pc.index_in(documents["path_id"], value_set=paths["path_id"].combine_chunks()),
    )
    pairs = pa.table({"source": documents["source"], "input": names})
    rows = pairs.group_by(["source", "input"], use_threads=False).aggregate([]).to_pylist()
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row["source"], set()).add(row["input"])
    return {source: tuple(sorted(names)) for source, names in found.items()}


def licences_of(documents: pa.Table) -> tuple[LicenceFacts, ...]:
    """Licence statements of the kept documents, those with most tokens first."""
    return tuple(_licence(row) for row in _grouped(_kept(documents), ["licence"]))


def removed_of(documents: pa.Table) -> tuple[RemovalFacts, ...]:
    """What left, by state and reason."""
    gone = documents.filter(pc.not_equal(documents["state"], "kept"))
    return tuple(
        RemovalFacts(row["state"], row["reason"], row["documents"], row["bytes"])
        for row in _grouped(gone, ["state", "reason"])
    )


def screened_of(documents: pa.Table) -> tuple[tuple[str, int], ...]:
    """Documents that were screened by decision, the mildest first."""
    screened = documents.filter(pc.not_equal(documents["decision"], ""))
    counts = {row["decision"]: row["documents"] for row in _grouped(screened, ["decision"])}
    return tuple((name, counts[name]) for name in DECISIONS if name in counts)


def decisions_of(documents: pa.Table, matches: Matches) -> tuple[DecisionFacts, ...]:
    """What each rule decided, the most documents first."""
    decisions = matches.decisions
    at = pc.index_in(decisions["doc_key"], value_set=documents["doc_key"].combine_chunks())
    table = decisions.append_column("text_bytes", pc.take(documents["text_bytes"], at))
    grouped = table.group_by(["rule", "decision"], use_threads=False).aggregate(
        [("doc_key", "count"), ("text_bytes", "sum"), ("propagated_from", "count"),
         ("reason", "min"), ("reason", "max")]
    )  # fmt: skip
    rows = grouped.sort_by([("doc_key_count", "descending"), ("rule", "ascending"),
                            ("decision", "ascending")]).to_pylist()  # fmt: skip
    return tuple(
        DecisionFacts(
            row["rule"], row["decision"], row["doc_key_count"], row["text_bytes_sum"] or 0,
            row["propagated_from_count"],
            row["reason_min"] if row["reason_min"] == row["reason_max"] else "",
            matches.is_quoted(row["rule"], row["reason_min"]),
        )
        for row in rows
    )  # fmt: skip


def flows_of(documents: pa.Table) -> tuple[Flow, ...]:
    """Documents that a rule matched, from their source to what was decided."""
    matched = documents.filter(pc.not_equal(documents["rule"], ""))
    return tuple(
        Flow(row["source"], row["rule"], row["decision"], row["documents"])
        for row in _grouped(matched, ["source", "rule", "decision"])
    )


def hosts_of(documents: pa.Table) -> tuple[HostFacts, ...]:
    """Hosts of the kept documents, those with most text first."""
    kept = _kept(documents)
    named = kept.filter(pc.is_valid(kept["host"]))
    rows = _grouped(named, ["host"])
    hosts = [HostFacts(row["host"], row["documents"], row["bytes"]) for row in rows]
    return tuple(sorted(hosts, key=lambda h: (-h.bytes, h.host)))


def clusters_of(directory: Path, documents: pa.Table, decisions: pa.Table) -> ClusterFacts:
    """Clusters of the run, and those that hold a document with a decision other than allow."""
    path = directory / layout.CLUSTERS
    propagated = decisions["propagated_from"].length() - decisions["propagated_from"].null_count
    if not path.is_file():
        return ClusterFacts(0, 0, 0, 0, propagated)
    table = pq.read_table(path, columns=["kept", "member"])
    matched = documents.filter(
        pc.invert(pc.is_in(documents["decision"], value_set=pa.array(["", "allow"])))
    )["doc_key"].combine_chunks()
    hit = pc.or_(
        pc.is_in(table["kept"], value_set=matched), pc.is_in(table["member"], value_set=matched)
    )
    affected = pc.unique(table.filter(hit)["kept"])
    members = table.filter(pc.is_in(table["kept"], value_set=affected))
    clusters = pc.count_distinct(table["kept"]).as_py()
    return ClusterFacts(
        clusters, clusters + len(table), len(affected), len(affected) + len(members), propagated
    )


def _kept(documents: pa.Table) -> pa.Table:
    return documents.filter(pc.equal(documents["state"], "kept"))


def _grouped(table: pa.Table, keys: list[str]) -> list[dict[str, Any]]:
    """Rows with `keys`, documents, bytes and tokens; most tokens, then most documents first."""
    grouped = table.group_by(keys, use_threads=False).aggregate(
        [("doc_key", "count"), ("text_bytes", "sum"), ("tokens", "sum")]
    )
    order = [("tokens_sum", "descending"), ("doc_key_count", "descending")]
    rows = grouped.sort_by([*order, *((key, "ascending") for key in keys)]).to_pylist()
    return [
        {**{key: row[key] for key in keys}, "documents": row["doc_key_count"],
         "bytes": row["text_bytes_sum"] or 0, "tokens": row["tokens_sum"] or 0}
        for row in rows
    ]  # fmt: skip


def _licence(row: dict[str, Any]) -> LicenceFacts:
    return LicenceFacts(row["licence"], row["documents"], row["tokens"], row["bytes"])
