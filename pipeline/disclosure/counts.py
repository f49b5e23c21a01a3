"""Counts over the tables of a run: sources, licences, rules, hosts and clusters of
documents.parquet and clusters.parquet; inputs, packed splits, registry and event chain.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core import ids
from pipeline.core.hashes import hash_bytes
from pipeline.core.ledger import Ledger
from pipeline.core.manifest import StageManifest
from pipeline.core.mirror.fetching import fetch
from pipeline.disclosure import facts
from pipeline.disclosure.match_counts import Matches
from pipeline.hdf5.format import CORPUS
from pipeline.hdf5.read import open_dataset
from pipeline.lineage.shards import lineage_path
from pipeline.runs import layout
from pipeline.runs.events import EVENTS, verify_events
from pipeline.runs.parts import RowGroups, group_parts, list_parts
from pipeline.runs.records import map_arrow
from pipeline.screening.evidence import DECISIONS

_WEB = ("meta_url", "meta_domain", "meta_host", "meta_uri")
"""Typed metadata columns that name where a document stood on the web, the first that is there."""
_KEY = pa.binary(ids.KEY_BYTES)
_HOST = r"(?i)^(?:[a-z][a-z0-9+.-]*:)?(?://)?(?:[^/@?#]*@)?(?P<host>[a-z0-9.-]+\.[a-z0-9-]+)"


class CountedDocuments:
    """documents.parquet, read part by part, with `host` (lower case, null for none) from the
    metadata of the documents, where the run has kept any."""

    def __init__(self, directory: Path) -> None:
        self._groups = RowGroups(directory / layout.DOCUMENTS)
        schema, self._last = self._groups.schema, 0
        web = next((name for name in _WEB if name in schema.names), None)
        self._web = web if web and pa.types.is_string(schema.field(web).type) else None

    def parts(self, columns: Iterable[str]) -> Iterator[pa.Table]:
        """These columns, one row group at a time; one empty table where there is none."""
        for group in range(len(self._groups)):
            yield self._read(columns, group)
        if not len(self._groups):
            yield self._read(columns)

    def _read(self, columns: Iterable[str], *groups: int) -> pa.Table:
        names = list(dict.fromkeys(columns))
        own = [self._web if name == "host" else name for name in names]
        table = self._groups.read(groups, [name for name in own if name])
        if "host" in names:
            hosts: Any = pa.nulls(len(table), pa.string())
            if self._web:
                extracted = pc.extract_regex(table[self._web], _HOST)
                hosts = pc.utf8_lower(pc.struct_field(extracted, "host"))
            table = table.append_column("host", hosts)
        return table.select(names)

    def group(self, keys: list[str], chosen: pc.Expression) -> list[dict[str, Any]]:
        """Rows with `keys`, documents, bytes and tokens of those chosen by keys, state, decision or
        rule; most tokens, then most documents first."""
        columns = [*keys, "state", "decision", "rule", "text_bytes", "tokens"]
        sums = {
            "documents": ("", "count_all"),
            "bytes": ("text_bytes", "sum"),
            "tokens": ("tokens", "sum"),
        }
        found = (part.filter(chosen) for part in self.parts(columns))
        order = [("tokens", "descending"), ("documents", "descending")]
        rows = group_parts(found, keys, sums)
        return list(rows.sort_by([*order, *((key, "ascending") for key in keys)]).to_pylist())

    def look_up(self, keys: pa.ChunkedArray, column: str) -> pa.ChunkedArray:
        """A column of the documents with these keys. Calls with keys in the order of documents read
        the table once in all."""
        found = pa.chunked_array([pa.nulls(len(keys), self._groups.schema.field(column).type)])
        for step in range(len(self._groups)):
            group = (self._last + step) % len(self._groups)
            part = self._read(["doc_key", column], group)
            place = pc.index_in(keys, value_set=part["doc_key"].combine_chunks())
            found = pc.coalesce(found, part[column].take(place))
            if not found.null_count:
                self._last = group
                break
        return found


_IS_KEPT = pc.field("state") == "kept"


def count_sources(
    documents: CountedDocuments, ledger: Ledger, directory: Path
) -> tuple[facts.SourceFacts, ...]:
    """The sources of the ledger, those with most tokens first."""
    licences: dict[str, list[facts.LicenceFacts]] = {}
    for row in documents.group(["source", "licence"], _IS_KEPT):
        licences.setdefault(row["source"], []).append(_make_licence(row))
    paths = pq.read_table(directory / layout.SOURCES, columns=["path_id", "input"]).to_pylist()
    input_of_path = {row["path_id"]: row["input"] for row in paths}
    inputs: dict[str, set[str]] = {}
    for row in documents.group(["source", "path_id"], pc.scalar(True)):
        inputs.setdefault(row["source"], set()).add(input_of_path[row["path_id"]])
    rows = [
        facts.SourceFacts.from_ledger(
            name,
            s,
            inputs=tuple(sorted(inputs.get(name, ()))),
            licences=tuple(licences.get(name, ())),
        )
        for name, s in ledger.sources.items()
    ]
    return tuple(sorted(rows, key=lambda s: (-s.tokens, -s.bytes_kept, s.label)))


def count_licences(documents: CountedDocuments) -> tuple[facts.LicenceFacts, ...]:
    """Licence statements of the kept documents, those with most tokens first."""
    return tuple(_make_licence(row) for row in documents.group(["licence"], _IS_KEPT))


def count_removed(documents: CountedDocuments) -> tuple[facts.RemovalFacts, ...]:
    """What left, by state and reason."""
    return tuple(
        facts.RemovalFacts(row["state"], row["reason"], row["documents"], row["bytes"])
        for row in documents.group(["state", "reason"], pc.field("state") != "kept")
    )


def count_screened(documents: CountedDocuments) -> tuple[tuple[str, int], ...]:
    """Documents that were screened by decision, the mildest first."""
    rows = documents.group(["decision"], pc.field("decision") != "")
    counts = {row["decision"]: row["documents"] for row in rows}
    return tuple((name, counts[name]) for name in DECISIONS if name in counts)


def count_decisions(
    documents: CountedDocuments, matches: Matches
) -> tuple[facts.DecisionFacts, ...]:
    """What each rule decided, the most documents first."""
    columns = ["rule", "decision", "reason", "doc_key", "propagated_from"]
    tables = (
        table.append_column("text_bytes", documents.look_up(table["doc_key"], "text_bytes"))
        for table in matches.decisions(columns)
    )
    sums = {
        "documents": ("doc_key", "count"),
        "bytes": ("text_bytes", "sum"),
        "propagated": ("propagated_from", "count"),
        "least": ("reason", "min"),
        "most": ("reason", "max"),
    }
    grouped = group_parts(tables, ["rule", "decision"], sums)
    rows = grouped.sort_by(
        [("documents", "descending"), ("rule", "ascending"), ("decision", "ascending")]
    ).to_pylist()
    quoted = matches.find_quoted({(row["rule"], row["least"]) for row in rows})
    return tuple(
        facts.DecisionFacts(
            rule=row["rule"],
            decision=row["decision"],
            documents=row["documents"],
            bytes=row["bytes"] or 0,
            propagated=row["propagated"],
            reason=row["least"] if row["least"] == row["most"] else "",
            quotes=(row["rule"], row["least"]) in quoted,
        )
        for row in rows
    )


def count_flows(documents: CountedDocuments) -> tuple[facts.Flow, ...]:
    """Documents that a rule matched, from their source to what was decided."""
    return tuple(
        facts.Flow(row["source"], row["rule"], row["decision"], row["documents"])
        for row in documents.group(["source", "rule", "decision"], pc.field("rule") != "")
    )


def count_hosts(documents: CountedDocuments) -> tuple[facts.HostFacts, ...]:
    """Hosts of the kept documents, those with most text first."""
    rows = documents.group(["host"], _IS_KEPT & pc.field("host").is_valid())
    hosts = [facts.HostFacts(row["host"], row["documents"], row["bytes"]) for row in rows]
    return tuple(sorted(hosts, key=lambda h: (-h.bytes, h.host)))


def count_clusters(
    directory: Path, documents: CountedDocuments, propagated: int
) -> facts.ClusterFacts:
    """Clusters of the run, and those that hold a document with a decision other than allow; the
    keys of such documents are in memory, all others only part by part."""
    path = directory / layout.CLUSTERS
    if not path.exists():
        return facts.ClusterFacts(0, 0, 0, 0, propagated)
    is_matched = ~pc.field("decision").isin(["", "allow"])
    parts = (part.filter(is_matched) for part in documents.parts(["doc_key", "decision"]))
    keys = pa.chunked_array([part["doc_key"].combine_chunks() for part in parts], _KEY)
    matched = keys.combine_chunks()
    counts = np.zeros(4, np.int64)
    for file in list_parts(path):  # all of one kept document are in one part
        table = pq.read_table(fetch(file), columns=["kept", "member"])
        hit = pc.or_(
            pc.is_in(table["kept"], value_set=matched), pc.is_in(table["member"], value_set=matched)
        )
        affected = pc.unique(table.filter(hit)["kept"])
        members = pc.sum(pc.is_in(table["kept"], value_set=affected)).as_py() or 0
        clusters = pc.count_distinct(table["kept"]).as_py()
        counts += [clusters, clusters + len(table), len(affected), len(affected) + members]
    clusters, members, affected, affected_members = counts.tolist()
    return facts.ClusterFacts(clusters, members, affected, affected_members, propagated)


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
