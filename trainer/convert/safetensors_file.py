"""Safetensors files, read and written one tensor at a time.

The library writes a file from a dict of all its tensors; this writes the same bytes from tensors
that are read when their turn comes. Format: 8 bytes little-endian length of a JSON header, the
header (name -> dtype, shape, offsets), the data; larger elements first, then by name, as the
library orders them.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from pipeline.core import storage
from pipeline.core.errors import InputError
from trainer.convert.lazy import LazyTensor, State

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


def write(
    path: Path, tensors: State, metadata: Mapping[str, str] | None = None
) -> storage.WrittenFile:
    """Publish a file. Raises ResourceError, and what reading the tensors raises."""
    return storage.publish(path, _pieces(tensors, metadata))


def groups(tensors: State, limit: int) -> list[dict[str, LazyTensor]]:
    """Cut into groups of at most `limit` bytes: whole tensors, in order."""
    found: list[dict[str, LazyTensor]] = []
    size = limit + 1
    for name, tensor in tensors.items():
        if size + tensor.nbytes > limit:
            found.append({})
            size = 0
        found[-1][name] = tensor
        size += tensor.nbytes
    return found


def read(path: Path) -> dict[str, LazyTensor]:
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
        yield _bytes(tensor)


def _bytes(tensor: LazyTensor) -> memoryview:
    data = tensor.read().contiguous()
    assert (tuple(data.shape), data.dtype) == (tensor.shape, tensor.dtype)
    return data.reshape(-1).view(torch.uint8).numpy().data
