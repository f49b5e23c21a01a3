"""What roles say to one another: one kind of message for every transport."""

from dataclasses import dataclass, field, replace
from enum import IntEnum

import torch

from wafer_backend.tree import TreeNode


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


@dataclass(frozen=True)
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

    def answer(self, kind: Kind, **content: object) -> "Message":
        """A message back to the sender, of the same round and about the same name."""
        return Message(kind, self.receiver, self.sender, self.round, name=self.name, **content)  # type: ignore[arg-type]

    def __str__(self) -> str:
        about = f" {self.name!r}" if self.name else ""
        about += f" node {self.node.level}:{self.node.index}" if self.node else ""
        return f"{self.kind.name}{about} from {self.sender} to {self.receiver}"
