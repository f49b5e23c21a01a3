"""A weight server with its node of the reduce tree, and what transports to servers have in common.

A server is a state machine without I/O and clock, and owns some of the parameters by name. Messages
may come in any order, each once (`Mailbox`); what belongs to an abandoned round is dropped, and an
update is applied once a round.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from wafer_backend.cluster.memoryx import MemoryX
from wafer_backend.cluster.transport import Traffic
from wafer_backend.cluster.tree import Partial, SwarmX, TreeNode
from wafer_backend.errors import TransportError
from wafer_backend.transports.messages import COORDINATOR, Address, Kind, Message

_AHEAD_BYTES = 64 << 20
_OF_ANY_ROUND = frozenset({Kind.BEGIN, Kind.FETCH, Kind.MASTER, Kind.BESIDE})


class MemoryXShard:
    """MemoryX shard `index`: the parameters of `memoryx` that this server owns."""

    def __init__(self, index: int, memoryx: MemoryX) -> None:
        self.address = Address("MemoryX", index)
        self._memoryx = memoryx
        self._names = memoryx.owned(index)
        self._swarmx = SwarmX()
        self._round = -1
        self._total: Partial | None = None
        self._applied = -1
        self._answers: dict[Kind, Callable[[Message], Iterable[Message]]] = {
            Kind.BEGIN: self._begin,
            Kind.FETCH: self._fetch,
            Kind.MASTER: self._master,
            Kind.BESIDE: self._beside,
            Kind.PARTIAL: self._partial,
            Kind.COLLECT: self._collect,
            Kind.DELIVER: self._deliver,
            Kind.APPLY: self._apply,
            Kind.DROP: self._drop,
            Kind.END: self._end,
        }

    def handle(self, message: Message) -> list[Message]:
        """Act on one message; returns what to send."""
        if message.kind not in self._answers:
            return []
        stale = message.round != self._round and message.kind not in _OF_ANY_ROUND
        return [] if stale else list(self._answers[message.kind](message))

    def _begin(self, message: Message) -> Iterable[Message]:
        if message.round > self._round:
            self._round, self._total = message.round, None
            self._swarmx.begin_step(int(message.numbers["leaves"]))
        yield message.answer(Kind.DONE)

    def _fetch(self, message: Message) -> Iterable[Message]:
        weight = self._swarmx.broadcast(self._memoryx.weight(message.name))
        yield message.answer(Kind.WEIGHT, tensors={message.name: weight})

    def _master(self, message: Message) -> Iterable[Message]:
        """The weight, and those of this shard that follow it, as many as fit."""
        weights: dict[str, torch.Tensor] = {}
        room = _AHEAD_BYTES
        for name in self._names[self._names.index(message.name) :]:
            weight = self._memoryx.parameters[name].detach()
            room -= weight.nbytes
            if weights and room < 0:
                break
            weights[name] = weight
        yield message.answer(Kind.WEIGHT, tensors=weights)

    def _beside(self, message: Message) -> Iterable[Message]:
        yield message.answer(Kind.DONE, tensors=self._memoryx.beside(message.name))

    def _partial(self, message: Message) -> Iterable[Message]:
        assert message.node is not None, "a PARTIAL has a node"
        numbers = message.numbers
        partial = Partial(message.tensors, numbers["loss_sum"], int(numbers["n_counted"]))
        self._swarmx.reduce(message.node, partial)
        if not self._swarmx.complete:
            return
        total = self._total = self._swarmx.total()
        sums = {"loss_sum": total.loss_sum, "n_counted": float(total.n_counted)}
        yield Message(
            kind=Kind.REDUCED,
            sender=self.address,
            receiver=COORDINATOR,
            round=self._round,
            numbers=sums,
        )

    def _collect(self, message: Message) -> Iterable[Message]:
        yield message.answer(Kind.DONE, tensors=self._sums().gradients)

    def _deliver(self, message: Message) -> Iterable[Message]:
        self._memoryx.deliver(self._sums(), message.numbers["divisor"], self._names)
        yield message.answer(Kind.DONE, tensors=self._memoryx.gradient_norms(self._names))

    def _apply(self, message: Message) -> Iterable[Message]:
        if self._applied != message.round:
            self._applied = message.round
            factor = message.tensors.get("factor")
            if factor is not None:
                self._memoryx.scale_gradients(factor, self._names)
            self._memoryx.apply(message.numbers["learning_rate"], self._names)
        yield message.answer(Kind.DONE)

    def _drop(self, message: Message) -> Iterable[Message]:
        self._memoryx.drop_gradients(self._names)
        yield message.answer(Kind.DONE)

    def _end(self, message: Message) -> Iterable[Message]:
        self._total = None
        self._swarmx.abandon()
        yield message.answer(Kind.DONE)

    def _sums(self) -> Partial:
        if self._total is None:
            raise TransportError(f"{self.address}: asked for sums that are not complete")
        return self._total


class MessageTransport:
    """What transports of messages have in common: the wafers' side, and the rounds.

    A subclass defines `sums`, `_send_to_shard` and `_ask`, which asks shards and merges the tensors
    of their answers; with `everywhere`, those of all processes.
    """

    def __init__(self, memoryx: MemoryX, wafer: Address) -> None:
        self.traffic = Traffic()
        self._memoryx = memoryx
        self._wafer = wafer
        self._round = -1
        self._sums: tuple[float, int] | None = None

    def release_weight(self, name: str, copy: torch.Tensor, *, intact: bool) -> None:
        """An intact copy back to the MemoryX of this process."""
        if intact:
            self._memoryx.take_back(name, copy)

    def send_gradient(self, leaf: int, name: str, gradient: torch.Tensor) -> None:
        """One gradient into the lane of this wafer's system."""
        self._memoryx.receive_gradient(leaf, name, gradient)

    def finish_leaf(self, system: int, leaf: int, loss_sum: float, n_counted: int) -> None:
        """A finished leaf; maximal nodes that it completes go to every shard."""
        self._memoryx.finish_leaf(system, leaf, loss_sum, n_counted, self._send_partial)

    def begin(self, spans: list[range], leaves: int) -> None:
        """Start a reduction: a new round."""
        self._memoryx.begin_step(spans, leaves)
        self._round += 1
        self._sums = None
        self._ask(Kind.BEGIN, numbers={"leaves": float(leaves)})

    def sums(self) -> tuple[float, int]:
        """(loss sum, counted labels) over all leaves."""
        raise NotImplementedError

    def total(self) -> Partial:
        """The sums with their gradients, of all shards."""
        loss_sum, n_counted = self.sums()
        return Partial(self._ask(Kind.COLLECT, everywhere=True), loss_sum, n_counted)

    def deliver(self, divisor: float) -> dict[str, torch.Tensor]:
        """Sums / divisor become gradients; their norms by name, 0-d fp32."""
        norms = self._ask(Kind.DELIVER, everywhere=True, numbers={"divisor": divisor})
        return {name: norms[name] for name in self._memoryx.parameters if name in norms}

    def update(self, learning_rate: float, factor: torch.Tensor | None) -> None:
        """Clip by a factor, and one optimizer step."""
        tensors = {} if factor is None else {"factor": factor}
        self._ask(Kind.APPLY, tensors=tensors, numbers={"learning_rate": learning_rate})

    def drop(self) -> None:
        """Forget the gradients beside the weights."""
        self._ask(Kind.DROP)

    def end(self) -> None:
        """Forget the round; nothing of it is acted on any more."""
        self._memoryx.end_step()
        self._ask(Kind.END)

    def _send_partial(self, node: TreeNode, partial: Partial) -> None:
        numbers = {"loss_sum": partial.loss_sum, "n_counted": float(partial.n_counted)}
        parts = _split(partial, self._memoryx.servers, self._memoryx.server_count)
        for shard, tensors in enumerate(parts):
            self.traffic.count_gradients(tensors)
            content = {"node": node, "tensors": tensors, "numbers": numbers}
            self._send_to_shard(self._message(Kind.PARTIAL, shard, **content))

    def _message(self, kind: Kind, shard: int, **content: Any) -> Message:
        """A message from the wafer whose leaf runs to a shard, of this round."""
        receiver = Address("MemoryX", shard)
        return Message(
            kind=kind, sender=self._wafer, receiver=receiver, round=self._round, **content
        )

    def _send_to_shard(self, message: Message) -> None:
        raise NotImplementedError

    def _ask(
        self, kind: Kind, *, everywhere: bool = False, **content: Any
    ) -> dict[str, torch.Tensor]:
        raise NotImplementedError


def _split(partial: Partial, servers: dict[str, int], count: int) -> list[dict[str, torch.Tensor]]:
    """The tensors of a partial by the server that owns them; some may be empty."""
    parts: list[dict[str, torch.Tensor]] = [{} for _ in range(count)]
    for name, tensor in partial.gradients.items():
        parts[servers[name]][name] = tensor
    return parts
