"""Tensors and arrays as plain numpy arrays that HDF5 can hold, and back, bit for bit.

bfloat16 is stored as uint16, bool and the 8-bit floats as uint8, complex numbers as pairs of
floats in a last dimension of 2; the metadata says what they are.
"""

from dataclasses import dataclass
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


def layout_of(name: str, leaf: Any) -> TensorLayout:
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
    """A layout read from a file. Raises ValueError for what `layout_of` never makes."""
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
