"""`prep inspect`: the clusters of a run as a whole, the largest ones, or one with its members; with
--dropped, the records that left for one reason, with what was found in them.

Clusters need clusters.parquet and documents/ only, so this works on a run that the alarm of dedup
stopped. The table is read part by part.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core import ids
from pipeline.core.errors import ConfigError, InputError, IntegrityError, escape_text
from pipeline.explain.explain import DocumentEvidence, read_evidence
from pipeline.report.cluster_summary import (
    Cluster,
    ClusterCounts,
    ClusterSummary,
    count_values,
    of_cluster,
)
from pipeline.runs import layout
from pipeline.runs.clusters import NOT_RECORDED, read_clusters, read_rows_by_key
from pipeline.runs.held_texts import IN_QUARANTINE, QUARANTINED
from pipeline.runs.layout import KINDS
from pipeline.runs.parts import list_parts, wrap_read_errors
from pipeline.runs.records import PLACE, RecordPlace, RunRecords, keys_start_with
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
    path = _require_clusters(directory)
    compared = records.count_by_source()
    _check_filters(filters, compared)
    counts, all_rows = ClusterCounts(top), 0
    for part in list_parts(path):
        clusters = read_clusters(part)
        all_rows += len(clusters)
        counts.add(_apply_filters(clusters, filters))
    largest = [cluster for cluster, _ in counts.largest]
    places = _find_places(records, [c.kept for c in largest if not c.index])
    rows = tuple(ClusterRow(c, None if c.index else places[c.kept]) for c in largest)
    return Inspection(all_rows, counts.summarize(), compared, rows)


def inspect_cluster(directory: Path, reference: str, filters: ClusterFilters) -> Members:
    """The cluster of a document, kept or not, here or in an index; `reference` as `prep explain`
    takes it. Raises InputError when it is in no cluster or the beginning of several keys."""
    records = RunRecords(directory)
    path = _require_clusters(directory)
    _check_filters(filters, records.count_by_source() if filters.source else {})
    prefix = reference if is_key(reference) else records.find(reference).place.key
    index, kept_key = _find_cluster(path, prefix)
    members = read_rows_by_key(path, "kept", [kept_key])
    rows = of_cluster(_apply_filters(members, filters), index, kept_key)
    if not len(rows):
        raise InputError(f"{escape_text(reference)}: no member of its cluster passes the filters")
    counts = ClusterCounts(1)
    counts.add(rows)
    keys = [*rows["member"].to_pylist(), *([] if index else [kept_key])]
    texts = records.texts(keys, EXCERPT_BYTES)
    places = _find_places(records, [key.hex() for key in keys])
    cluster_row = ClusterRow(counts.largest[0][0], None if index else places[kept_key.hex()])
    excerpt = texts.get(kept_key, "")
    if not index and kept_key not in texts:  # a rule can quarantine it with its cluster
        record = records.by_key([kept_key]).get(kept_key)
        excerpt = _instead_of_text(record.state if record else "")
    shown = tuple(
        ClusterMember(
            place=places[row["member"].hex()],
            kind=row["kind"],
            state=row["member_state"],
            bands=tuple(row["bands"]),
            estimate=row["estimate"],
            jaccard=row["jaccard"],
            excerpt=texts.get(row["member"], _instead_of_text(row["member_state"])),
        )
        for row in rows.to_pylist()
    )
    return Members(cluster_row, excerpt, shown)


def _instead_of_text(state: str) -> str:
    return IN_QUARANTINE if state == QUARANTINED else ""


def _check_filters(filters: ClusterFilters, sources: Mapping[str, int]) -> None:
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


def _require_clusters(directory: Path) -> Path:
    path = directory / layout.CLUSTERS
    if not path.exists():
        raise InputError(f"{path}: does not exist yet; `prep run` writes it after dedup")
    return path


def _find_places(records: RunRecords, keys: Iterable[str]) -> dict[str, RecordPlace]:
    """Where these documents stand. Raises IntegrityError where one is not in the run."""
    wanted = pa.array(map(bytes.fromhex, keys), pa.binary(ids.KEY_BYTES))
    places = {place.key: place for place in records.places(records.live(wanted, PLACE))}
    if any(key.hex() not in places for key in wanted.to_pylist()):
        raise IntegrityError(
            f"{records.directory / layout.CLUSTERS} names documents that are not in this run; "
            "`prep run` writes it again"
        )
    return places


def _apply_filters(clusters: pa.Table, filters: ClusterFilters) -> pa.Table:
    if filters.source:
        if NOT_RECORDED in clusters["source"].unique().to_pylist():
            raise InputError(
                "--source: an earlier version made this run and noted no sources of clusters; to "
                "add them, run again the command that made it"
            )
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


def _find_cluster(table: Path, prefix: str) -> tuple[str, bytes]:
    """Index and kept key of the one cluster that holds a document whose key starts so."""
    matches: set[tuple[str, bytes]] = set()
    for part in list_parts(table):
        clusters = read_clusters(part)
        at = [keys_start_with(clusters[end], prefix) for end in ("kept", "member")]
        edges = clusters.filter(pa.array(at[0] | at[1])).select(["index", "kept"])
        rows = edges.group_by(["index", "kept"], use_threads=False).aggregate([])
        matches |= {(row["index"], row["kept"]) for row in rows.to_pylist()}
    if not matches:
        raise InputError(f"{prefix}: is in no cluster; `prep explain` shows what became of it")
    if len(matches) > 1:
        keys = ", ".join(sorted(kept.hex() for _, kept in matches)[:5])
        raise InputError(f"{prefix}: {len(matches)} clusters match: {keys}; give more digits")
    return matches.pop()


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
    reasons: Counter[str] = Counter()
    by_source: Counter[str] = Counter()
    size, first = 0, list[pa.Table]()
    for part in list_parts(directory / layout.DOCUMENTS):
        with wrap_read_errors(part):
            columns = [*PLACE, "state", "reason", "text_bytes"]
            table = pq.read_table(part, columns=columns, filters=pc.field("state") != "kept")
        reasons.update(count_values(table, "reason"))
        rows = table.filter(pc.equal(table["reason"], reason))
        if source:
            rows = rows.filter(pc.equal(rows["source"], source))
        by_source.update(count_values(rows, "source"))
        size += pc.sum(rows["text_bytes"]).as_py() or 0
        first.append(rows.slice(0, top - sum(len(rows) for rows in first)))
    failed = _count_failed(directory, reason)
    if not reasons[reason] and not failed:
        raise InputError(f"--dropped {escape_text(reason)}: {_list_reasons(reasons)}")
    return DroppedRecords(
        reason=reason,
        total=by_source.total(),
        bytes=size,
        by_source=dict(sorted(by_source.items())),
        failed=failed,
        records=_describe_records(records, pa.concat_tables(first)),
    )


def _describe_records(records: RunRecords, table: pa.Table) -> tuple[DroppedRecord, ...]:
    keys = table["doc_key"].to_pylist()
    texts = records.texts(keys, EXCERPT_BYTES)
    evidence = read_evidence(records, keys)
    described = []
    for row, place in zip(table.to_pylist(), records.places(table), strict=True):
        key, state = row["doc_key"], row["state"]
        excerpt = texts.get(key) or _instead_of_text(state) or records.excerpt(key)
        findings = evidence.get(key, ())
        described.append(DroppedRecord(place, state, row["text_bytes"], excerpt, findings))
    return tuple(described)


def _count_failed(directory: Path, rule: str) -> int:
    """Documents with evidence by this rule; all of one document is in one part."""
    path = directory / layout.EVIDENCE
    failed = 0
    for part in list_parts(path) if path.exists() else ():
        with wrap_read_errors(part):
            failures = pq.read_table(part, columns=["doc_key"], filters=pc.field("rule") == rule)
        failed += len(pc.unique(failures["doc_key"]))
    return failed


def _list_reasons(reasons: Counter[str]) -> str:
    if not reasons:
        return "every record of this run was kept"
    listed_reasons = ", ".join(
        f"{escape_text(reason)} ({count:,})" for reason, count in reasons.most_common(_MOST_NAMED)
    )
    more = f" and {len(reasons) - _MOST_NAMED} more" if len(reasons) > _MOST_NAMED else ""
    return f"no record left for this reason; the reasons of this run are {listed_reasons}{more}"
