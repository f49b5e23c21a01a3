"""The `.mdl` file: HDF5 with one dataset per tensor. The only module here that knows h5py.

    /NAME                 one contiguous dataset per leaf, NAME its dotted path in the state
    @__spec__             the tree around the leaves as JSON (`state_tree`)
    @NAME.__metadata__    JSON: kind, dtype, shape and xxh3-128 of a leaf; or {"link": NAME} for a
                          tensor that is tied to another and stored once
    @__version__          0.5
    @__wafermill__        JSON: what else a run needs (`run_state`), and a hash of all attributes
    @__SUCCESS__          True; put last, so a file without it is a partial one

The layout follows the published description of the cstorch 2.10 format. Writing never holds the
file in memory; reading follows no links out of the file, takes no filters, and checks shapes
against the file's size and hashes when data is read.
"""

import contextlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from pipeline.core import storage
from pipeline.core.hashes import hash_bytes
from wafer_backend.errors import CheckpointError
from wafer_backend.storage.state_tree import Array, TensorLayout, layout_from

_PAGE = 4096


class Outline(io.RawIOBase):
    """A binary file object that keeps its written pages; the rest reads as zero.

    HDF5 writes its structures into one, without the data of large datasets, which are put in
    between when the file is published.
    """

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}
        self._position = 0
        self.size = 0

    def span(self, start: int, stop: int) -> bytes:
        """The bytes [start, stop), zero where nothing was written."""
        pieces = []
        while start < stop:
            number, offset = divmod(start, _PAGE)
            count = min(stop - start, _PAGE - offset)
            page = self._pages.get(number)
            pieces.append(bytes(count) if page is None else bytes(page[offset : offset + count]))
            start += count
        return b"".join(pieces)

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` from the position; returns how many bytes there were."""
        data = self.span(self._position, min(self.size, self._position + len(buffer)))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def write(self, data: Any) -> int:
        """Write at the position; returns the number of bytes."""
        view = memoryview(data)
        for start in range(-(self._position % _PAGE), len(view), _PAGE):
            number, offset = divmod(self._position + max(start, 0), _PAGE)
            piece = view[max(start, 0) : start + _PAGE]
            page = self._pages.setdefault(number, bytearray(_PAGE))
            page[offset : offset + len(piece)] = piece
        self._position += len(view)
        self.size = max(self.size, self._position)
        return len(view)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position; returns it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """The position in bytes."""
        return self._position

    def truncate(self, size: int | None = None) -> int:
        """Set the size in bytes, to the position by default."""
        self.size = self._position if size is None else size
        return self.size


VERSION = 0.5
_SUFFIX = ".__metadata__"
_BROKEN = (OSError, RuntimeError, KeyError, ValueError, TypeError, RecursionError, OverflowError)


@dataclass(frozen=True)
class StoredLeaf:
    """One leaf to write: its layout and how to get its bytes (called twice: hash, write)."""

    layout: TensorLayout
    stored: Callable[[], Array]


def write_mdl_file(
    path: Path,
    spec: Any,
    leaves: Mapping[str, StoredLeaf],
    links: Mapping[str, str],
    run_state: Any,
) -> None:
    """Publish a file: all of it or nothing. `links` maps the names of tied leaves to stored ones.

    Raises pipeline.core.errors.ResourceError when there is no room.
    """
    texts = {name + _SUFFIX: _metadata(leaf) for name, leaf in leaves.items()}
    texts |= {name + _SUFFIX: _json({"link": to}) for name, to in links.items()}
    texts["__spec__"] = _json(spec)
    outline, offsets = Outline(), {}
    with h5py.File(outline, "w", libver=("v110", "v110"), track_order=True) as file:
        for name, leaf in leaves.items():
            offsets[name] = _place(file, name, leaf.layout)
        for key, text in texts.items():
            file.attrs[key] = text
        file.attrs["__version__"] = VERSION
        own = {"attributes": _digest(texts, run_state), "run_state": run_state}
        file.attrs["__wafermill__"] = _json(own)
        file.attrs["__SUCCESS__"] = True
    storage.publish(path, _pieces(outline, leaves, offsets))


def _place(file: h5py.File, name: str, layout: TensorLayout) -> int | None:
    """Reserve room for a leaf; returns its offset in the file, None for a leaf of no bytes."""
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_layout(h5py.h5d.CONTIGUOUS)
    settings.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    settings.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    settings.set_obj_track_times(False)
    dataset = h5py.h5d.create(
        file.id,
        name.encode(),
        h5py.h5t.py_create(layout.stored_dtype, logical=True),
        h5py.h5s.create_simple(layout.stored_shape),
        settings,
    )
    return dataset.get_offset()  # type: ignore[no-any-return]


def _pieces(
    outline: Outline, leaves: Mapping[str, StoredLeaf], offsets: Mapping[str, int | None]
) -> Iterator[bytes | memoryview]:
    """The file from its first byte to its last."""
    position = 0
    placed = [(offset, name) for name, offset in offsets.items() if offset is not None]
    for offset, name in sorted(placed):
        yield outline.span(position, offset)
        data = _flat(leaves[name].stored())
        yield data
        position = offset + len(data)
    yield outline.span(position, outline.size)


def _flat(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def _metadata(leaf: StoredLeaf) -> str:
    layout = leaf.layout
    hashed = hash_bytes(_flat(leaf.stored()))
    return _json(
        {
            "kind": layout.kind,
            "dtype": layout.dtype,
            "shape": list(layout.shape),
            "xxh3_128": hashed,
        }
    )


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _digest(texts: Mapping[str, str], run_state: Any) -> str:
    canonical = json.dumps([sorted(texts.items()), run_state], sort_keys=True)
    return hash_bytes(canonical.encode())


class MdlFile:
    """An open `.mdl` file, read as data is asked for; it stays readable when it is replaced.

    Raises CheckpointError, naming the file, for one that is partial, damaged or foreign.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = path.stat().st_size
        try:
            self._file = h5py.File(path, "r", locking=False)
        except _BROKEN as error:
            raise self._damaged(error) from error
        with self._explained():
            self._texts = self._attributes()
            self.spec = json.loads(self._texts["__spec__"])

    def layout(self, name: str) -> TensorLayout:
        """What a leaf is."""
        with self._explained():
            metadata = self._described(name)
            shape = metadata["shape"]
            if not all(type(length) is int and length >= 0 for length in shape):
                raise ValueError(f"{name}: shape {shape}")
            layout = layout_from(metadata["kind"], metadata["dtype"], tuple(shape))
            self._dataset(name, layout)
            return layout

    def link(self, name: str) -> str:
        """The name that a leaf is stored under: another's when it is tied."""
        with self._explained():
            return str(self._described(name).get("link", name))

    def read(self, name: str, layout: TensorLayout) -> Array:
        """The stored array of a leaf, its hash checked."""
        with self._explained():
            array = np.empty(layout.stored_shape, layout.stored_dtype)
            dataset = self._dataset(name, layout)
            if array.size:
                dataset.read_direct(array)
            expected = self._described(name).get("xxh3_128")
            if expected not in (None, hash_bytes(_flat(array))):
                raise ValueError(f"{name}: its bytes do not have the hash {expected}")
            return array

    @property
    def run_state(self) -> Any:
        """What `write_mdl_file` was given; None in files of other software."""
        return self._own.get("run_state")

    def _attributes(self) -> dict[str, str]:
        attributes = self._file.attrs
        if "__SUCCESS__" not in attributes or not bool(attributes["__SUCCESS__"]):
            raise CheckpointError(
                f"{self.path}: a partly written checkpoint (it has no __SUCCESS__ mark); "
                "take an earlier one"
            )
        if float(attributes["__version__"]) != VERSION:
            raise CheckpointError(
                f"{self.path}: format version {float(attributes['__version__']):g} is not "
                f"supported, only {VERSION}"
            )
        texts = {
            key: str(attributes[key])
            for key in attributes
            if key == "__spec__" or key.endswith(_SUFFIX)
        }
        self._own = json.loads(attributes.get("__wafermill__", "{}"))
        if self._own and self._own["attributes"] != _digest(texts, self._own["run_state"]):
            raise ValueError("its attributes do not have the recorded hash")
        return texts

    def _described(self, name: str) -> Any:
        metadata = json.loads(self._texts[name + _SUFFIX])
        if not isinstance(metadata, dict):
            raise ValueError(f"{name}: {metadata!r} does not describe a tensor")
        return metadata

    def _dataset(self, name: str, layout: TensorLayout) -> h5py.Dataset:
        """The dataset of a leaf, when it is a plain one inside this file."""
        plain = "/" not in name and type(self._file.get(name, getlink=True)) is h5py.HardLink
        dataset = self._file[name] if plain else None
        if not isinstance(dataset, h5py.Dataset) or dataset.is_virtual or dataset.external:
            raise ValueError(f"{name}: not a dataset of this file")
        if dataset.id.get_create_plist().get_nfilters():
            raise ValueError(f"{name}: it has filters (compressed), which is not supported")
        if dataset.nbytes > self._size:
            raise ValueError(
                f"{name}: shape {dataset.shape} does not fit into {self._size:,} bytes"
            )
        if (dataset.shape, dataset.dtype) != (layout.stored_shape, layout.stored_dtype):
            raise ValueError(f"{name}: {dataset.shape} {dataset.dtype}, {layout} was expected")
        return dataset

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what HDF5 and JSON raise about the file into one line that names it."""
        try:
            yield
        except _BROKEN as error:
            raise self._damaged(error) from error

    def _damaged(self, error: BaseException) -> CheckpointError:
        reason = " ".join(str(error).split()) or type(error).__name__
        return CheckpointError(f"{self.path}: not a sound .mdl file: {reason[:200]}")
