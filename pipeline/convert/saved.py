"""A saved Hugging Face dataset of numbers as HDF5 rows, by `convert_dataset_to_HDF5`."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.convert.inputs import ConvertInputs, open_saved
from pipeline.convert.options import ConvertOptions
from pipeline.core.errors import ConfigError
from pipeline.hdf5.format import DATA_PARAMS

_SAMPLES_PER_FILE = 2000


@dataclass(frozen=True)
class SavedRows:
    """A dataset, the columns that become features, and those that are left out."""

    dataset: Any
    columns: tuple[str, ...]
    left_out: tuple[str, ...]


def saved_rows(inputs: ConvertInputs) -> SavedRows:
    """The columns of numbers of a saved dataset. Raises ConfigError and InputError."""
    if len(inputs.paths) > 1:
        raise ConfigError("saved datasets: convert one at a time")
    dataset = open_saved(inputs.paths[0])
    schema = dataset.features.arrow_schema
    numeric = tuple(field.name for field in schema if _is_numeric(field.type))
    left_out = tuple(name for name in schema.names if name not in numeric)
    return SavedRows(dataset.select_columns(list(numeric)), numeric, left_out)


def _is_numeric(kind: pa.DataType) -> bool:
    while _is_list(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    tests: tuple[Callable[[pa.DataType], bool], ...] = (
        pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list,
    )  # fmt: skip
    return any(test(kind) for test in tests)


def convert_saved(rows: SavedRows, options: ConvertOptions) -> dict[str, Any]:
    """Write the rows; returns what the summary says of them."""
    from pipeline.hdf5.convert import convert_dataset_to_HDF5

    if options.compression not in ("gzip", "none"):
        raise ConfigError(
            f"--compression {options.compression}: expected gzip or none for rows of a dataset"
        )
    if options.shard_size is not None:
        raise ConfigError("--shard-size: for rows of a dataset, use --samples-per-file")
    workers = len(os.sched_getaffinity(0)) if options.workers is None else options.workers
    made = convert_dataset_to_HDF5(
        rows.dataset.with_format("numpy"),
        options.out,
        samples_per_file=options.samples_per_file or _SAMPLES_PER_FILE,
        num_workers=workers,
        compression=options.compression,
    )
    return {
        "from": "saved dataset of numbers",
        "n_examples": made.n_examples,
        "shards": len(made.files),
        "features": list(rows.columns),
        "described by": DATA_PARAMS,
        "lost": {},
    }
