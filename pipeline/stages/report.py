"""report.html and clusters.html: pure functions of the published tables."""

import json
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.core.ledger import Ledger as RunLedger
from pipeline.core.ledger import MixtureLedger, ledger_from_dict
from pipeline.core.manifest import Shard, StageManifest, fingerprint_of
from pipeline.provenance.cluster_summary import ClusterSummary, summarize
from pipeline.provenance.quarantined import IN_QUARANTINE, QUARANTINED
from pipeline.provenance.recipe import recipe_of
from pipeline.provenance.records import texts_of
from pipeline.report import clusters, html, model
from pipeline.stage import Inputs, Result, Stage, Task, bytes_output
from pipeline.stages.cluster_page import ClusterTables, load, shown_clusters, source_shares

_SAMPLES = 3
_EXCERPT_BYTES = 1000
_COLUMNS = ["doc_key", "source", "path_id", "line", "byte_offset", "text_bytes", "state", "reason",
            "representative", "tokens"]  # fmt: skip
_STATE_WORDS = {"bad_record": "bad record", "dropped": "dropped", "quarantined": "quarantined",
                "duplicate": "duplicate"}  # fmt: skip


@dataclass(frozen=True)
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
        self.documents = pq.read_table(inputs.path(job.documents), columns=_COLUMNS)
        self.decisions = pq.read_table(inputs.path(job.decisions))
        sources = pq.read_table(inputs.path(job.sources), columns=["input", "path"]).to_pylist()
        self.files = [f"{row['input']}/{row['path']}" for row in sources]

    def samples(self, rows: pa.Table) -> tuple[model.Sample, ...]:
        """Samples for rows of the documents table, in their order; of quarantined ones no text."""
        open_ones = rows.filter(pc.not_equal(rows["state"], QUARANTINED))
        excerpts = self._excerpts(open_ones["doc_key"].combine_chunks())
        hidden = rows.filter(pc.equal(rows["state"], QUARANTINED))["doc_key"].to_pylist()
        excerpts |= dict.fromkeys(hidden, IN_QUARANTINE)
        return tuple(
            model.Sample(
                row["doc_key"].hex(), row["source"], self.files[row["path_id"]],
                row["line"] or row["byte_offset"],
                model.excerpt(excerpts.get(row["doc_key"], "")),
            )
            for row in rows.to_pylist()
        )  # fmt: skip

    def _excerpts(self, keys: pa.Array) -> dict[bytes, str]:
        found: dict[bytes, str] = {}
        for shard in self._job.texts:
            found |= texts_of(self._inputs.table(shard, ["doc_key", "text"]), keys, _EXCERPT_BYTES)
        for shard in self._job.drops:
            table = pq.read_table(self._inputs.path(shard), columns=["doc_key", "excerpt"])
            table = table.filter(pc.is_in(table["doc_key"], keys))
            found |= dict(
                zip(table["doc_key"].to_pylist(), table["excerpt"].to_pylist(), strict=True)
            )
        return found


def _report(job: ReportJob, inputs: Inputs) -> Result:
    tables = _Tables(job, inputs)
    found = load(inputs.path(job.clusters), tables.documents, tables.files)
    summary = summarize(found.clusters)
    report = html.render(_report_page(job, tables, summary, inputs))
    page = clusters.render(_cluster_page(job, tables, found, summary, inputs))
    outputs = (bytes_output(layout.REPORT, report), bytes_output(layout.CLUSTER_REPORT, page))
    return Result(outputs)


def _cluster_page(
    job: ReportJob, tables: _Tables, found: ClusterTables, summary: ClusterSummary, inputs: Inputs
) -> clusters.ClusterPage:
    return clusters.ClusterPage(
        job.name, job.identity, job.recipe, job.bands, summary,
        source_shares(tables.documents) if job.recipe else (),
        shown_clusters(found, job.texts, inputs),
    )  # fmt: skip


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
        stages=tuple(model.StageIdentity(*stage) for stage in job.stages),
        software=job.software,
        ledger=model.RecordLedger(tuple(_source_rows(ledger))),
        reasons=tuple(_reasons(tables)),
        clusters=summary,
        decisions=tuple(_decisions(tables)),
        document_bytes=model.log_bins(live["text_bytes"].to_numpy(), kept),
        document_tokens=model.log_bins(survivors["tokens"].to_numpy()),
        splits=tuple(
            model.Split(
                name, s.documents, s.rows, s.max_sequence_length, s.tokens, s.padding, s.format
            )
            for name, s in ledger.splits.items()
        ),
        mixture=tuple(_mixture_rows(ledger)),
        notes=job.notes,
    )


def _asked(m: MixtureLedger) -> str:
    """What the config asked of a source: epochs, or a share of the tokens."""
    if m.asked_share is not None:
        return f"{m.asked_share:.2%}"
    return "1 epoch" if m.asked_epochs == 1 else f"{m.asked_epochs:g} epochs"


def _mixture_rows(ledger: RunLedger) -> list[model.MixtureRow]:
    return [
        model.MixtureRow(
            name, _asked(m), m.epochs, m.documents, m.tokens, m.stream_documents, m.stream_tokens,
        )
        for name, m in ledger.mixture.items()
    ]  # fmt: skip


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
        name, stages, tuple(sorted(software.items())), fingerprint_of({"stages": stages}),
        recipe.words if recipe else "", recipe.preset.bands if recipe else 0,
        manifests["account"].find(layout.LEDGER), manifests["documents"].find(layout.DOCUMENTS),
        manifests["keep"].find(layout.CLUSTERS), verdicts.find(layout.DECISIONS),
        manifests["sources"].find(layout.SOURCES),
        clean.below("documents"),
        clean.below("drops"), notes,
    )  # fmt: skip
    return Stage("report", 5, _report, (Task("report", job),), {"notes": list(notes)})
