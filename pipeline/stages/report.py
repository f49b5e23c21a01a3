"""report.html and clusters.html: pure functions of the published tables. The page of duplicate
clusters is filled from tables and from the texts of what it shows; `prep dedup` has this page and
no other report.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core import ids
from pipeline.core.ledger import ledger_from_dict
from pipeline.core.manifest import Shard, StageManifest, fingerprint_of
from pipeline.engine.stage import Inputs, Result, Stage, Task, bytes_output
from pipeline.report import html, model
from pipeline.report.cluster_summary import (
    Cluster,
    ClusterSummary,
    of_cluster,
    select_largest,
    summarize,
)
from pipeline.report.html import (
    ClusterExcerpt,
    ClusterPage,
    MemberExcerpt,
    SourceShare,
    render_clusters,
)
from pipeline.report.model import Sample, excerpt
from pipeline.report.side_by_side import find_first_difference
from pipeline.runs import layout
from pipeline.runs.origin import recipe_of
from pipeline.runs.records import IN_QUARANTINE, QUARANTINED, read_file_names, select_texts
from pipeline.runs.tables import find_mentioned_keys, read_bands, read_clusters, with_sources

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


def load_clusters(path: Path, documents: pa.Table, files: Sequence[str]) -> ClusterTables:
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
        texts |= select_texts(inputs.table(shard, ["doc_key", "text"]), wanted, _READ_BYTES)
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
    cluster: Cluster,
    members: list[dict[str, Any]],
    bands: dict[bytes, tuple[int, ...]],
    documents: dict[bytes, _Document],
) -> ClusterExcerpt:
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
        sample=document.sample,
        kind=row["kind"],
        state=row["member_state"],
        bands=bands,
        estimate=row["estimate"],
        jaccard=row["jaccard"],
        equal=equal,
        kept_passage=kept_passage,
        passage=passage,
    )


_COLUMNS = [
    "doc_key",
    "source",
    "path_id",
    "line",
    "byte_offset",
    "text_bytes",
    "state",
    "representative",
]


@dataclass(frozen=True, kw_only=True)
class ClusterReportJob:
    """The run's identity, what its dedup was, and the tables and texts the page reads."""

    name: str
    identity: str
    recipe: str
    bands: int
    documents: Shard
    clusters: Shard
    sources: Shard
    texts: tuple[Shard, ...]


def _cluster_report(job: ClusterReportJob, inputs: Inputs) -> Result:
    documents = pq.read_table(inputs.path(job.documents), columns=_COLUMNS)
    files = read_file_names(inputs.path(job.sources))
    found = load_clusters(inputs.path(job.clusters), documents, files)
    page = ClusterPage(
        config_name=job.name,
        manifest_hash=job.identity,
        recipe=job.recipe,
        bands=job.bands,
        summary=summarize(found.clusters),
        shares=source_shares(documents),
        clusters=shown_clusters(found, job.texts, inputs),
    )
    return Result((bytes_output(layout.CLUSTER_REPORT, render_clusters(page)),))


def cluster_report_stage(name: str, manifests: dict[str, StageManifest]) -> Stage:
    """The page; its identity is the hash over all stages before it."""
    stages = tuple((m.stage, m.fingerprint, m.content_hash) for m in manifests.values())
    recipe = recipe_of(manifests)
    job = ClusterReportJob(
        name=name,
        identity=fingerprint_of({"stages": stages}),
        recipe=recipe.words if recipe else "",
        bands=recipe.preset.bands if recipe else 0,
        documents=manifests["documents"].find(layout.DOCUMENTS),
        clusters=manifests["keep"].find(layout.CLUSTERS),
        sources=manifests["sources"].find(layout.SOURCES),
        texts=manifests["clean"].below("documents"),
    )
    return Stage(
        name="cluster_report",
        version=5,
        function=_cluster_report,
        tasks=(Task("page of clusters", job),),
    )


_SAMPLES = 3
_EXCERPT_BYTES = 1000
_PAGE_COLUMNS = [
    "doc_key",
    "source",
    "path_id",
    "line",
    "byte_offset",
    "text_bytes",
    "state",
    "reason",
    "representative",
    "tokens",
]
_STATE_WORDS = {
    "bad_record": "bad record",
    "dropped": "dropped",
    "quarantined": "quarantined",
    "duplicate": "duplicate",
}


@dataclass(frozen=True, kw_only=True)
class ReportJob:
    """The run's identity and every table the report reads."""

    name: str
    stages: tuple[tuple[str, str, str], ...]
    software: tuple[tuple[str, str], ...]
    identity: str
    recipe: str
    bands: int
    ledger: Shard
    documents: Shard
    clusters: Shard
    decisions: Shard
    sources: Shard
    texts: tuple[Shard, ...]
    drops: tuple[Shard, ...]
    notes: tuple[str, ...]


