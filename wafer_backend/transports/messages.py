"""What roles say to one another, for every transport, and as bytes. No pickle, no JSON.

Header (little-endian): magic, version, kind, both roles, round, node, which numbers follow and
their values, the hash of the name, the number of tensors, and the checksums of the table and of the
tensors. A table row: hash of the tensor's name, dtype, dimensions, shape, bytes. Names travel as
xxh3-128: both ends know them. Tensors follow in one part, each at a multiple of 64 bytes, since the
receiver waits for the interpreter once a part. One that is alone is sent from its own memory.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import torch
import xxhash

from wafer_backend.cluster.tree import TreeNode
from wafer_backend.errors import TransportError


class Kind(IntEnum):
    """What a message asks or tells.

    The coordinator asks every shard: BEGIN a reduction, COLLECT its sums, DELIVER them as gradients
    (answered with their norms), APPLY the optimizer, DROP the gradients, END the round. Shards
    answer DONE, and tell REDUCED as soon as their sums are complete. A wafer asks to FETCH a
    weight, and sends a PARTIAL for every maximal node of its leaves to every shard. A rank asks for
    a MASTER, the weight as it is kept, and gets some that follow it, too, and for what lies BESIDE
    it: mask and optimizer state. PING asks who is there. ACK says that a message arrived.
    """

    BEGIN = 1
    FETCH = 2
    WEIGHT = 3
    PARTIAL = 4
    REDUCED = 5
    COLLECT = 6
    DELIVER = 7
    APPLY = 8
    DROP = 9
    END = 10
    DONE = 11
    PING = 12
    ACK = 13
    MASTER = 14
    BESIDE = 15


@dataclass(frozen=True, order=True)
class Address:
    """A role: the coordinator, MemoryX shard s, or wafer j."""

    role: str
    index: int = 0

    def __str__(self) -> str:
        return self.role if self == COORDINATOR else f"{self.role} {self.index}"


COORDINATOR = Address("coordinator")


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message.

    `round` counts the reductions that were begun: what belongs to another round than a role is in
    is of an abandoned one. `number` counts the sender's messages to this receiver, so that a
    repeated one is known. `node`: whose sum `tensors` hold, by parameter name. `numbers`: small
    values by their own names, exact in float64.
    """

    kind: Kind
    sender: Address
    receiver: Address
    round: int
    number: int = 0
    node: TreeNode | None = None
    name: str = ""
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)

    def numbered(self, number: int) -> "Message":
        """The same message with its place in the sender's count."""
        return replace(self, number=number)

    def answer(self, kind: Kind, **content: Any) -> "Message":
        """A message back to the sender, of the same round and about the same name."""
        return Message(
            kind=kind,
            sender=self.receiver,
            receiver=self.sender,
            round=self.round,
            name=self.name,
            **content,
        )

    def __str__(self) -> str:
        about = f" {self.name!r}" if self.name else ""
        about += f" node {self.node.level}:{self.node.index}" if self.node else ""
        return f"{self.kind.name}{about} from {self.sender} to {self.receiver}"


MAGIC = b"WFRM"
VERSION = 2
NUMBERS = ("leaves", "loss_sum", "n_counted", "divisor", "learning_rate", "agreed")
_ALIGNMENT = 64
_ROLES = (COORDINATOR.role, "MemoryX", "wafer", "rank")
_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
)
_MAX_DIMENSIONS = 8
_HEADER = struct.Struct(f"<4sHHHHHHqhqH{len(NUMBERS)}d16sHQQ")
_ROW = struct.Struct(f"<16sHH{_MAX_DIMENSIONS}qq")

Fill = Callable[[torch.Tensor], None]


def name_hash(name: str) -> bytes:
    """xxh3-128 of a name, 16 bytes."""
    return xxhash.xxh3_128_digest(name.encode())


