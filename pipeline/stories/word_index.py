"""`prep search RUN --index`: an index of the words of a finished run, in RUN/word_index/.

The run stays as it is. A takedown or a purge deletes the index, because it holds words of texts; a
run that was made again with other texts has one that is not used until it is made again too.
"""

from functools import partial
from pathlib import Path

from pipeline.config.cluster import LOCAL, Cluster
from pipeline.core.manifest import read_manifest
from pipeline.engine.executor import Executor
from pipeline.engine.progress import Progress
from pipeline.engine.runner import Runner, manifest_path
from pipeline.engine.stage import Stage, borrow
from pipeline.explain.search import find_readable_home
from pipeline.explain.word_index.build import runs_stage, words_stage
from pipeline.runs import layout
from pipeline.runs.run_directory import commit_run, read_committed, read_stage
from pipeline.runs.views import CleanOutput, QuarantineOutput, WordRunsOutput
from pipeline.stories.loop import Manifest, StageRecord, Stages, StoryRun


def index_words(
    directory: Path,
    workers: int | None = None,
    *,
    cluster: Cluster | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Make the index of the words of a finished run, or bring it up to date. Of a repacked run
    the one that has its texts gets it. Raises InputError for a run without texts, and the errors of
    `pipeline.stories.run.run_preparation`."""
    home = find_readable_home(directory)
    config = str(read_committed(home)["config"])
    clean = CleanOutput(read_stage(home, "clean"))
    quarantine = read_manifest(manifest_path(home, layout.QUARANTINE))
    work = StoryRun(
        out=home / layout.WORD_INDEX,
        config=config,
        story=layout.WORD_INDEX,
        size=sum(shard.size for shard in clean.documents),
        workers=workers,
        cluster=cluster or LOCAL,
        progress=progress or Progress(quiet=True),
    )
    held = QuarantineOutput(quarantine) if quarantine else None
    return work.hold(partial(_tell, home, clean, held), partial(_commit, work))


def _tell(
    home: Path, clean: CleanOutput, quarantine: QuarantineOutput | None, run: StageRecord
) -> None:
    def do(stage: Stage) -> WordRunsOutput:
        borrowed = borrow(stage, home.resolve(), ("documents", layout.QUARANTINE))
        return WordRunsOutput(run(borrowed))

    run(words_stage(do(runs_stage(clean, quarantine))))


def _commit(work: StoryRun, stages: Stages, runner: Runner, _: Executor) -> Stages:
    """Without what was sorted on the way."""
    runner.release((layout.WORD_RUNS,))
    commit_run(work.out, (work.config, work.story), stages, runner.removed)
    return stages
