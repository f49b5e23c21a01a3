"""Screen: what every detector finds in every document. It never decides. Reviews: what people
decided about single documents, as evidence.
"""

import json
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import pyarrow as pa

from pipeline.core.errors import FunctionError, escape_text
from pipeline.core.manifest import Shard, StageManifest
from pipeline.core.plug_ins import describe_failure
from pipeline.engine.stage import Inputs, Result, Stage, Task, arrow_output, parquet_output
from pipeline.filters.custom.calls import describe_rows, document_batches
from pipeline.runs import layout
from pipeline.runs.records import quarantine_path, with_texts
from pipeline.screening.detectors import licences, markers, notices
from pipeline.screening.detectors.catalogue import DETECTORS
from pipeline.screening.detectors.optout import OptoutSettings, detect_optouts
from pipeline.screening.detectors.origin import (
    ArtefactSettings,
    OriginSettings,
    detect_artefacts,
    detect_origin,
    file_digest,
)
from pipeline.screening.detectors.plug_ins import CustomDetector, find_problem, load_detector
from pipeline.screening.detectors.sweep import SweepHits, sweep_all
from pipeline.screening.detectors.titles import detect_titles
from pipeline.screening.evidence import (
    BATCH_COLUMNS,
    FINDINGS,
    Finding,
    evidence_rows,
    findings_table,
)
from pipeline.screening.fingerprints.find import detect_passages
from pipeline.screening.reviews import Review, review_findings
from pipeline.sources.remote import is_url
from pipeline.stages.plan import Reading
from pipeline.stages.registry import RegistryShards, SearchTargets


@dataclass(frozen=True)
class RawFile:
    """A raw shard that documents were read from: the name they carry, what it holds, where it is
    (empty: not on this machine, so that no digest of it is compared)."""

    path_id: int
    name: str
    hash: str
    location: str


@dataclass(frozen=True, kw_only=True)
class ScreenJob:
    """One documents shard, the raw shards behind it, and what is looked for; `works_only`: nothing
    but works of the registries; `held`: the shard of quarantine/ that has texts of it."""

    index: int
    documents: Shard
    files: tuple[RawFile, ...]
    looked_for: RegistryShards
    works_only: bool = False
    held: Shard | None = None


def _screen(job: ScreenJob, inputs: Inputs) -> Result:
    batch = inputs.table(job.documents, ["doc_id", *BATCH_COLUMNS])
    if job.held is not None:
        batch = with_texts(batch, inputs.table(job.held))
    search = _Search(job, batch, _targets(job.looked_for, inputs))
    for name, entry in DETECTORS.items():
        if name in _DETECT and (entry.names_works or not job.works_only):
            search.found[name] = _DETECT[name](search)
    found = list(search.found.items())
    output = arrow_output(f"screen/{job.index:06d}.evidence.arrow", evidence_rows(batch, found))
    counts = {name: len(table) for name, table in found if len(table)}
    return Result((output,), {"documents": len(batch), "evidence": counts})


@lru_cache(maxsize=1)
def _targets(found: RegistryShards, inputs: Inputs) -> SearchTargets:
    return SearchTargets(found, inputs)


class _Search:
    """A documents shard on its way through the detectors, with what they found so far."""

    def __init__(self, job: ScreenJob, batch: pa.Table, targets: SearchTargets) -> None:
        self.job, self.batch, self.targets = job, batch, targets
        self.found: dict[str, pa.Table] = {}

    @cached_property
    def markers(self) -> markers.MarkerSettings:
        """The listed origins, as texts name them."""
        return markers.MarkerSettings(self.targets.lists.origins)

    @cached_property
    def swept(self) -> SweepHits:
        """One pass over the texts for the needles of all detectors that have some."""
        groups = {notices.IDENTIFIER_GROUP: notices.IDENTIFIER_NEEDLES}
        if not self.job.works_only:
            groups[markers.GROUP] = self.markers.needles
            groups[notices.NOTICE_GROUP] = notices.NOTICE_NEEDLES
            groups[licences.GROUP] = licences.NEEDLES
        return sweep_all(self.batch["text"], groups)


def _detect_artefacts(search: _Search) -> pa.Table:
    settings = ArtefactSettings(search.targets.lists.artefacts)
    if settings.compares_files:
        files = {f.path_id: file_digest(Path(f.location)) for f in search.job.files if f.location}
        settings = replace(settings, files=files)
    return detect_artefacts(search.batch, settings)


