"""Shards in memory: plain h5py reads them, every flipped bit shows, and our reader agrees."""

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipeline.core.errors import InputError, IntegrityError
from pipeline.hdf5.chunks import fletcher32, shard_image
from pipeline.hdf5.format import chunk_shape, find_layout
from pipeline.hdf5.shard_file import ShardFile

COMPRESSIONS = ("gzip", "gzip-shuffle", "none")

shapes = st.one_of(
    st.tuples(st.integers(1, 20), st.sampled_from([3, 5]), st.integers(1, 200)),
    st.tuples(st.integers(1, 20_000)),
)


@st.composite
def arrays(draw: Any) -> np.ndarray[Any, Any]:
    shape = draw(shapes)
    dtype = np.int32 if len(shape) == 3 else draw(st.sampled_from([np.uint16, np.uint32]))
    seed = draw(st.integers(0, 1 << 32))
    limits = np.iinfo(dtype)
    wide = draw(st.booleans())
    low, high = (limits.min, limits.max) if wide else (0, 60)
    return np.random.default_rng(seed).integers(low, high, shape, dtype, endpoint=True)


@settings(max_examples=60)
@given(arrays(), st.sampled_from(COMPRESSIONS))
def test_round_trip(array: np.ndarray[Any, Any], compression: Any) -> None:
    image = shard_image(array, compression)
    assert image == shard_image(array, compression)
    with h5py.File(io.BytesIO(image), "r") as file:
        data = file["data"]
        assert data.dtype == array.dtype and (data[:] == array).all()
        assert file.attrs["n_examples"] == len(array)
        assert list(file) == ["data"] and list(file.attrs) == ["n_examples"]
        assert data.fletcher32 and data.chunks == chunk_shape(array.shape)
        codes = {data.id.get_create_plist().get_filter(i)[0]
                 for i in range(data.id.get_create_plist().get_nfilters())}  # fmt: skip
        assert codes <= {1, 2, 3}, "filters of every HDF5 library"


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("shape", [(11, 3, 700), (9, 5, 300), (20_000,)])
def test_our_reader_equals_h5py(compression: Any, shape: tuple[int, ...], tmp_path: Path) -> None:
    dtype = np.int32 if len(shape) == 3 else np.uint16
    array = np.random.default_rng(1).integers(0, 999, shape, dtype)
    path = tmp_path / "a.h5"
    path.write_bytes(shard_image(array, compression))
    for trusted in (False, True):
        file = ShardFile(path, trusted=trusted)
        assert (np.concatenate([rows for _, rows in file.blocks()]) == array).all()
        for least in (1, 2, 7, 10_000):
            parts = list(file.blocks(least))
            assert (np.concatenate([rows for _, rows in parts]) == array).all()
            assert all(len(rows) >= least for _, rows in parts[:-1])
            assert [first for first, _ in parts] == np.cumsum(
                [0, *(len(rows) for _, rows in parts)]
            )[:-1].tolist()
        for start, stop in ((0, 1), (3, 9), (len(array) - 1, len(array)), (5, 5)):
            assert (file.read(start, stop) == array[start:stop]).all()
        order = np.random.default_rng(2).permutation(len(array))[:50]
        out = np.zeros((len(order), *shape[1:]), dtype)
        file.take(order, out, np.arange(len(order)))
        assert (out == array[order]).all()


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("shape", [(5, 3, 40), (5, 5, 40), (9_000,)])
def test_every_flipped_bit_is_an_error(
    compression: Any, shape: tuple[int, ...], tmp_path: Path
) -> None:
    dtype = np.int32 if len(shape) == 3 else np.uint16
    image = shard_image(np.random.default_rng(3).integers(0, 999, shape, dtype), compression)
    path = tmp_path / "damaged.h5"
    path.write_bytes(image)
    with h5py.File(path, "r") as file:
        found: list[Any] = []
        file["data"].id.chunk_iter(found.append)
    for chunk in found:
        for place in np.linspace(0, chunk.size - 1, 17).astype(int).tolist():
            copy = bytearray(image)
            copy[chunk.byte_offset + place] ^= 1 << place % 8
            path.write_bytes(copy)
            with h5py.File(path, "r") as file, pytest.raises(OSError, match="filter"):
                file["data"][:]
            with pytest.raises(IntegrityError, match=r"damaged\.h5: damaged: chunk"):
                list(ShardFile(path).blocks())


