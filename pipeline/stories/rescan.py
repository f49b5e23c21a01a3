"""`prep rescan`: look through the documents of a finished run for works that were registered later.

The run stays as it is. What is found is in RUN/rescans/NAME/, evidence and what a policy would
have decided, and counts for `prep trace` and `prep takedown` like evidence of the run itself.
"""

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.config.cluster import LOCAL, Cluster
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.manifest import StageManifest, read_manifest
from pipeline.engine.progress import Progress
from pipeline.engine.runner import manifest_path
from pipeline.engine.stage import Stage, borrow
from pipeline.runs import layout
from pipeline.runs.run_directory import read_finished, read_stage
from pipeline.runs.views.documents import (
    CleanOutput,
    DecisionsOutput,
    FindingsOutput,
    QuarantineOutput,
)
from pipeline.screening.policy.rules import Policy, find_policy, load_policy
from pipeline.screening.registry import Registry, combine, load_registry
from pipeline.stages.decisions import decisions_stage, verdicts_stage
from pipeline.stages.findings import screen
from pipeline.stages.findings.withheld import NAME as QUARANTINE
from pipeline.stories.loop import Manifest, StageRecord, StoryRun

STORY = "rescan"
DOCUMENTS = "documents"
MB_PER_SECOND = 60.0
"""Text that one core looks through, measured by `benchmarks/provenance`."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class RescanRequest:
    """What is asked for: the run, its clean stage and its quarantine, the registry, where the
    result goes."""

    directory: Path
    config: str
    clean: CleanOutput
    quarantine: QuarantineOutput | None
    registry: Registry
    policy: Policy
    out: Path

    @property
    def bytes(self) -> int:
        """Bytes of documents that are looked through."""
        return sum(shard.size for shard in self.clean.documents)

    @property
    def cpu_seconds(self) -> float:
        """About how long one core takes, from the rate that was measured."""
        return self.bytes / 1e6 / MB_PER_SECOND


@dataclass(frozen=True, kw_only=True)
class MatchedWork:
    """A work and the documents of the run in which something of it was found: how many, how many
    of them were kept, and the tokens that these have."""

    work_id: str
    title: str
    documents: int
    kept: int
    tokens: int
    detectors: tuple[str, ...]


def plan_rescan(
    directory: Path, registries: list[Path], policy: str = "builtin:default", name: str = ""
) -> RescanRequest:
    """Check what is asked for; writes nothing. Raises InputError when the run or its documents are
    not there, ConfigError for a name that cannot be one."""
    manifest = read_finished(directory)
    clean = CleanOutput(read_stage(directory, "clean"))
    gone = [s.path for s in clean.documents if not (directory / s.path).is_file()]
    if gone:
        raise InputError(f"{directory}: {gone[0]} is missing; a rescan reads the cleaned text")
    registry = combine([load_registry(path) for path in registries])
    name = name or f"{registry.name}-{registry.content_hash[:8]}".replace("+", "-").replace(" ", "")
    if not _NAME.fullmatch(name):
        raise ConfigError(f"--name {name!r}: expected letters, digits, dots and dashes, 64 at most")
    out = directory / layout.RESCANS / name
    chosen = load_policy(find_policy(policy))
    quarantine = read_manifest(manifest_path(directory, QUARANTINE))
    return RescanRequest(
        directory=directory,
        config=str(manifest["config"]),
        clean=clean,
        quarantine=QuarantineOutput(quarantine) if quarantine else None,
        registry=registry,
        policy=chosen,
        out=out,
    )


def rescan_run(
    request: RescanRequest,
    workers: int | None = None,
    *,
    cluster: Cluster | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Look through the documents; finished work is reused. Raises the errors of
    `pipeline.stories.run.run_preparation`."""
    work = StoryRun(
        out=request.out,
        config=request.config,
        story=STORY,
        size=request.bytes,
        workers=workers,
        cluster=cluster or LOCAL,
        progress=progress or Progress(quiet=True),
    )
    return work.hold(partial(_tell, request))


def _tell(request: RescanRequest, run: StageRecord) -> None:
    def do(stage: Stage) -> StageManifest:
        return run(borrow(stage, request.directory.resolve(), (DOCUMENTS, layout.QUARANTINE)))

    nothing = screen.Lists(origins=(), artefacts=(), captures=())
    places, content = request.registry.directories, request.registry.content_hash
    looked_for = screen.find_registry_shards(do(screen.registry_stage(nothing, places, content)))
    findings = FindingsOutput(
        do(screen.rescan_stage(request.clean, looked_for, request.quarantine))
    )
    decided = DecisionsOutput(
        do(decisions_stage(request.clean, request.policy, looked_for.works, findings))
    )
    do(screen.evidence_stage(decided))
    do(verdicts_stage(request.policy, decided, do))


def list_matched_works(request: RescanRequest) -> list[MatchedWork]:
    """What a finished rescan found, by work, the one with most tokens first."""
    columns, is_of_work = ["doc_key", "detector", "work_id"], pc.field("work_id") != ""
    evidence = pq.read_table(request.out / layout.EVIDENCE, columns=columns, filters=is_of_work)
    table = pq.read_table(
        request.directory / layout.DOCUMENTS,
        columns=["doc_key", "state", "tokens"],
        filters=pc.field("doc_key").isin(pc.unique(evidence["doc_key"])),
    )
    documents = {row["doc_key"]: (row["state"], row["tokens"]) for row in table.to_pylist()}
    titles = dict(
        zip(*(request.registry.works[c].to_pylist() for c in ("work_id", "title_raw")), strict=True)
    )
    names = sorted(pc.unique(evidence["work_id"]).to_pylist())
    works = [_describe_match(work, titles, evidence, documents) for work in names]
    return sorted(works, key=lambda work: (-work.tokens, -work.documents, work.work_id))


def _describe_match(
    work: str, titles: dict[str, str], evidence: pa.Table, documents: dict[bytes, tuple[str, int]]
) -> MatchedWork:
    rows = evidence.filter(pc.equal(evidence["work_id"], work))
    ends = [documents[key] for key in pc.unique(rows["doc_key"]).to_pylist()]
    tokens = [count for state, count in ends if state == "kept"]
    detectors = tuple(sorted(pc.unique(rows["detector"]).to_pylist()))
    return MatchedWork(
        work_id=work,
        title=titles.get(work, ""),
        documents=len(ends),
        kept=len(tokens),
        tokens=sum(tokens),
        detectors=detectors,
    )
