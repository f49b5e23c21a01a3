"""Screen: what every detector finds in every document. It never decides. Reviews: what people
decided about single documents, as evidence.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from pipeline.core.manifest import Shard
from pipeline.engine.stage import Inputs, Result, Stage, Task, arrow_output, parquet_output
from pipeline.runs import layout
from pipeline.runs.held_texts import quarantine_path, with_texts
from pipeline.runs.outputs import CleanOutput, DecisionsOutput, QuarantineOutput
from pipeline.screening.detectors import licences, markers, notices
from pipeline.screening.detectors.optout import OptoutSettings, detect_optouts
from pipeline.screening.detectors.origin import (
    ArtefactSettings,
    OriginSettings,
    detect_artefacts,
    detect_origin,
    file_digest,
)
from pipeline.screening.detectors.sweep import SweepHits, sweep_all
from pipeline.screening.detectors.titles import detect_titles
from pipeline.screening.evidence import BATCH_COLUMNS, evidence_rows
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
    wanted = _looked_for(job.looked_for, inputs)
    found = list(_works(batch, wanted) if job.works_only else _findings(job, batch, wanted))
    evidence = evidence_rows(batch, found)
    output = arrow_output(layout.shard("screen", job.index, layout.EVIDENCE_SHARD), evidence)
    counts = {name: len(table) for name, table in found if len(table)}
    return Result((output,), {"documents": len(batch), "evidence": counts})


@lru_cache(maxsize=1)
def _looked_for(found: RegistryShards, inputs: Inputs) -> SearchTargets:
    return SearchTargets(found, inputs)


def _findings(
    job: ScreenJob, batch: pa.Table, wanted: SearchTargets
) -> Iterator[tuple[str, pa.Table]]:
    """Name and findings of every detector, in the order that evidence has."""
    marked = markers.MarkerSettings(wanted.lists.origins)
    swept = _swept(batch, marked)
    names = {file.path_id: file.name for file in job.files}
    yield "artefact", detect_artefacts(batch, _artefacts(job, wanted))
    yield "origin", detect_origin(batch, OriginSettings(wanted.lists.origins, names))
    yield "marker", markers.detect_markers(batch, marked, swept)
    of_works = list(_works(batch, wanted, swept))
    yield from of_works
    yield "notice", notices.detect_notices(batch, swept)
    yield "licence", licences.detect_licences(batch, swept)
    matched = [table for _, table in of_works]
    yield "optout", detect_optouts(batch, OptoutSettings(wanted.captures), matched)


def _swept(batch: pa.Table, marked: markers.MarkerSettings) -> SweepHits:
    """One pass over the texts for the needles of all detectors that have some."""
    groups = {
        markers.GROUP: marked.needles,
        notices.IDENTIFIER_GROUP: notices.IDENTIFIER_NEEDLES,
        notices.NOTICE_GROUP: notices.NOTICE_NEEDLES,
        licences.GROUP: licences.NEEDLES,
    }
    return sweep_all(batch["text"], groups)


def _artefacts(job: ScreenJob, wanted: SearchTargets) -> ArtefactSettings:
    settings = ArtefactSettings(wanted.lists.artefacts)
    if not settings.compares_files:
        return settings
    files = {f.path_id: file_digest(Path(f.location)) for f in job.files if f.location}
    return ArtefactSettings(wanted.lists.artefacts, files)


def _works(
    batch: pa.Table, wanted: SearchTargets, swept: SweepHits | None = None
) -> Iterator[tuple[str, pa.Table]]:
    """What shows works: their numbers, titles and texts."""
    numbers = notices.IdentifierSettings(wanted.numbers)
    yield "identifier", notices.detect_identifiers(batch, numbers, swept)
    if wanted.titles is not None:
        yield "title_author", detect_titles(batch, wanted.titles)
    if wanted.index is not None:
        yield "text_match", detect_passages(batch, wanted.index)


def screen_stage(clean: CleanOutput, reading: Reading, looked_for: RegistryShards) -> Stage:
    """The stage that looks at every document."""
    tasks, hashes = [], clean.hashes
    for index, shard in enumerate(clean.documents):
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
    clean: CleanOutput, looked_for: RegistryShards, quarantine: QuarantineOutput | None = None
) -> Stage:
    """The same for documents of a finished run, looking for works of registries only; texts that
    are in quarantine are read there."""
    held = {shard.path: shard for shard in quarantine.texts} if quarantine else {}
    tasks = []
    for index, shard in enumerate(clean.documents):
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
class MergeJob:
    """All shards of evidence, in order."""

    shards: tuple[Shard, ...]


def _merge(job: MergeJob, inputs: Inputs) -> Result:
    table = pa.concat_tables([inputs.table(shard) for shard in job.shards])
    return Result((parquet_output(layout.EVIDENCE, table.drop_columns(["doc_id"])),))


def evidence_stage(decisions: DecisionsOutput) -> Stage:
    """The stage that publishes evidence.parquet."""
    task = Task("evidence table", MergeJob(decisions.evidence), decisions.evidence)
    return Stage(name="evidence", version=2, function=_merge, tasks=(task,))


_LETTER = "r"


@dataclass(frozen=True)
class ReviewsJob:
    """One documents shard, and all reviews, each as JSON, oldest first."""

    index: int
    documents: Shard
    reviews: tuple[str, ...]


def _reviews(job: ReviewsJob, inputs: Inputs) -> Result:
    batch = inputs.table(job.documents, ["doc_id", "doc_key", "text"])
    reviews = [Review.model_validate_json(text) for text in job.reviews]
    found = evidence_rows(batch, [("review", review_findings(reviews, batch))], _LETTER)
    output = arrow_output(layout.shard("reviews", job.index, layout.EVIDENCE_SHARD), found)
    return Result((output,), {"documents": len(batch), "evidence": len(found)})


def reviews_stage(clean: CleanOutput, reviews: tuple[Review, ...]) -> Stage:
    """The stage that looks for reviewed documents."""
    texts = tuple(review.model_dump_json() for review in reviews)
    tasks = tuple(
        Task(f"reviews in {s.path}", ReviewsJob(i, s, texts), (s,))
        for i, s in enumerate(clean.documents)
    )
    return Stage(name="reviews", version=1, function=_reviews, tasks=tasks)
