"""The loop that every story runs in: hold the directory, start the workers, run the stages, commit.

A story is a function that builds each stage from what those before it published and hands it to a
`StageRecord`; commands differ in the story and in what they commit.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pipeline.config.cluster import LOCAL, Cluster
from pipeline.config.sections import Keep
from pipeline.core import rare_collections
from pipeline.core.journal import Journal
from pipeline.core.manifest import StageManifest, fingerprint_of
from pipeline.engine.executor import Executor, executor, joined_step
from pipeline.engine.progress import Progress
from pipeline.engine.runner import Runner
from pipeline.engine.stage import RunStage, Stage, top_directory
from pipeline.runs.catalogue import INTERMEDIATE_DIRECTORIES, list_unneeded
from pipeline.runs.generations import generation_at
from pipeline.runs.run_directory import commit_run, hold_and_run

Stages = dict[str, StageManifest]


@dataclass(frozen=True)
class Manifest:
    """A finished run: its directory (of one in a bucket, where this machine has copies of what was
    read), every stage's manifest, and the stages that were reused. `generation` of a data set that
    was appended to; it has a directory of its own, and `directory` is that of the whole."""

    directory: Path
    stages: dict[str, StageManifest]
    reused: tuple[str, ...]
    generation: int = 0

    @property
    def own_directory(self) -> Path:
        """Where the tables and rows of this generation are."""
        return generation_at(self.directory, self.generation).directory


class StageRecord:
    """Runs stages and remembers their manifests by name, in the order of their first run."""

    def __init__(self, run_stage: RunStage) -> None:
        self._run_stage = run_stage
        self.manifests: dict[str, StageManifest] = {}

    def __call__(self, stage: Stage) -> StageManifest:
        """Bring a stage up to date; returns its manifest."""
        self.manifests[stage.name] = self._run_stage(stage)
        return self.manifests[stage.name]

    def __getitem__(self, name: str) -> StageManifest:
        return self.manifests[name]


Tell = Callable[[StageRecord], None]
Publish = Callable[[Stages, Runner, Executor], Stages]
"""Commits the manifests of a story; returns those that it committed."""


@dataclass(frozen=True, kw_only=True)
class StoryRun:
    """One run of a story: the directory, the name of its config, the bytes of text it reads.

    `noted` goes into the journal. `keep` says which intermediates stay, apart from those that are
    `spared`.
    """

    out: Path
    config: str
    story: str
    size: int
    progress: Progress
    workers: int | None = None
    cluster: Cluster = LOCAL
    frozen: frozenset[str] = frozenset()
    keep: Keep = "all"
    spared: frozenset[str] = frozenset()
    noted: dict[str, str] = field(default_factory=dict)

    @rare_collections()
    def hold(self, tell: Tell, publish: Publish | None = None) -> Manifest:
        """Run the stages as the only writer of the directory, and commit them."""
        with joined_step(self.cluster.model_dump(), self.out):
            return hold_and_run(
                self.out,
                self.story,
                self.progress,
                lambda removed: self.carry_out(removed, tell, publish),
            )

    def carry_out(
        self, removed: frozenset[str], tell: Tell, publish: Publish | None = None
    ) -> Manifest:
        """Run the stages and commit them, or `publish` them otherwise; the caller holds the
        directory. `removed` are directories that clean-up deleted."""
        journal = Journal(self.out)
        cluster = self.cluster.model_dump()
        root = self.out if cluster["kind"] == "local" else self.out.absolute()
        with executor(self.workers, self.size, cluster, root, self.progress.note) as where:
            journal.event(
                "run", config=self.config, story=self.story, workers=where.workers, **self.noted
            )
            runner = Runner(root, where, journal, self.progress, removed, self.frozen)
            record = StageRecord(partial(self._run_stage, runner))
            tell(record)
            if self.keep != "all":
                runner.release([d for d in INTERMEDIATE_DIRECTORIES if d not in self.spared])
            stages = (publish or self._commit)(record.manifests, runner, where)
            reused = tuple(name for name in runner.reused if name not in self.progress.timings)
            made = fingerprint_of({name: stages[name].content_hash for name in sorted(stages)})
            timings = self.progress.timings
            journal.event("done", reused=list(reused), timings=timings, run=made)
            self.progress.done(len(stages), len(reused))
            return Manifest(self.out, stages, reused)

    def _run_stage(self, runner: Runner, stage: Stage) -> StageManifest:
        manifest = runner.run(stage)
        if self.keep == "minimal":
            written = {top_directory(s) for m in runner.manifests for s in m.shards}
            there = written - runner.removed - self.spared
            runner.release(list_unneeded(self.story, stage.name, there))
        return manifest

    def _commit(self, stages: Stages, runner: Runner, _: Executor) -> Stages:
        commit_run(self.out, (self.config, self.story), stages, runner.removed)
        return stages
