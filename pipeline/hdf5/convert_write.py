"""Filling files with packed batches, and publishing each one that is full."""

from collections.abc import Iterator, Mapping
from typing import Any

import xxhash

from pipeline.core import failpoint
from pipeline.core.errors import InputError
from pipeline.hdf5.convert_file import file_image
from pipeline.hdf5.convert_job import ConvertJob
from pipeline.hdf5.convert_layout import FeatureLayout
from pipeline.hdf5.convert_load import Queue, iterable_loader, map_loader, packed_batches
from pipeline.hdf5.convert_progress import Meter
from pipeline.hdf5.convert_samples import (
    DIGEST_BYTES,
    IterableReader,
    MapReader,
    PackedBatch,
    SampleRequest,
    requests,
)
from pipeline.hdf5.convert_state import State


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
    probes = list(packed_batches(loader))
    layout = probes[0].layout
    writer.expect(0, {"first": probes[0].digests[:DIGEST_BYTES].hex()})
    if there:
        writer.expect(there[-1], {"last": probes[-1].digests[-DIGEST_BYTES:].hex()})
    if missing:
        wanted = [_span(job, writer.samples, index) for index in missing]
        queue.requests = requests(wanted, job.batch_size, layout)
        _fill(writer, missing, packed_batches(loader), progress)
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
    for packed in packed_batches(iterable_loader(reader, job)):
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
