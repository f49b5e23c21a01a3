"""`prep clean` (clean and filter, all documents that pass stay) and `prep screen` (what detectors
find and what a policy makes of it): stories without a data set.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pipeline.cleaning.mask import KINDS
from pipeline.config import prep
from pipeline.config.filters import (
    C4Config,
    FiltersConfig,
    GopherConfig,
    GopherRepetitionConfig,
)
from pipeline.config.model import RelativePath, parse
from pipeline.config.signals import SignalsConfig
from pipeline.config.yaml import YamlDocument
from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.manifest import StageManifest
from pipeline.engine.stage import Stage
from pipeline.runs.views.data_set import DocumentsOutput
from pipeline.runs.views.documents import DecisionsOutput, FindingsOutput, VerdictsOutput
from pipeline.screening.policy.rules import Policy
from pipeline.sources.output_format import Form
from pipeline.stages.batches import Batch, Batches
from pipeline.stages.decisions import decisions_stage, verdicts_stage
from pipeline.stages.findings.filters import filters_stage
from pipeline.stages.findings.screen import evidence_stage
from pipeline.stages.findings.withheld import quarantine_stage
from pipeline.stages.records import cleaned_stage
from pipeline.stages.tables import account_stage, documents_stage, sources_stage
from pipeline.stories import selection
from pipeline.stories.loop import StageRecord
from pipeline.stories.preparation import Preparation, Story, Unchanged, check_survivors, read_inputs

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
    config: prep.ConfigLike | None,
    files: Sequence[str],
    options: CleaningOptions,
    overrides: tuple[str, ...],
) -> prep.LoadedConfig:
    """The config of a run: the one given, if any, changed by options and overrides, with these
    files for its inputs, if any. Raises ConfigError."""
    wrong = [name for name in _names(options.mask) or () if name not in KINDS]
    if wrong:
        raise ConfigError(f"--mask {escape_text(wrong[0])}: expected {', '.join(KINDS)}")
    settings = {
        "clean.min_length": options.min_length,
        "clean.fix_text": options.fix_text,
        "inputs.0.text_key": options.text_key,
        "filters.c4.bad_words": options.bad_words and str(options.bad_words.absolute()),
        "clean.mask": _names(options.mask),
        "filters.language.keep": _names(options.language),
    }
    changes = (*_as_overrides(settings), *overrides)
    return _choose_settings(_load("clean", config, files, changes), files, options)


def _as_overrides(settings: Mapping[str, object]) -> Iterator[str]:
    """Options as `--set` takes them."""
    return (f"{key}={json.dumps(value)}" for key, value in settings.items() if value is not None)


def _load(
    command: str, config: prep.ConfigLike | None, files: Sequence[str], changes: tuple[str, ...]
) -> prep.LoadedConfig:
    """The config that is given, or one that has nothing but these files, with the changes."""
    if config is not None:
        return prep.load_config(config, changes)
    if not files:
        raise ConfigError(f"nothing to {command}: give FILES, or --config with inputs")
    bare = {"name": NAME, "inputs": [{"name": NAME, "path": list(files)}]}
    parsed = parse(prep.Config, YamlDocument(Path(f"prep {command}"), bare, {}), changes)
    return prep.LoadedConfig(config=parsed, base=Path())


def _names(text: str | None) -> list[str] | None:
    """What a list with commas names.

    >>> _names("en, ar")
    ['en', 'ar']
    """
    return None if text is None else [name.strip() for name in text.split(",")]


def _choose_settings(
    loaded: prep.LoadedConfig, files: Sequence[str], options: CleaningOptions
) -> prep.LoadedConfig:
    """What of a config counts here: its inputs, or these files read as its first input; `read`,
    `clean`, `signals`, `filters` and `cluster`."""
    config, inputs, base = loaded.config, loaded.config.inputs, loaded.base
    filters, signals = _switch_on(config.filters, options), config.signals
    if files:
        inputs = (inputs[0].model_copy(update={"name": NAME, "path": tuple(files)}),)
        filters, base = _resolve_files(filters, loaded.base), Path()
        signals = _resolve_models(signals, loaded.base)
    chosen = prep.Config(
        name=config.name,
        inputs=inputs,
        read=config.read,
        clean=config.clean,
        signals=signals,
        filters=filters,
        cluster=config.cluster,
        dedup=prep.DedupConfig(preset="none"),
        pack=prep.PackConfig(validation_share=0.0),
    )
    return prep.LoadedConfig(config=chosen, base=base)


def _switch_on(filters: FiltersConfig, options: CleaningOptions) -> FiltersConfig:
    """With the families that are asked for and not configured yet."""
    families = {"gopher": GopherConfig, "gopher_repetition": GopherRepetitionConfig, "c4": C4Config}
    added = {
        name: model()
        for name, model in families.items()
        if getattr(options, name) and getattr(filters, name) is None
    }
    return filters.model_copy(update=added)


def _resolve_files(filters: FiltersConfig, base: Path) -> FiltersConfig:
    """With the files that it names relative to the current directory."""
    custom = tuple(own.starting_at(base) for own in filters.custom)
    words = {code: own.starting_at(base) for code, own in filters.words.items()}
    filters = filters.model_copy(update={"custom": custom, "words": words})
    if filters.c4 is None or filters.c4.bad_words is None:
        return filters
    c4 = filters.c4.model_copy(update={"bad_words": str(base / filters.c4.bad_words)})
    return filters.model_copy(update={"c4": c4})


def _resolve_models(signals: SignalsConfig, base: Path) -> SignalsConfig:
    """With the files that it names relative to the current directory."""
    custom = tuple(own.starting_at(base) for own in signals.custom)
    classifiers = tuple(
        own.model_copy(update={"model": str(base / own.model)}) for own in signals.classifiers
    )
    perplexity = tuple(
        own.model_copy(update={"model": str(base / own.model)}) for own in signals.perplexity
    )
    return signals.model_copy(
        update={
            "custom": custom,
            "classifiers": classifiers,
            "perplexity": perplexity,
            "words": {code: own.starting_at(base) for code, own in signals.words.items()},
        }
    )


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
    manifests = [run(filters_stage(clean, filters))] if filters.on else []
    manifests += selection.run_own_filters(prepared.screening, reading, clean, run)
    manifests += [run(detector(clean.manifest)) for detector in detectors]
    counts = tuple(sum(documents.values()) for documents in clean.documents_by_source)
    own, verdicts = Batch(counts=counts, documents=clean.documents), None
    if manifests:
        findings = map(FindingsOutput, manifests)
        decided = DecisionsOutput(run(decisions_stage(clean, NO_RULES, None, *findings)))
        run(evidence_stage(decided))
        own = replace(own, decisions=decided.decisions)
        verdicts = VerdictsOutput(run(verdicts_stage(NO_RULES, decided, run)))
        own = replace(own, decisions=verdicts.decisions)
    keep = selection.keep_documents(prepared.config, Batches((own,)), run)
    check_survivors(keep)
    run(sources_stage(reading, clean))
    documents = DocumentsOutput(run(documents_stage(clean, keep, verdicts)))
    run(account_stage(clean, documents, {}))
    run(cleaned_stage(clean, keep, form))


def make_clean_story(form: Form, detectors: Sequence[Detector] = ()) -> Story:
    """The story that writes this format. `detectors` are stages of your own that find evidence and
    decide, in the form of the screen stage: see docs/add_a_stage.md."""
    return Story("clean", partial(_clean, form, detectors))


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
) -> prep.LoadedConfig:
    """The config of a run: that of the file, if any, changed by options and overrides, with these
    files for its inputs, if any. Raises ConfigError."""
    policy = options.policy
    if policy is not None and not policy.startswith("builtin:"):
        policy = str(Path(policy).absolute())
    settings = {
        "screen.registry": [str(path.absolute()) for path in options.registry] or None,
        "screen.origins": [str(path.absolute()) for path in options.origins] or None,
        "screen.optout": [str(path.absolute()) for path in options.optout] or None,
        "inputs.0.text_key": options.text_key,
        "screen.policy": policy,
    }
    changes = (*_as_overrides(settings), *overrides)
    loaded = _load("screen", config, files, changes)
    chosen = loaded.config.model_copy(update={"pack": prep.PackConfig(validation_share=0.0)})
    if files and config is not None:
        paths = tuple(map(RelativePath().from_here, files))
        first = chosen.inputs[0].model_copy(update={"name": NAME, "path": paths})
        chosen = chosen.model_copy(update={"inputs": (first,)})
    return prep.LoadedConfig(config=chosen, base=loaded.base)


def _screen(prepared: Preparation, run: StageRecord, unchanged: Unchanged) -> None:
    """From raw shards to evidence, decisions and the end of every document."""
    compiled = selection.compile_screening(prepared.screening, run)
    reading, clean = read_inputs(prepared, run, unchanged)
    taken_down = prepared.takedowns.dropped
    screened = selection.screening(prepared.screening, reading, clean, compiled, run, taken_down)
    keep = selection.deduplicate(prepared.config, prepared.earlier, clean, screened, run)
    verdicts = VerdictsOutput(run["verdicts"])
    run(quarantine_stage(clean, verdicts, prepared.config.screen.quarantine_days))
    run(sources_stage(reading, clean))
    documents = DocumentsOutput(run(documents_stage(clean, keep, verdicts)))
    run(account_stage(clean, documents, {}))


SCREEN = Story("screen", _screen)
