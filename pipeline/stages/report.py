"""report.html and clusters.html: pure functions of the published tables and of the texts of what
they show. `prep dedup` has the page of clusters alone. Tables are read part by part.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
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
from pipeline.report.cluster_summary import Cluster, ClusterCounts
from pipeline.report.document_counts import (
    COLUMNS,
    DECISION_COLUMNS,
    DocumentCounts,
    Row,
    count_reasons,
)
from pipeline.report.model import Sample, excerpt
from pipeline.report.side_by_side import find_first_difference
from pipeline.runs import layout
from pipeline.runs.clusters import read_clusters
from pipeline.runs.held_texts import IN_QUARANTINE, QUARANTINED
from pipeline.runs.origin import make_recipe
from pipeline.runs.records import select_texts
from pipeline.runs.views.data_set import AccountOutput, DocumentsOutput, SourcesOutput
from pipeline.runs.views.documents import CleanOutput, VerdictsOutput
from pipeline.runs.views.duplicates import ClusterTableOutput

_CLUSTERS = 10
_MEMBERS = 5
_READ_BYTES = 1 << 18
"""What is read of a text; a difference behind it is not shown."""
_PAGE_MEMORY = 256 << 20
"""Bytes that a page, its excerpts and what is read for them take; a part of a table apart,"""
_PART_MEMORY = 16
"""so many bytes for each byte of it (docs/benchmarks.md)."""
_EXCERPT_BYTES = 1000


@dataclass(frozen=True, kw_only=True)
class ClusterReportJob:
    """The run's identity, what its dedup was, and the tables and texts its pages read; the clean
    tasks [first, last) behind each part of the documents."""

    name: str
    identity: str
    recipe: str
    bands: int
    documents: tuple[Shard, ...]
    tasks: tuple[tuple[int, int], ...]
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
    """The documents and clusters, counted; the names of raw shards, and samples of texts."""

    def __init__(self, job: ClusterReportJob, inputs: Inputs) -> None:
        self.job = job
        self.inputs = inputs
        sources = pq.read_table(inputs.path(job.sources), columns=["input", "path"]).to_pylist()
        self._files = [f"{row['input']}/{row['path']}" for row in sources]
        self.clusters, self.documents = count_tables(job.clusters, job.documents, inputs)

    def sample(self, row: Row, text: str) -> Sample:
        """A row of the documents with the beginning of its text."""
        file, line = self._files[row["path_id"]], row["line"] or row["byte_offset"]
        return Sample(row["doc_key"].hex(), row["source"], file, line, text)

    def texts(self, rows: Iterable[Row], most_bytes: int) -> dict[bytes, str]:
        """Texts of rows by key, cut after so many bytes; none of what is in quarantine."""
        texts: dict[bytes, str] = {}
        for shard, keys in self._select(self.job.texts, rows):
            documents = self.inputs.open(shard)
            is_asked = pc.is_in(documents.read(["doc_key"])["doc_key"], keys).to_numpy()
            table = documents.take(["doc_key", "text"], np.flatnonzero(is_asked))
            texts |= select_texts(table, keys, most_bytes)
        return texts

    def excerpts(self, drops: Sequence[Shard], rows: Iterable[Row]) -> dict[bytes, str]:
        """The beginnings of rows that did not become a document, by key."""
        excerpts: dict[bytes, str] = {}
        for shard, keys in self._select(drops, rows):
            table = pq.read_table(self.inputs.path(shard), columns=["doc_key", "excerpt"])
            found = table.filter(pc.is_in(table["doc_key"], keys))
            excerpts |= dict(zip(*(column.to_pylist() for column in found.columns), strict=True))
        return excerpts

    def _select(
        self, of_tasks: Sequence[Shard], rows: Iterable[Row]
    ) -> Iterator[tuple[Shard, pa.Array]]:
        """Those of these shards, one per clean task, that may have the rows, with their keys."""
        keys: dict[int, list[bytes]] = {}
        for row in rows:
            if row["state"] != QUARANTINED:
                keys.setdefault(row["part"], []).append(row["doc_key"])
        for part, of_part in sorted(keys.items()):
            for shard in of_tasks[slice(*self.job.tasks[part])]:
                yield shard, pa.array(of_part, pa.binary(ids.KEY_BYTES))


def count_tables(
    clusters: Sequence[Shard], documents: Sequence[Shard], inputs: Inputs
) -> tuple[ClusterCounts, DocumentCounts]:
    """What the pages say of the parts of both tables, with the rows that they show."""
    cluster_counts = ClusterCounts(_CLUSTERS, _MEMBERS)
    for shard in clusters:
        cluster_counts.add(read_clusters(inputs.path(shard)))
    document_counts = DocumentCounts(_shown_keys(cluster_counts))
    for part, shard in enumerate(documents):
        with pq.ParquetFile(inputs.path(shard)) as file:
            document_counts.add(part, file.read(COLUMNS))
    return cluster_counts, document_counts


def _shown_keys(clusters: ClusterCounts) -> pa.Array:
    """Keys of the documents of this run that the page of clusters shows."""
    keys = {row["member"] for _, members in clusters.largest for row in members}
    keys |= {bytes.fromhex(cluster.kept) for cluster, _ in clusters.largest if not cluster.index}
    return pa.array(sorted(keys), pa.binary(ids.KEY_BYTES))


@dataclass(frozen=True)
class _Document:
    """What the page needs of one document; of a quarantined one no text."""

    sample: Sample
    state: str
    text: str
    whole: bool


def _show_clusters(tables: _Tables) -> tuple[html.ClusterExcerpt, ...]:
    """The largest clusters with their least similar members; reads the texts of these only."""
    rows = tables.documents.rows
    texts = tables.texts(rows.values(), _READ_BYTES)
    documents = {}
    for key, row in rows.items():
        hidden = row["state"] == QUARANTINED
        text = "" if hidden else texts[key]
        sample = tables.sample(row, IN_QUARANTINE if hidden else excerpt(text))
        whole = not hidden and row["text_bytes"] <= _READ_BYTES
        documents[key] = _Document(sample, row["state"], text, whole)
    return tuple(
        _describe_cluster(cluster, members, documents)
        for cluster, members in tables.clusters.largest
    )


def _describe_cluster(
    cluster: Cluster, members: list[dict[str, Any]], documents: dict[bytes, _Document]
) -> html.ClusterExcerpt:
    kept = None if cluster.index else documents[bytes.fromhex(cluster.kept)]
    excerpts = tuple(_member(row, documents[row["member"]], kept) for row in members)
    if kept is None:
        return html.ClusterExcerpt(cluster, None, "kept", excerpts)
    return html.ClusterExcerpt(cluster, kept.sample, kept.state, excerpts)


def _member(row: dict[str, Any], document: _Document, kept: _Document | None) -> html.MemberExcerpt:
    different = None
    if kept and QUARANTINED not in (kept.state, document.state):
        different = find_first_difference(kept.text, document.text)
    kept_passage, passage = different or ((), ())
    equal = kept is not None and different is None and kept.whole and document.whole
    return html.MemberExcerpt(
        sample=document.sample,
        kind=row["kind"],
        state=row["member_state"],
        bands=tuple(row["bands"]),
        estimate=row["estimate"],
        jaccard=row["jaccard"],
        equal=equal,
        kept_passage=kept_passage,
        passage=passage,
    )


def _cluster_page(tables: _Tables) -> Output:
    job = tables.job
    page = html.ClusterPage(
        config_name=job.name,
        manifest_hash=job.identity,
        recipe=job.recipe,
        bands=job.bands,
        summary=tables.clusters.summarize(),
        shares=tables.documents.shares() if job.recipe else (),
        clusters=_show_clusters(tables),
    )
    return bytes_output(layout.CLUSTER_REPORT, html.render_clusters(page))


def _cluster_report(job: ClusterReportJob, inputs: Inputs) -> Result:
    return Result((_cluster_page(_Tables(job, inputs)),))


def _page_fields(name: str, manifests: dict[str, StageManifest]) -> dict[str, Any]:
    """The fields of a ClusterReportJob; the identity is the hash over all stages before it."""
    recipe = make_recipe(manifests)
    documents = DocumentsOutput(manifests["documents"])
    clean = CleanOutput(manifests["clean"])
    return {
        "name": name,
        "identity": fingerprint_of({"stages": _identities(manifests)}),
        "recipe": recipe.words if recipe else "",
        "bands": recipe.preset.bands if recipe else 0,
        "documents": documents.parts,
        "tasks": tuple((tasks.start, tasks.stop) for tasks in documents.tasks_of_parts(clean)),
        "clusters": ClusterTableOutput(manifests["cluster_table"]).parts,
        "sources": SourcesOutput(manifests["sources"]).table,
        "texts": clean.documents,
    }


def _identities(manifests: dict[str, StageManifest]) -> tuple[tuple[str, str, str], ...]:
    return tuple((m.stage, m.fingerprint, m.content_hash) for m in manifests.values())


def _page_memory(job: ClusterReportJob) -> int:
    return _PAGE_MEMORY + _PART_MEMORY * max(s.size for s in (*job.documents, *job.clusters))


def cluster_report_stage(name: str, manifests: dict[str, StageManifest]) -> Stage:
    """The page of clusters alone."""
    job = ClusterReportJob(**_page_fields(name, manifests))
    task = Task("page of clusters", job, memory=_page_memory(job))
    return Stage(name="cluster_report", version=6, function=_cluster_report, tasks=(task,))


def _report(job: ReportJob, inputs: Inputs) -> Result:
    tables = _Tables(job, inputs)
    report = html.render_report(_report_page(job, tables))
    return Result((bytes_output(layout.REPORT, report), _cluster_page(tables)))


def _report_page(job: ReportJob, tables: _Tables) -> model.Report:
    inputs, documents = tables.inputs, tables.documents
    decisions = (
        pq.read_table(inputs.path(shard), columns=DECISION_COLUMNS) for shard in job.decisions
    )
    ledger = ledger_from_dict(json.loads(inputs.path(job.ledger).read_bytes()))
    return model.Report(
        config_name=job.name,
        manifest_hash=job.identity,
        stages=job.stages,
        software=job.software,
        sources=tuple(model.SourceRow.from_ledger(*source) for source in ledger.sources.items()),
        reasons=tuple(_reasons(job, tables)),
        clusters=tables.clusters.summarize(),
        decisions=tuple(count_reasons(decisions)),
        document_bytes=documents.bytes.bins(),
        document_tokens=documents.tokens.bins(),
        splits=ledger.splits,
        mixture=ledger.mixture,
        notes=job.notes,
    )


def _reasons(job: ReportJob, tables: _Tables) -> Iterator[model.DropReason]:
    for state, reason, loss in tables.documents.losses():
        texts = tables.texts(loss.examples, _EXCERPT_BYTES)
        texts |= tables.excerpts(job.drops, loss.examples)
        samples = []
        for row in loss.examples:
            hidden = row["state"] == QUARANTINED
            text = IN_QUARANTINE if hidden else texts.get(row["doc_key"], "")
            samples.append(tables.sample(row, excerpt(text)))
        words = state.replace("_", " ")
        yield model.DropReason(reason, words, loss.records, loss.bytes, tuple(samples))


def report_stage(name: str, manifests: dict[str, StageManifest], notes: tuple[str, ...]) -> Stage:
    """The last stage."""
    software = {k: v for m in manifests.values() for k, v in m.fields["software"].items()}
    job = ReportJob(
        **_page_fields(name, manifests),
        stages=_identities(manifests),
        software=tuple(sorted(software.items())),
        ledger=AccountOutput(manifests["account"]).ledger,
        decisions=VerdictsOutput(manifests["verdicts"]).parts,
        drops=CleanOutput(manifests["clean"]).drops,
        notes=notes,
    )
    task, settings = Task("report", job, memory=_page_memory(job)), {"notes": list(notes)}
    return Stage(name="report", version=7, function=_report, tasks=(task,), settings=settings)
