"""The arguments of `convert_dataset_to_HDF5`, checked before anything is read or written."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from pipeline.core.errors import ConfigError, escape_text
from pipeline.hdf5.convert_file import compression_of
from pipeline.hdf5.convert_samples import Collator, Packer
from pipeline.hdf5.format import DATA_PARAMS, SHARD_SUFFIX

_DTYPES = "iuf"


@dataclass(frozen=True)
class ConvertJob:
    """What is converted, to where and how."""

    dataset: Any
    directory: Path
    name: str
    num_workers: int
    batch_size: int
    packer: Packer
    params: Mapping[str, Any]
    """The settings as data_params.json shows them."""

    @property
    def samples_per_file(self) -> int:
        """Samples in every file but the last."""
        return int(self.params["samples_per_file"])

    @property
    def samples(self) -> int | None:
        """Length of the dataset; None when it can only be iterated."""
        return None if _iterable(self.dataset) else len(self.dataset)

    def file_name(self, index: int) -> str:
        """The name of file `index`, from 0; names count from 1."""
        return f"{self.name}-{index + 1}{SHARD_SUFFIX}"

    def ours(self, found: str) -> bool:
        """Whether a name in the directory is one of this conversion's."""
        file = re.escape(self.name) + r"-[1-9][0-9]*" + re.escape(SHARD_SUFFIX)
        return found == DATA_PARAMS or re.fullmatch(file, found) is not None

    def identity(self) -> dict[str, Any]:
        """What two calls must share to be the same conversion."""
        settings = {k: v for k, v in self.params.items() if k != "output_dir"}
        return {"format": 1, "name": self.name, "samples": self.samples, **settings}


def conflicts(name: str) -> bool:
    """Whether readers of the output directory would take a file for one of the data set."""
    return name.endswith(SHARD_SUFFIX) or name == DATA_PARAMS


def check_job(
    dataset: Any, output_dir: str, name: str, samples_per_file: int, num_workers: int,
    batch_size: int, collator: Collator | None, dtype: Any, compression: str | int | None,
) -> ConvertJob:  # fmt: skip
    """The job that the arguments describe. Raises ConfigError naming the wrong one."""
    _check_number("samples_per_file", samples_per_file, 1)
    _check_number("num_workers", num_workers, 0)
    _check_number("batch_size", batch_size, 1)
    if not isinstance(name, str) or not name or Path(name).name != name or name.startswith("."):
        raise ConfigError(f"name: {name!r}; expected the beginning of a file name")
    _check_dataset(dataset)
    stored = _dtype(dtype)
    params = {
        "output_dir": output_dir,
        "dtype": dtype if isinstance(dtype, str) else stored.str,
        "compression": compression,
        "samples_per_file": samples_per_file,
    }
    packer = Packer(collator, stored, compression_of(compression))
    return ConvertJob(dataset, Path(output_dir), name, num_workers, batch_size, packer, params)


def _check_number(argument: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{argument}: {value!r}; expected a whole number of at least {least}")


def _dtype(dtype: Any) -> np.dtype[Any]:
    try:
        stored: np.dtype[Any] = np.dtype(dtype)
    except TypeError as error:
        raise ConfigError(f"dtype: {dtype!r}; expected a numpy dtype such as 'i4'") from error
    if stored.kind not in _DTYPES or stored.itemsize > 8:
        raise ConfigError(f"dtype: {dtype!r}; expected an integer or float dtype such as 'i4'")
    return stored


def _check_dataset(dataset: Any) -> None:
    if isinstance(dataset, Mapping):
        splits = ", ".join(escape_text(str(key), 40) for key in list(dataset)[:5])
        raise ConfigError(
            f"dataset: a dict ({splits}), expected a dataset of samples; convert each on its own"
        )
    if _iterable(dataset):
        if not isinstance(dataset, Iterable):
            kind = type(dataset).__name__
            raise ConfigError(f"dataset: a {kind} has neither __getitem__ nor __iter__")
    elif not hasattr(dataset, "__len__"):
        kind = type(dataset).__name__
        raise ConfigError(f"dataset: a {kind} has __getitem__ but no __len__; it needs both")


def _iterable(dataset: Any) -> bool:
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")
