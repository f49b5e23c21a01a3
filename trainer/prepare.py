"""`--data`: from a prep run directory, or a prep config that is run first, to the two data sets."""

from dataclasses import dataclass
from pathlib import Path

import pipeline
from pipeline.core.errors import ConfigError, InputError
from trainer.config import Params


@dataclass(frozen=True)
class DataDirectories:
    """Directories of .h5 shards; `validation` is None when there is none. `run`: the prep run
    directory that `--data` names or its config made, None without `--data`."""

    train: Path
    validation: Path | None
    run: Path | None = None


def data_directories(params: Params, data: Path | None) -> DataDirectories:
    """Where the run's data is: `--data` if given, else the config's data_dir.

    A prep config is run first (finished work is reused). Raises ConfigError when nothing is
    named.
    """
    if data is not None:
        return _of_run(data if data.is_dir() else _prepared(data))
    train = params.train_input.data_dir
    if train is None:
        raise ConfigError(
            "no data: give --data PREP_CONFIG_OR_DIR, or train_input.data_dir in the params file"
        )
    evaluation = params.eval_input.data_dir if params.eval_input else None
    return DataDirectories(train, evaluation)


def _of_run(directory: Path) -> DataDirectories:
    train, validation = directory / "hdf5" / "train", directory / "hdf5" / "validation"
    if not train.is_dir():
        raise InputError(
            f"--data {directory}: expected a prep run directory with hdf5/train inside"
        )
    return DataDirectories(train, validation if validation.is_dir() else None, directory)


def _prepared(config: Path) -> Path:
    """Run the preparation of a prep config; returns its run directory, ./runs/<config name>."""
    return pipeline.run(config).directory
