"""report.html and clusters.html: pure functions of the published tables and of the texts of what
they show. `prep dedup` has the page of clusters alone.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core import ids
from pipeline.core.ledger import ledger_from_dict
from pipeline.core.manifest import Shard, StageManifest, fingerprint_of
from pipeline.engine.stage import Inputs, Output, Result, Stage, Task, bytes_output
from pipeline.report import html, model
from pipeline.report.cluster_summary import (
    Cluster,
    ClusterSummary,
    of_cluster,
    select_largest,
    summarize,
)
from pipeline.report.model import Sample, excerpt
from pipeline.report.side_by_side import find_first_difference
from pipeline.runs import layout, views
from pipeline.runs.clusters import find_mentioned_keys, read_bands, read_clusters, with_sources
from pipeline.runs.held_texts import IN_QUARANTINE, QUARANTINED
from pipeline.runs.origin import make_recipe
from pipeline.runs.records import select_texts

_CLUSTERS = 10
_MEMBERS = 5
_READ_BYTES = 1 << 18
"""What is read of a text; a difference behind it is not shown."""
_PAGE_MEMORY = 256 << 20
"""Bytes that a page, its excerpts and what is read for them take; rows of all documents apart,"""
_ROW_MEMORY = 512
"""so many bytes for each record that was read (docs/benchmarks.md)."""
_SAMPLES = 3
_EXCERPT_BYTES = 1000
_COLUMNS = ["doc_key", "source", "path_id", "line", "byte_offset", "text_bytes", "state", "reason",
            "representative", "tokens"]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ClusterReportJob:
    """The run's identity, what its dedup was, and the tables and texts its pages read."""

    name: str
    identity: str
    recipe: str
    bands: int
    documents: tuple[Shard, ...]
    clusters: tuple[Shard, ...]
    sources: Shard
    texts: tuple[Shard, ...]


@dataclass(frozen=True, kw_only=True)
class ReportJob(ClusterReportJob):
    """All that the report reads."""

    stages: tuple[tuple[str, str, str], ...]
    software: tuple[tuple[str, str], ...]
    ledger: Shard
    decisions: tuple[Shard, ...]
    drops: tuple[Shard, ...]
    notes: tuple[str, ...]


class _Tables:
    """The documents, the names of raw shards, clusters with their sources, and samples of texts."""

    def __init__(self, job: ClusterReportJob, inputs: Inputs) -> None:
        self.job = job
        self.inputs = inputs
        paths = [inputs.path(shard) for shard in job.documents]
        self.documents = pq.read_table(paths, columns=_COLUMNS)
        sources = pq.read_table(inputs.path(job.sources), columns=["input", "path"]).to_pylist()
        self._files = [f"{row['input']}/{row['path']}" for row in sources]
        self.cluster_paths = [inputs.path(shard) for shard in job.clusters]
        clusters = pa.concat_tables(map(read_clusters, self.cluster_paths))
        keys = self.documents["doc_key"]
        self.in_clusters = self.documents.filter(pc.is_in(keys, find_mentioned_keys(clusters)))
        self.clusters = with_sources(clusters, self.in_clusters)

    def sample(self, row: dict[str, Any], text: str) -> Sample:
        """A row of the documents with the beginning of its text."""
        file, line = self._files[row["path_id"]], row["line"] or row["byte_offset"]
        return Sample(row["doc_key"].hex(), row["source"], file, line, text)

    def texts(self, keys: pa.Array, most_bytes: int) -> dict[bytes, str]:
        """Texts by key, cut after so many bytes."""
        texts: dict[bytes, str] = {}
        for shard in self.job.texts:
            documents = self.inputs.open(shard)
            is_asked = pc.is_in(documents.read(["doc_key"])["doc_key"], keys).to_numpy()
            table = documents.take(["doc_key", "text"], np.flatnonzero(is_asked))
            texts |= select_texts(table, keys, most_bytes)
        return texts


@dataclass(frozen=True)
class _Document:
    """What the page needs of one document; of a quarantined one no text."""

    sample: Sample
    state: str
    text: str
    whole: bool


def count_source_shares(documents: pa.Table) -> tuple[html.SourceShare, ...]:
    """By source: documents that reached dedup, and how many of them were duplicates."""
    reached = documents.filter(pc.is_valid(documents["representative"]))
    counts = reached.group_by(["source", "state"], use_threads=False).aggregate([([], "count_all")])
    shares: dict[str, list[int]] = {}
    for row in counts.to_pylist():
        share = shares.setdefault(row["source"], [0, 0])
        share[0] += row["count_all"]
        share[1] += row["count_all"] if row["state"] == "duplicate" else 0
    return tuple(html.SourceShare(source, *share) for source, share in sorted(shares.items()))


