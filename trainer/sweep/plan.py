"""A sweep before it runs: its trials, each with a checked config, and what they will cost. A
variant is a params file with other values: sections of R2.2 as plain data, changed by name.
"""

import copy
import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.config.model import parse
from pipeline.config.yaml import YamlDocument
from pipeline.core.directories import make_directory
from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.manifest import changed_fields, read_sealed, write_sealed
from pipeline.core.shipped import find_config
from trainer.config import (
    Params,
    load_params,
    model_parameters,
    override,
    params_file,
    trainer_form,
)
from trainer.config.legacy_keys import modernize
from trainer.config.optimizer import find_rate_keys
from trainer.config.params_file import Draft
from trainer.config.sections import SampleInputConfig
from trainer.recipe import samples_in
from trainer.sweep import config as sweep_config
from trainer.sweep.config import (
    EMBEDDINGS_SCALE,
    INITIALIZER_STD,
    LEARNING_RATE,
    SweepConfig,
    Trial,
)

Sections = dict[str, Any]

_KEYS = {
    LEARNING_RATE: "optimizer.learning_rate",
    INITIALIZER_STD: "model.initializer.std",
    EMBEDDINGS_SCALE: "model.embeddings_scale",
}
_STD = 0.02
"""Sigma where no initializer is given (Cerebras-GPT 2.3)."""
_INITIALIZERS = ("embedding_initializer", "initializer", "output_layer_initializer")


@dataclass(frozen=True)
class Base:
    """A params file: what it means, and its keys in R2.2 spelling without any defaults, so that
    what follows from a key still follows when that key changes. Directories are absolute."""

    path: Path
    params: Params
    sections: Sections


def read_base(path: Path) -> Base:
    """Raises as `load_params`."""
    params, file = load_params(path), find_config("train", path)
    draft = Draft.of(params_file.load_params_yaml(file))
    if "trainer" in draft.sections:
        trainer_form.to_sections(draft)
    modernize(draft)
    sections = draft.sections
    for name in ("train_input", "eval_input"):
        section: SampleInputConfig | None = getattr(params, name)
        if section is not None:
            dumped = section.model_dump(mode="json", include={"data_dir", "mixture"})
            sections[name] |= {key: value for key, value in dumped.items() if value}
    return Base(file, params, sections)


def change_sections(
    base: Base, values: Mapping[str, Any], loaded: YamlDocument
) -> tuple[Sections, Params]:
    """The sections with other values by name or dotted key, and what they mean. Raises
    ConfigError, naming the line of `loaded` where a key of the sweep file is at fault."""
    sections = copy.deepcopy(base.sections)
    for name, value in values.items():
        _put(sections, name, value)
    plain = json.loads(json.dumps(sections))
    return plain, parse(Params, _pointing(loaded, plain))


def _put(sections: Sections, dotted: str, value: Any) -> None:
    if dotted in (LEARNING_RATE, INITIALIZER_STD, EMBEDDINGS_SCALE) and not (
        isinstance(value, int | float) and not isinstance(value, bool)
    ):
        raise ConfigError(f"{dotted}: expected a number; got {escape_text(repr(value), 60)}")
    if dotted == LEARNING_RATE:
        optimizer = sections["optimizer"]
        optimizer["learning_rate"] = with_peak(optimizer["learning_rate"], value)
        return
    if dotted == INITIALIZER_STD:
        _set_std(sections["model"], value)
        return
    *parents, last = _KEYS.get(dotted, dotted).split(".")
    if not parents:
        raise ConfigError(
            f"{dotted}: expected {LEARNING_RATE}, {INITIALIZER_STD}, {EMBEDDINGS_SCALE} or a "
            "dotted key of params.yaml, such as optimizer.weight_decay"
        )
    target: Any = sections
    for parent in parents:
        if isinstance(target, list) and parent.isdigit() and int(parent) < len(target):
            target = target[int(parent)]
        elif isinstance(target, dict):
            target = target.setdefault(parent, {})
        if not isinstance(target, dict | list):
            raise ConfigError(f"{dotted}: {parent} is not a section")
    if isinstance(target, list):
        raise ConfigError(f"{dotted}: expected the index of an item of a list, and one of its keys")
    target[last] = value


def with_peak(rates: Any, peak: float) -> Any:
    """A learning rate, number or schedulers, scaled so that its largest is `peak`.

    >>> with_peak([{"scheduler": "Linear", "initial_learning_rate": 0.0,
    ...             "end_learning_rate": 4.0, "total_iters": 3}], 0.5)[0]["end_learning_rate"]
    0.5
    """
    if isinstance(rates, int | float):
        return peak
    values = [each[key] for each in rates for key in find_rate_keys(each) if key in each]
    stated = [x for value in values for x in (value if isinstance(value, list) else [value])]
    largest = max(stated, default=0)
    if largest <= 0:
        raise ConfigError("optimizer.learning_rate has no peak above 0 to scale")
    return [
        {k: _scaled(v, largest, peak) if k in find_rate_keys(each) else v for k, v in each.items()}
        for each in rates
    ]