def _detect_origins(search: _Search) -> pa.Table:
    names = {file.path_id: file.name for file in search.job.files}
    return detect_origin(search.batch, OriginSettings(search.targets.lists.origins, names))


def _detect_markers(search: _Search) -> pa.Table:
    return markers.detect_markers(search.batch, search.markers, search.swept)


def _detect_identifiers(search: _Search) -> pa.Table:
    settings = notices.IdentifierSettings(search.targets.numbers)
    return notices.detect_identifiers(search.batch, settings, search.swept)


def _detect_titles(search: _Search) -> pa.Table:
    index = search.targets.titles
    return FINDINGS.empty_table() if index is None else detect_titles(search.batch, index)


def _detect_passages(search: _Search) -> pa.Table:
    index = search.targets.index
    return FINDINGS.empty_table() if index is None else detect_passages(search.batch, index)


def _detect_notices(search: _Search) -> pa.Table:
    return notices.detect_notices(search.batch, search.swept)


def _detect_licences(search: _Search) -> pa.Table:
    return licences.detect_licences(search.batch, search.swept)


def _detect_optouts(search: _Search) -> pa.Table:
    of_works = [t for name, t in search.found.items() if DETECTORS[name].names_works]
    return detect_optouts(search.batch, OptoutSettings(search.targets.captures), of_works)


_DETECT: Mapping[str, Callable[[_Search], pa.Table]] = {
    "artefact": _detect_artefacts,
    "origin": _detect_origins,
    "marker": _detect_markers,
    "identifier": _detect_identifiers,
    "title_author": _detect_titles,
    "text_match": _detect_passages,
    "notice": _detect_notices,
    "licence": _detect_licences,
    "optout": _detect_optouts,
}
_ABSENT = {name for name, entry in DETECTORS.items() if entry.needs != "reviews"} ^ set(_DETECT)
if _ABSENT:
    raise TypeError(f"detectors declared and called are not the same: {', '.join(_ABSENT)}")


def screen_stage(clean: StageManifest, reading: Reading, looked_for: RegistryShards) -> Stage:
    """The stage that looks at every document."""
    hashes = {(i, p): digest for t in clean.tasks for i, p, _, digest in t.counters["inputs"]}
    tasks = []
    for index, shard in enumerate(clean.below("documents")):
        parts = {part.path_id: part.file for part in reading.tasks[index]}
        files = tuple(
            RawFile(
                number,
                f"{f.input}/{f.path}",
                hashes[f.input, f.path],
                "" if is_url(f.location) else f.location,
            )
            for number, f in parts.items()
        )
        job = ScreenJob(index=index, documents=shard, files=files, looked_for=looked_for)
        inputs = (shard, *looked_for.shards)
        tasks.append(Task(f"screening of {shard.path}", job, inputs, shard.size))
    return Stage(name="screen", version=3, function=_screen, tasks=tuple(tasks))


def rescan_stage(
    clean: StageManifest, looked_for: RegistryShards, quarantine: StageManifest | None = None
) -> Stage:
    """The same for documents of a finished run, looking for works of registries only; texts that
    are in quarantine are read there."""
    held = {shard.path: shard for shard in quarantine.shards} if quarantine else {}
    tasks = []
    for index, shard in enumerate(clean.below("documents")):
        found = held.get(quarantine_path(shard.path))
        job = ScreenJob(
            index=index,
            documents=shard,
            files=(),
            looked_for=looked_for,
            works_only=True,
            held=found,
        )
        inputs = (shard, *((found,) if found else ()), *looked_for.shards)
        tasks.append(Task(f"looking through {shard.path}", job, inputs, shard.size))
    return Stage(name="screen", version=3, function=_screen, tasks=tuple(tasks))


@dataclass(frozen=True)
class CustomDetectorsJob:
    """One documents shard, the detectors of plug-ins in order, and the names of the raw shards by
    `path_id`."""

    index: int
    documents: Shard
    detectors: tuple[CustomDetector, ...]
    files: tuple[tuple[int, str], ...]


