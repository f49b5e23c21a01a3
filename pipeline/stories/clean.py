"""`prep clean` and `prep screen`. The first cleans and filters without the rest of a preparation:
all documents that pass stay, duplicates too. The second shows what detectors find in files and what
a policy makes of it, without a data set.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pipeline.cleaning.mask import KINDS
from pipeline.config.filters import C4Config, FiltersConfig, GopherConfig, GopherRepetitionConfig
from pipeline.config.model import RelativePath, parse
from pipeline.config.prep import (
    Config,
    ConfigLike,
    DedupConfig,
    LoadedConfig,
    PackConfig,
    load_config,
)
from pipeline.config.yaml import YamlDocument
from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.manifest import StageManifest, TaskRecord
from pipeline.engine.stage import Stage
from pipeline.screening.policy import Policy
from pipeline.sources.output_format import Form
from pipeline.stages.batches import Batch, Batches
from pipeline.stages.decisions import decisions_stage, verdicts_stage
from pipeline.stages.filters import custom_filters_stage, filters_stage
from pipeline.stages.keep import keep_stage
from pipeline.stages.records import cleaned_stage
from pipeline.stages.screen import evidence_stage
from pipeline.stages.tables import account_stage, documents_stage, sources_stage
from pipeline.stages.withheld import quarantine_stage
from pipeline.stories.loop import StageRecord
from pipeline.stories.preparation import Preparation, Story, Unchanged, check_survivors, read_inputs
from pipeline.stories.selection import (
    compile_screening,
    deduplicate,
    find_decision_shards,
    screening,
)

NAME = "files"
"""The name of the input that the files make."""

NO_RULES = Policy(version=1, rules=())

Detector = Callable[[StageManifest], Stage]
"""Builds a stage from the manifest of the clean stage."""


@dataclass(frozen=True, kw_only=True)
class CleaningOptions:
    """What `prep clean` is asked for on the command line; None leaves a key as it is. `mask` and
    `language` are lists with commas."""

    min_length: int | None = None
    fix_text: bool | None = None
    mask: str | None = None
    language: str | None = None
    gopher: bool = False
    gopher_repetition: bool = False
    c4: bool = False
    bad_words: Path | None = None
    text_key: str | None = None


def clean_settings(
    config: ConfigLike | None,
    files: Sequence[str],
    options: CleaningOptions,
    overrides: tuple[str, ...],
) -> LoadedConfig:
    """The config of a run: the one given, if any, changed by options and overrides, with these
    files for its inputs, if any. Raises ConfigError."""
    wrong = [name for name in _names(options.mask) if name not in KINDS]
    if wrong:
        raise ConfigError(f"--mask {escape_text(wrong[0])}: expected {', '.join(KINDS)}")
    changes = (*_overrides(options), *overrides)
    if config is not None:
        return _chosen(load_config(config, changes), files, options)
    if not files:
        raise ConfigError("nothing to clean: give FILES, or --config with inputs")
    bare = {"name": NAME, "inputs": [{"name": NAME, "path": list(files)}]}
    parsed = parse(Config, YamlDocument(Path("prep clean"), bare, {}), changes)
    return _chosen(LoadedConfig(config=parsed, base=Path()), files, options)


def _overrides(options: CleaningOptions) -> Iterator[str]:
    """Options as `--set` takes them."""
    plain = {
        "clean.min_length": options.min_length,
        "clean.fix_text": options.fix_text,
        "inputs.0.text_key": options.text_key,
        "filters.c4.bad_words": options.bad_words and str(options.bad_words.absolute()),
    }
    yield from (f"{key}={json.dumps(value)}" for key, value in plain.items() if value is not None)
    lists = {"clean.mask": options.mask, "filters.language.keep": options.language}
    for key, value in lists.items():
        if value is not None:
            yield f"{key}={json.dumps(_names(value))}"


def _names(listed: str | None) -> list[str]:
    """What a list with commas names.

    >>> _names("en, ar"), _names(None)
    (['en', 'ar'], [])
    """
    return [name.strip() for name in listed.split(",")] if listed is not None else []


def _chosen(given: LoadedConfig, files: Sequence[str], options: CleaningOptions) -> LoadedConfig:
    """What of a config counts here: its inputs, or these files read as its first input; `read`,
    `clean`, `filters` and `cluster`."""
    config, inputs, base = given.config, given.config.inputs, given.base
    filters = _switched_on(config.filters, options)
    if files:
        inputs = (inputs[0].model_copy(update={"name": NAME, "path": tuple(files)}),)
        filters, base = _based(filters, given.base), Path()
    chosen = Config(
        name=config.name,
        inputs=inputs,
        read=config.read,
        clean=config.clean,
        filters=filters,
        cluster=config.cluster,
        dedup=DedupConfig(preset="none"),
        pack=PackConfig(validation_share=0.0),
    )
    return LoadedConfig(config=chosen, base=base)


def _switched_on(filters: FiltersConfig, options: CleaningOptions) -> FiltersConfig:
    """With the families that are asked for and not configured yet."""
    families = {"gopher": GopherConfig, "gopher_repetition": GopherRepetitionConfig, "c4": C4Config}
    added = {
        name: model()
        for name, model in families.items()
        if getattr(options, name) and getattr(filters, name) is None
    }
    return filters.model_copy(update=added)


def _based(filters: FiltersConfig, base: Path) -> FiltersConfig:
    """With the files that it names relative to the current directory."""
    custom = tuple(own.starting_at(base) for own in filters.custom)
    filters = filters.model_copy(update={"custom": custom})
    if filters.c4 is None or filters.c4.bad_words is None:
        return filters
    c4 = filters.c4.model_copy(update={"bad_words": str(base / filters.c4.bad_words)})
    return filters.model_copy(update={"c4": c4})


def _clean(
    form: Form,
    detectors: Sequence[Detector],
    prepared: Preparation,
    run: StageRecord,
    unchanged: Unchanged,
) -> None:
    """From raw shards to cleaned records and the tables that account for all others."""
    reading, clean = read_inputs(prepared, run, unchanged)
    filters = prepared.screening.filters
    found = [run(filters_stage(clean, filters))] if filters.on else []
    if functions := prepared.screening.custom_filters:
        found.append(run(custom_filters_stage(clean, reading, functions, filters.config.action)))
    found += [run(detector(clean)) for detector in detectors]
    own, verdicts = _batch(clean), None
    if found:
        decided = run(decisions_stage(clean, NO_RULES, None, *found))
        run(evidence_stage(decided))
        own = replace(own, decisions=find_decision_shards(decided))
        verdicts = run(verdicts_stage(NO_RULES, decided, Batches((own,))))
        own = replace(own, decisions=find_decision_shards(verdicts))
    keep = run(keep_stage(prepared.config, Batches((own,)), None, ()))
    check_survivors(keep)
    run(sources_stage(reading, clean))
    documents = run(documents_stage(clean, keep, verdicts))
    run(account_stage(clean, documents, {}))
    run(cleaned_stage(clean, keep, form))


def make_clean_story(form: Form, detectors: Sequence[Detector] = ()) -> Story:
    """The story that writes this format. `detectors` are stages of your own that find evidence and
    decide, in the form of the screen stage: see docs/add_a_stage.md."""
    return Story("clean", partial(_clean, form, detectors))


def _batch(clean: StageManifest) -> Batch:
    counts = tuple(_documents(task) for task in clean.tasks)
    return Batch(
        name="",
        location="",
        counts=counts,
        documents=clean.below("documents"),
        signatures=(),
        runs=(),
    )


def _documents(task: TaskRecord) -> int:
    """Rows of a documents shard: what was read, without what was dropped at once."""
    accounts = task.counters["sources"].values()
    read = sum(account["documents"]["documents"] for account in accounts)
    dropped = [tally for account in accounts for tally in account["dropped"].values()]
    return int(read - sum(tally["documents"] for tally in dropped))


@dataclass(frozen=True)
class ScreeningOptions:
    """What `prep screen` is asked for on the command line; None leaves a key as it is."""

    registry: Sequence[Path] = ()
    policy: str | None = None
    origins: Sequence[Path] = ()
    optout: Sequence[Path] = ()
    text_key: str | None = None


def screen_settings(
    config: str | Path | None,
    files: Sequence[str],
    options: ScreeningOptions,
    overrides: tuple[str, ...],
) -> LoadedConfig:
    """The config of a run: that of the file, if any, changed by options and overrides, with these
    files for its inputs, if any. Raises ConfigError."""
    changes = (*_screen_overrides(options), *overrides)
    if config is not None:
        loaded = load_config(config, changes)
    elif files:
        bare = {"name": NAME, "inputs": [{"name": NAME, "path": list(files)}]}
        parsed = parse(Config, YamlDocument(Path("prep screen"), bare, {}), changes)
        loaded = LoadedConfig(config=parsed, base=Path())
    else:
        raise ConfigError("nothing to screen: give FILES, or --config with inputs")
    chosen = loaded.config.model_copy(update={"pack": PackConfig(validation_share=0.0)})
    if files and config is not None:
        paths = tuple(map(RelativePath().from_here, files))
        first = chosen.inputs[0].model_copy(update={"name": NAME, "path": paths})
        chosen = chosen.model_copy(update={"inputs": (first,)})
    return LoadedConfig(config=chosen, base=loaded.base)


def _screen_overrides(options: ScreeningOptions) -> tuple[str, ...]:
    """Options as `--set` takes them; paths are those of the current directory."""
    lists = {
        "screen.registry": options.registry,
        "screen.origins": options.origins,
        "screen.optout": options.optout,
    }
    named = {key: [str(p.absolute()) for p in paths] for key, paths in lists.items() if paths}
    plain = {"inputs.0.text_key": options.text_key, "screen.policy": _policy(options.policy)}
    changes = {**named, **{key: value for key, value in plain.items() if value is not None}}
    return tuple(f"{key}={json.dumps(value)}" for key, value in changes.items())


def _policy(name: str | None) -> str | None:
    if name is None or name.startswith("builtin:"):
        return name
    return str(Path(name).absolute())


def _screen(prepared: Preparation, run: StageRecord, unchanged: Unchanged) -> None:
    """From raw shards to evidence, decisions and the end of every document."""
    compiled = compile_screening(prepared.screening, run)
    reading, clean = read_inputs(prepared, run, unchanged)
    taken_down = prepared.takedowns.dropped
    screened = screening(prepared.screening, reading, clean, compiled, run, taken_down)
    keep = deduplicate(prepared.config, prepared.earlier, clean, screened, run)
    run(quarantine_stage(clean, run["verdicts"], prepared.config.screen.quarantine_days))
    run(sources_stage(reading, clean))
    documents = run(documents_stage(clean, keep, run["verdicts"]))
    run(account_stage(clean, documents, {}))


SCREEN = Story("screen", _screen)