def _show_clusters(tables: _Tables) -> tuple[html.ClusterExcerpt, ...]:
    """The largest clusters with their least similar members; reads the texts of these only."""
    chosen = [
        (cluster, of_cluster(tables.clusters, cluster.index, bytes.fromhex(cluster.kept)))
        for cluster in select_largest(tables.clusters, _CLUSTERS)
    ]
    rows = [(cluster, members.slice(0, _MEMBERS).to_pylist()) for cluster, members in chosen]
    keys = {row["member"] for _, members in rows for row in members}
    bands = {
        member: shared
        for path in tables.cluster_paths
        for member, shared in read_bands(path, sorted(keys)).items()
    }
    keys |= {bytes.fromhex(cluster.kept) for cluster, _ in rows if not cluster.index}
    documents = _documents(tables, pa.array(sorted(keys), pa.binary(ids.KEY_BYTES)))
    return tuple(_describe_cluster(cluster, members, bands, documents) for cluster, members in rows)


def _documents(tables: _Tables, keys: pa.Array) -> dict[bytes, _Document]:
    texts = tables.texts(keys, _READ_BYTES)
    documents = {}
    chosen = tables.in_clusters.filter(pc.is_in(tables.in_clusters["doc_key"], keys))
    for row in chosen.to_pylist():
        key, hidden = row["doc_key"], row["state"] == QUARANTINED
        text = "" if hidden else texts[key]
        sample = tables.sample(row, IN_QUARANTINE if hidden else excerpt(text))
        whole = not hidden and row["text_bytes"] <= _READ_BYTES
        documents[key] = _Document(sample, row["state"], text, whole)
    return documents


def _describe_cluster(
    cluster: Cluster,
    members: list[dict[str, Any]],
    bands: dict[bytes, tuple[int, ...]],
    documents: dict[bytes, _Document],
) -> html.ClusterExcerpt:
    kept = None if cluster.index else documents[bytes.fromhex(cluster.kept)]
    excerpts = tuple(
        _member(row, bands[row["member"]], documents[row["member"]], kept) for row in members
    )
    if kept is None:
        return html.ClusterExcerpt(cluster, None, "kept", excerpts)
    return html.ClusterExcerpt(cluster, kept.sample, kept.state, excerpts)