def _scaled(value: Any, largest: float, peak: float) -> Any:
    if isinstance(value, list):
        return [_scaled(each, largest, peak) for each in value]
    return value / largest * peak


def _set_std(model: Sections, std: float) -> None:
    """`initializer.std` becomes `std`; the deviations and cuts of all initializers that there are
    keep their ratio to it."""
    for key in _INITIALIZERS[:2]:
        model.setdefault(key, {"name": "truncated_normal", "std": _STD})
    for key in _INITIALIZERS:
        name = (model.get(key) or {}).get("name", "truncated_normal")
        if name not in ("truncated_normal", "normal"):
            raise ConfigError(
                f"{INITIALIZER_STD}: model.{key} is {name}, which has no sigma; expected "
                "truncated_normal or normal"
            )
    before = model["initializer"].get("std", _STD)
    for key in _INITIALIZERS:
        rule = model.get(key)
        if rule is None:
            continue
        mean, own = rule.get("mean", 0.0), rule.get("std", _STD)
        rule["std"] = own / before * std
        for side in ("a", "b"):
            if rule.get(side) is not None:
                rule[side] = mean + (rule[side] - mean) * (std / before)


def _pointing(loaded: YamlDocument, sections: Sections) -> YamlDocument:
    """The sections, each changed key with the line of the sweep file that changes it."""
    lines = {}
    for dotted, line in loaded.lines.items():
        section, _, name = dotted.partition(".")
        if section in ("set", "parameters") and name:
            lines[_KEYS.get(name, name)] = line
    return YamlDocument(loaded.path, sections, lines)


def as_yaml(sections: Sections, head: str) -> bytes:
    """A params file; `head`: lines of a comment on top."""
    lines = [part for line in head.splitlines() for part in textwrap.wrap(line, 96)]
    comment = "".join(f"# {line}\n" for line in lines)
    body = yaml.safe_dump(sections, sort_keys=False, width=100, allow_unicode=True)
    return (comment + body).encode()


RECORD = "sweep.json"


@dataclass(frozen=True)
class TrialVariant:
    """A trial with its params file."""

    trial: Trial
    sections: Sections
    params: Params


@dataclass(frozen=True)
class SweepPlan:
    """A sweep. `path`: of its file; `steps`: of every trial."""

    path: Path
    config: SweepConfig
    base: Base
    variants: tuple[TrialVariant, ...]
    steps: int

    @property
    def identity(self) -> dict[str, Any]:
        """All that a result depends on, as JSON values. More samples keep the earlier ones, so
        their number is no part of it."""
        config = self.config.model_dump(mode="json", exclude={"samples", "keep_checkpoints"})
        return {"format": 1, **config, "steps": self.steps, "base": self.base.sections}

    @property
    def flops(self) -> float:
        """Training FLOPs of all trials (Cerebras-GPT, Table 13)."""
        return float(
            sum(
                model_parameters.count_training_flops(v.params.model)
                * samples_in(self.steps, v.params.train_input.schedule)
                for v in self.variants
            )
        )


def plan_sweep(path: Path, data: Path | None = None) -> SweepPlan:
    """The sweep of a file; `data` takes the place of its data. Raises ConfigError: a file that
    is none, or a trial whose config is none."""
    config, loaded = sweep_config.load_sweep(path)
    if data is not None:
        config = config.model_copy(update={"data": data})
    base = read_base(config.params)
    sections, params = change_sections(base, config.set, loaded)
    fixed = Base(base.path, params, sections)
    if params.eval_input is None:
        raise ConfigError(
            f"{base.path}: add section eval_input: trials are compared by their validation loss"
        )
    if config.data is None and not (params.train_input.data_dir or params.train_input.mixture):
        raise ConfigError("no data: give data in the sweep file, or --data PREP_CONFIG_OR_DIR")
    override(params, max_steps=config.steps)
    drawn = [
        (trial, *change_sections(fixed, trial.values, loaded))
        for trial in sweep_config.trials(config)
    ]
    steps = config.steps or params.runconfig.max_steps
    if steps is None:
        raise ConfigError(f"{loaded.path}: no steps: give steps, or runconfig.max_steps in params")
    return SweepPlan(
        loaded.path, config, fixed, tuple(TrialVariant(*each) for each in drawn), steps
    )


def check_same_sweep(out: Path, planned: SweepPlan) -> None:
    """Write OUT/sweep.json where it is not there yet. Raises ConfigError naming the fields in
    which the sweep in `out` is another one."""
    path, now = out / RECORD, planned.identity
    if not path.exists():
        make_directory(out)
        write_sealed(path, now)
        return
    differing = changed_fields(read_sealed(path), now)
    if differing:
        raise ConfigError(
            f"{out} holds another sweep: {', '.join(differing)} differ; use another --out, or the "
            "earlier values"
        )
