"""One run of a preparation: what is done once on a machine before workers would all do it (kernels
compiled, engines checked); then its stages, and again where a takedown or quarantine changed what
they may read; and what a directory that cannot be written already holds.
"""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import chain
from pathlib import Path

from pipeline.config.cluster import Cluster
from pipeline.config.prep import Config, LoadedConfig, load_config
from pipeline.core.errors import InputError, ReadOnlyError
from pipeline.core.journal import Journal, hold_lock
from pipeline.core.manifest import StageManifest, read_sealed
from pipeline.engine.executor import Executor, LocalExecutor, joined_step
from pipeline.engine.memory import check_address_space
from pipeline.engine.progress import Progress
from pipeline.engine.runner import FrozenStageError, RemovedInputError, Runner, TextsApartError
from pipeline.engine.stage import Stage
from pipeline.runs.catalogue import STORIES
from pipeline.runs.generations import has_generations, list_begun, spared_directories
from pipeline.runs.layout import MANIFEST
from pipeline.runs.run_directory import commit_run, hold_and_run, removed_directories
from pipeline.runs.views.documents import CleanOutput, PiecesOutput
from pipeline.sources.files import InputHashes, describe_passed_over
from pipeline.stories import selection
from pipeline.stories.generations import (
    check_appendable,
    check_not_appended,
    delete_generations,
    describe_new,
    note_settings,
    plan_generation,
)
from pipeline.stories.kernels import compile_missing, list_parts
from pipeline.stories.loop import Manifest, StageRecord, Stages, StoryRun
from pipeline.stories.plan import list_expected_stages
from pipeline.stories.preparation import (
    PREPARATION,
    Preparation,
    Story,
    describe_left_out,
    describe_unlabelled,
    prepare,
)
from pipeline.takedown.quarantine_store import finish_moving, keep_apart, note_days, restore_texts
from pipeline.takedown.record import list_raw_copies, read_takedown_state
from pipeline.tokenizers.definition import TokenizerDefinition
from pipeline.tokenizers.engine import choose_engine
from pipeline.tokenizers.engines import REFERENCE

Note = Callable[[str], None]


def run_preparation(
    config: str | Path | Config | LoadedConfig,
    out: str | Path | None = None,
    workers: int | None = None,
    *,
    overrides: tuple[str, ...] = (),
    cluster: Cluster | None = None,
    verify_inputs: bool = False,
    progress: Progress | None = None,
    story: Story = PREPARATION,
    replace_generations: bool = False,
) -> Manifest:
    """Prepare data from a config (a path, the name of a shipped one, or a Config) into `out`.

    `workers` N >= 1 starts N Dask worker processes, 0 runs here, None decides by input size;
    `cluster` is taken before that section of the config. The same config and input give
    byte-identical outputs anywhere and after any number of kills; finished work is reused. With
    `pack.append` what is finished stays, and new inputs become a generation (`stories.generations`)
    unless `replace_generations`. Raises the errors of `pipeline.core.errors`.
    """
    check_address_space()
    if isinstance(config, Config):
        loaded = LoadedConfig(config=config, base=Path.cwd())
    elif isinstance(config, LoadedConfig):
        loaded = config
    else:
        loaded = load_config(config, overrides)
    if cluster is not None:
        changed = loaded.config.model_copy(update={"cluster": cluster})
        loaded = loaded.model_copy(update={"config": changed})
    prepared = prepare(loaded, Path(out) if out is not None else None)
    if loaded.config.pack.append:
        check_appendable(loaded.config)
        prepared = replace(prepared, settings=note_settings(loaded.config))
    progress = progress or Progress(quiet=True)
    run = partial(
        _run_prepared,
        story=story,
        workers=workers,
        verify_inputs=verify_inputs,
        progress=progress,
    )
    with joined_step(prepared.config.cluster.model_dump(), prepared.out):
        if replace_generations:
            delete_generations(prepared.out)
        elif story is PREPARATION and loaded.config.pack.append:
            return _append(loaded, prepared, run, verify_inputs, progress.note)
        check_not_appended(prepared.out)
        return run(prepared)


def _append(
    loaded: LoadedConfig,
    prepared: Preparation,
    run: Callable[..., Manifest],
    verify_inputs: bool,
    note: Note,
) -> Manifest:
    """Make the generation of the inputs that are new; where none is, see that all files of the
    finished ones are there, and make those again that are not."""
    if not list_begun(prepared.out)[-1].is_finished and not has_generations(prepared.out):
        return run(prepared)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ReadOnlyError):
            stack.enter_context(hold_lock(prepared.out))
        plan = plan_generation(loaded, prepared, note, verify_inputs)
        if plan.new is not None:
            note(describe_new(plan))
            made = run(plan.new)
            return replace(made, directory=prepared.out, generation=plan.new.number)
    last = [run(part, stays=True) for part in plan.finished][-1]
    return replace(last, directory=prepared.out, generation=plan.finished[-1].number)


