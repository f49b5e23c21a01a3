"""Nested state (dicts, lists, tuples, scalars) as JSON and named leaves, and leaves as bytes.

A spec is JSON: None, bool, int and str stand for themselves, every other node is an object with one
kind:

    {"float": "0x1.8p+1"}                  exact, infinities and NaN included
    {"leaf": "model.fc.weight"}            a tensor or array, stored next to it under this name
    {"list": [...]}  {"tuple": [...]}
    {"dict": [[key, node], ...]}           in order; keys are nodes without leaves
    {"ordered_dict": ...}  {"counter": ...}; an OrderedDict may have "metadata" too, as
                                           `nn.Module.state_dict()` has

Nothing else is written or read, so reading a spec can make nothing but these types.

Tensors and arrays become plain numpy arrays that HDF5 can hold, and come back bit for bit: bfloat16
is stored as uint16, bool and the 8-bit floats as uint8, complex numbers as pairs of floats in a
last dimension of 2; the metadata says what they are.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from wafer_backend.errors import CheckpointError

Kind = Literal["tensor", "array", "scalar"]
Array = npt.NDArray[Any]

_VIEWED: dict[torch.dtype, torch.dtype] = {
    torch.bfloat16: torch.uint16,
    torch.bool: torch.uint8,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}
_DIRECT: dict[torch.dtype, str] = {
    torch.float64: "f8",
    torch.float32: "f4",
    torch.float16: "f2",
    torch.int64: "i8",
    torch.int32: "i4",
    torch.int16: "i2",
    torch.int8: "i1",
    torch.uint64: "u8",
    torch.uint32: "u4",
    torch.uint16: "u2",
    torch.uint8: "u1",
}
_PAIRS: dict[torch.dtype, str] = {torch.complex64: "f4", torch.complex128: "f8"}
_BY_NAME = {str(d).removeprefix("torch."): d for d in (*_DIRECT, *_VIEWED, *_PAIRS)}
_NUMPY_KINDS = "biufc"
_LONG_DOUBLES = (np.dtype(np.longdouble).str, np.dtype(np.clongdouble).str)


@dataclass(frozen=True)
class TensorLayout:
    """How a leaf is stored. `kind`: torch tensor, numpy array or numpy scalar. `dtype`: torch's
    name without "torch.", or numpy's `dtype.str`. `shape`: of the leaf itself.
    """

    kind: Kind
    dtype: str
    shape: tuple[int, ...]

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of a tensor."""
        return _BY_NAME[self.dtype]

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """The numpy dtype in the file."""
        if self.kind != "tensor":
            return _stored_numpy(np.dtype(self.dtype))
        dtype = self.torch_dtype
        return np.dtype("<" + (_PAIRS.get(dtype) or _DIRECT[_VIEWED.get(dtype, dtype)]))

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape in the file."""
        if self.kind == "tensor":
            paired = self.torch_dtype in _PAIRS
        else:
            paired = np.dtype(self.dtype).kind == "c"
        return (*self.shape, 2) if paired else self.shape


def find_tensor_layout(name: str, leaf: Any) -> TensorLayout:
    """The layout of a tensor, array or numpy scalar. Raises CheckpointError for odd ones."""
    if isinstance(leaf, torch.Tensor):
        dtype = str(leaf.dtype).removeprefix("torch.")
        if leaf.layout != torch.strided or leaf.is_meta or dtype not in _BY_NAME:
            what = "meta" if leaf.is_meta else f"{leaf.layout} {leaf.dtype}"
            raise CheckpointError(
                f"{name}: a {what} tensor cannot be saved; convert it to a dense one"
            )
        return TensorLayout("tensor", dtype, tuple(leaf.shape))
    dtype = leaf.dtype
    if dtype.kind not in _NUMPY_KINDS or dtype.str in _LONG_DOUBLES:
        raise CheckpointError(f"{name}: a numpy {dtype} cannot be saved; convert it to numbers")
    kind: Kind = "array" if isinstance(leaf, np.ndarray) else "scalar"
    return TensorLayout(kind, dtype.str, tuple(leaf.shape))


def layout_from(kind: str, dtype: str, shape: tuple[int, ...]) -> TensorLayout:
    """A layout read from a file. Raises ValueError for what `find_tensor_layout` never makes."""
    if kind == "tensor":
        if dtype not in _BY_NAME:
            raise ValueError(f"dtype {dtype!r}")
    elif kind not in ("array", "scalar") or np.dtype(dtype).kind not in _NUMPY_KINDS:
        raise ValueError(f"{kind!r} of {dtype!r}")
    return TensorLayout(kind, dtype, shape)  # type: ignore[arg-type]


def to_stored(leaf: Any) -> Array:
    """The bytes of a leaf as a C-contiguous array of `stored_dtype` and `stored_shape`."""
    if not isinstance(leaf, torch.Tensor):
        flat = np.ascontiguousarray(leaf).reshape(-1).view(_stored_numpy(leaf.dtype))
        return flat.reshape((*leaf.shape, 2) if leaf.dtype.kind == "c" else leaf.shape)
    tensor = leaf.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if tensor.dtype in _PAIRS:
        tensor = torch.view_as_real(tensor)
    elif tensor.dtype in _VIEWED:
        tensor = tensor.view(_VIEWED[tensor.dtype])
    return tensor.numpy()


def from_stored(array: Array, layout: TensorLayout) -> Any:
    """The leaf of a stored array; inverse of `to_stored`."""
    if layout.kind != "tensor":
        value = array.reshape(-1).view(np.dtype(layout.dtype)).reshape(layout.shape)
        return value if layout.kind == "array" else value[()]
    tensor = torch.from_numpy(array)
    if layout.torch_dtype in _PAIRS:
        return torch.view_as_complex(tensor)
    return tensor.view(layout.torch_dtype) if layout.torch_dtype in _VIEWED else tensor


def _stored_numpy(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind == "b":
        return np.dtype("u1")
    if dtype.kind == "c":
        return np.dtype(f"{dtype.str[0]}f{dtype.itemsize // 2}")
    return dtype


Spec = Any
MAX_DEPTH = 100
_DICTS: dict[type, str] = {dict: "dict", OrderedDict: "ordered_dict", Counter: "counter"}
_SEQUENCES: dict[type, str] = {list: "list", tuple: "tuple"}
_PLAIN = (type(None), bool, int, str)


@dataclass
class _Flattening:
    leaves: dict[str, Any] = field(default_factory=dict)

    def node(self, value: Any, path: tuple[str, ...]) -> Spec:
        """The spec of one value; its leaves are collected on the way."""
        if len(path) > MAX_DEPTH:
            raise CheckpointError(
                f"state_dict is nested deeper than {MAX_DEPTH} levels (does it contain itself?)"
            )
        if isinstance(value, torch.Tensor | np.ndarray | np.generic):
            return {"leaf": self._named(value, path)}
        if type(value) in _PLAIN:
            return value
        if type(value) is float:
            return {"float": value.hex()}
        if type(value) in _SEQUENCES:
            items = [self.node(item, (*path, str(i))) for i, item in enumerate(value)]
            return {_SEQUENCES[type(value)]: items}
        if type(value) in _DICTS:
            return self._dict(value, path)
        raise CheckpointError(
            f"state_dict[{'.'.join(path)!r}] is a {type(value).__name__}; a checkpoint holds "
            "tensors, arrays, dicts, lists, tuples, strings, numbers, bools and None: convert it"
        )

    def _dict(self, value: Mapping[Any, Any], path: tuple[str, ...]) -> Spec:
        items = [
            [self._key(key, path), self.node(item, (*path, str(key)))]
            for key, item in value.items()
        ]
        spec: dict[str, Spec] = {_DICTS[type(value)]: items}
        metadata = getattr(value, "_metadata", None)
        if type(value) is OrderedDict and metadata is not None:
            spec["metadata"] = self.node(metadata, (*path, "_metadata"))
        return spec

    def _key(self, key: Any, path: tuple[str, ...]) -> Spec:
        if type(key) not in (*_PLAIN, float):
            raise CheckpointError(
                f"state_dict[{'.'.join(path)!r}] has a key of type {type(key).__name__}; "
                "keys are strings, numbers, bools or None"
            )
        return self.node(key, path)

    def _named(self, value: Any, path: tuple[str, ...]) -> str:
        plain = dataset_name(path)
        name, copies = plain, 0
        while name in self.leaves:
            copies += 1
            name = f"{plain}%{copies}"
        self.leaves[name] = value
        return name


def dataset_name(path: tuple[str, ...]) -> str:
    """The dotted name of a leaf; what HDF5 gives a meaning to, and '%', is escaped.

    >>> dataset_name(("model", "fc.weight"))
    'model.fc.weight'
    >>> dataset_name(("a/b", "50%"))
    'a%2Fb.50%25'
    """
    dotted = ".".join(path).replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    dotted = dotted.encode("utf-8", "backslashreplace").decode()
    return {"": "%", ".": "%2E"}.get(dotted, dotted)


def flatten(value: Any) -> tuple[Spec, dict[str, Any]]:
    """(spec, tensors and arrays by name in order). Raises CheckpointError for other types."""
    flattening = _Flattening()
    return flattening.node(value, ()), flattening.leaves


def unflatten(spec: Spec, leaf: Callable[[str], Any], depth: int = 0) -> Any:
    """The value of a spec; `leaf` gives the tensor of a name. Raises CheckpointError."""
    if type(spec) in _PLAIN:
        return spec
    if type(spec) is not dict or depth > MAX_DEPTH + 1:
        raise _unknown(spec)
    kind = next((name for name in spec if name != "metadata"), "")
    body = spec.get(kind)
    if type(body) is str and len(spec) == 1:
        return _scalar(kind, body, spec, leaf)
    if type(body) is not list or len(spec) > 1 + (kind == "ordered_dict" and "metadata" in spec):
        raise _unknown(spec)
    if kind in _SEQUENCES.values():
        items = [unflatten(item, leaf, depth + 1) for item in body]
        return tuple(items) if kind == "tuple" else items
    if kind not in _DICTS.values():
        raise _unknown(spec)
    return _mapping(kind, body, spec, leaf, depth)


def _scalar(kind: str, body: str, spec: Spec, leaf: Callable[[str], Any]) -> Any:
    if kind == "leaf":
        return leaf(body)
    if kind == "float":
        try:
            return float.fromhex(body)
        except (ValueError, OverflowError):
            pass
    raise _unknown(spec)


def _mapping(
    kind: str, body: list[Any], spec: dict[str, Any], leaf: Callable[[str], Any], depth: int
) -> Any:
    value: dict[Any, Any] = {"dict": dict, "ordered_dict": OrderedDict, "counter": Counter}[kind]()
    for item in body:
        if type(item) is not list or len(item) != 2:
            raise _unknown(item)
        key = unflatten(item[0], _no_leaf, depth + 1)
        if type(key) not in (*_PLAIN, float):
            raise _unknown(item[0])
        value[key] = unflatten(item[1], leaf, depth + 1)
    if "metadata" in spec:
        value._metadata = unflatten(spec["metadata"], _no_leaf, depth + 1)  # type: ignore[attr-defined]
    return value


def _no_leaf(name: str) -> Any:
    raise CheckpointError(f"found a tensor ({name[:60]!r}) where a plain value is expected")


def _unknown(spec: Spec) -> CheckpointError:
    shown = repr(spec)
    return CheckpointError(
        f"unknown node in __spec__: {shown if len(shown) <= 60 else shown[:60] + '…'}"
    )
