"""`pipeline.run` and `pipeline.plan`: a whole preparation, and what it would do."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.api.values import AnyPath, local_path_or_none, progress_of
from pipeline.config.prep import ConfigLike, load_config
from pipeline.stories import preparation
from pipeline.stories.loop import Manifest
from pipeline.stories.plan import StageForecast, Total, forecast, total_of


@dataclass(frozen=True)
class Plan:
    """What `run` would do.

    directory: the run directory.
    stages: for each, whether it is reused or why it runs, CPU seconds, and bytes of disk and
        memory.
    total: of all stages.
    notes: lines on the inputs.
    """

    directory: Path
    stages: tuple[StageForecast, ...]
    total: Total
    notes: tuple[str, ...]


def run(
    config: ConfigLike,
    out: AnyPath | None = None,
    workers: int | None = None,
    *,
    overrides: Sequence[str] = (),
    verify_inputs: bool = False,
    progress: bool = False,
) -> Manifest:
    """Prepare data, as `prep run`: finished work is reused, and an interrupted run resumes.

    config: a YAML file, the name of a shipped config such as `quickstart`, a mapping with the keys
        of such a file, or a `Config`. Relative paths start at the file, in a mapping or a `Config`
        at the working directory.
    out: the run directory; by default ./runs/NAME, with the name in the config.
    workers: worker processes; 0 runs all in this process; by default as the size of the input asks.
        The output is the same for any number.
    overrides: values over those of the config, such as `pack.max_sequence_length=1024`.
    verify_inputs: hash the raw shards again, even if size and time of modification are unchanged.
    progress: report stages on standard error.

    Returns the finished run: its directory, the manifest of every stage, and the stages that were
    reused. Raises ConfigError, InputError for raw data, IntegrityError for a run that does not
    balance, ResourceError for disk, memory, a lock that is held or workers that die.
    """
    loaded = load_config(config, tuple(overrides))
    return preparation.run(
        loaded, local_path_or_none(out), workers, verify_inputs=verify_inputs,
        progress=progress_of(progress),
    )  # fmt: skip


def plan(
    config: ConfigLike,
    out: AnyPath | None = None,
    *,
    overrides: Sequence[str] = (),
) -> Plan:
    """Check a config and forecast a run of it, as `prep plan`; the run directory is not written to.

    config: as for `run`.
    out: the run directory that would be written; by default ./runs/NAME.
    overrides: values over those of the config, such as `dedup.preset=none`.

    Returns the stages, each with its state, CPU seconds and bytes of disk and memory. Raises
    ConfigError, and InputError for raw data that is not there.
    """
    loaded = load_config(config, tuple(overrides))
    prepared = preparation.prepare(loaded, local_path_or_none(out))
    stages = tuple(forecast(prepared))
    return Plan(prepared.out, stages, total_of(stages, prepared), tuple(prepared.plan.notes))
