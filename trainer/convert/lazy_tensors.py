"""Tensors that are not read yet (shape and dtype are known, `read` gives the data), and safetensors
files, read and written one tensor at a time.

Conversions work on dicts of these, so one tensor at a time is in memory. Reading keeps nothing.

`write_safetensors` writes the bytes of the library, which needs all tensors at once: 8 bytes
little-endian length of a JSON header, the header (name -> dtype, shape, offsets), the data; larger
elements first, then by name.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pipeline.core import storage
from pipeline.core.errors import InputError

_ROWS = 1024


@dataclass(frozen=True)
class LazyTensor:
    """A tensor of a file, or made of such."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        """Size of the data."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


State = Mapping[str, LazyTensor]
"""Tensors by name, in file or parameter order."""


def wrap_tensors(tensors: Mapping[str, Tensor]) -> dict[str, LazyTensor]:
    """Tensors that are in memory already.

    >>> wrap_tensors({"x": torch.ones(2, 3)})["x"].shape
    (2, 3)
    """
    return {name: of(tensor) for name, tensor in tensors.items()}


def of(tensor: Tensor) -> LazyTensor:
    """One tensor that is in memory already."""
    detached = tensor.detach()
    return LazyTensor(tuple(detached.shape), detached.dtype, lambda: detached)


def make_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> LazyTensor:
    """Zeros."""
    return LazyTensor(shape, dtype, lambda: torch.zeros(shape, dtype=dtype))


def transpose(lazy: LazyTensor) -> LazyTensor:
    """The other way round, if it is a matrix."""
    if len(lazy.shape) != 2:
        return lazy
    return LazyTensor(lazy.shape[::-1], lazy.dtype, lambda: lazy.read().t().contiguous())


def scale(lazy: LazyTensor, factor: float) -> LazyTensor:
    """Times `factor`, rounded once to its dtype."""
    if factor == 1.0:
        return lazy
    return LazyTensor(lazy.shape, lazy.dtype, lambda: _times(lazy.read(), factor))


def shift(lazy: LazyTensor, by: float) -> LazyTensor:
    """Plus `by`, rounded once to its dtype."""

    def read() -> Tensor:
        tensor = lazy.read()
        return (tensor.to(torch.float64) + by).to(tensor.dtype)

    return LazyTensor(lazy.shape, lazy.dtype, read)


def add_row(lazy: LazyTensor, other: LazyTensor) -> LazyTensor:
    """With row 0 of `other` added to every row, rounded once to its dtype."""

    def read() -> Tensor:
        total = lazy.read().to(torch.float64) + other.read()[0].to(torch.float64)
        return total.to(lazy.dtype)

    return LazyTensor(lazy.shape, lazy.dtype, read)


def _times(tensor: Tensor, factor: float) -> Tensor:
    product = torch.empty_like(tensor)
    for start in range(0, len(tensor), _ROWS):
        part = slice(start, start + _ROWS)
        product[part] = tensor[part].to(torch.float64) * factor
    return product


def cast(lazy: LazyTensor, dtype: torch.dtype) -> LazyTensor:
    """In another dtype."""
    if lazy.dtype == dtype:
        return lazy
    return LazyTensor(lazy.shape, dtype, lambda: lazy.read().to(dtype))


def stack_rows(parts: Sequence[LazyTensor]) -> LazyTensor:
    """One under the other."""
    rows = sum(part.shape[0] for part in parts)
    return LazyTensor(
        (rows, *parts[0].shape[1:]),
        parts[0].dtype,
        lambda: torch.cat([part.read() for part in parts]),
    )


def rows(lazy: LazyTensor, start: int, stop: int) -> LazyTensor:
    """Rows start to stop."""
    return LazyTensor(
        (stop - start, *lazy.shape[1:]), lazy.dtype, lambda: lazy.read()[start:stop].contiguous()
    )


def reorder_rows(lazy: LazyTensor, source_R: Tensor) -> LazyTensor:
    """Row i is row source_R[i] (int64) of `lazy`."""
    return LazyTensor(lazy.shape, lazy.dtype, lambda: lazy.read()[source_R])


_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}


def write_safetensors(
    path: Path, tensors: State, metadata: Mapping[str, str] | None = None
) -> storage.WrittenFile:
    """Publish a file. Raises ResourceError, and what reading the tensors raises."""
    return storage.publish(path, _pieces(tensors, metadata))


def read_safetensors(path: Path) -> dict[str, LazyTensor]:
    """The tensors of a file, in its order. Raises InputError naming a file that is none."""
    try:
        with safe_open(path, "pt") as file:
            return {name: _lazy(path, file, name) for name in file.offset_keys()}
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a safetensors file: {error}") from error


def _lazy(path: Path, file: safe_open, name: str) -> LazyTensor:
    part: Any = file.get_slice(name)  # type: ignore[no-untyped-call]
    code = part.get_dtype()
    if code not in _DTYPES:
        raise InputError(f"{path}: {name} is {code}, expected {', '.join(_DTYPES)}")

    def data() -> torch.Tensor:
        with safe_open(path, "pt") as again:
            tensor: torch.Tensor = again.get_tensor(name)
            return tensor

    return LazyTensor(tuple(part.get_shape()), _DTYPES[code], data)


def _pieces(tensors: State, metadata: Mapping[str, str] | None) -> Iterator[bytes | memoryview]:
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    header: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    offset = 0
    for name, tensor in ordered:
        header[name] = {
            "dtype": _CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, tensor in ordered:
        data = tensor.read().contiguous()
        assert (tuple(data.shape), data.dtype) == (tensor.shape, tensor.dtype)
        yield data.reshape(-1).view(torch.uint8).numpy().data
