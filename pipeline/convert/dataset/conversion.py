"""`convert_dataset_to_HDF5`: any PyTorch or Hugging Face dataset of dicts to HDF5 files.

Signature, files and `data_params.json` are those of Model Zoo's function of the same name, value
for value and attribute for attribute. Unlike it, this one compresses in parallel, publishes whole
files or none, resumes after a kill, refuses directories that hold other data, and refuses values
that the dtype cannot hold.

    >>> import tempfile
    >>> samples = [{"input_ids": [1, 2, 3], "labels": [2, 3, 4]} for _ in range(5)]
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     made = convert_dataset_to_HDF5(samples, directory, samples_per_file=2, num_workers=0)
    ...     print(made.files, made.n_examples)
    ('dataset-partition-1.h5', 'dataset-partition-2.h5', 'dataset-partition-3.h5') 5
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from pipeline.convert.dataset import state as convert_state
from pipeline.convert.dataset.job import (
    ConvertJob,
    Queue,
    check_job,
    conflicts,
    explain_deaths,
    iterable_loader,
    map_loader,
    pack_batches,
)
from pipeline.convert.dataset.layout import FeatureLayout, data_params, file_image
from pipeline.convert.dataset.samples import (
    DIGEST_BYTES,
    IterableReader,
    MapReader,
    PackedBatch,
    SampleRequest,
    requests,
)
from pipeline.convert.dataset.state import State
from pipeline.core import failpoint, journal, storage
from pipeline.core.errors import InputError
from pipeline.engine.progress import Meter, Progress
from pipeline.hdf5.format import DATA_PARAMS


class FileWriter:
    """Collects packed batches until a file is full; `samples` and `files` count the whole data
    set, `written` the files of this call."""

    def __init__(self, job: ConvertJob, state: State) -> None:
        self.job = job
        self.state = state
        self.samples = 0
        self.files = 0
        self.written = 0
        self._chunks: list[list[bytes]] = []
        self._digests = b""

    def add(self, packed: PackedBatch) -> None:
        """Take the next batch of the file that is being filled."""
        if not self._digests:
            self._chunks = [[] for _ in packed.layout.groups]
        self._digests += packed.digests
        if packed.chunks:
            for mine, more in zip(self._chunks, packed.chunks, strict=True):
                mine.extend(more)

    def finish(self, index: int, layout: FeatureLayout, publish: bool = True) -> None:
        """The batches since the last call are file `index`: publish it, or only compare it with
        the file that is there. Raises InputError when an earlier call saw other samples."""
        facts = {
            "n_examples": len(self._digests) // DIGEST_BYTES,
            "content": xxhash.xxh3_128_hexdigest(self._digests),
            "first": self._digests[:DIGEST_BYTES].hex(),
            "last": self._digests[-DIGEST_BYTES:].hex(),
        }
        self.expect(index, facts)
        if publish:
            failpoint.hit("convert.file")
            packer = self.job.packer
            image = file_image(layout, self._chunks, packer.dtype, packer.compression)
            self.state.publish(index, self.job.file_name(index), image, facts)
            self.written += 1
        self._chunks, self._digests = [], b""

    def expect(self, index: int, facts: Mapping[str, Any]) -> None:
        """Raises InputError unless a noted file has these facts."""
        entry = self.state.entries.get(index)
        if entry is not None and any(entry.get(key) != value for key, value in facts.items()):
            self.refuse(index)

    def refuse(self, index: int) -> None:
        """Raises InputError: the data of a file is not what it was."""
        raise InputError(
            f"{self.job.directory}: the dataset gives samples that differ from those in "
            f"{self.job.file_name(index)}, which an earlier call wrote; to resume, it must give "
            "the same samples in the same order; for other data, choose another output_dir"
        )


def write_files(writer: FileWriter, progress: Meter) -> FeatureLayout:
    """Make every file that is missing; returns the layout that all of them share."""
    map_style = writer.job.samples is not None
    layout = (_write_map if map_style else _write_iterable)(writer, progress)
    if layout is None:
        raise InputError("the dataset is empty: there is nothing to convert")
    beyond = [index for index in writer.state.entries if index >= writer.files]
    if beyond:
        writer.refuse(min(beyond))
    return layout


def _write_map(writer: FileWriter, progress: Meter) -> FeatureLayout | None:
    """The same workers first read a batch or two (what is the layout? is it still the same data?),
    then the files that are missing."""
    job, state = writer.job, writer.state
    writer.samples = len(job.dataset)
    writer.files = -(-writer.samples // job.samples_per_file)
    if not writer.files:
        return None
    missing = [index for index in range(writer.files) if not state.whole(index)]
    there = sorted(set(range(writer.files)) - set(missing))
    progress.advance(sum(_span(job, writer.samples, index)[1] for index in there))
    queue = Queue(_probes(job, writer.samples, there))
    batches = len(missing) * -(-job.samples_per_file // job.batch_size)
    workers = min(job.num_workers, max(1, batches))
    loader = map_loader(MapReader(job.dataset, job.packer), queue, job, workers)
    probes = list(pack_batches(loader))
    layout = probes[0].layout
    writer.expect(0, {"first": probes[0].digests[:DIGEST_BYTES].hex()})
    if there:
        writer.expect(there[-1], {"last": probes[-1].digests[-DIGEST_BYTES:].hex()})
    if missing:
        spans = [_span(job, writer.samples, index) for index in missing]
        queue.requests = requests(spans, job.batch_size, layout)
        _fill(writer, missing, pack_batches(loader), progress)
    return layout


def _span(job: ConvertJob, samples: int, index: int) -> tuple[int, int]:
    """(first sample, number of samples) of a file."""
    first = index * job.samples_per_file
    return first, min(job.samples_per_file, samples - first)


def _probes(job: ConvertJob, samples: int, there: list[int]) -> Iterator[SampleRequest]:
    """The first batch of the data set, and the last one of the last file that is there."""
    yield next(requests([_span(job, samples, 0)], job.batch_size, None))
    if there:
        *_, last = requests([_span(job, samples, there[-1])], job.batch_size, None)
        yield last


def _fill(
    writer: FileWriter, missing: list[int], batches: Iterator[PackedBatch], progress: Meter
) -> None:
    files = iter(missing)
    for packed in batches:
        writer.add(packed)
        progress.advance(packed.count)
        end = packed.first + packed.count
        if end % writer.job.samples_per_file == 0 or end == writer.samples:
            writer.finish(next(files), packed.layout)


def _write_iterable(writer: FileWriter, progress: Meter) -> FeatureLayout | None:
    """Iterate from the beginning; files that are there are compared with what comes, the others
    are written."""
    job = writer.job
    there = 0
    while writer.state.whole(there):
        there += 1
    begin = there * job.samples_per_file
    reader = IterableReader(job.dataset, job.packer, job.batch_size, job.samples_per_file, begin)
    layout = None
    for packed in pack_batches(iterable_loader(reader, job)):
        layout = packed.layout
        writer.add(packed)
        progress.advance(packed.count)
        writer.samples += packed.count
        if writer.samples % job.samples_per_file == 0:
            _finish_next(writer, layout, there)
    if layout is not None and writer.samples % job.samples_per_file:
        _finish_next(writer, layout, there)
    return layout


def _finish_next(writer: FileWriter, layout: FeatureLayout, there: int) -> None:
    writer.finish(writer.files, layout, publish=writer.files >= there)
    writer.files += 1


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
        dataset,
        os.fspath(output_dir),
        name,
        samples_per_file,
        num_workers,
        batch_size,
        collator=data_collator,
        dtype=dtype,
        compression=compression,
    )
    convert_state.check_conversion(job.directory, job.identity(), conflicts, job.ours)
    with journal.hold_lock(job.directory):
        state = convert_state.begin_conversion(job.directory, job.identity(), conflicts, job.ours)
        writer = FileWriter(job, state)
        label = job.directory.resolve().name
        bar = Progress().meter(label, "samples", job.samples)
        with state.left_if_empty(), explain_deaths(), bar as progress:
            layout = write_files(writer, progress)
        params = data_params(layout, writer.samples, job.params)
        storage.publish(job.directory / DATA_PARAMS, params)
    files = tuple(job.file_name(index) for index in range(writer.files))
    return ConversionResult(job.directory, files, writer.samples, writer.written)
