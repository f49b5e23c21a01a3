"""A cluster in one process over a network that may fail: the same roles, virtual time, a seed.

Which wafer runs its next leaf is drawn from the seed, and the network delays, loses, repeats and
reorders messages by a `FaultPlan`. A run ends with the bits of an undisturbed one, or with a
TransportError that names what is missing, before the deadline of virtual time: nothing sleeps.

Limits: a leaf runs without interruption (torch has one random state), so weights are fetched by one
wafer at a time; all roles share this process's memory.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from wafer_backend.cluster.memoryx import MemoryX
from wafer_backend.cluster.transport import Traffic
from wafer_backend.cluster.tree import Partial, TreeNode
from wafer_backend.errors import TransportError
from wafer_backend.transports.messages import COORDINATOR, Address, Kind, Message
from wafer_backend.transports.network import FaultPlan, Mailbox, Network
from wafer_backend.transports.shard import MemoryXShard, split


@dataclass(frozen=True)
class Patience:
    """How long roles wait, in virtual seconds.

    `retry_after`, `max_tries`: of one message. `ping_after`: of silence, before the coordinator
    asks who is there. `deadline`: of one wait. `leaf`: that running a leaf takes.
    """

    retry_after: float = 0.05
    max_tries: int = 12
    ping_after: float = 1.0
    deadline: float = 30.0
    leaf: float = 0.001


@dataclass(frozen=True)
class Simulation:
    """A seeded schedule of one run: the network's faults, and everybody's patience."""

    seed: int = 0
    faults: FaultPlan = field(default_factory=FaultPlan)
    patience: Patience = field(default_factory=Patience)


class SimulatedTransport:
    """All roles of a cluster of `num_csx` wafers, and the network between them."""

    def __init__(self, memoryx: MemoryX, num_csx: int, simulation: Simulation) -> None:
        self.now = 0.0
        self._memoryx = memoryx
        self._patience = simulation.patience
        self._random = random.Random(f"schedule {simulation.seed}")
        self._network = Network(simulation.faults, simulation.seed)
        self._shards = [MemoryXShard(s, memoryx) for s in range(memoryx.server_count)]
        self._handlers: dict[Address, Callable[[Message], list[Message]]] = {
            shard.address: shard.handle for shard in self._shards
        }
        wafers = [Address("wafer", system) for system in range(num_csx)]
        patience = self._patience
        self._mailboxes = {
            address: Mailbox(address, patience.retry_after, patience.max_tries)
            for address in (COORDINATOR, *wafers, *self._handlers)
        }
        self._arrived: dict[tuple[Kind, Address, Address, int, str], Message] = {}
        self._sums: tuple[float, int] | None = None
        self._round = -1
        self._wafer = wafers[0]
        self._broken: str | None = None
        self.traffic = Traffic()

    # The wafers' side.

    def fetch_weight(self, name: str) -> torch.Tensor:
        """A copy of a weight, from the shard that owns it."""
        shard = self._shards[self._memoryx.servers[name]].address
        self._send(
            Message(
                kind=Kind.FETCH, sender=self._wafer, receiver=shard, round=self._round, name=name
            )
        )
        weight = self._wait(Kind.WEIGHT, shard, self._wafer, name).tensors[name]
        self.traffic.weight_bytes += weight.nbytes
        return weight

    def send_gradient(self, leaf: int, name: str, gradient: torch.Tensor) -> None:
        """One gradient into the lane of this wafer's system."""
        self._memoryx.receive_gradient(leaf, name, gradient)

    def finish_leaf(self, system: int, leaf: int, loss_sum: float, n_counted: int) -> None:
        """A finished leaf; maximal nodes that it completes go to every shard."""
        self._memoryx.finish_leaf(system, leaf, loss_sum, n_counted, self._send_partial)

    def _send_partial(self, node: TreeNode, partial: Partial) -> None:
        numbers = {"loss_sum": partial.loss_sum, "n_counted": float(partial.n_counted)}
        parts = split(partial, self._memoryx.servers, len(self._shards))
        for shard, tensors in zip(self._shards, parts, strict=True):
            self.traffic.count_gradients(tensors)
            self._send(
                Message(
                    kind=Kind.PARTIAL,
                    sender=self._wafer,
                    receiver=shard.address,
                    round=self._round,
                    node=node,
                    tensors=tensors,
                    numbers=numbers,
                )
            )

    # The coordinator's side.

    def order(self, spans: list[range], *, by_leaf: bool) -> Iterator[tuple[int, int]]:
        """(system, leaf) in the order in which leaves run; a dead wafer runs none."""
        self._check_whole()
        left = {system: iter(span) for system, span in enumerate(spans)}
        while left:
            system = min(left) if by_leaf else self._random.choice(sorted(left))
            leaf = next(left[system], None)
            self._wafer = Address("wafer", system)
            self.now += self._patience.leaf
            if leaf is None or not self._network.alive(self._wafer, self.now):
                del left[system]
                continue
            yield system, leaf

    def begin(self, spans: list[range], leaves: int) -> None:
        """Start a reduction: a new round."""
        self._check_whole()
        self._round += 1
        self._arrived.clear()
        self._sums = None
        self._memoryx.begin_step(spans, leaves)
        self._ask(Kind.BEGIN, numbers={"leaves": float(leaves)})

    def sums(self) -> tuple[float, int]:
        """(loss sum, counted labels) over all leaves, when every shard has its sums."""
        if self._sums is None:
            found = [self._wait(Kind.REDUCED, s.address, COORDINATOR).numbers for s in self._shards]
            self._sums = found[0]["loss_sum"], int(found[0]["n_counted"])
        return self._sums

    def total(self) -> Partial:
        """The sums with their gradients, collected from all shards."""
        loss_sum, n_counted = self.sums()
        parts = self._ask(Kind.COLLECT)
        return Partial(
            {k: v for part in parts for k, v in part.tensors.items()}, loss_sum, n_counted
        )

    def deliver(self, divisor: float) -> dict[str, torch.Tensor]:
        """Sums / divisor become gradients; their norms by name, 0-d fp32."""
        parts = self._ask(Kind.DELIVER, numbers={"divisor": divisor})
        found = {name: norm for part in parts for name, norm in part.tensors.items()}
        return {name: found[name] for name in self._memoryx.parameters if name in found}

    def update(self, learning_rate: float, factor: torch.Tensor | None) -> None:
        """Clip by a factor, and one optimizer step."""
        tensors = {} if factor is None else {"factor": factor}
        self._ask(Kind.APPLY, tensors=tensors, numbers={"learning_rate": learning_rate})

    def drop(self) -> None:
        """Forget the gradients beside the weights."""
        if self._broken is None:
            self._ask(Kind.DROP)

    def end(self) -> None:
        """Forget the round; nothing of it is acted on any more."""
        self._memoryx.end_step()
        if self._broken is None:
            self._ask(Kind.END)

    def gather(self, outputs: Mapping[int, Any]) -> list[Any]:
        """What the module returned for every leaf; a dead wafer's are missing."""
        for leaf in range(len(outputs)):
            if leaf not in outputs:
                raise self._failed(f"leaf {leaf} never ran: its wafer has ended")
        return [outputs[leaf] for leaf in sorted(outputs)]

    @property
    def processes(self) -> int:
        """One."""
        return 1

    @property
    def rank(self) -> int:
        """The first."""
        return 0

    def agreed(self, number: int) -> int:
        """Nobody else is asked."""
        return number

    def bring_home(self) -> None:
        """All roles share this process's memory."""

    # Messages and time.

    def _check_whole(self) -> None:
        if self._broken is not None:
            raise TransportError(
                f"this cluster has failed ({self._broken}); resume from the last checkpoint"
            )

    def _ask(self, kind: Kind, **content: Any) -> list[Message]:
        """Ask every shard, and wait for every answer."""
        for shard in self._shards:
            self._arrived.pop((Kind.DONE, shard.address, COORDINATOR, self._round, kind.name), None)
            self._send(
                Message(
                    kind=kind,
                    sender=COORDINATOR,
                    receiver=shard.address,
                    round=self._round,
                    name=kind.name,
                    **content,
                )
            )
        return [self._wait(Kind.DONE, s.address, COORDINATOR, kind.name) for s in self._shards]

    def _send(self, message: Message) -> None:
        self._network.post(self._mailboxes[message.sender].send(message, self.now), self.now)

    def _wait(self, kind: Kind, sender: Address, receiver: Address, name: str = "") -> Message:
        """Let time pass until a message is here."""
        wanted = (kind, sender, receiver, self._round, name)
        begun = heard = self.now
        while wanted not in self._arrived:
            if not self._network.alive(receiver, self.now):
                raise self._failed(f"{receiver} has ended")
            self._pass_time()
            if self.now - begun > self._patience.deadline:
                raise self._failed(
                    f"{receiver} got no {kind.name} {name} from {sender} within "
                    f"{self._patience.deadline:g} virtual seconds"
                )
            if self.now - heard > self._patience.ping_after:
                heard = self.now
                for address in self._mailboxes:
                    self._send(
                        Message(
                            kind=Kind.PING, sender=receiver, receiver=address, round=self._round
                        )
                    )
        return self._arrived.pop(wanted)

    def _pass_time(self) -> None:
        """Go to the next arrival or the next retry, whichever is first."""
        arrival = self._network.next_arrival()
        dues = [box.next_due for box in self._living()]
        due = min((time for time in dues if time is not None), default=None)
        if arrival is not None and (due is None or arrival <= due):
            self.now, message = self._network.arrive()
            if self._network.alive(message.receiver, self.now):
                self._receive(message)
            return
        self.now = max(self.now, due) if due is not None else self.now + self._patience.ping_after
        for box in self._living():
            try:
                again = box.due(self.now)
            except TransportError as error:
                raise self._failed(str(error)) from error
            for message in again:
                self._network.post(message, self.now)

    def _receive(self, message: Message) -> None:
        fresh, back = self._mailboxes[message.receiver].receive(message)
        if back is not None:
            self._network.post(back, self.now)
        if fresh is None or fresh.kind == Kind.PING:
            return
        handler = self._handlers.get(fresh.receiver)
        if handler is None:
            key = (fresh.kind, fresh.sender, fresh.receiver, fresh.round, fresh.name)
            self._arrived[key] = fresh
            return
        for answer in handler(fresh):
            self._send(answer)

    def _living(self) -> list[Mailbox]:
        alive = [b for b in self._mailboxes.values() if self._network.alive(b.owner, self.now)]
        if not any(box.owner == COORDINATOR for box in alive):
            raise self._failed("the coordinator has ended")
        return alive

    def _failed(self, why: str) -> TransportError:
        self._broken = why
        return TransportError(f"{why}; resume from the last checkpoint")
