"""`prep inspect`; with --dropped, the records that left for one reason, with what was found in
them.

`prep inspect`: the clusters of a run as a whole, the largest ones, or one with its members.

Needs clusters.parquet and documents/ only, so it works on a run that the alarm of dedup stopped.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core.errors import ConfigError, InputError, escape_text
from pipeline.explain.explain import DocumentEvidence, read_evidence
from pipeline.report.cluster_summary import (
    Cluster,
    ClusterSummary,
    of_cluster,
    select_largest,
    summarize,
)
from pipeline.runs import layout
from pipeline.runs.clusters import find_mentioned_keys, read_bands, read_clusters, with_sources
from pipeline.runs.held_texts import IN_QUARANTINE, QUARANTINED
from pipeline.runs.layout import KINDS
from pipeline.runs.records import PLACE, RecordPlace, RunRecords, keys_start_with, wrap_read_errors
from pipeline.runs.references import is_key

EXCERPT_BYTES = 600
_NAMED = 5


@dataclass(frozen=True)
class ClusterFilters:
    """Which rows of clusters.parquet count: a source at either end, a kind, exact Jaccard."""

    source: str = ""
    kind: str = ""
    min_jaccard: float | None = None
    max_jaccard: float | None = None


@dataclass(frozen=True)
class ClusterRow:
    """A cluster and where its kept document stands; `place` is None for one in an index."""

    cluster: Cluster
    place: RecordPlace | None


@dataclass(frozen=True)
class Inspection:
    """`all_rows` before the filters, the summary after them; documents of each source that reached
    dedup (`compared`)."""

    all_rows: int
    summary: ClusterSummary
    compared: dict[str, int]
    largest: tuple[ClusterRow, ...]


@dataclass(frozen=True, kw_only=True)
class ClusterMember:
    """One document of a cluster, as clusters.parquet has it."""

    place: RecordPlace
    kind: str
    state: str
    bands: tuple[int, ...]
    estimate: float | None
    jaccard: float | None
    excerpt: str


@dataclass(frozen=True)
class Members:
    """A cluster with all its members that passed the filters, the least similar first."""

    shown: ClusterRow
    excerpt: str
    members: tuple[ClusterMember, ...]


def inspect_clusters(directory: Path, filters: ClusterFilters, top: int) -> Inspection:
    """The summary of what passes the filters, and its `top` largest clusters."""
    records = RunRecords(directory)
    clusters, documents = _load(directory, records)
    compared = records.count_by_source()
    _check(filters, compared)
    chosen = _chosen(clusters, filters)
    found = select_largest(chosen, top)
    shown = tuple(ClusterRow(c, _kept_place(records, documents, c)) for c in found)
    return Inspection(len(clusters), summarize(chosen), compared, shown)


def inspect_cluster(directory: Path, wanted: str, filters: ClusterFilters) -> Members:
    """The cluster of a document, kept or not, here or in an index; `wanted` as `prep explain` takes
    it. Raises InputError when it is in no cluster or the beginning of several keys."""
    records = RunRecords(directory)
    clusters, documents = _load(directory, records)
    _check(filters, records.count_by_source() if filters.source else {})
    prefix = wanted if is_key(wanted) else records.find(wanted).place.key
    index, kept = _cluster_of(clusters, prefix)
    rows = of_cluster(_chosen(clusters, filters), index, kept)
    if not len(rows):
        raise InputError(f"{escape_text(wanted)}: no member of its cluster passes the filters")
    cluster = select_largest(rows, 1)[0]
    keys = rows["member"].to_pylist()
    texts = records.texts([*keys, *([] if index else [kept])], EXCERPT_BYTES)
    shown = ClusterRow(cluster, _kept_place(records, documents, cluster))
    members = _members(rows, texts, records.places(_rows(documents, keys)), directory)
    return Members(shown, "" if index else _kept_excerpt(records, kept, texts), members)


def _kept_excerpt(records: RunRecords, kept: bytes, texts: dict[bytes, str]) -> str:
    """The beginning of the kept document, which a rule can have quarantined with its cluster."""
    if kept in texts:
        return texts[kept]
    record = records.by_key([kept]).get(kept)
    return IN_QUARANTINE if record and record.state == QUARANTINED else ""


def _members(
    rows: pa.Table, texts: dict[bytes, str], places: list[RecordPlace], directory: Path
) -> tuple[ClusterMember, ...]:
    by_key = {place.key: place for place in places}
    bands = read_bands(_path(directory), rows["member"].to_pylist())
    return tuple(
        ClusterMember(
            place=by_key[row["member"].hex()],
            kind=row["kind"],
            state=row["member_state"],
            bands=bands[row["member"]],
            estimate=row["estimate"],
            jaccard=row["jaccard"],
            excerpt=texts.get(row["member"], _instead(row)),
        )
        for row in rows.to_pylist()
    )


def _instead(row: dict[str, Any]) -> str:
    return IN_QUARANTINE if row["member_state"] == QUARANTINED else ""


def _check(filters: ClusterFilters, sources: Mapping[str, int]) -> None:
    """Raises ConfigError or InputError for a filter that nothing can pass."""
    if filters.kind and filters.kind not in KINDS:
        raise ConfigError(f"--kind {escape_text(filters.kind)}: expected one of {', '.join(KINDS)}")
    low, high = filters.min_jaccard, filters.max_jaccard
    if low is not None and high is not None and low > high:
        raise ConfigError(f"--min-jaccard {low:g} is above --max-jaccard {high:g}")
    if filters.source and filters.source not in sources:
        close = get_close_matches(filters.source, sources, n=1) or list(sources)[:_NAMED]
        raise InputError(
            f"--source {escape_text(filters.source)}: no document of it reached dedup; "
            f"expected a source such as {', '.join(escape_text(source) for source in close)}"
        )


def _path(directory: Path) -> Path:
    path = directory / layout.CLUSTERS
    if not path.exists():
        raise InputError(f"{path}: does not exist yet; `prep run` writes it after dedup")
    return path


def _load(directory: Path, records: RunRecords) -> tuple[pa.Table, pa.Table]:
    """The table with sources, and the places of all documents it names."""
    clusters = read_clusters(_path(directory))
    documents = records.live(find_mentioned_keys(clusters), PLACE)
    return with_sources(clusters, documents), documents


def _chosen(clusters: pa.Table, filters: ClusterFilters) -> pa.Table:
    if filters.source:
        both = pc.or_kleene(
            pc.equal(clusters["source"], filters.source),
            pc.equal(clusters["kept_source"], filters.source),
        )
        clusters = clusters.filter(both)
    if filters.kind:
        clusters = clusters.filter(pc.equal(clusters["kind"], filters.kind))
    if filters.min_jaccard is not None:
        clusters = clusters.filter(pc.greater_equal(clusters["jaccard"], filters.min_jaccard))
    if filters.max_jaccard is not None:
        clusters = clusters.filter(pc.less_equal(clusters["jaccard"], filters.max_jaccard))
    return clusters


def _cluster_of(clusters: pa.Table, prefix: str) -> tuple[str, bytes]:
    """Index and kept key of the one cluster that holds a document whose key starts so."""
    at = [keys_start_with(clusters[end], prefix) for end in ("kept", "member")]
    named = clusters.filter(pa.array(at[0] | at[1])).select(["index", "kept"])
    found = named.group_by(["index", "kept"], use_threads=False).aggregate([]).to_pylist()
    if not found:
        raise InputError(f"{prefix}: is in no cluster; `prep explain` shows what became of it")
    if len(found) > 1:
        keys = ", ".join(sorted(row["kept"].hex() for row in found)[:5])
        raise InputError(f"{prefix}: {len(found)} clusters match: {keys}; give more digits")
    return found[0]["index"], found[0]["kept"]


def _rows(documents: pa.Table, keys: list[bytes]) -> pa.Table:
    return documents.filter(pc.is_in(documents["doc_key"], pa.array(keys, pa.binary(16))))


def _kept_place(records: RunRecords, documents: pa.Table, cluster: Cluster) -> RecordPlace | None:
    if cluster.index:
        return None
    return records.places(_rows(documents, [bytes.fromhex(cluster.kept)]))[0]


_MOST_NAMED = 12


@dataclass(frozen=True)
class DroppedRecord:
    """One record that left, the beginning of its text, and all evidence on it."""

    place: RecordPlace
    state: str
    text_bytes: int
    excerpt: str
    evidence: tuple[DocumentEvidence, ...]


@dataclass(frozen=True, kw_only=True)
class DroppedRecords:
    """All that left for a reason: records and bytes of text, in all and by source; `failed`:
    documents that this rule found something in, whatever the reason why they left or stayed; the
    first records in input order."""

    reason: str
    total: int
    bytes: int
    by_source: dict[str, int]
    failed: int
    records: tuple[DroppedRecord, ...]


def find_dropped(directory: Path, reason: str, source: str, top: int) -> DroppedRecords:
    """The records of a finished run that left for this reason, of one source if one is named, and
    the first `top` of them. Raises InputError for a run that is not finished and an unknown reason.
    """
    records = RunRecords(directory)
    if not records.finished:
        raise InputError(f"{directory}: not finished; its {layout.DOCUMENTS} will hold the reasons")
    with wrap_read_errors(directory / layout.DOCUMENTS) as path:
        columns = [*PLACE, "state", "reason", "text_bytes"]
        table = pq.read_table(path, columns=columns, filters=pc.field("state") != "kept")
    found = table.filter(pc.equal(table["reason"], reason))
    failed = _failed(directory, reason)
    if not len(found) and not failed:
        raise InputError(f"--dropped {escape_text(reason)}: {_known(table)}")
    if source:
        found = found.filter(pc.equal(found["source"], source))
    counts = Counter(found["source"].to_pylist())
    size = pc.sum(found["text_bytes"]).as_py() or 0
    shown = _shown(records, found.slice(0, top))
    return DroppedRecords(
        reason=reason,
        total=len(found),
        bytes=size,
        by_source=dict(sorted(counts.items())),
        failed=failed,
        records=shown,
    )


def _shown(records: RunRecords, table: pa.Table) -> tuple[DroppedRecord, ...]:
    keys = table["doc_key"].to_pylist()
    texts = records.texts(keys, EXCERPT_BYTES)
    evidence = read_evidence(records.directory, keys)
    rows = zip(
        keys,
        records.places(table),
        table["state"].to_pylist(),
        table["text_bytes"].to_pylist(),
        strict=True,
    )
    return tuple(
        DroppedRecord(
            place,
            state,
            size,
            _excerpt(records, texts, key, state),
            evidence.get(key, ()),
        )
        for key, place, state, size in rows
    )


def _excerpt(records: RunRecords, texts: dict[bytes, str], key: bytes, state: str) -> str:
    if key in texts:
        return texts[key]
    return IN_QUARANTINE if state == QUARANTINED else records.excerpt(key)


def _failed(directory: Path, rule: str) -> int:
    path = directory / layout.EVIDENCE
    if not path.exists():
        return 0
    with wrap_read_errors(path):
        found = pq.read_table(path, columns=["doc_key"], filters=pc.field("rule") == rule)
    return len(pc.unique(found["doc_key"]))


def _known(table: pa.Table) -> str:
    reasons = Counter(table["reason"].to_pylist()).most_common()
    if not reasons:
        return "every record of this run was kept"
    named = ", ".join(
        f"{escape_text(reason)} ({count:,})" for reason, count in reasons[:_MOST_NAMED]
    )
    more = f" and {len(reasons) - _MOST_NAMED} more" if len(reasons) > _MOST_NAMED else ""
    return f"no record left for this reason; the reasons of this run are {named}{more}"
