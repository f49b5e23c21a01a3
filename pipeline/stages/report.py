"""report.html: a pure function of the published tables."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.core.ledger import Ledger as RunLedger
from pipeline.core.ledger import ledger_from_dict
from pipeline.core.manifest import Shard, StageManifest, fingerprint_of
from pipeline.report import html, model
from pipeline.stage import Inputs, Result, Stage, Task, bytes_output

_SAMPLES = 3
_LARGEST = 5
_STATE_WORDS = {"bad_record": "bad record", "dropped": "dropped", "quarantined": "quarantined",
                "duplicate": "duplicate"}  # fmt: skip


@dataclass(frozen=True)
class ReportJob:
    """The run's identity and every table the report reads."""

    name: str
    stages: tuple[tuple[str, str, str], ...]
    software: tuple[tuple[str, str], ...]
    identity: str
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
        self.documents = pq.read_table(inputs.path(job.documents))
        self.clusters = pq.read_table(inputs.path(job.clusters))
        self.decisions = pq.read_table(inputs.path(job.decisions))
        self.paths = pq.read_table(inputs.path(job.sources), columns=["path"])["path"].to_pylist()

    def samples(self, rows: pa.Table) -> tuple[model.Sample, ...]:
        """Samples for rows of the documents table, in their order."""
        excerpts = self._excerpts(rows["doc_key"].combine_chunks())
        return tuple(
            model.Sample(
                row["doc_key"].hex(), row["source"], self.paths[row["path_id"]], row["line"],
                model.excerpt(excerpts.get(row["doc_key"], "")),
            )
            for row in rows.to_pylist()
        )  # fmt: skip

    def _excerpts(self, keys: pa.Array) -> dict[bytes, str]:
        found: dict[bytes, str] = {}
        for shard in self._job.texts:
            table = self._inputs.table(shard, ["doc_key", "text"])
            for row in np.flatnonzero(pc.is_in(table["doc_key"], keys).to_numpy()).tolist():
                text = table["text"][row].as_buffer()[:1000].to_pybytes().decode(errors="ignore")
                found[table["doc_key"][row].as_py()] = text
        for shard in self._job.drops:
            table = pq.read_table(self._inputs.path(shard), columns=["doc_key", "excerpt"])
            table = table.filter(pc.is_in(table["doc_key"], keys))
            found |= dict(
                zip(table["doc_key"].to_pylist(), table["excerpt"].to_pylist(), strict=True)
            )
        return found


def _report(job: ReportJob, inputs: Inputs) -> Result:
    import json

    tables = _Tables(job, inputs)
    ledger = ledger_from_dict(json.loads(inputs.path(job.ledger).read_bytes()))
    documents = tables.documents
    live = documents.filter(pc.not_equal(documents["state"], "bad_record"))
    kept = pc.equal(live["state"], "kept").to_numpy()
    survivors = live.filter(pc.equal(live["state"], "kept"))
    report = model.Report(
        config_name=job.name,
        manifest_hash=job.identity,
        stages=tuple(model.StageIdentity(*stage) for stage in job.stages),
        software=job.software,
        ledger=model.Ledger(tuple(_source_rows(ledger))),
        reasons=tuple(_reasons(tables)),
        cluster_sizes=tuple(_cluster_sizes(tables)),
        largest_clusters=tuple(_largest(tables)),
        decisions=tuple(_decisions(tables)),
        document_bytes=model.log_bins(live["text_bytes"].to_numpy(), kept),
        document_tokens=model.log_bins(survivors["tokens"].to_numpy()),
        splits=tuple(
            model.Split(name, s.documents, s.rows, s.max_sequence_length, s.tokens, s.padding)
            for name, s in ledger.splits.items()
        ),
        notes=job.notes,
    )
    return Result((bytes_output(layout.REPORT, html.render(report)),))


def _source_rows(ledger: RunLedger) -> list[model.SourceRow]:
    return [
        model.SourceRow(
            name, s.records.documents, sum(t.documents for t in s.bad.values()),
            {reason: t.documents for reason, t in s.dropped.items()}, s.quarantined.documents,
            s.duplicates.documents, s.kept.documents, s.documents.bytes, s.kept.bytes, s.tokens,
        )
        for name, s in ledger.sources.items()
    ]  # fmt: skip


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
                row["reason"], _STATE_WORDS[row["state"]], row["text_bytes_count"],
                row["text_bytes_sum"], tables.samples(rows),
            )
        )  # fmt: skip
    return reasons


def _cluster_sizes(tables: _Tables) -> list[model.ClusterSize]:
    per_kept = tables.clusters.group_by("kept", use_threads=False).aggregate([("member", "count")])
    sizes, counts = np.unique(per_kept["member_count"].to_numpy() + 1, return_counts=True)
    return [model.ClusterSize(int(s), int(c)) for s, c in zip(sizes, counts, strict=True)]


def _largest(tables: _Tables) -> list[model.Cluster]:
    per_kept = tables.clusters.group_by("kept", use_threads=False).aggregate([("member", "count")])
    order = [("member_count", "descending"), ("kept", "ascending")]
    clusters = []
    for row in per_kept.sort_by(order).slice(0, _LARGEST).to_pylist():
        rows = tables.documents.filter(
            pc.equal(tables.documents["doc_key"], pa.scalar(row["kept"], pa.binary(16)))
        )
        clusters.append(model.Cluster(row["member_count"] + 1, tables.samples(rows)[0]))
    return clusters


def _decisions(tables: _Tables) -> list[model.Decision]:
    columns = ["rule", "decision", "reason"]
    counts = tables.decisions.group_by(columns, use_threads=False).aggregate([("doc_key", "count")])
    rows = counts.sort_by([("doc_key_count", "descending"), ("rule", "ascending")]).to_pylist()
    return [model.Decision(r["rule"], r["decision"], r["doc_key_count"], r["reason"]) for r in rows]


def report_stage(name: str, manifests: dict[str, StageManifest], notes: tuple[str, ...]) -> Stage:
    """The last stage; its identity is the hash over all stages before it."""
    stages = tuple((m.stage, m.fingerprint, m.content_hash) for m in manifests.values())
    software = {k: v for m in manifests.values() for k, v in m.fields["software"].items()}
    evidence, clean = manifests["evidence"], manifests["clean"]
    job = ReportJob(
        name, stages, tuple(sorted(software.items())), fingerprint_of({"stages": stages}),
        manifests["account"].find(layout.LEDGER), manifests["documents"].find(layout.DOCUMENTS),
        manifests["keep"].find(layout.CLUSTERS), evidence.find(layout.DECISIONS),
        manifests["sources"].find(layout.SOURCES),
        clean.below("documents"),
        clean.below("drops"), notes,
    )  # fmt: skip
    return Stage("report", 1, _report, (Task("report", job),))
