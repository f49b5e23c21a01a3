"""Messages as bytes: a fixed header, a table of tensors, their raw bytes. No pickle, no JSON.

Header (little-endian): magic, version, kind, both roles, round, node, which numbers follow and
their values, the hash of the name, the number of tensors, and the size and checksum of what comes
after. A table row: hash of the tensor's name, dtype, rank, shape, bytes. Names travel as xxh3-128:
both ends know them.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import xxhash

from wafer_backend.errors import TransportError
from wafer_backend.transports.messages import COORDINATOR, Address, Kind, Message
from wafer_backend.tree import Node

MAGIC = b"WFRM"
VERSION = 1
NUMBERS = ("leaves", "loss_sum", "n_counted", "divisor", "learning_rate", "agreed")
_ROLES = (COORDINATOR.role, "MemoryX", "wafer", "rank")
_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8,
    torch.int16, torch.int32, torch.int64, torch.bool,
)  # fmt: skip
_MAX_DIMENSIONS = 8
_HEADER = struct.Struct(f"<4sHHHHHHqhqH{len(NUMBERS)}d16sHqQ")
_ROW = struct.Struct(f"<16sHH{_MAX_DIMENSIONS}qq")
HEADER_BYTES = _HEADER.size


@dataclass(frozen=True)
class Header:
    """What the receiver must know before the rest arrives: `rest` bytes, and their checksum."""

    message: Message
    name_hash: bytes
    tensors: int
    rest: int
    checksum: int


def name_hash(name: str) -> bytes:
    """xxh3-128 of a name, 16 bytes."""
    return xxhash.xxh3_128_digest(name.encode())


def encode(message: Message) -> tuple[torch.Tensor, torch.Tensor]:
    """(header, rest) as uint8 tensors of one dimension."""
    rows, parts = [], []
    for name, tensor in message.tensors.items():
        if tensor.ndim > _MAX_DIMENSIONS:
            raise TransportError(f"{name!r} has {tensor.ndim} dimensions; {_MAX_DIMENSIONS} travel")
        shape = [*tensor.shape, *[0] * (_MAX_DIMENSIONS - tensor.ndim)]
        dtype = _DTYPES.index(tensor.dtype)
        rows.append(_ROW.pack(_label(name), dtype, tensor.ndim, *shape, tensor.nbytes))
        parts.append(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8))
    table = torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8) if rows else _none()
    rest = torch.cat([table, *parts]) if rows else _none()
    node = message.node or Node(-1, -1)
    present = sum(1 << i for i, name in enumerate(NUMBERS) if name in message.numbers)
    values = [message.numbers.get(name, 0.0) for name in NUMBERS]
    packed = _HEADER.pack(
        MAGIC, VERSION, message.kind, *_role(message.sender), *_role(message.receiver),
        message.round, node.level, node.index, present, *values, name_hash(message.name),
        len(rows), rest.numel(), _checksum(rest),
    )  # fmt: skip
    return torch.frombuffer(bytearray(packed), dtype=torch.uint8), rest


def decode_header(data: torch.Tensor) -> Header:
    """Read a header of HEADER_BYTES bytes. Raises TransportError for anything else."""
    magic, version, kind, *fields = _HEADER.unpack(data.numpy().tobytes())
    if magic != MAGIC or version != VERSION:
        raise TransportError(f"a message begins with {magic!r} version {version}, not ours")
    sender, receiver = _address(*fields[0:2]), _address(*fields[2:4])
    round_, level, index, present = fields[4:8]
    values = fields[8 : 8 + len(NUMBERS)]
    hashed, tensors, rest, checksum = fields[8 + len(NUMBERS) :]
    numbers = {
        name: v for i, (name, v) in enumerate(zip(NUMBERS, values, strict=True)) if present >> i & 1
    }
    node = None if level < 0 else Node(level, index)
    message = Message(Kind(kind), sender, receiver, round_, node=node, numbers=numbers)
    return Header(message, hashed, tensors, rest, checksum)


def decode(header: Header, rest: torch.Tensor, names: Mapping[bytes, str]) -> Message:
    """The whole message; `names` are those a hash may stand for.

    Raises TransportError when bytes are damaged or a name is unknown.
    """
    if _checksum(rest) != header.checksum:
        raise TransportError(f"{header.message}: damaged on the way (checksum differs)")
    tensors, start = {}, header.tensors * _ROW.size
    for row in range(header.tensors):
        packed = rest[row * _ROW.size : (row + 1) * _ROW.size].numpy().tobytes()
        hashed, dtype, dimensions, *shape, size = _ROW.unpack(packed)
        raw = rest[start : start + size].clone()
        tensors[_known(names, hashed, header)] = raw.view(_DTYPES[dtype]).reshape(
            shape[:dimensions]
        )
        start += size
    found = header.message
    name = _known(names, header.name_hash, header)
    return Message(
        found.kind, found.sender, found.receiver, found.round,
        node=found.node, name=name, tensors=tensors, numbers=found.numbers,
    )  # fmt: skip


def _label(name: str) -> bytes:
    """The hash of a parameter's name; what is no name, such as "3.0", as it is."""
    if name[:1].isdigit() and len(name) < 16:
        return b"\0" + name.encode().ljust(15, b"\0")
    return name_hash(name)


def _none() -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8)


def _checksum(data: torch.Tensor) -> int:
    return xxhash.xxh3_64_intdigest(data.numpy().tobytes())


def _role(address: Address) -> tuple[int, int]:
    return _ROLES.index(address.role), address.index


def _address(role: int, index: int) -> Address:
    return Address(_ROLES[role], index)


def _known(names: Mapping[bytes, str], hashed: bytes, header: Header) -> str:
    if hashed not in names and hashed[0] == 0:
        return hashed.strip(b"\0").decode()
    if hashed not in names:
        raise TransportError(f"{header.message}: about a name that this rank does not have")
    return names[hashed]
