"""`prep screen`: what detectors find in files and what a policy makes of it, without a data set."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.clean_alone import NAME
from pipeline.config import Config, LoadedConfig, PackConfig, load_config
from pipeline.core.config_model import RelativePath, parse
from pipeline.core.errors import ConfigError
from pipeline.core.manifest import StageManifest
from pipeline.core.strict_yaml import YamlDocument
from pipeline.deduplication import deduplicate
from pipeline.preparation import Preparation, RunStage, Story, Unchanged, read_inputs
from pipeline.screening import compile_screening, screening
from pipeline.stage import Stage
from pipeline.stages.account import account_stage
from pipeline.stages.quarantine import quarantine_stage
from pipeline.stages.tables import documents_stage, sources_stage


@dataclass(frozen=True)
class ScreeningOptions:
    """What `prep screen` is asked for on the command line; None leaves a key as it is."""

    registry: Sequence[Path] = ()
    policy: str | None = None
    origins: Sequence[Path] = ()
    optout: Sequence[Path] = ()
    text_key: str | None = None


def settings(
    config: str | Path | None,
    files: Sequence[str],
    options: ScreeningOptions,
    overrides: tuple[str, ...],
) -> LoadedConfig:
    """The config of a run: that of the file, if any, changed by options and overrides, with these
    files for its inputs, if any. Raises ConfigError."""
    changes = (*_overrides(options), *overrides)
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


def _overrides(options: ScreeningOptions) -> tuple[str, ...]:
    """Options as `--set` takes them; paths are those of the current directory."""
    lists = {
        "screen.registry": options.registry, "screen.origins": options.origins,
        "screen.optout": options.optout,
    }  # fmt: skip
    named = {key: [str(p.absolute()) for p in paths] for key, paths in lists.items() if paths}
    plain = {"inputs.0.text_key": options.text_key, "screen.policy": _policy(options.policy)}
    changes = {**named, **{key: value for key, value in plain.items() if value is not None}}
    return tuple(f"{key}={json.dumps(value)}" for key, value in changes.items())


def _policy(name: str | None) -> str | None:
    if name is None or name.startswith("builtin:"):
        return name
    return str(Path(name).absolute())


def _screen(
    prepared: Preparation, run_stage: RunStage, unchanged: Unchanged
) -> dict[str, StageManifest]:
    """From raw shards to evidence, decisions and the end of every document."""
    done: dict[str, StageManifest] = {}

    def run(stage: Stage) -> StageManifest:
        done[stage.name] = run_stage(stage)
        return done[stage.name]

    compiled = compile_screening(prepared.screening, run)
    reading, clean = read_inputs(prepared, run, unchanged)
    taken_down = prepared.takedowns.dropped
    screened = screening(prepared.screening, reading, clean, compiled, run, taken_down)
    keep = deduplicate(prepared.config, prepared.earlier, clean, screened, run)
    run(quarantine_stage(clean, done["verdicts"], prepared.config.screen.quarantine_days))
    run(sources_stage(reading, clean))
    documents = run(documents_stage(clean, keep, done["verdicts"]))
    run(account_stage(clean, documents, {}))
    return done


SCREEN = Story("screen", _screen)