def _member(
    row: dict[str, Any], bands: tuple[int, ...], document: _Document, kept: _Document | None
) -> html.MemberExcerpt:
    different = None
    if kept and QUARANTINED not in (kept.state, document.state):
        different = find_first_difference(kept.text, document.text)
    kept_passage, passage = different or ((), ())
    equal = kept is not None and different is None and kept.whole and document.whole
    return html.MemberExcerpt(
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


def _cluster_page(
    tables: _Tables, summary: ClusterSummary, shares: tuple[html.SourceShare, ...]
) -> Output:
    job = tables.job
    page = html.ClusterPage(
        config_name=job.name,
        manifest_hash=job.identity,
        recipe=job.recipe,
        bands=job.bands,
        summary=summary,
        shares=shares,
        clusters=_show_clusters(tables),
    )
    return bytes_output(layout.CLUSTER_REPORT, html.render_clusters(page))


def _cluster_report(job: ClusterReportJob, inputs: Inputs) -> Result:
    tables = _Tables(job, inputs)
    shares = count_source_shares(tables.documents)
    return Result((_cluster_page(tables, summarize(tables.clusters), shares),))


def _page_fields(name: str, manifests: dict[str, StageManifest]) -> dict[str, Any]:
    """The fields of a ClusterReportJob; the identity is the hash over all stages before it."""
    recipe = make_recipe(manifests)
    return {
        "name": name,
        "identity": fingerprint_of({"stages": _identities(manifests)}),
        "recipe": recipe.words if recipe else "",
        "bands": recipe.preset.bands if recipe else 0,
        "documents": views.DocumentsOutput(manifests["documents"]).parts,
        "clusters": views.ClusterTableOutput(manifests["cluster_table"]).parts,
        "sources": views.SourcesOutput(manifests["sources"]).table,
        "texts": views.CleanOutput(manifests["clean"]).documents,
    }


def _identities(manifests: dict[str, StageManifest]) -> tuple[tuple[str, str, str], ...]:
    return tuple((m.stage, m.fingerprint, m.content_hash) for m in manifests.values())


def _page_memory(manifests: dict[str, StageManifest]) -> int:
    return _PAGE_MEMORY + _ROW_MEMORY * sum(views.CleanOutput(manifests["clean"]).records)


def cluster_report_stage(name: str, manifests: dict[str, StageManifest]) -> Stage:
    """The page of clusters alone."""
    job = ClusterReportJob(**_page_fields(name, manifests))
    task = Task("page of clusters", job, memory=_page_memory(manifests))
    return Stage(name="cluster_report", version=5, function=_cluster_report, tasks=(task,))


def _report(job: ReportJob, inputs: Inputs) -> Result:
    tables = _Tables(job, inputs)
    summary = summarize(tables.clusters)
    report = html.render_report(_report_page(job, tables, summary, inputs))
    shares = count_source_shares(tables.documents) if job.recipe else ()
    page = _cluster_page(tables, summary, shares)
    return Result((bytes_output(layout.REPORT, report), page))


def _report_page(
    job: ReportJob, tables: _Tables, summary: ClusterSummary, inputs: Inputs
) -> model.Report:
    ledger = ledger_from_dict(json.loads(inputs.path(job.ledger).read_bytes()))
    documents = tables.documents
    live = documents.filter(pc.not_equal(documents["state"], "bad_record"))
    is_kept = pc.equal(live["state"], "kept").to_numpy()
    survivors = live.filter(pc.equal(live["state"], "kept"))
    return model.Report(
        config_name=job.name,
        manifest_hash=job.identity,
        stages=job.stages,
        software=job.software,
        sources=tuple(model.SourceRow.from_ledger(*source) for source in ledger.sources.items()),
        reasons=tuple(_reasons(job, tables)),
        clusters=summary,
        decisions=tuple(_decisions(pq.read_table([inputs.path(s) for s in job.decisions]))),
        document_bytes=model.log_bins(live["text_bytes"].to_numpy(), is_kept),
        document_tokens=model.log_bins(survivors["tokens"].to_numpy()),
        splits=ledger.splits,
        mixture=ledger.mixture,
        notes=job.notes,
    )


def _reasons(job: ReportJob, tables: _Tables) -> Iterator[model.DropReason]:
    gone = tables.documents.filter(pc.not_equal(tables.documents["state"], "kept"))
    counts = gone.group_by(["state", "reason"], use_threads=False).aggregate(
        [("text_bytes", "sum"), ("text_bytes", "count")]
    )
    order = [("text_bytes_count", "descending"), ("reason", "ascending")]
    for row in counts.sort_by(order).to_pylist():
        chosen = pc.and_(
            pc.equal(gone["state"], row["state"]), pc.equal(gone["reason"], row["reason"])
        )
        rows = gone.filter(chosen).sort_by("doc_key").slice(0, _SAMPLES)
        yield model.DropReason(
            row["reason"],
            row["state"].replace("_", " "),
            row["text_bytes_count"],
            row["text_bytes_sum"],
            _samples(job, tables, rows),
        )


def _samples(job: ReportJob, tables: _Tables, rows: pa.Table) -> tuple[Sample, ...]:
    """Samples for rows of the documents table, in their order; of quarantined ones no text."""
    is_open = pc.not_equal(rows["state"], QUARANTINED)
    keys = rows.filter(is_open)["doc_key"].combine_chunks()
    excerpts = tables.texts(keys, _EXCERPT_BYTES)
    for shard in job.drops:
        table = pq.read_table(tables.inputs.path(shard), columns=["doc_key", "excerpt"])
        table = table.filter(pc.is_in(table["doc_key"], keys))
        excerpts |= dict(zip(*(column.to_pylist() for column in table.columns), strict=True))
    hidden = rows.filter(pc.invert(is_open))["doc_key"].to_pylist()
    excerpts |= dict.fromkeys(hidden, IN_QUARANTINE)
    return tuple(
        tables.sample(row, excerpt(excerpts.get(row["doc_key"], ""))) for row in rows.to_pylist()
    )


def _decisions(decisions: pa.Table) -> Iterator[model.Decision]:
    columns = ["rule", "decision", "reason"]
    counts = decisions.group_by(columns, use_threads=False).aggregate([("doc_key", "count")])
    order = [("doc_key_count", "descending"), ("rule", "ascending")]
    for row in counts.sort_by(order).to_pylist():
        yield model.Decision(row["rule"], row["decision"], row["doc_key_count"], row["reason"])


def report_stage(name: str, manifests: dict[str, StageManifest], notes: tuple[str, ...]) -> Stage:
    """The last stage."""
    software = {k: v for m in manifests.values() for k, v in m.fields["software"].items()}
    job = ReportJob(
        **_page_fields(name, manifests),
        stages=_identities(manifests),
        software=tuple(sorted(software.items())),
        ledger=views.AccountOutput(manifests["account"]).ledger,
        decisions=views.VerdictsOutput(manifests["verdicts"]).parts,
        drops=views.CleanOutput(manifests["clean"]).drops,
        notes=notes,
    )
    task, settings = Task("report", job, memory=_page_memory(manifests)), {"notes": list(notes)}
    return Stage(name="report", version=6, function=_report, tasks=(task,), settings=settings)
