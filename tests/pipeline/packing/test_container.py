"""Shards as any HDF5 reader finds them."""

import io
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.hdf5.chunks import fletcher32, sample_shard
from tests.pipeline.hdf5.foreign_rows import count_rows


@pytest.mark.parametrize("length", [2, 128, 30_000, 90_000])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_any_hdf5_reader_opens_a_shard(length: int, count: int, tmp_path: Path) -> None:
    """Several chunks, odd chunk sizes: plain h5py verifies the checksums we appended."""
    random = np.random.default_rng(length + count)
    ids = random.integers(0, 50257, (count, length + 1), dtype=np.int32)
    rows = np.stack([ids[:, :-1], np.ones((count, length), np.int32), ids[:, 1:]], axis=1)
    path = tmp_path / "shard.h5"
    path.write_bytes(sample_shard(rows))
    with h5py.File(path, "r") as file:
        assert (file["data"][:] == rows).all()
        assert file.attrs["n_examples"] == count
    assert count_rows(path, 50257, length) == (count, 0)
    assert sample_shard(rows) == path.read_bytes(), "the same bytes every time"


@settings(max_examples=40)
@given(st.binary(max_size=800))
@example(b"")
@example(b"\xff" * 65535)
@example(b"\xff\xff" * 721)
@example(b"\x00" * 99)
def test_fletcher32_equals_hdf5(data: bytes) -> None:
    """Against the library itself: it accepts our checksum and stores the same four bytes."""
    if not data:
        return
    with h5py.File(io.BytesIO(), "w") as file:
        values = np.frombuffer(data, np.uint8)
        stored = file.create_dataset("x", data=values, chunks=values.shape, fletcher32=True)
        _, chunk = stored.id.read_direct_chunk((0,))
    assert chunk == data + fletcher32(data).to_bytes(4, "little")
