"""clusters.html of `prep dedup`: the page of duplicate clusters, where there is no other report."""

from dataclasses import dataclass

import pyarrow.parquet as pq

from pipeline import layout
from pipeline.core.manifest import Shard, StageManifest, fingerprint_of
from pipeline.provenance.cluster_summary import summarize
from pipeline.provenance.recipe import recipe_of
from pipeline.report.clusters import ClusterPage, render
from pipeline.stage import Inputs, Result, Stage, Task, bytes_output
from pipeline.stages.cluster_page import load, shown_clusters, source_shares

_COLUMNS = ["doc_key", "source", "path_id", "line", "byte_offset", "text_bytes", "state",
            "representative"]  # fmt: skip


@dataclass(frozen=True)
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
    sources = pq.read_table(inputs.path(job.sources), columns=["input", "path"]).to_pylist()
    files = [f"{row['input']}/{row['path']}" for row in sources]
    found = load(inputs.path(job.clusters), documents, files)
    page = ClusterPage(
        job.name, job.identity, job.recipe, job.bands, summarize(found.clusters),
        source_shares(documents), shown_clusters(found, job.texts, inputs),
    )  # fmt: skip
    return Result((bytes_output(layout.CLUSTER_REPORT, render(page)),))


def cluster_report_stage(name: str, manifests: dict[str, StageManifest]) -> Stage:
    """The page; its identity is the hash over all stages before it."""
    stages = tuple((m.stage, m.fingerprint, m.content_hash) for m in manifests.values())
    recipe = recipe_of(manifests)
    job = ClusterReportJob(
        name, fingerprint_of({"stages": stages}), recipe.words if recipe else "",
        recipe.preset.bands if recipe else 0, manifests["documents"].find(layout.DOCUMENTS),
        manifests["keep"].find(layout.CLUSTERS), manifests["sources"].find(layout.SOURCES),
        manifests["clean"].below("documents"),
    )  # fmt: skip
    return Stage("cluster_report", 4, _cluster_report, (Task("page of clusters", job),))
