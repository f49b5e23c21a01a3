"""`pack.append`: which generation of a data set a run makes.

Generation k is a run directory (`pipeline.runs.generations`) of the inputs that no earlier one has,
compared with the documents kept in these. Before anything is written, every finished generation is
held to this config and these inputs: each of its stages is built as if it were to be made, and its
fingerprint compared with the one that was committed. So rows stay exactly when they would be made
the same again, and what says otherwise is named.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from pipeline.config.prep import Config, LoadedConfig
from pipeline.core import journal, storage
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.manifest import (
    StageManifest,
    changed_fields,
    fingerprint_of,
    read_manifest,
    read_sealed,
)
from pipeline.core.words import pluralise
from pipeline.engine.runner import find_rerun_reasons, manifest_path, stage_fields
from pipeline.engine.stage import Stage
from pipeline.runs import layout
from pipeline.runs.generations import (
    COMPARED,
    COMPARED_FOR_PARTS,
    Generation,
    find_whole,
    generation_at,
    has_generations,
    list_begun,
)
from pipeline.runs.run_directory import removed_directories
from pipeline.runs.views.documents import CleanOutput, WithheldOutput
from pipeline.screening.reviews import REVIEWS
from pipeline.sources.files import InputFile, InputHashes
from pipeline.stages.batches import Batch
from pipeline.stages.mixture.copies import source_documents
from pipeline.stories import selection
from pipeline.stories.earlier import load_batch
from pipeline.stories.loop import StageRecord
from pipeline.stories.preparation import PREPARATION, Preparation, prepare
from pipeline.takedown.claims import HOLDS
from pipeline.takedown.record import (
    TakedownState,
    check_none_pending,
    read_takedown_state,
    read_takedowns,
    takedown_file,
)

Note = Callable[[str], None]

_NO_ROWS = frozenset({"quarantine", "report"})
"""Stages that no row depends on: what is changed for them holds for new generations."""

_SHOWN = 3
"""Changed settings that an error names."""


@dataclass(frozen=True)
class GenerationPlan:
    """What a run on a data set with generations does: the finished ones, each as it would be made
    again; and the one to be made, None where no input is new."""

    finished: tuple[Preparation, ...]
    new: Preparation | None


def plan_generation(
    loaded: LoadedConfig, prepared: Preparation, note: Note, verify_inputs: bool = False
) -> GenerationPlan:
    """Divide the inputs among the generations of `prepared.out`, and hold the finished ones to the
    config. Nothing is written.

    Raises ConfigError for a config that would change one of them, InputError for changed or missing
    inputs of one and for one that is not finished though another is there.
    """
    finished = _list_finished(prepared.out)
    left = {(file.input, file.path): file for file in prepared.plan.files}
    earlier, known, parts = prepared.earlier, frozenset[str](), []
    for generation in finished:
        files = _take_files(generation, left)
        part = _narrow(loaded, prepared, generation, files, (earlier, known))
        sources = _check_stays(part, note, verify_inputs)
        parts.append(part)
        known |= sources
        earlier += _as_batch(loaded.config, generation)
    if not left and finished:
        return GenerationPlan(tuple(parts), None)
    new = generation_at(prepared.out, len(finished))
    files = tuple(left.values())
    return GenerationPlan(tuple(parts), _narrow(loaded, prepared, new, files, (earlier, known)))


def plan_preparation(loaded: LoadedConfig, out: Path | None) -> Preparation:
    """What `prep plan` shows: the generation that a run would make, or the last one where no input
    is new. Raises as `plan_generation`, and as `check_not_appended`."""
    prepared = prepare(loaded, out)
    if not loaded.config.pack.append:
        check_not_appended(prepared.out)
        return prepared
    check_appendable(loaded.config)
    if not list_begun(prepared.out)[-1].is_finished and not has_generations(prepared.out):
        return prepared
    plan = plan_generation(loaded, prepared, lambda _: None)
    return plan.new or plan.finished[-1]


def check_appendable(config: Config) -> None:
    """Raises ConfigError for a mixture that new documents would change in rows that stay."""
    if config.mixture.weights is not None:
        raise ConfigError(
            "pack.append: mixture.weights are shares of a whole data set, which new rows would "
            "change; give mixture.epochs, or weigh the generations in the mixture of `train`"
        )
    if config.mixture.cluster_weights is not None:
        raise ConfigError(
            "pack.append: mixture.cluster_weights go by the size of clusters, which new documents "
            "would change for rows that stay as they are; leave them out, or give pack.append: "
            "false, which packs all inputs again as one data set"
        )


def _list_finished(run: Path) -> tuple[Generation, ...]:
    """Raises InputError for one that is not finished, except the last."""
    begun = list_begun(run)
    for generation in begun[:-1]:
        check_none_pending(generation.directory)
        if not generation.is_finished:
            raise InputError(
                f"{generation.directory}: {generation.name} is not finished, but later ones rely "
                "on it; put it back from a copy, or give --replace, which packs all inputs again"
            )
    return begun if begun[-1].is_finished else begun[:-1]


def _take_files(
    generation: Generation, left: dict[tuple[str, str], InputFile]
) -> tuple[InputFile, ...]:
    """The files of a finished generation, out of those that are left. Raises InputError for one
    that is not there, or not as large as it was."""
    sizes = generation.raw_shards
    missing = sorted(sizes.keys() - left.keys())
    if missing:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise InputError(
            f"input {missing[0][0]!r}: {missing[0][1]}{more} was read for {generation.name} and is "
            f"not among the inputs now; {_mend('put it back under its name')}"
        )
    files = [file for key, file in [*left.items()] if key in sizes and left.pop(key)]
    changed = [file for file in files if file.size != sizes[file.input, file.path]]
    if changed:
        raise _refuse_changed(f"{generation.directory}: {generation.name}", changed)
    return tuple(files)


def _refuse_changed(name: str, files: Sequence[InputFile]) -> InputError:
    more = f" and {pluralise(len(files) - 1, 'more file')}" if len(files) > 1 else ""
    return InputError(
        f"{name} would not stay as it is: input {files[0].input!r}: {files[0].path}{more} has "
        f"other bytes than when it was read; {_mend('put it back, and new records in new files')}"
    )


def _mend(first: str) -> str:
    return f"{first}, or give --replace, which packs all inputs again as one generation"


def _narrow(
    loaded: LoadedConfig,
    prepared: Preparation,
    generation: Generation,
    files: tuple[InputFile, ...],
    before: tuple[tuple[Batch, ...], frozenset[str]],
) -> Preparation:
    """The preparation of one generation: of these files alone, in its own directory. `before`: the
    batches it is compared with, and the source labels that these have."""
    config, out = loaded.config, generation.directory
    named = {file.input for file in files}
    inputs = tuple(source for source in config.inputs if source.name in named)
    cut = {(f.input, f.path) for f in (prepared.plan.files[i] for i in prepared.plan.large)}
    large = tuple(i for i, file in enumerate(files) if (file.input, file.path) in cut)
    narrowed = config.model_copy(update={"inputs": inputs})
    is_made = generation.is_finished
    settings = _read_settings(generation) if is_made else note_settings(narrowed)
    return replace(
        prepared,
        config=narrowed,
        screening=selection.check_screening(config, loaded.base, out),
        plan=replace(prepared.plan, files=files, large=large),
        earlier=before[0],
        out=out,
        takedowns=_read_takedowns(generation, prepared.out),
        number=generation.number,
        known_sources=before[1],
        settings=settings,
    )


def _read_takedowns(generation: Generation, run: Path) -> TakedownState:
    """Those of the generation; and those of earlier ones, whose texts must not come back with it:
    of a finished one those that it was made without."""
    own, manifest = read_takedown_state(generation.directory), None
    if generation.is_finished:
        manifest = read_manifest(manifest_path(generation.directory, "withheld"))
    known = {file for file, _ in WithheldOutput(manifest).takedowns} if manifest else set()
    before = [
        (os.path.relpath(takedown_file(other, f"{t.id}.parquet"), generation.directory), t)
        for other in (generation_at(run, n).directory for n in range(generation.number))
        for t in read_takedowns(other)
    ]
    dropped = [
        (file, str(t.value["documents"]["content_hash"]))
        for file, t in before
        if file in known or not generation.is_finished
    ]
    return replace(own, dropped=tuple(sorted((*own.dropped, *dropped))))


def _as_batch(config: Config, generation: Generation) -> tuple[Batch, ...]:
    """What later generations are compared with; nothing where the config compares nothing."""
    dedup, run = config.dedup, generation.directory
    preset = selection.choose_preset(dedup)
    if preset is None:
        return ()
    needed = COMPARED_FOR_PARTS if dedup.containment.drop else COMPARED
    gone = sorted(removed_directories(run) & {*needed})
    if gone:
        raise InputError(
            f"{run}: {', '.join(gone)} of {generation.name} were removed by clean-up or `keep` "
            "before pack.append was set, and new documents are compared with them; give --replace, "
            "which packs all inputs again as one generation"
        )
    return (load_batch(run, generation.name, preset, dedup),)


def _check_stays(part: Preparation, note: Note, verify_inputs: bool) -> frozenset[str]:
    """Hold a finished generation to the config; returns the source labels that it has. Raises
    ConfigError naming what changed, InputError naming changed inputs."""
    unchanged = InputHashes(part.out, part.plan.files, verify_inputs).unchanged
    name = f"{part.out}: generation {part.number}"

    def look(stage: Stage) -> StageManifest:
        manifest, fields = read_manifest(manifest_path(part.out, stage.name)), stage_fields(stage)
        if manifest is None:
            raise _refuse(part, f"this config asks for the stage {stage.name}, which it has not")
        if manifest.fingerprint != fingerprint_of(fields) and stage.name not in _NO_ROWS:
            changed = find_rerun_reasons(manifest.fields, fields)
            if not all(field.startswith("software.") for field in changed):
                raise _refuse(part, f"stage {stage.name} changes ({', '.join(changed)})")
            versions = ", ".join(changed)
            note(f"{name} was made with another version: {stage.name}: {versions}; its rows stay")
        if stage.still_valid is not None:
            _check_inputs(part, name, manifest, unchanged)
        return manifest

    record = StageRecord(look)
    PREPARATION.tell(part, record, unchanged)
    return frozenset(source_documents(CleanOutput(record["clean"])))


def _refuse(part: Preparation, stage: str) -> ConfigError:
    """The error for a config that would change a finished generation; it names the settings, where
    this or a later generation was made with `pack.append` and has them on record, else the
    stage."""
    before, now = _find_settings(part), note_settings(part.config)
    changed = changed_fields(before, {name: now.get(name) for name in before})
    what = "; ".join(
        f"{key} was {_find(before, key)}, now {_find(now, key)}" for key in changed[:_SHOWN]
    )
    more = f" and {len(changed) - _SHOWN:,} more" if len(changed) > _SHOWN else ""
    return ConfigError(
        f"{part.out}: generation {part.number} would not stay as it is: {what or stage}{more}; "
        f"{_mend('put back what was changed')}"
    )


def _find_settings(part: Preparation) -> dict[str, Any]:
    """The settings that a generation was made with, as it or a later one keeps them; of a later one
    without those of the inputs."""
    for generation in list_begun(find_whole(part.out))[part.number :]:
        settings = _read_settings(generation) if generation.is_finished else {}
        others = set() if generation.number == part.number else {"inputs"}
        if settings:
            return {name: settings[name] for name in settings.keys() - others}
    return {}


def _read_settings(generation: Generation) -> dict[str, Any]:
    """What the manifest of a finished generation notes of its config: nothing without
    `pack.append`."""
    settings = read_sealed(generation.directory / layout.MANIFEST).get("settings", {})
    return dict(settings)


def note_settings(config: Config) -> dict[str, Any]:
    """The settings that rows may depend on, as the manifest of a generation keeps them: for words,
    not for decisions, which follow from fingerprints."""
    value = config.model_dump(mode="json", exclude={"name", "keep", "cluster", "inputs"})
    value["pack"].pop("append")
    inputs = {i.name: i.model_dump(mode="json", exclude={"name", "path"}) for i in config.inputs}
    return {**value, "inputs": inputs}


def _find(settings: Mapping[str, Any], key: str) -> str:
    value: Any = settings
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return json.dumps(value)


def _check_inputs(
    part: Preparation,
    name: str,
    manifest: StageManifest,
    unchanged: Callable[[Mapping[str, Any]], bool],
) -> None:
    read = chain.from_iterable(task.counters["inputs"] for task in manifest.tasks)
    changed = {(file[0], file[1]) for file in read if not unchanged({"inputs": [file]})}
    if changed:
        files = [file for file in part.plan.files if (file.input, file.path) in changed]
        raise _refuse_changed(name, files)


def describe_new(plan: GenerationPlan) -> str:
    """A line on the generation that is made."""
    assert plan.new is not None
    files = pluralise(len(plan.new.plan.files), "new file")
    before = pluralise(len(plan.finished), "generation")
    return f"generation {plan.new.number}: {files}; the rows of {before} stay as they are"


def check_not_appended(run: Path) -> None:
    """Raises ConfigError where a run would overwrite the first of several generations."""
    if has_generations(run):
        raise ConfigError(
            f"{run}: holds {len(list_begun(run))} generations; set pack.append: true to add to "
            "them, or give --replace, which makes the whole data set again"
        )


def delete_generations(run: Path) -> None:
    """Make a run one generation again, so that all inputs are packed together. Raises InputError
    where what people decided about a later generation would be lost."""
    if not has_generations(run):
        return
    for generation in list_begun(run)[1:]:
        _check_nothing_decided(generation)
    with journal.hold_lock(run):
        storage.remove(run / layout.MANIFEST)
        storage.remove_tree(run / layout.GENERATIONS)


def _check_nothing_decided(generation: Generation) -> None:
    decided = [f"takedown {takedown.id}" for takedown in read_takedowns(generation.directory)]
    for what, file in (("reviews", REVIEWS), ("holds", HOLDS)):
        if (generation.directory / file).exists():
            decided.append(what)
    if decided:
        raise InputError(
            f"{generation.directory}: {decided[0]} of {generation.name} would be lost; choose "
            "another --out, and apply it there again"
        )
