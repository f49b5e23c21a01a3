"""`convert_dataset_to_HDF5`: any PyTorch or Hugging Face dataset of dicts to HDF5 files.

Signature, files and `data_params.json` are those of Model Zoo's function of the same name, value
for value and attribute for attribute. Unlike it, this one compresses in parallel, publishes whole
files or none, goes on after a kill where it was, refuses directories that hold other data, and
refuses values that the dtype cannot hold.

>>> import tempfile
>>> samples = [{"input_ids": [1, 2, 3], "labels": [2, 3, 4]} for _ in range(5)]
>>> with tempfile.TemporaryDirectory() as directory:
...     made = convert_dataset_to_HDF5(samples, directory, samples_per_file=2, num_workers=0)
...     print(made.files, made.n_examples)
('dataset-partition-1.h5', 'dataset-partition-2.h5', 'dataset-partition-3.h5') 5
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core import lock, storage
from pipeline.hdf5 import convert_state
from pipeline.hdf5.convert_job import check_job, conflicts
from pipeline.hdf5.convert_layout import data_params
from pipeline.hdf5.convert_load import explain_deaths
from pipeline.hdf5.convert_progress import meter
from pipeline.hdf5.convert_write import FileWriter, write_files
from pipeline.hdf5.format import DATA_PARAMS

__all__ = ["ConversionResult", "convert_dataset_to_HDF5"]


@dataclass(frozen=True)
class ConversionResult:
    """What a call left: the directory, its files in order, and how many of them it made itself."""

    directory: Path
    files: tuple[str, ...]
    n_examples: int
    written: int


def convert_dataset_to_HDF5(  # noqa: N802 - Model Zoo's name
    dataset: Any,
    output_dir: str | Path = "./hdf5_dataset/",
    name: str = "dataset-partition",
    samples_per_file: int = 2000,
    num_workers: int = 8,
    batch_size: int = 64,
    data_collator: Callable[[list[Any]], Mapping[str, Any]] | None = None,
    dtype: Any = "i4",
    compression: str | int | None = "gzip",
) -> ConversionResult:
    """Write every sample of `dataset` to `{output_dir}/{name}-{1,2,…}.h5`, in order.

    dataset: a map-style dataset (`__getitem__`, `__len__`: torch, Hugging Face, a list) or an
        iterable one. A sample is a dict; each value a number or an array, tensor or nested list of
        numbers, of the same shape in every sample.
    output_dir: is created; must be empty, or hold what an earlier call with the same arguments
        left. Then the call goes on where that one stopped.
    samples_per_file: in every file but the last, which may hold fewer.
    num_workers: processes that read and compress; 0 reads in this one. An iterable dataset is
        always read by one process, so that no sample comes twice. The number changes no byte.
    batch_size: samples that are read at a time.
    data_collator: makes a dict of arrays (batch, …) of a list of samples, such as padding them.
    dtype: of every dataset in the files. Floats may be rounded to a shorter float; any other value
        that the dtype cannot hold is an error.
    compression: "gzip", "lzf", None or "none", or zlib's level from 0 to 9.

    Features of equal shape are stacked on axis 1 in the order of the first sample. If all have one
    shape the dataset is `data`, (n_examples, features, *shape), else `data_0`, `data_1`, … . Each
    sample is a chunk; the attribute `n_examples` counts them. `data_params.json` is written last.

    Raises ConfigError for wrong arguments or a directory that holds something else, InputError for
    samples that cannot be stored (naming index and feature), ResourceError for a full disk, a lock
    that is held or a worker that died.
    """
    job = check_job(
        dataset, os.fspath(output_dir), name, samples_per_file, num_workers, batch_size,
        data_collator, dtype, compression,
    )  # fmt: skip
    convert_state.check(job.directory, job.identity(), conflicts, job.ours)
    with lock.hold(job.directory):
        state = convert_state.begin(job.directory, job.identity(), conflicts, job.ours)
        writer = FileWriter(job, state)
        label = job.directory.resolve().name
        with explain_deaths(), meter(label, "samples", job.samples).shown() as progress:
            layout = write_files(writer, progress)
        params = data_params(layout, writer.samples, job.params)
        storage.publish(job.directory / DATA_PARAMS, params)
    files = tuple(job.file_name(index) for index in range(writer.files))
    return ConversionResult(job.directory, files, writer.samples, writer.written)