def _run_prepared(
    prepared: Preparation,
    story: Story,
    workers: int | None,
    verify_inputs: bool,
    progress: Progress,
    stays: bool = False,
) -> Manifest:
    """Run a story in its directory. `stays`: a data set with takedowns is not written again."""
    progress.timings.clear()  # a stage that an earlier attempt of this run made is not reused
    out_directory, screens = prepared.out, STORIES[story.name].screens

    def attempt(removed: frozenset[str]) -> Manifest:
        packs = story is PREPARATION
        compile_missing([*list_parts(prepared.config, screens, packs)], progress.note)
        if packs:
            _check_engines(prepared.tokenizer, progress.note)
        now = prepared
        if not prepared.number:  # else they were read under the lock of the whole
            now = replace(prepared, takedowns=read_takedown_state(out_directory))
        finish_moving(out_directory)
        while True:
            try:
                return _run_stages(now, story, workers, verify_inputs, progress, removed)
            except TextsApartError as needed:
                if not restore_texts(out_directory):
                    raise
                progress.note(
                    f"{needed}: they are put back for now, and moved to quarantine again at the end"
                )
            except FrozenStageError as frozen:
                if stays or not screens:
                    raise InputError(
                        f"{out_directory}: {frozen}, and documents were taken down from it; remove "
                        "their lines from the raw shards and choose another --out"
                    ) from None
                now = replace(now, takedowns=now.takedowns.write_again())
                progress.note(
                    f"{frozen}: writing the data set again without the documents taken down"
                )

    try:
        return hold_and_run(out_directory, story.name, progress, attempt)
    except ReadOnlyError as error:
        return _find_finished(prepared, story, verify_inputs, progress, error)


def _find_finished(
    prepared: Preparation,
    story: Story,
    verify_inputs: bool,
    progress: Progress,
    error: ReadOnlyError,
) -> Manifest:
    """The run in a directory that cannot be written, with every shard checked. Raises `error`, and
    what would have to be written, unless it is finished and unchanged."""
    out = prepared.out
    if not (out / MANIFEST).exists():
        raise error
    runner = Runner(
        out,
        LocalExecutor(),
        Journal(out),
        progress,
        removed_directories(out),
        frozen=frozenset(STORIES[story.name].stages),
    )
    hashes = InputHashes(out, prepared.plan.files, verify_inputs)
    try:
        record = StageRecord(runner.run)
        story.tell(prepared, record, hashes.unchanged)
    except (FrozenStageError, RemovedInputError, TextsApartError) as needed:
        raise ReadOnlyError(f"{error}, and {needed}; choose another --out") from None
    committed = {
        entry["stage"]: entry["fingerprint"] for entry in read_sealed(out / MANIFEST)["stages"]
    }
    if committed != {name: manifest.fingerprint for name, manifest in record.manifests.items()}:
        raise ReadOnlyError(f"{error}, and its stages are of another config; choose another --out")
    progress.note(f"{out} cannot be written to, but it is finished and unchanged")
    return Manifest(out, record.manifests, tuple(runner.reused))


def _run_stages(
    prepared: Preparation,
    story: Story,
    workers: int | None,
    verify_inputs: bool,
    progress: Progress,
    removed: frozenset[str],
) -> Manifest:
    config, plan, out = prepared.config, prepared.plan, prepared.out
    hashes = InputHashes(out, plan.files, verify_inputs)
    screens = STORIES[story.name].screens
    for note in describe_passed_over(plan.passed_over):
        progress.note(note)
    for note in plan.notes if STORIES[story.name].labels_sources else ():
        progress.note(note)
    progress.expect(len(list_expected_stages(prepared, story.name)))

    def tell(run: StageRecord) -> None:
        def remember(inputs: list[list[tuple[str, str, int, str]]]) -> None:
            read_files = chain.from_iterable(inputs)
            hashes.remember([(name, path, digest) for name, path, _, digest in read_files])

        def run_stage(stage: Stage) -> StageManifest:
            manifest = run(stage)
            if stage.name == "pieces":
                remember(PiecesOutput(manifest).inputs)
            if stage.name == "clean":
                clean = CleanOutput(manifest)
                remember(clean.inputs)
                for note in (*describe_unlabelled(config, clean), *describe_left_out(clean)):
                    progress.note(note)
            return manifest

        story.tell(prepared, StageRecord(run_stage), hashes.unchanged)

    def publish(stages: Stages, runner: Runner, where: Executor) -> Stages:
        stages = keep_apart(runner.root, stages, where)
        note_days(out, stages, datetime.now().astimezone().date())
        dropped = runner.removed | list_raw_copies(out, prepared.takedowns)
        settings = {"settings": prepared.settings} if prepared.settings else {}
        commit_run(out, (config.name, story.name), stages, dropped, **settings)
        if screens and "verdicts" in stages:
            selection.record_screening(out, stages)
        return stages

    work = StoryRun(
        out=out,
        config=config.name,
        story=story.name,
        size=plan.text_estimate,
        progress=progress,
        workers=workers,
        cluster=config.cluster,
        frozen=prepared.takedowns.frozen,
        keep=config.keep,
        spared=spared_directories(config.pack.append),
    )
    return work.carry_out(removed, tell, publish)


def _check_engines(tokenizer: TokenizerDefinition, note: Note) -> None:
    """Let engines prove themselves on this tokenizer; say so where only the slow one may work."""
    engine, reason = choose_engine(tokenizer)
    if engine == REFERENCE:
        note(f"tokenizing is slow: {reason}")
