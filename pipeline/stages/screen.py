"""Screening: what every detector finds in every document. It never decides.

`registry` compiles what documents are compared with and publishes it with the run: lists, the works
of the registries, the indexes of their titles and texts. `screen` looks; `reviews` adds what people
decided about single documents; `evidence` publishes evidence.parquet.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import pyarrow as pa

from pipeline.config.model import FrozenModel
from pipeline.core.manifest import Shard, StageManifest
from pipeline.engine.stage import (
    Inputs,
    Result,
    Stage,
    Task,
    arrow_output,
    bytes_output,
    parquet_output,
)
from pipeline.runs import layout
from pipeline.runs.held_texts import quarantine_path, with_texts
from pipeline.runs.outputs import CleanOutput, DecisionsOutput, QuarantineOutput
from pipeline.screening.detectors import licences, markers, notices
from pipeline.screening.detectors.captures import Capture, Captures, captures_of
from pipeline.screening.detectors.lists import ArtefactList, OriginList
from pipeline.screening.detectors.optout import OptoutSettings, detect_optouts
from pipeline.screening.detectors.origin import (
    ArtefactSettings,
    OriginSettings,
    detect_artefacts,
    detect_origin,
    file_digest,
)
from pipeline.screening.detectors.sweep import SweepHits, sweep_all
from pipeline.screening.detectors.title_index import TitleIndex, title_arrays
from pipeline.screening.detectors.titles import detect_titles
from pipeline.screening.evidence import BATCH_COLUMNS, evidence_rows
from pipeline.screening.fingerprints.build import build_index
from pipeline.screening.fingerprints.find import detect_passages
from pipeline.screening.fingerprints.index import TABLES, FingerprintIndex
from pipeline.screening.registry import combine, load_registry
from pipeline.screening.reviews import Review, review_findings
from pipeline.sources.remote import is_url
from pipeline.stages.plan import Reading

_NUMBERS = ("reg_no", "doi", "lccn", "isbn13", "asin")


class Lists(FrozenModel):
    """Lists as they were when the run began."""

    origins: tuple[OriginList, ...]
    artefacts: tuple[ArtefactList, ...]
    captures: tuple[Capture, ...]


@dataclass(frozen=True)
class RegistryJob:
    """`Lists` as JSON; the directories of the registries, and a hash of what they hold."""

    lists: str
    location: tuple[str, ...]
    content: str


def _registry(job: RegistryJob, inputs: Inputs) -> Result:
    lists = bytes_output(layout.LISTS, job.lists.encode())
    if not job.location:
        return Result((lists,))
    registry = combine([load_registry(Path(place)) for place in job.location])
    index = build_index(registry.references())
    works = registry.works
    titles = arrow_output(layout.TITLES, title_arrays(works))
    tables = (arrow_output(_index_path(name), index.tables[name]) for name in TABLES)
    outputs = (lists, arrow_output(layout.WORKS, works), titles, *tables)
    return Result(outputs, {"works": len(works), "compared": len(index.works)})


def _index_path(table: str) -> str:
    return f"{layout.REGISTRY}/index.{table}.arrow"


def registry_stage(lists: Lists, directories: tuple[Path, ...], content: str) -> Stage:
    """The stage that compiles what documents are compared with; it needs no other stage."""
    job = RegistryJob(lists.model_dump_json(), tuple(map(str, directories)), content)
    task = Task("registry of works", job)
    return Stage(name="registry", version=2, function=_registry, tasks=(task,))


@dataclass(frozen=True)
class RegistryShards:
    """What the stage published: the lists and, where registries were named, the works, the arrays
    of the index of titles and the tables of the index of texts."""

    lists: Shard
    works: Shard | None
    titles: Shard | None
    index: tuple[Shard, ...]

    @property
    def shards(self) -> tuple[Shard, ...]:
        """All of it."""
        there = (shard for shard in (self.works, self.titles) if shard)
        return (self.lists, *there, *self.index)


def find_registry_shards(manifest: StageManifest) -> RegistryShards:
    """The shards of the stage by what they hold."""
    by_path = {shard.path: shard for shard in manifest.shards}
    index = tuple(by_path[path] for name in TABLES if (path := _index_path(name)) in by_path)
    return RegistryShards(
        by_path[layout.LISTS], by_path.get(layout.WORKS), by_path.get(layout.TITLES), index
    )


class SearchTargets:
    """What a task compares documents with, opened and prepared as it is asked for."""

    def __init__(self, found: RegistryShards, inputs: Inputs) -> None:
        self._found, self._inputs = found, inputs
        self.lists = Lists.model_validate_json(inputs.path(found.lists).read_bytes())

    @cached_property
    def captures(self) -> Captures:
        """Captured opt-outs, arranged."""
        return captures_of(self.lists.captures)

    @cached_property
    def works(self) -> pa.Table | None:
        """The works of the registries; None without a registry."""
        return self._inputs.table(self._found.works) if self._found.works else None

    @cached_property
    def index(self) -> FingerprintIndex | None:
        """The index of their texts; None without a registry."""
        if not self._found.index:
            return None
        tables = [self._inputs.table(shard) for shard in self._found.index]
        return FingerprintIndex.of_tables(dict(zip(TABLES, tables, strict=True)))

    @cached_property
    def titles(self) -> TitleIndex | None:
        """The index of their titles and authors; None without a registry."""
        if self.works is None or self._found.titles is None:
            return None
        return TitleIndex.of_tables(self.works, self._inputs.table(self._found.titles))

    @cached_property
    def numbers(self) -> dict[str, str]:
        """The work that each registration number, ISBN and the like names."""
        if self.works is None:
            return {}
        numbers: dict[str, str] = {}
        for row in self.works.select(["work_id", *_NUMBERS]).to_pylist():
            for name in _NUMBERS:
                several = row[name] if isinstance(row[name], list) else [row[name]]
                numbers |= {number: row["work_id"] for number in several if number}
        return numbers


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
