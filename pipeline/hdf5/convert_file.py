"""One file of `convert_dataset_to_HDF5`, built in memory from chunks that are compressed already.

Every sample is a chunk of its own, as Model Zoo writes it. gzip chunks are deflated outside of
HDF5, in the processes that read the samples, and stored with `write_direct_chunk` under the
ordinary gzip filter; lzf has no other implementation than HDF5's own filter.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from pipeline.core.errors import ConfigError
from pipeline.hdf5.chunk_filters import compress
from pipeline.hdf5.convert_layout import FeatureGroup, FeatureLayout
from pipeline.hdf5.format import COUNT_ATTRIBUTE

_GZIP_LEVELS = range(10)


@dataclass(frozen=True)
class Compression:
    """`given` is what the caller asked for: "gzip", "lzf", None, or zlib's level."""

    given: str | int | None

    def __post_init__(self) -> None:
        level = isinstance(self.given, int) and not isinstance(self.given, bool)
        if self.given in ("gzip", "lzf", None) or (level and self.given in _GZIP_LEVELS):
            return
        raise ConfigError(
            f"compression: {self.given!r}; expected 'gzip', 'lzf', 'none' (or None) or a gzip "
            "level from 0 to 9"
        )

    def packed(self, chunk: bytes) -> bytes:
        """A chunk as it is stored, or as HDF5 gets it when the filter is HDF5's own."""
        if self.given == "gzip":
            return compress(chunk)
        if isinstance(self.given, int):
            return zlib.compress(chunk, self.given)
        return chunk

    @property
    def stored_directly(self) -> bool:
        """Whether `packed` chunks bypass HDF5's filters."""
        return self.given != "lzf"


def compression_of(value: str | int | None) -> Compression:
    """What the argument `compression` means. Raises ConfigError."""
    return Compression(None if value == "none" else value)


def file_image(
    layout: FeatureLayout,
    chunks: Sequence[Sequence[bytes]],
    dtype: np.dtype[Any],
    compression: Compression,
) -> bytes:
    """The HDF5 file of samples whose chunks are given, group after group."""
    with h5py.File("image", "w", driver="core", backing_store=False) as file:
        file.attrs[COUNT_ATTRIBUTE] = len(chunks[0])
        for name, group, mine in zip(layout.names(), layout.groups, chunks, strict=True):
            _write_group(file, name, group, mine, dtype, compression)
        file.flush()
        image: bytes = file.id.get_file_image()
    return image


def _write_group(
    file: h5py.File, name: str, group: FeatureGroup, chunks: Sequence[bytes],
    dtype: np.dtype[Any], compression: Compression,
) -> None:  # fmt: skip
    shape = group.sample_shape
    data = file.create_dataset(
        name, shape=(len(chunks), *shape), dtype=dtype, chunks=(1, *shape),
        compression=compression.given, track_times=False,
    )  # fmt: skip
    if not compression.stored_directly:
        for index, chunk in enumerate(chunks):
            data[index] = np.frombuffer(chunk, dtype).reshape(shape)
        return
    origin = (0,) * len(shape)
    for index, chunk in enumerate(chunks):
        data.id.write_direct_chunk((index, *origin), chunk, filter_mask=0)
