"""Screening: what every detector finds in every document. It never decides.

`registry` compiles what documents are compared with and publishes it with the run: lists, the works
of the registries, the indexes of their titles and texts. `screen` looks; `reviews` adds what people
decided about single documents; `evidence` publishes evidence.parquet.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import pyarrow as pa

from pipeline.config.model import FrozenModel
from pipeline.core.manifest import Shard, StageManifest
from pipeline.engine.shared import Shared
from pipeline.engine.stage import (
    Inputs,
    Result,
    Stage,
    Task,
    arrow_output,
    bytes_output,
    parquet_output,
)
from pipeline.runs import layout, parts
from pipeline.runs.held_texts import quarantine_path, with_texts
from pipeline.runs.views.documents import CleanOutput, DecisionsOutput, QuarantineOutput
from pipeline.screening.detectors import licences, markers, notices
from pipeline.screening.detectors.captures import Capture, Captures, arrange_captures
from pipeline.screening.detectors.catalogue import DETECTORS
from pipeline.screening.detectors.lists import ArtefactList, OriginList
from pipeline.screening.detectors.optout import detect_optouts
from pipeline.screening.detectors.origin import (
    OriginIndex,
    detect_artefacts,
    detect_origin,
    digest_file,
)
from pipeline.screening.detectors.sweep import SweepHits, sweep_all
from pipeline.screening.detectors.title_index import TitleIndex, make_title_arrays
from pipeline.screening.detectors.titles import detect_titles
from pipeline.screening.evidence import BATCH_COLUMNS, FINDINGS, make_evidence_rows
from pipeline.screening.fingerprints.build import build_index
from pipeline.screening.fingerprints.find import detect_passages
from pipeline.screening.fingerprints.index import TABLES, FingerprintIndex
from pipeline.screening.registry import combine, load_registry
from pipeline.screening.reviews import Review, make_review_findings
from pipeline.sources.store import is_url
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
    titles = arrow_output(layout.TITLES, make_title_arrays(works))
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

    def __init__(self, shards: RegistryShards, inputs: Inputs) -> None:
        self._shards, self._inputs = shards, inputs
        self.lists = Lists.model_validate_json(inputs.path(shards.lists).read_bytes())

    @cached_property
    def captures(self) -> Captures:
        """Captured opt-outs, arranged."""
        return arrange_captures(self.lists.captures)

    @cached_property
    def works(self) -> pa.Table | None:
        """The works of the registries; None without a registry."""
        return self._inputs.table(self._shards.works) if self._shards.works else None

    @cached_property
    def index(self) -> FingerprintIndex | None:
        """The index of their texts; None without a registry."""
        if not self._shards.index:
            return None
        tables = [self._inputs.table(shard) for shard in self._shards.index]
        return FingerprintIndex.of_tables(dict(zip(TABLES, tables, strict=True)))

    @cached_property
    def titles(self) -> TitleIndex | None:
        """The index of their titles and authors; None without a registry."""
        if self.works is None or self._shards.titles is None:
            return None
        return TitleIndex.of_tables(self.works, self._inputs.table(self._shards.titles))

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
    search = _Search(job, batch, _targets(job.looked_for, inputs))
    for name, entry in DETECTORS.items():
        if name in _DETECT and (entry.names_works or not job.works_only):
            search.findings[name] = _DETECT[name](search)
    findings = list(search.findings.items())
    path = layout.shard("screen", job.index, layout.EVIDENCE_SHARD)
    output = arrow_output(path, make_evidence_rows(batch, findings))
    counts = {name: len(table) for name, table in findings if len(table)}
    return Result((output,), {"documents": len(batch), "evidence": counts})


@lru_cache(maxsize=1)
def _targets(shards: RegistryShards, inputs: Inputs) -> SearchTargets:
    return SearchTargets(shards, inputs)


class _Search:
    """A documents shard on its way through the detectors, with what they found so far."""

    def __init__(self, job: ScreenJob, batch: pa.Table, targets: SearchTargets) -> None:
        self.job, self.batch, self.targets = job, batch, targets
        self.findings: dict[str, pa.Table] = {}

    @cached_property
    def markers(self) -> markers.MarkerIndex:
        """The listed origins, as texts name them."""
        return markers.MarkerIndex(self.targets.lists.origins)

    @cached_property
    def swept(self) -> SweepHits:
        """One pass over the texts for the needles of all detectors that have some."""
        groups = {notices.IDENTIFIER_GROUP: notices.IDENTIFIER_NEEDLES}
        if not self.job.works_only:
            groups[markers.GROUP] = tuple(self.markers.forms)
            groups[notices.NOTICE_GROUP] = notices.NOTICE_NEEDLES
            groups[licences.GROUP] = licences.NEEDLES
        return sweep_all(self.batch["text"], groups)


def _detect_artefacts(search: _Search) -> pa.Table:
    lists, digests = search.targets.lists.artefacts, dict[int, str]()
    if any(one.files for one in lists):
        files = (file for file in search.job.files if file.location)
        digests = {file.path_id: digest_file(Path(file.location)) for file in files}
    return detect_artefacts(search.batch, lists, digests)


def _detect_origins(search: _Search) -> pa.Table:
    names = {file.path_id: file.name for file in search.job.files}
    return detect_origin(search.batch, OriginIndex(search.targets.lists.origins), names)


def _detect_markers(search: _Search) -> pa.Table:
    return markers.detect_markers(search.batch, search.markers, search.swept)


def _detect_identifiers(search: _Search) -> pa.Table:
    return notices.detect_identifiers(search.batch, search.targets.numbers, search.swept)


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
    of_works = [t for name, t in search.findings.items() if DETECTORS[name].names_works]
    return detect_optouts(search.batch, search.targets.captures, of_works)


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
    texts = {shard.path: shard for shard in quarantine.texts} if quarantine else {}
    tasks = []
    for index, shard in enumerate(clean.documents):
        quarantined = texts.get(quarantine_path(shard.path))
        job = ScreenJob(
            index=index,
            documents=shard,
            files=(),
            looked_for=looked_for,
            works_only=True,
            held=quarantined,
        )
        inputs = (shard, *((quarantined,) if quarantined else ()), *looked_for.shards)
        tasks.append(Task(f"looking through {shard.path}", job, inputs, shard.size))
    return Stage(name="screen", version=3, function=_screen, tasks=tuple(tasks))


@dataclass(frozen=True)
class EvidenceJob:
    """The shards of evidence of a part of the run, in order."""

    part: int
    shards: tuple[Shard, ...]


def _merge(job: EvidenceJob, inputs: Inputs) -> Result:
    table = pa.concat_tables([inputs.table(shard) for shard in job.shards])
    path = parts.part(layout.EVIDENCE, job.part)
    return Result((parquet_output(path, table.drop_columns(["doc_id"])),))


def evidence_stage(decisions: DecisionsOutput) -> Stage:
    """The stage that publishes evidence.parquet, a task for each of its parts."""
    tasks = []
    for part, group in enumerate(parts.group_tasks(decisions.counts)):
        shards = decisions.evidence[group.start : group.stop]
        label, work = f"part {part} of the table of evidence", sum(s.size for s in shards)
        tasks.append(Task(label, EvidenceJob(part, shards), shards, work))
    return Stage(name="evidence", version=3, function=_merge, tasks=tuple(tasks))


_LETTER = "r"
"""In ids of evidence."""


@dataclass(frozen=True)
class ReviewsJob:
    """One documents shard, and all reviews, each as JSON, oldest first."""

    index: int
    documents: Shard
    reviews: Shared[tuple[str, ...]]


def _reviews(job: ReviewsJob, inputs: Inputs) -> Result:
    batch = inputs.table(job.documents, ["doc_id", "doc_key", "text"])
    reviews = [Review.model_validate_json(text) for text in job.reviews.value]
    evidence = make_evidence_rows(
        batch, [("review", make_review_findings(reviews, batch))], _LETTER
    )
    output = arrow_output(layout.shard("reviews", job.index, layout.EVIDENCE_SHARD), evidence)
    return Result((output,), {"documents": len(batch), "evidence": len(evidence)})


def reviews_stage(clean: CleanOutput, reviews: tuple[Review, ...]) -> Stage:
    """The stage that looks for reviewed documents."""
    texts = Shared(tuple(review.model_dump_json() for review in reviews))
    tasks = tuple(
        Task(f"reviews in {s.path}", ReviewsJob(i, s, texts), (s,))
        for i, s in enumerate(clean.documents)
    )
    return Stage(name="reviews", version=1, function=_reviews, tasks=tasks)
