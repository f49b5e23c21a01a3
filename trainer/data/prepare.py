"""`--data`: from a prep run directory, or a prep config that is run first, to the two data sets."""

from dataclasses import dataclass
from pathlib import Path

import pipeline
from pipeline.config.model import FrozenModel
from pipeline.core import storage
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.shipped import find_config
from pipeline.hdf5.foreign.dataset import holds_shards, open_any
from pipeline.hdf5.format import VSL
from pipeline.runs import layout
from trainer.config import Params
from trainer.data import SampleSource, batches, open_evaluation

TOKENIZER_FILES = (layout.TOKENIZER, layout.TOKENIZER_CONFIG)


@dataclass(frozen=True)
class DataDirectories:
    """Directories of .h5 shards that `--data` names or its config made; None: those of the
    params file. `run`: the prep run directory, None where `--data` is a directory of shards."""

    train: Path | None = None
    validation: Path | None = None
    run: Path | None = None

    @property
    def ready(self) -> Path | None:
        """What another `train` is given as `--data` to read the same."""
        return self.run or self.train


def data_directories(data: Path | None) -> DataDirectories:
    """What `--data` stands for. A prep config is run first (finished work is reused)."""
    directories = find_data_directories(data)
    if directories is None:
        assert data is not None
        directories = _of_run(pipeline.run(data).directory)
    return directories


def find_data_directories(data: Path | None) -> DataDirectories | None:
    """The directories that `--data` names; None when it is a prep config, which has to be run.
    Raises ConfigError when it is neither, InputError for a directory without data."""
    if data is None:
        return DataDirectories()
    if not data.is_dir():
        try:
            find_config("prep", data)
        except ConfigError as error:
            shipped = str(error).rpartition(": ")[2]
            raise ConfigError(
                f"--data {data}: no such directory or file; expected a prep run directory, a "
                f"directory of .h5 files, a prep config, or the name of a shipped one: {shipped}"
            ) from error
        return None
    return DataDirectories(data) if holds_shards(data) else _of_run(data)


def open_validation(params: Params, directories: DataDirectories) -> SampleSource:
    """The validation data sets, checked. Raises InputError when there are none."""
    section = params.eval_input
    assert section is not None, "check_cluster refuses this"
    if directories.run is not None and directories.validation is None:
        raise InputError(f"--data {directories.run}: there is no hdf5/validation to evaluate on")
    return open_evaluation(section, params.model, directories.validation)


def evaluates(params: Params, directories: DataDirectories) -> bool:
    """Whether there is something to evaluate on."""
    if params.eval_input is None:
        return False
    if directories.run is not None:
        return directories.validation is not None
    return params.eval_input.data_dir is not None


def fit_params(params: Params, directories: DataDirectories) -> Params:
    """`params` with the row length and the vocabulary of the training data, and as many leaves of
    about as many tokens as before."""
    assert directories.train is not None, "resolve_params asks for --data"
    dataset = open_any(directories.train, params.model.max_position_embeddings)
    length = dataset.max_sequence_length
    shape = {"max_position_embeddings": length, "vocab_size": dataset.vocab_size}
    changes: dict[str, FrozenModel] = {"model": params.model.model_copy(update=shape)}
    sections = {"train_input": params.train_input, "eval_input": params.eval_input}
    for name, section in sections.items():
        if section is not None:
            leaf = batches.micro_batch_size(params, section)
            fits = max(1, leaf * params.model.max_position_embeddings // length)
            sizes = {
                "batch_size": section.batch_size // leaf * fits,
                "micro_batch_size": fits,
                "use_vsl": dataset.layout is VSL,
            }
            changes[name] = section.model_copy(update=sizes)
    return params.model_copy(update=changes)


def keep_tokenizer(directories: DataDirectories, model_dir: Path) -> None:
    """Publish the tokenizer of the prep run, if there is one, beside the model it belongs to."""
    if directories.run is None:
        return
    for name in TOKENIZER_FILES:
        if (directories.run / name).is_file():
            storage.publish(model_dir / name, (directories.run / name).read_bytes())


def find_kept_tokenizer(model_dir: Path) -> Path | None:
    """tokenizer.json of a model directory, where training kept one."""
    kept = model_dir / layout.TOKENIZER
    return kept if kept.is_file() else None


def _of_run(directory: Path) -> DataDirectories:
    train, validation = directory / "hdf5" / "train", directory / "hdf5" / "validation"
    if not train.is_dir():
        raise InputError(
            f"--data {directory}: expected a prep run directory with hdf5/train inside, or a "
            "directory of .h5 files"
        )
    return DataDirectories(train, validation if validation.is_dir() else None, directory)