def test_truncation_is_an_error(tmp_path: Path) -> None:
    image = shard_image(np.ones((50, 3, 64), np.int32), "none")
    path = tmp_path / "cut.h5"
    for size in (0, 1, 100, len(image) // 2, len(image) - 1):
        path.write_bytes(image[:size])
        with pytest.raises(InputError, match=r"cut\.h5: not a valid HDF5 file"):
            ShardFile(path)


@pytest.mark.parametrize(
    "options",
    [
        {"chunks": (1, 3, 50), "compression": "gzip"},
        {"chunks": (4, 3, 50), "compression": "gzip", "shuffle": True, "fletcher32": True},
        {"chunks": (4, 3, 50), "fletcher32": True, "shuffle": True},
        {"chunks": (4, 3, 50), "compression": "lzf"},
        {"chunks": (4, 3, 50), "scaleoffset": 0},
        {"chunks": (2, 1, 25), "compression": "gzip"},
        {"maxshape": (None, 3, 50), "chunks": (3, 3, 50)},
        {},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["<i4", ">i4", "<i8", "<u2", "<f4"])
def test_files_of_others(options: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    """Whatever h5py writes is read, by us or through the library."""
    if dtype == "<f4" and "scaleoffset" in options:
        pytest.skip("loses digits")
    array = np.random.default_rng(4).integers(0, 999, (10, 3, 50)).astype(dtype)
    path = tmp_path / "foreign.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=array, **options)
    file = ShardFile(path)
    assert file.dtype == np.dtype(dtype)
    assert (np.concatenate([rows for _, rows in file.blocks()]) == array).all()
    assert (file.read(3, 8) == array[3:8]).all()


@pytest.mark.parametrize("compression", [None, "gzip", "lzf"])
@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("locking", [None, True, False, "best-effort"])
def test_files_that_this_process_has_open(
    compression: Any, mode: str, locking: Any, tmp_path: Path
) -> None:
    """With any locking, before and after ours: HDF5 wants equal flags of every open handle."""
    rows = np.random.default_rng(0).integers(0, 99, (9, 3, 16)).astype("i4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("data", data=rows, compression=compression)
    with h5py.File(tmp_path / "a.h5", mode, locking=locking) as held:
        ours = ShardFile(tmp_path / "a.h5")
        assert (ours.read(0, 9) == held["data"][:]).all() and (ours.read(0, 9) == rows).all()
    with h5py.File(tmp_path / "a.h5", mode, locking=locking) as again:
        assert (again["data"][:] == rows).all() and (ours.read(2, 4) == rows[2:4]).all()


def test_data_elsewhere_is_refused(tmp_path: Path) -> None:
    inner = tmp_path / "inner.h5"
    inner.write_bytes(shard_image(np.zeros((2, 3, 8), np.int32)))
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        target = h5py.VirtualLayout((2, 3, 8), "i4")
        target[:] = h5py.VirtualSource(str(inner), "data", (2, 3, 8))
        file.create_virtual_dataset("data", target)
    with h5py.File(tmp_path / "soft.h5", "w") as file:
        file["data"] = h5py.SoftLink("/elsewhere")
    with h5py.File(tmp_path / "outside.h5", "w") as file:
        file.create_dataset("data", (2, 3, 8), "i4", external=[("x.bin", 0, 192)])
    with h5py.File(tmp_path / "linked.h5", "w") as file:
        file["data"] = h5py.ExternalLink("inner.h5", "data")
    for name in ("virtual", "soft", "outside", "linked"):
        with pytest.raises(InputError, match=rf"{name}\.h5"):
            ShardFile(tmp_path / f"{name}.h5")


def test_rows_that_were_never_written(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "some.h5", "w") as file:
        data = file.create_dataset("data", (10, 3, 8), "i4", chunks=(1, 3, 8))
        data[:4] = 1
    with pytest.raises(InputError, match="declares 10 rows in 10 chunks, but stores 4"):
        ShardFile(tmp_path / "some.h5")
    with h5py.File(tmp_path / "none.h5", "w") as file:
        file.create_dataset("data", (10**12, 3, 2048), "i4", chunks=(1, 3, 2048))
    with pytest.raises(InputError, match="stores none of them"):
        ShardFile(tmp_path / "none.h5")


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 3, 8), np.int32),
        np.zeros((2, 4, 8), np.int32),
        np.zeros((2, 3, 8), np.int64),
        np.zeros((2, 24), np.int32),
        np.zeros(5, np.int32),
        np.zeros(0, np.uint16),
        np.zeros((1, 3, 0), np.int32),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_what_is_no_shard(array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(ValueError, match=r"sample \(N, 3, MSL\)|needs rows"):
        shard_image(array)


def test_layouts() -> None:
    assert find_layout((4, 3, 8), "<i4").features == ("input_ids", "attention_mask", "labels")
    assert find_layout((4, 5, 8), "<i4").channels == 5
    assert find_layout((4,), "<u4").channels == 0


@settings(max_examples=40)
@given(st.binary(max_size=40_000), st.integers(0, 2))
def test_checksum_equals_hdf5(data: bytes, kind: int) -> None:
    """Against the library itself: the same four bytes, over blocks, odd lengths and all ones."""
    data = (data, b"\xff" * len(data), b"\x00" * len(data))[kind]
    if not data:
        return
    with h5py.File(io.BytesIO(), "w") as file:
        values = np.frombuffer(data, np.uint8)
        stored = file.create_dataset("x", data=values, chunks=values.shape, fletcher32=True)
        _, chunk = stored.id.read_direct_chunk((0,))
    assert chunk == data + fletcher32(data).to_bytes(4, "little")
    assert fletcher32(memoryview(data)) == fletcher32(data)


@given(hnp.arrays(np.int32, st.tuples(st.integers(1, 4), st.just(3), st.integers(1, 9))))
def test_any_values(array: np.ndarray[Any, Any]) -> None:
    """Negative and large values too: the writer is not the one to judge them."""
    with h5py.File(io.BytesIO(shard_image(array)), "r") as file:
        assert (file["data"][:] == array).all()


def test_files_are_closed_with_their_last_user_and_left_to_the_system_at_the_end(tmp_path: Path):
    path = tmp_path / "some.h5"
    path.write_bytes(shard_image(np.zeros((4, 3, 8), np.int32), "gzip"))
    program = f"""
import os
from pathlib import Path
from pipeline.hdf5.shard_file import ShardFile
opened = lambda: len(os.listdir("/proc/self/fd"))
before, kept = opened(), ShardFile(Path({str(path)!r}))
assert opened() == before + 1
del kept
assert opened() == before
os.kept = ShardFile(Path({str(path)!r}))  # outlives the modules that it is made of
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
