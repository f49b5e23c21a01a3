"""`--data`: from a prep run directory, or a prep config that is run first, to the two data sets."""

from dataclasses import dataclass
from pathlib import Path

import pipeline
from pipeline.core import storage
from pipeline.core.config_model import FrozenModel
from pipeline.core.errors import InputError
from pipeline.hdf5.format import VSL
from pipeline.hdf5.read import open_dataset
from trainer import leaves
from trainer.config import Params
from trainer.data import Source, open_evaluation

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class DataDirectories:
    """Directories of .h5 shards that `--data` names or its config made, in place of those of the
    params file; None where those count, `validation` also where the run has none. `run`: the prep
    run directory."""

    train: Path | None = None
    validation: Path | None = None
    run: Path | None = None


def data_directories(data: Path | None) -> DataDirectories:
    """What `--data` stands for. A prep config is run first (finished work is reused)."""
    if data is None:
        return DataDirectories()
    return _of_run(data if data.is_dir() else _prepared(data))


def open_validation(params: Params, directories: DataDirectories) -> Source:
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


def fitted(params: Params, directories: DataDirectories) -> Params:
    """`params` with the row length and the vocabulary of the training data, and as many leaves of
    about as many tokens as before."""
    assert directories.train is not None, "request.checked_params asks for --data"
    dataset = open_dataset(directories.train)
    length = dataset.max_sequence_length
    shape = {"max_position_embeddings": length, "vocab_size": dataset.vocab_size}
    changes: dict[str, FrozenModel] = {"model": params.model.model_copy(update=shape)}
    sections = {"train_input": params.train_input, "eval_input": params.eval_input}
    for name, section in sections.items():
        if section is not None:
            leaf = leaves.micro_batch_size(params, section)
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