def _detect_custom(job: CustomDetectorsJob, inputs: Inputs) -> Result:
    table = inputs.table(job.documents)
    batches = list(document_batches(table, dict(job.files)))
    found = [(own.name, detect_with(own, batches)) for own in job.detectors]
    evidence = evidence_rows(table, found, _CUSTOM_LETTER)
    output = arrow_output(f"screen/{job.index:06d}.custom.evidence.arrow", evidence)
    counts = {name: len(findings) for name, findings in found if len(findings)}
    return Result((output,), {"documents": len(table), "evidence": counts})


def detect_with(own: CustomDetector, batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """FINDINGS of a plug-in's detector. Raises FunctionError when it fails, or yields what its
    class does not declare."""
    detector, findings, first = load_detector(own), list[Finding](), 0
    for batch in batches:
        try:
            of_batch = list(detector.detect(batch))
        except (Exception, SystemExit) as error:
            failure = describe_failure(error)
            raise FunctionError(
                f"{own.plug_in.shown} failed on {describe_rows(batch)}: {failure}"
            ) from error
        for finding in of_batch:
            if problem := find_problem(finding, detector, batch):
                raise FunctionError(
                    f"{own.plug_in.shown} found {escape_text(repr(finding), 300)} in "
                    f"{describe_rows(batch)}: {problem}"
                )
            findings.append(replace(finding, row=finding.row + first))
        first += len(batch)
    return findings_table(findings)


def custom_detectors_stage(
    clean: StageManifest, reading: Reading, detectors: tuple[CustomDetector, ...]
) -> Stage:
    """The stage in which detectors of plug-ins look at every document."""
    tasks = []
    for index, shard in enumerate(clean.below("documents")):
        parts = {part.path_id: part.file for part in reading.tasks[index]}
        files = tuple((number, f"{f.input}/{f.path}") for number, f in parts.items())
        job = CustomDetectorsJob(index, shard, detectors, files)
        tasks.append(Task(f"custom detectors of {shard.path}", job, (shard,), shard.size))
    settings = {
        own.name: {**vars(own.plug_in), "settings": json.loads(own.settings)} for own in detectors
    }
    return Stage(
        name="custom_detectors",
        version=1,
        function=_detect_custom,
        tasks=tuple(tasks),
        settings=settings,
        software={"pyarrow": pa.__version__, "unicode": unicodedata.unidata_version},
    )


@dataclass(frozen=True)
class MergeJob:
    """All shards of evidence, in order."""

    shards: tuple[Shard, ...]


def _merge(job: MergeJob, inputs: Inputs) -> Result:
    table = pa.concat_tables([inputs.table(shard) for shard in job.shards])
    return Result((parquet_output(layout.EVIDENCE, table.drop_columns(["doc_id"])),))


def evidence_stage(decisions: StageManifest) -> Stage:
    """The stage that publishes evidence.parquet."""
    shards = tuple(s for s in decisions.shards if s.path.endswith(".evidence.arrow"))
    return Stage(
        name="evidence",
        version=2,
        function=_merge,
        tasks=(Task("evidence table", MergeJob(shards), shards),),
    )


_REVIEW_LETTER, _CUSTOM_LETTER = "r", "d"
"""In ids of evidence."""


@dataclass(frozen=True)
class ReviewsJob:
    """One documents shard, and all reviews, each as JSON, oldest first."""

    index: int
    documents: Shard
    reviews: tuple[str, ...]


def _reviews(job: ReviewsJob, inputs: Inputs) -> Result:
    batch = inputs.table(job.documents, ["doc_id", "doc_key", "text"])
    reviews = [Review.model_validate_json(text) for text in job.reviews]
    found = evidence_rows(batch, [("review", review_findings(reviews, batch))], _REVIEW_LETTER)
    output = arrow_output(f"reviews/{job.index:06d}.evidence.arrow", found)
    return Result((output,), {"documents": len(batch), "evidence": len(found)})


def reviews_stage(clean: StageManifest, reviews: tuple[Review, ...]) -> Stage:
    """The stage that looks for reviewed documents."""
    texts = tuple(review.model_dump_json() for review in reviews)
    tasks = tuple(
        Task(f"reviews in {s.path}", ReviewsJob(i, s, texts), (s,))
        for i, s in enumerate(clean.below("documents"))
    )
    return Stage(name="reviews", version=1, function=_reviews, tasks=tasks)
