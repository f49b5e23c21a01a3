"""A sweep before it runs: its trials, each with a checked config, and what they will cost."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core import storage
from pipeline.core.errors import ConfigError
from pipeline.core.manifest import changed_fields, read_sealed, write_sealed
from trainer import flops
from trainer.config import Params, override
from trainer.recipe import samples_in
from trainer.sweep.config import SweepConfig, load_sweep
from trainer.sweep.draws import Trial, trials
from trainer.sweep.variant import Base, Sections, change_sections, read_base

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
                flops.training_flops_per_sequence(v.params.model)
                * samples_in(self.steps, v.params.train_input.schedule)
                for v in self.variants
            )
        )


def plan(path: Path, data: Path | None = None) -> SweepPlan:
    """The sweep of a file; `data` takes the place of its data.

    Raises ConfigError: a file that is none, or a trial whose config is none.
    """
    config, loaded = load_sweep(path)
    if data is not None:
        config = config.model_copy(update={"data": data})
    base = read_base(config.params)
    sections, params = change_sections(base, config.set, loaded)
    fixed = Base(base.path, params, sections)
    _check(fixed, config)
    drawn = [(trial, *change_sections(fixed, trial.values, loaded)) for trial in trials(config)]
    steps = config.steps or params.runconfig.max_steps
    if steps is None:
        raise ConfigError(f"{loaded.path}: no steps: give steps, or runconfig.max_steps in params")
    return SweepPlan(
        loaded.path, config, fixed, tuple(TrialVariant(*each) for each in drawn), steps
    )


def _check(base: Base, config: SweepConfig) -> None:
    params = base.params
    if params.eval_input is None:
        raise ConfigError(
            f"{base.path}: add section eval_input: trials are compared by their validation loss"
        )
    if config.data is None and not (params.train_input.data_dir or params.train_input.mixture):
        raise ConfigError("no data: give data in the sweep file, or --data PREP_CONFIG_OR_DIR")
    override(params, max_steps=config.steps)


def check_same(out: Path, planned: SweepPlan) -> None:
    """Write OUT/sweep.json where it is not there yet. Raises ConfigError naming the fields in
    which the sweep in `out` is another one."""
    path, now = out / RECORD, planned.identity
    if not path.exists():
        storage.make_directory(out)
        write_sealed(path, now)
        return
    differing = changed_fields(read_sealed(path), now)
    if differing:
        raise ConfigError(
            f"{out} holds another sweep: {', '.join(differing)} differ; use another --out, or the "
            "earlier values"
        )