def encode_message(message: Message) -> list[torch.Tensor]:
    """The parts of a message, uint8 tensors of one dimension.

    Raises TransportError for a tensor that cannot travel.
    """
    rows, tensors = [], []
    for name, tensor in message.tensors.items():
        if tensor.ndim > _MAX_DIMENSIONS:
            raise TransportError(f"{name!r} has {tensor.ndim} dimensions; {_MAX_DIMENSIONS} travel")
        shape = [*tensor.shape, *[0] * (_MAX_DIMENSIONS - tensor.ndim)]
        dtype = _DTYPES.index(tensor.dtype)
        rows.append(_ROW.pack(_label(name), dtype, tensor.ndim, *shape, tensor.nbytes))
        tensors.append(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8))
    table, body = _bytes(b"".join(rows)), _packed(tensors)
    node = message.node or TreeNode(-1, -1)
    present = sum(1 << i for i, name in enumerate(NUMBERS) if name in message.numbers)
    values = [message.numbers.get(name, 0.0) for name in NUMBERS]
    packed = _HEADER.pack(
        MAGIC,
        VERSION,
        message.kind,
        _ROLES.index(message.sender.role),
        message.sender.index,
        _ROLES.index(message.receiver.role),
        message.receiver.index,
        message.round,
        node.level,
        node.index,
        present,
        *values,
        name_hash(message.name),
        len(rows),
        _checksum(table),
        _checksum(body),
    )
    return [part for part in (_bytes(packed), table, body) if part.numel()]


def decode_message(fill: Fill, names: Mapping[bytes, str]) -> Message:
    """Read one message; `fill` puts the bytes that come next into a uint8 tensor.

    Its tensors share one storage.

    `names` are those that a hash may stand for. Raises TransportError when bytes are damaged or a
    name is unknown.
    """
    magic, version, kind, *fields = _HEADER.unpack(_filled(fill, _HEADER.size).numpy().tobytes())
    if magic != MAGIC or version != VERSION:
        raise TransportError(f"a message begins with {magic!r} version {version}, not ours")
    round_, level, index, present = fields[4:8]
    values = fields[8 : 8 + len(NUMBERS)]
    hashed, count, table_checksum, checksum = fields[8 + len(NUMBERS) :]
    message = Message(
        kind=Kind(kind),
        sender=Address(_ROLES[fields[0]], fields[1]),
        receiver=Address(_ROLES[fields[2]], fields[3]),
        round=round_,
        node=None if level < 0 else TreeNode(level, index),
        numbers={n: values[i] for i, n in enumerate(NUMBERS) if present >> i & 1},
    )
    table = _filled(fill, count * _ROW.size)
    _check(table, table_checksum, message)
    rows = list(_ROW.iter_unpack(table.numpy().tobytes()))
    places = _places([nbytes for *_, nbytes in rows])
    body = _filled(fill, places[-1])
    _check(body, checksum, message)
    tensors = {}
    for (label, dtype, dimensions, *shape, nbytes), start in zip(rows, places, strict=False):
        tensor = body[start : start + nbytes].view(_DTYPES[dtype]).reshape(shape[:dimensions])
        tensors[_find_name(names, label, message)] = tensor
    return replace(message, name=_find_name(names, hashed, message), tensors=tensors)


def _filled(fill: Fill, size: int) -> torch.Tensor:
    part = torch.empty(size, dtype=torch.uint8)
    if size:
        fill(part)
    return part


def _places(sizes: list[int]) -> list[int]:
    """Where tensors of these sizes begin, and where the last one ends."""
    places, end = [], 0
    for size in sizes:
        places.append(-(-end // _ALIGNMENT) * _ALIGNMENT)
        end = places[-1] + size
    return [*places, end]


def _packed(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Tensors of bytes in one; one alone is itself."""
    if len(tensors) == 1:
        return tensors[0]
    places = _places([tensor.numel() for tensor in tensors])
    body, end = torch.empty(places[-1], dtype=torch.uint8), 0
    for tensor, start in zip(tensors, places, strict=False):
        body[end:start] = 0
        end = start + tensor.numel()
        body[start:end] = tensor
    return body


def _label(name: str) -> bytes:
    """The hash of a name; what is no name, such as "3.0", as it is."""
    if name[:1].isdigit() and len(name) < 16:
        return b"\0" + name.encode().ljust(15, b"\0")
    return name_hash(name)


def _bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0).byte()


def _checksum(part: torch.Tensor) -> int:
    return xxhash.xxh3_64_intdigest(part.numpy().data)


def _check(part: torch.Tensor, expected: int, message: Message) -> None:
    if _checksum(part) != expected:
        raise TransportError(f"{message}: damaged on the way (checksum differs)")


def _find_name(names: Mapping[bytes, str], hashed: bytes, message: Message) -> str:
    if hashed not in names and hashed[0] == 0:
        return hashed.strip(b"\0").decode()
    if hashed not in names:
        raise TransportError(f"{message}: about a name that this rank does not have")
    return names[hashed]