class _Tables:
    """The tables, and excerpts looked up by document key."""

    def __init__(self, job: ReportJob, inputs: Inputs) -> None:
        self._job = job
        self._inputs = inputs
        self.documents = pq.read_table(inputs.path(job.documents), columns=_PAGE_COLUMNS)
        self.decisions = pq.read_table(inputs.path(job.decisions))
        self.files = read_file_names(inputs.path(job.sources))

    def samples(self, rows: pa.Table) -> tuple[model.Sample, ...]:
        """Samples for rows of the documents table, in their order; of quarantined ones no text."""
        open_ones = rows.filter(pc.not_equal(rows["state"], QUARANTINED))
        excerpts = self._excerpts(open_ones["doc_key"].combine_chunks())
        hidden = rows.filter(pc.equal(rows["state"], QUARANTINED))["doc_key"].to_pylist()
        excerpts |= dict.fromkeys(hidden, IN_QUARANTINE)
        return tuple(
            model.Sample(
                row["doc_key"].hex(),
                row["source"],
                self.files[row["path_id"]],
                row["line"] or row["byte_offset"],
                model.excerpt(excerpts.get(row["doc_key"], "")),
            )
            for row in rows.to_pylist()
        )

    def _excerpts(self, keys: pa.Array) -> dict[bytes, str]:
        found: dict[bytes, str] = {}
        for shard in self._job.texts:
            found |= select_texts(
                self._inputs.table(shard, ["doc_key", "text"]), keys, _EXCERPT_BYTES
            )
        for shard in self._job.drops:
            table = pq.read_table(self._inputs.path(shard), columns=["doc_key", "excerpt"])
            table = table.filter(pc.is_in(table["doc_key"], keys))
            found |= dict(
                zip(table["doc_key"].to_pylist(), table["excerpt"].to_pylist(), strict=True)
            )
        return found


def _report(job: ReportJob, inputs: Inputs) -> Result:
    tables = _Tables(job, inputs)
    found = load_clusters(inputs.path(job.clusters), tables.documents, tables.files)
    summary = summarize(found.clusters)
    report = html.render_report(_report_page(job, tables, summary, inputs))
    page = html.render_clusters(_cluster_page(job, tables, found, summary, inputs))
    outputs = (bytes_output(layout.REPORT, report), bytes_output(layout.CLUSTER_REPORT, page))
    return Result(outputs)


def _cluster_page(
    job: ReportJob, tables: _Tables, found: ClusterTables, summary: ClusterSummary, inputs: Inputs
) -> html.ClusterPage:
    return html.ClusterPage(
        config_name=job.name,
        manifest_hash=job.identity,
        recipe=job.recipe,
        bands=job.bands,
        summary=summary,
        shares=source_shares(tables.documents) if job.recipe else (),
        clusters=shown_clusters(found, job.texts, inputs),
    )


def _report_page(
    job: ReportJob, tables: _Tables, summary: ClusterSummary, inputs: Inputs
) -> model.Report:
    ledger = ledger_from_dict(json.loads(inputs.path(job.ledger).read_bytes()))
    documents = tables.documents
    live = documents.filter(pc.not_equal(documents["state"], "bad_record"))
    kept = pc.equal(live["state"], "kept").to_numpy()
    survivors = live.filter(pc.equal(live["state"], "kept"))
    return model.Report(
        config_name=job.name,
        manifest_hash=job.identity,
        stages=job.stages,
        software=job.software,
        sources=tuple(model.SourceRow.from_ledger(*source) for source in ledger.sources.items()),
        reasons=tuple(_reasons(tables)),
        clusters=summary,
        decisions=tuple(_decisions(tables)),
        document_bytes=model.log_bins(live["text_bytes"].to_numpy(), kept),
        document_tokens=model.log_bins(survivors["tokens"].to_numpy()),
        splits=ledger.splits,
        mixture=ledger.mixture,
        notes=job.notes,
    )


def _reasons(tables: _Tables) -> list[model.DropReason]:
    gone = tables.documents.filter(pc.not_equal(tables.documents["state"], "kept"))
    counts = gone.group_by(["state", "reason"], use_threads=False).aggregate(
        [("text_bytes", "sum"), ("text_bytes", "count")]
    )
    reasons = []
    for row in counts.sort_by(
        [("text_bytes_count", "descending"), ("reason", "ascending")]
    ).to_pylist():
        chosen = pc.and_(
            pc.equal(gone["state"], row["state"]), pc.equal(gone["reason"], row["reason"])
        )
        rows = gone.filter(chosen).sort_by("doc_key").slice(0, _SAMPLES)
        reasons.append(
            model.DropReason(
                row["reason"],
                _STATE_WORDS[row["state"]],
                row["text_bytes_count"],
                row["text_bytes_sum"],
                tables.samples(rows),
            )
        )
    return reasons


def _decisions(tables: _Tables) -> list[model.Decision]:
    columns = ["rule", "decision", "reason"]
    counts = tables.decisions.group_by(columns, use_threads=False).aggregate([("doc_key", "count")])
    rows = counts.sort_by([("doc_key_count", "descending"), ("rule", "ascending")]).to_pylist()
    return [model.Decision(r["rule"], r["decision"], r["doc_key_count"], r["reason"]) for r in rows]


def report_stage(name: str, manifests: dict[str, StageManifest], notes: tuple[str, ...]) -> Stage:
    """The last stage; its identity is the hash over all stages before it."""
    stages = tuple((m.stage, m.fingerprint, m.content_hash) for m in manifests.values())
    software = {k: v for m in manifests.values() for k, v in m.fields["software"].items()}
    verdicts, clean = manifests["verdicts"], manifests["clean"]
    recipe = recipe_of(manifests)
    job = ReportJob(
        name=name,
        stages=stages,
        software=tuple(sorted(software.items())),
        identity=fingerprint_of({"stages": stages}),
        recipe=recipe.words if recipe else "",
        bands=recipe.preset.bands if recipe else 0,
        ledger=manifests["account"].find(layout.LEDGER),
        documents=manifests["documents"].find(layout.DOCUMENTS),
        clusters=manifests["keep"].find(layout.CLUSTERS),
        decisions=verdicts.find(layout.DECISIONS),
        sources=manifests["sources"].find(layout.SOURCES),
        texts=clean.below("documents"),
        drops=clean.below("drops"),
        notes=notes,
    )
    return Stage(
        name="report",
        version=6,
        function=_report,
        tasks=(Task("report", job),),
        settings={"notes": list(notes)},
    )
