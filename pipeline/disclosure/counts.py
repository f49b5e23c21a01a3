"""Counts over the tables of a run: sources, licences, rules, hosts and clusters of
documents.parquet and clusters.parquet; inputs, packed splits, registry and event chain.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core.ledger import Ledger
from pipeline.core.manifest import StageManifest
from pipeline.core.mirror import fetch
from pipeline.core.storage import hash_bytes
from pipeline.disclosure import facts
from pipeline.disclosure.match_counts import Matches
from pipeline.hdf5.format import CORPUS
from pipeline.hdf5.read import open_dataset
from pipeline.lineage.shards import lineage_path
from pipeline.runs import layout
from pipeline.runs.events import EVENTS, verify_events
from pipeline.runs.parts import read_schema
from pipeline.runs.records import map_arrow
from pipeline.screening.evidence import DECISIONS

_COLUMNS = (
    "doc_key",
    "source",
    "path_id",
    "licence",
    "text_bytes",
    "state",
    "reason",
    "decision",
    "rule",
    "split",
    "tokens",
)
_WEB = ("meta_url", "meta_domain", "meta_host", "meta_uri")
"""Typed metadata columns that name where a document stood on the web, the first that is there."""
_HOST = r"(?i)^(?:[a-z][a-z0-9+.-]*:)?(?://)?(?:[^/@?#]*@)?(?P<host>[a-z0-9.-]+\.[a-z0-9-]+)"


def read_counted_documents(directory: Path) -> pa.Table:
    """documents.parquet with the columns that are counted; `host` (lower case, null for none) from
    the metadata of the documents, where the run has kept any."""
    path = directory / layout.DOCUMENTS
    names = read_schema(path).names
    web = next((name for name in _WEB if name in names), None)
    table = pq.read_table(path, columns=[*_COLUMNS, *([web] if web else [])])
    hosts: Any = pa.nulls(len(table), pa.string())
    if web and pa.types.is_string(table[web].type):
        hosts = pc.utf8_lower(pc.struct_field(pc.extract_regex(table[web], _HOST), "host"))
    return table.select(list(_COLUMNS)).append_column("host", hosts)


def count_sources(
    documents: pa.Table, ledger: Ledger, directory: Path
) -> tuple[facts.SourceFacts, ...]:
    """The sources of the ledger, those with most tokens first."""
    kept = _select_kept(documents)
    licences: dict[str, list[facts.LicenceFacts]] = {}
    for row in _group(kept, ["source", "licence"]):
        licences.setdefault(row["source"], []).append(_make_licence(row))
    paths = pq.read_table(directory / layout.SOURCES, columns=["path_id", "input"])
    inputs = _find_inputs(documents, paths)
    rows = [
        facts.SourceFacts.from_ledger(
            name, s, inputs=inputs.get(name, ()), licences=tuple(licences.get(name, ()))
        )
        for name, s in ledger.sources.items()
    ]
    return tuple(sorted(rows, key=lambda s: (-s.tokens, -s.bytes_kept, s.label)))


def _find_inputs(documents: pa.Table, paths: pa.Table) -> dict[str, tuple[str, ...]]:
    names = pc.take(
        paths["input"],
        pc.index_in(documents["path_id"], value_set=paths["path_id"].combine_chunks()),
    )
    pairs = pa.table({"source": documents["source"], "input": names})
    rows = pairs.group_by(["source", "input"], use_threads=False).aggregate([]).to_pylist()
    inputs: dict[str, set[str]] = {}
    for row in rows:
        inputs.setdefault(row["source"], set()).add(row["input"])
    return {source: tuple(sorted(names)) for source, names in inputs.items()}


def count_licences(documents: pa.Table) -> tuple[facts.LicenceFacts, ...]:
    """Licence statements of the kept documents, those with most tokens first."""
    return tuple(_make_licence(row) for row in _group(_select_kept(documents), ["licence"]))


def count_removed(documents: pa.Table) -> tuple[facts.RemovalFacts, ...]:
    """What left, by state and reason."""
    removed = documents.filter(pc.not_equal(documents["state"], "kept"))
    return tuple(
        facts.RemovalFacts(row["state"], row["reason"], row["documents"], row["bytes"])
        for row in _group(removed, ["state", "reason"])
    )


def count_screened(documents: pa.Table) -> tuple[tuple[str, int], ...]:
    """Documents that were screened by decision, the mildest first."""
    screened = documents.filter(pc.not_equal(documents["decision"], ""))
    counts = {row["decision"]: row["documents"] for row in _group(screened, ["decision"])}
    return tuple((name, counts[name]) for name in DECISIONS if name in counts)


def count_decisions(documents: pa.Table, matches: Matches) -> tuple[facts.DecisionFacts, ...]:
    """What each rule decided, the most documents first."""
    decisions = matches.decisions
    at = pc.index_in(decisions["doc_key"], value_set=documents["doc_key"].combine_chunks())
    table = decisions.append_column("text_bytes", pc.take(documents["text_bytes"], at))
    grouped = table.group_by(["rule", "decision"], use_threads=False).aggregate(
        [
            ("doc_key", "count"),
            ("text_bytes", "sum"),
            ("propagated_from", "count"),
            ("reason", "min"),
            ("reason", "max"),
        ]
    )
    rows = grouped.sort_by(
        [("doc_key_count", "descending"), ("rule", "ascending"), ("decision", "ascending")]
    ).to_pylist()
    return tuple(
        facts.DecisionFacts(
            rule=row["rule"],
            decision=row["decision"],
            documents=row["doc_key_count"],
            bytes=row["text_bytes_sum"] or 0,
            propagated=row["propagated_from_count"],
            reason=row["reason_min"] if row["reason_min"] == row["reason_max"] else "",
            quotes=matches.is_quoted(row["rule"], row["reason_min"]),
        )
        for row in rows
    )


def count_flows(documents: pa.Table) -> tuple[facts.Flow, ...]:
    """Documents that a rule matched, from their source to what was decided."""
    matched = documents.filter(pc.not_equal(documents["rule"], ""))
    return tuple(
        facts.Flow(row["source"], row["rule"], row["decision"], row["documents"])
        for row in _group(matched, ["source", "rule", "decision"])
    )


def count_hosts(documents: pa.Table) -> tuple[facts.HostFacts, ...]:
    """Hosts of the kept documents, those with most text first."""
    kept = _select_kept(documents)
    with_host = kept.filter(pc.is_valid(kept["host"]))
    rows = _group(with_host, ["host"])
    hosts = [facts.HostFacts(row["host"], row["documents"], row["bytes"]) for row in rows]
    return tuple(sorted(hosts, key=lambda h: (-h.bytes, h.host)))


def count_clusters(directory: Path, documents: pa.Table, decisions: pa.Table) -> facts.ClusterFacts:
    """Clusters of the run, and those that hold a document with a decision other than allow."""
    path = directory / layout.CLUSTERS
    propagated = decisions["propagated_from"].length() - decisions["propagated_from"].null_count
    if not path.exists():
        return facts.ClusterFacts(0, 0, 0, 0, propagated)
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
    return facts.ClusterFacts(
        clusters, clusters + len(table), len(affected), len(affected) + len(members), propagated
    )


def _select_kept(documents: pa.Table) -> pa.Table:
    return documents.filter(pc.equal(documents["state"], "kept"))


def _group(table: pa.Table, keys: list[str]) -> list[dict[str, Any]]:
    """Rows with `keys`, documents, bytes and tokens; most tokens, then most documents first."""
    grouped = table.group_by(keys, use_threads=False).aggregate(
        [("doc_key", "count"), ("text_bytes", "sum"), ("tokens", "sum")]
    )
    order = [("tokens_sum", "descending"), ("doc_key_count", "descending")]
    rows = grouped.sort_by([*order, *((key, "ascending") for key in keys)]).to_pylist()
    return [
        {
            **{key: row[key] for key in keys},
            "documents": row["doc_key_count"],
            "bytes": row["text_bytes_sum"] or 0,
            "tokens": row["tokens_sum"] or 0,
        }
        for row in rows
    ]


def _make_licence(row: dict[str, Any]) -> facts.LicenceFacts:
    return facts.LicenceFacts(row["licence"], row["documents"], row["tokens"], row["bytes"])


REGISTRY, WORKS, INDEX = "registry", "works.arrow", "index.works.arrow"
FINGERPRINTS = b"fingerprints"
CAPTURES = "captured opt-outs"
_OF_WORKS = ("work_id", "title_raw", "authors", "status", "tier")


@dataclass(frozen=True)
class RunRegistry:
    """What the run directory says of the lists and works it was compared with; works by id."""

    lists: tuple[facts.ListFacts, ...]
    registry: facts.RegistryFacts | None
    works: Mapping[str, Mapping[str, Any]]


def count_inputs(directory: Path) -> tuple[facts.InputFacts, ...]:
    """The inputs of the run, by name."""
    rows = pq.read_table(directory / layout.SOURCES).to_pylist()
    by_input: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_input.setdefault(row["input"], []).append(row)
    return tuple(
        facts.InputFacts(
            name,
            len(files),
            sum(f["size"] for f in files),
            sum(bool(f["skipped"]) for f in files),
            hash_bytes("\n".join(f["hash"] for f in files).encode()),
        )
        for name, files in sorted(by_input.items())
    )


def count_splits(directory: Path, ledger: Ledger) -> tuple[facts.SplitFacts, ...]:
    """The packed splits, with what their lineage covers."""
    split_facts = []
    for name, split in ledger.splits.items():
        dataset = open_dataset(directory / "hdf5" / name)
        paths = [lineage_path(dataset.directory / shard.name) for shard in dataset.shards]
        split_facts.append(
            facts.SplitFacts(
                name=name,
                format=split.format,
                documents=split.documents,
                rows=split.rows,
                tokens=split.tokens,
                labels=split.corpus_tokens if split.format == CORPUS.name else split.mask_sum,
                covered=sum(_count_covered(path) for path in paths),
                lineage_bytes=sum(path.stat().st_size for path in paths),
                shards=len(dataset.shards),
                max_sequence_length=split.max_sequence_length,
            )
        )
    return tuple(split_facts)


def _count_covered(lineage: Path) -> int:
    table = pq.read_table(fetch(lineage), columns=["token_start", "token_end"])
    return int(pc.sum(pc.subtract(table["token_end"], table["token_start"])).as_py() or 0)


def read_registry(directory: Path, stage: StageManifest | None) -> RunRegistry:
    """What registry/ of a run holds; `stage` is the manifest of the stage that published it."""
    root = directory / REGISTRY
    lists = _read_lists(root / "lists.json")
    if not (root / WORKS).is_file():
        return RunRegistry(lists, None, {})
    table = map_arrow(root / WORKS)
    works = {
        row["work_id"]: row
        for row in table.select([n for n in _OF_WORKS if n in table.column_names]).to_pylist()
    }
    index = map_arrow(root / INDEX) if (root / INDEX).is_file() else None
    parameters = json.loads((index.schema.metadata or {}).get(FINGERPRINTS, "{}")) if index else {}
    statuses = Counter(str(work.get("status") or "not stated") for work in works.values())
    hashes = {shard.path: shard.content_hash for shard in stage.shards} if stage else {}
    registry = facts.RegistryFacts(
        works=len(works),
        compared=len(index) if index else 0,
        content_hash=hashes.get(f"{REGISTRY}/{WORKS}", ""),
        statuses=tuple(sorted(statuses.items())),
        parameters=tuple((key, f"{parameters[key]}") for key in sorted(parameters)),
    )
    return RunRegistry(lists, registry, works)


def _read_lists(path: Path) -> tuple[facts.ListFacts, ...]:
    """The lists of origins and artefacts, and how many opt-out signals were captured."""
    if not path.is_file():
        return ()
    lists = json.loads(path.read_bytes())
    origins = [
        facts.ListFacts("origins", str(one["name"]), str(one["version"]), len(one["families"]))
        for one in lists.get("origins", ())
    ]
    artefacts = [
        facts.ListFacts(
            "artefacts",
            str(one["name"]),
            str(one["version"]),
            len(one["files"]) + len(one["texts"]),
        )
        for one in lists.get("artefacts", ())
    ]
    captures = len(lists.get("captures", ()))
    return (*origins, *artefacts, facts.ListFacts(CAPTURES, "", "", captures))


def count_events(directory: Path) -> facts.EventFacts | None:
    """The event chain of the run; None when there is no log. Raises IntegrityError for one that
    does not hold together."""
    if not (directory / EVENTS).is_file():
        return None
    chain = verify_events(directory)
    kinds = Counter(event.kind for event in chain.events)
    return facts.EventFacts(tuple(sorted(kinds.items())), chain.head.n, chain.head.hash)
