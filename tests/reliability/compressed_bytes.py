"""Run as a program: what every compressor in use makes of the chunks in an .npy file.

`python compressed_bytes.py chunks.npy [NAME ...]` prints NAME HASH for each. Chunks are (C, 3, 3,
MSL) int32.
"""

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import safetensors.numpy

from pipeline.convert.dataset.layout import Compression, FeatureGroup, FeatureLayout, file_image
from pipeline.core import zstd
from pipeline.engine.stage import Output, arrow_output, parquet_output
from pipeline.hdf5 import chunks as chunk_filters
from pipeline.hdf5.chunks import shard_image
from pipeline.sources import copy

Chunks = npt.NDArray[np.int32]


def hdf5_deflate(chunks: Chunks) -> Iterator[bytes]:
    """`hdf5/` of a run, and gzip files of `convert_dataset_to_HDF5`."""
    return map(chunk_filters.compress, chunks)


def hdf5_shards(chunks: Chunks) -> Iterator[bytes]:
    """Whole files of both compressions."""
    rows = chunks[:300].reshape(-1, *chunks.shape[2:])
    yield shard_image(rows)
    yield shard_image(rows, "gzip-shuffle")


def hdf5_zlib_level(chunks: Chunks) -> Iterator[bytes]:
    """`convert_dataset_to_HDF5(compression=6)`."""
    return (Compression(6).packed(chunk.tobytes()) for chunk in chunks[:200])


def hdf5_lzf(chunks: Chunks) -> Iterator[bytes]:
    """`convert_dataset_to_HDF5(compression="lzf")`: HDF5's own filter."""
    layout = FeatureLayout((FeatureGroup(chunks.shape[1:], ("data",)),))
    samples = [chunk.tobytes() for chunk in chunks[:200]]
    yield file_image(layout, [samples], np.dtype(np.int32), Compression("lzf"))


def parquet(chunks: Chunks) -> Iterable[bytes]:
    """Lineage, documents.parquet and all other tables: zstd, with and without dictionaries."""
    return _pieces(parquet_output("t", _table(chunks), {"number": "DELTA_BINARY_PACKED"}, 4096))


def arrow_ipc(chunks: Chunks) -> Iterable[bytes]:
    """Shards between stages."""
    return _pieces(arrow_output("t", _table(chunks)))


def zstd_codec(chunks: Chunks) -> Iterator[bytes]:
    """Numbered words of fingerprints."""
    codec = pa.Codec("zstd", 3)
    return (codec.compress(chunk.tobytes(), asbytes=True) for chunk in chunks[:1000])


def streams(chunks: Chunks) -> Iterator[bytes]:
    """Records that `prep dedup` and `prep export` write, in every compression."""
    text = b"\n".join(b" ".join(b"%d" % t for t in chunk[0, 0]) for chunk in chunks[:100])
    for name in ("zst", "gz", "bz2", "xz"):
        compressor = copy.new_compressor(name)
        yield name.encode()
        for start in range(0, len(text), 100_000):
            yield compressor.compress(text[start : start + 100_000])
        yield compressor.flush()
    yield zstd.ZstdCompressor(level=3).compress(text)


def safetensors_file(chunks: Chunks) -> Iterator[bytes]:
    """Checkpoints and exports."""
    tensors = {f"layer.{n}.weight": np.array(chunk) for n, chunk in enumerate(chunks[:100])}
    yield safetensors.numpy.save(tensors, {"format": "pt"})


COMPRESSORS: dict[str, Callable[[Chunks], Iterable[bytes]]] = {
    function.__name__: function
    for function in (
        hdf5_deflate, hdf5_shards, hdf5_zlib_level, hdf5_lzf, parquet, arrow_ipc, zstd_codec,
        streams, safetensors_file,
    )
}  # fmt: skip


def _table(chunks: Chunks) -> pa.Table:
    tokens = chunks[:200, 0, 0].reshape(-1)
    return pa.table(
        {
            "number": np.sort(tokens),
            "token": tokens.astype(np.uint16),
            "word": pa.array(tokens[:50_000].astype("U6")).take(
                pa.array(np.arange(len(tokens)) % min(50_000, len(tokens)))
            ),
        }
    )


def _pieces(output: Output) -> Iterable[Any]:
    return [output.data] if isinstance(output.data, bytes) else output.data


def main() -> None:
    """Print the hash of what each compressor made."""
    chunks = np.load(sys.argv[1], mmap_mode="r")
    for name in sys.argv[2:] or COMPRESSORS:
        digest = hashlib.sha256()
        for piece in COMPRESSORS[name](chunks):
            digest.update(piece)
        print(name, digest.hexdigest())


if __name__ == "__main__":
    main()
