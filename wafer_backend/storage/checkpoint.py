"""`save` and `load`: checkpoints in the `.mdl` format (`mdl`), lazily read, without pickle."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.utils import _pytree

from wafer_backend.errors import CheckpointError
from wafer_backend.storage import mdl
from wafer_backend.storage.state_tree import (
    find_tensor_layout,
    flatten,
    from_stored,
    to_stored,
    unflatten,
)

_ATTRIBUTES = (
    "shape",
    "dtype",
    "device",
    "layout",
    "ndim",
    "is_meta",
    "is_cuda",
    "is_sparse",
    "is_quantized",
    "requires_grad",
    "is_leaf",
    "itemsize",
    "nbytes",
    "grad_fn",
    "grad",
)
_METHODS = ("size", "dim", "numel", "nelement", "element_size", "__len__", "is_floating_point")
_WITHOUT_DATA = {getattr(torch.Tensor, name).__get__ for name in _ATTRIBUTES} | {
    getattr(torch.Tensor, name) for name in _METHODS
}


class DeferredTensor(torch.Tensor):
    """A tensor of a checkpoint. Its shape and dtype are known, its data is in the file.

    Any use of the data reads it. Copying it into another tensor (`parameter.copy_(deferred)`, so
    `load_state_dict`) keeps nothing; every other use keeps what was read, so that changes in
    place and views last. Results of operations are ordinary tensors.
    """

    _read: Callable[[], torch.Tensor]
    _kept: torch.Tensor | None

    @staticmethod
    def __new__(
        cls,
        read: Callable[[], torch.Tensor],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
    ) -> "DeferredTensor":
        """A tensor that `read` gives, of this shape and dtype and on this device."""
        deferred: DeferredTensor = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=dtype, device=device
        )
        deferred._read = read
        deferred._kept = None
        return deferred

    def materialize(self) -> torch.Tensor:
        """The ordinary tensor, the same one each time. Raises CheckpointError when damaged."""
        if self._kept is None:
            self._kept = self._read()
        return self._kept

    def _once(self) -> torch.Tensor:
        return self._read() if self._kept is None else self._kept

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"DeferredTensor(shape={tuple(self.shape)}, dtype={self.dtype})"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run `func` on ordinary tensors; questions about shape and dtype read nothing."""
        kwargs = kwargs or {}
        if func in _WITHOUT_DATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func is torch.Tensor.copy_ and not isinstance(args[0], cls):
            args, kwargs = _pytree.tree_map_only(cls, cls._once, (args, kwargs))
        args, kwargs = _pytree.tree_map_only(cls, cls.materialize, (args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """The same for calls that come from inside torch."""
        args, kwargs = _pytree.tree_map_only(cls, cls.materialize, (args, kwargs or {}))
        return func(*args, **kwargs)


_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_OF_TORCH_LOAD = {"weights_only", "mmap"}


def save(state_dict: Any, path: str | Path) -> None:
    """Write nested state to a `.mdl` file: the whole file appears, or nothing does.

    Holds tensors, numpy arrays, dicts, lists, tuples, numbers, strings, bools and None, exactly;
    tied tensors are stored once and stay tied. The progress of the compiled modules goes with it
    (`load` takes it up). Of several ranks only the first writes, and the others do not wait for it.
    Raises CheckpointError, naming the entry, for any other type.
    """
    from wafer_backend import backends

    if not backends.is_writer():
        return
    write_checkpoint(state_dict, path, run_state=backends.run_state())


def load(path: str | Path, map_location: str | torch.device | None = None, **ignored: Any) -> Any:
    """Read what `save` wrote. Tensors are read when used (`DeferredTensor`); arrays at once.

    `map_location`: the device tensors come on, the host by default. The progress of the compiled
    modules is taken up. `weights_only` and `mmap` are accepted and change nothing: no code in a
    file is ever run. Raises CheckpointError for a file that is missing, partial, damaged, or
    made by `torch.save`.
    """
    from wafer_backend import backends

    if not ignored.keys() <= _OF_TORCH_LOAD:
        raise CheckpointError(f"load(...) has no argument {min(ignored.keys() - _OF_TORCH_LOAD)!r}")
    file = _open(_local(path))
    state = _state(file, torch.device("cpu" if map_location is None else map_location))
    if isinstance(file.run_state, dict):
        backends.load_run_state(file.run_state)
    return state


def write_checkpoint(state: Any, path: str | Path, run_state: Any = None) -> None:
    """`save` with any run state, for files that are no checkpoints of a run."""
    spec, leaves = flatten(state)
    links = _tied(leaves)
    stored = {
        name: mdl.StoredLeaf(find_tensor_layout(name, leaf), functools.partial(_store, leaf))
        for name, leaf in leaves.items()
        if name not in links
    }
    mdl.write_mdl_file(_local(path), spec, stored, links, run_state)


def read_checkpoint(path: str | Path) -> Any:
    """`load` that takes up no progress."""
    return _state(_open(_local(path)), torch.device("cpu"))


def _state(file: mdl.MdlFile, device: torch.device) -> Any:
    leaves: dict[str, Any] = {}

    def leaf(name: str) -> Any:
        target = file.link(name)
        if target not in leaves:
            leaves[target] = _leaf(file, target, device)
        return leaves[target]

    try:
        return unflatten(file.spec, leaf)
    except CheckpointError as error:
        named = str(error) if str(file.path) in str(error) else f"{file.path}: {error}"
        raise CheckpointError(named) from error


def _leaf(file: mdl.MdlFile, name: str, device: torch.device) -> Any:
    layout = file.layout(name)
    if layout.kind != "tensor":
        return from_stored(file.read(name, layout), layout)
    if device.type == "meta":
        return torch.empty(layout.shape, dtype=layout.torch_dtype, device=device)

    def read() -> torch.Tensor:
        tensor: torch.Tensor = from_stored(file.read(name, layout), layout)
        return tensor.to(device)

    return DeferredTensor(read, layout.shape, layout.torch_dtype, device)


def _store(leaf: Any) -> Any:
    """Bytes of a leaf; a deferred one is read and not kept."""
    return to_stored(leaf._once() if isinstance(leaf, DeferredTensor) else leaf)


def _tied(leaves: dict[str, Any]) -> dict[str, str]:
    """Name -> the earlier name of the same tensor, of the same view of the same storage."""
    first: dict[Any, str] = {}
    links = {}
    for name, leaf in leaves.items():
        same = first.setdefault(_identity(leaf), name)
        if same != name:
            links[name] = same
    return links


def _identity(leaf: Any) -> Any:
    plain = isinstance(leaf, torch.Tensor) and not isinstance(leaf, DeferredTensor)
    if not plain or leaf.is_meta or leaf.layout != torch.strided or leaf.numel() == 0:
        return id(leaf)
    return (leaf.device, leaf.dtype, leaf.data_ptr(), tuple(leaf.shape), leaf.stride())


def _local(path: str | Path) -> Path:
    if "://" in str(path):
        raise CheckpointError(f"{path}: only local files are supported; copy it and use its path")
    return Path(path)


def _open(path: Path) -> mdl.MdlFile:
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file")
    with open(path, "rb") as file:
        head = file.read(8)
    if head.startswith(_PICKLES):
        raise CheckpointError(
            f"{path}: a torch.save file; reading it can run code that is in it, so load() refuses. "
            f"Convert it: save(torch.load({path.name!r}, weights_only=True), 'NAME.mdl')"
        )
    if head != b"\x89HDF\r\n\x1a\n":
        raise CheckpointError(f"{path}: not a .mdl file (it is not HDF5)")
    return mdl.MdlFile(path)


__all__ = ["PyTorchH5Saver"]


class PyTorchH5Saver:
    """Reads `.mdl` files one tensor at a time and writes them as a whole.

    `max_store`: without effect; files are not limited.
    """

    def __init__(self, max_store: int | None = None) -> None:
        self._max_store = max_store

    @staticmethod
    def is_valid_checkpoint(path: str | Path) -> bool:
        """Whether `load` would read this file."""
        try:
            read_checkpoint(path)
        except CheckpointError:
            return False
        return True

    def tensor_names(self, path: str | Path) -> list[str]:
        """The dotted names of the tensors of a file. Raises CheckpointError."""
        return list(self.flatten_state_dict(read_checkpoint(path))[0])

    def load_tensor(self, path: str | Path, name: str) -> torch.Tensor:
        """One tensor of a file. Raises CheckpointError for a name it does not have."""
        tensors, _ = self.flatten_state_dict(read_checkpoint(path))
        if name not in tensors:
            raise CheckpointError(f"{path} has no tensor {name!r}")
        return tensors[name]

    @staticmethod
    def flatten_state_dict(state: Any) -> tuple[dict[str, torch.Tensor], Any]:
        """The tensors of nested state by dotted name, and what is around them."""
        spec, leaves = flatten(state)
        return {n: leaf for n, leaf in leaves.items() if isinstance(leaf, torch.Tensor)}, spec

    @staticmethod
    def save(path: str | Path, state: Any) -> None:
        """Write nested state as a whole."""
        write_checkpoint(state, path)

    def save_tensor(self, path: str | Path, name: str, tensor: torch.Tensor) -> NoReturn:
        """Raises CheckpointError: a file appears whole, or not at all."""
        raise CheckpointError(
            f"{path}: tensors cannot be added one by one; write the state as a whole with save"
        )

    save_spec = save_tensor
