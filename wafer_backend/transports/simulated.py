"""A cluster in one process over a network that may fail: the same roles, virtual time, a seed.

Which wafer runs its next leaf is drawn from the seed, and the network delays, loses, repeats and
reorders messages by a `FaultPlan`. A mailbox sends every message but ACK again until it is
acknowledged; a message that arrives twice is acknowledged twice and handed on once. Order is not
restored: roles do not depend on it. A run ends with the bits of an undisturbed one, or with a
TransportError that names what is missing, before the deadline of virtual time: nothing sleeps.

Limits: a leaf runs without interruption (torch has one random state), so weights are fetched by one
wafer at a time; all roles share this process's memory.
"""

import heapq
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from wafer_backend.cluster.memoryx import MemoryX
from wafer_backend.cluster.transport import OneProcess
from wafer_backend.errors import TransportError
from wafer_backend.transports.messages import COORDINATOR, Address, Kind, Message
from wafer_backend.transports.shard import MemoryXShard, MessageTransport


@dataclass(frozen=True)
class FaultPlan:
    """What goes wrong, as probabilities per message, and when roles die.

    `drop`, `duplicate`: probabilities. `delay`: mean of the exponential delay added to `latency`,
    in virtual seconds; it is what reorders. `kills`: virtual time at which a role ends for good.
    """

    drop: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    latency: float = 1e-5
    kills: Mapping[Address, float] = field(default_factory=dict)


class Network:
    """Messages on their way, in order of virtual arrival."""

    def __init__(self, plan: FaultPlan, seed: int) -> None:
        self._plan = plan
        self._random = random.Random(f"network {seed}")
        self._flying: list[tuple[float, int, Message]] = []
        self._count = 0

    def post(self, message: Message, now: float) -> None:
        """Send a message; it may arrive never, once or twice."""
        if not self.alive(message.sender, now) or self._random.random() < self._plan.drop:
            return
        copies = 2 if self._random.random() < self._plan.duplicate else 1
        for _ in range(copies):
            wait = self._plan.latency
            if self._plan.delay:
                wait += self._random.expovariate(1 / self._plan.delay)
            self._count += 1
            heapq.heappush(self._flying, (now + wait, self._count, message))

    def next_arrival(self) -> float | None:
        """When the next message arrives."""
        return self._flying[0][0] if self._flying else None

    def arrive(self) -> tuple[float, Message]:
        """Take the next message: (time, message)."""
        time, _, message = heapq.heappop(self._flying)
        return time, message

    def alive(self, role: Address, now: float) -> bool:
        """Whether a role has not been killed yet."""
        end = self._plan.kills.get(role)
        return end is None or now < end


@dataclass
class _UnacknowledgedMessage:
    """A message without its acknowledgement: when it is sent again, and how often it was."""

    message: Message
    due: float
    tries: int = 1


@dataclass
class _ArrivedNumbers:
    """Numbers of one sender that arrived: all below `floor`, and those in `above`."""

    floor: int = 0
    above: set[int] = field(default_factory=set)

    def add(self, number: int) -> bool:
        """Whether the number is new."""
        if number < self.floor or number in self.above:
            return False
        self.above.add(number)
        while self.floor in self.above:
            self.above.remove(self.floor)
            self.floor += 1
        return True


class Mailbox:
    """One role's end of all its connections. Times are seconds of the caller's clock.

    `retry_after`: seconds until a message is sent again. `max_tries`: sends of one message before
    the step is given up.
    """

    def __init__(self, owner: Address, retry_after: float, max_tries: int) -> None:
        self.owner = owner
        self._retry_after = retry_after
        self._max_tries = max_tries
        self._next: dict[Address, int] = {}
        self._waiting: dict[tuple[Address, int], _UnacknowledgedMessage] = {}
        self._seen: dict[Address, _ArrivedNumbers] = {}

    def send(self, message: Message, now: float) -> Message:
        """Number a new message and remember it until it is acknowledged; returns what to post."""
        number = self._next.get(message.receiver, 0)
        self._next[message.receiver] = number + 1
        numbered = message.numbered(number)
        self._waiting[message.receiver, number] = _UnacknowledgedMessage(
            numbered, now + self._retry_after
        )
        return numbered

    def receive(self, message: Message) -> tuple[Message | None, Message | None]:
        """(what the role is to handle, what to post back) for a message that arrived."""
        if message.kind == Kind.ACK:
            self._waiting.pop((message.sender, message.number), None)
            return None, None
        back = Message(
            kind=Kind.ACK,
            sender=self.owner,
            receiver=message.sender,
            round=message.round,
            number=message.number,
            name=message.name,
        )
        new = self._seen.setdefault(message.sender, _ArrivedNumbers()).add(message.number)
        return (message if new else None), back

    def due(self, now: float) -> list[Message]:
        """Messages to post again. Raises TransportError naming one that was sent too often."""
        again = []
        for waiting in self._waiting.values():
            if waiting.due > now:
                continue
            if waiting.tries >= self._max_tries:
                raise TransportError(
                    f"no answer from {waiting.message.receiver} to {waiting.message} after "
                    f"{waiting.tries} tries"
                )
            waiting.tries += 1
            waiting.due = now + self._retry_after
            again.append(waiting.message)
        return again

    @property
    def next_due(self) -> float | None:
        """When `due` next has something to say."""
        return min((waiting.due for waiting in self._waiting.values()), default=None)


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


class SimulatedTransport(MessageTransport, OneProcess):
    """All roles of a cluster of `num_csx` wafers, and the network between them."""

    def __init__(self, memoryx: MemoryX, num_csx: int, simulation: Simulation) -> None:
        super().__init__(memoryx, Address("wafer", 0))
        self.now = 0.0
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
        self._broken: str | None = None

    # The wafers' side.

    def fetch_weight(self, name: str) -> torch.Tensor:
        """A copy of a weight, from the shard that owns it."""
        message = self._message(Kind.FETCH, self._memoryx.servers[name], name=name)
        self._send(message)
        weight = self._wait(Kind.WEIGHT, message.receiver, self._wafer, name).tensors[name]
        self.traffic.weight_bytes += weight.nbytes
        return weight

    def _send_to_shard(self, message: Message) -> None:
        self._send(message)

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
        self._arrived.clear()
        super().begin(spans, leaves)

    def sums(self) -> tuple[float, int]:
        """(loss sum, counted labels) over all leaves, when every shard has its sums."""
        if self._sums is None:
            first, *_ = [self._wait(Kind.REDUCED, s.address, COORDINATOR) for s in self._shards]
            self._sums = first.numbers["loss_sum"], int(first.numbers["n_counted"])
        return self._sums

    def gather(self, outputs: Mapping[int, Any]) -> list[Any]:
        """What the module returned for every leaf; a dead wafer's are missing."""
        for leaf in range(len(outputs)):
            if leaf not in outputs:
                raise self._failed(f"leaf {leaf} never ran: its wafer has ended")
        return [outputs[leaf] for leaf in sorted(outputs)]

    # Messages and time.

    def _check_whole(self) -> None:
        if self._broken is not None:
            raise TransportError(
                f"this cluster has failed ({self._broken}); resume from the last checkpoint"
            )

    def _ask(
        self, kind: Kind, *, everywhere: bool = False, **content: Any
    ) -> dict[str, torch.Tensor]:
        """Ask every shard, and wait for every answer; of a broken cluster only what is needed."""
        if self._broken is not None and kind in (Kind.DROP, Kind.END):
            return {}
        for index, shard in enumerate(self._shards):
            self._arrived.pop((Kind.DONE, shard.address, COORDINATOR, self._round, kind.name), None)
            message = self._message(kind, index, name=kind.name, **content)
            self._send(replace(message, sender=COORDINATOR))
        tensors: dict[str, torch.Tensor] = {}
        for shard in self._shards:
            tensors |= self._wait(Kind.DONE, shard.address, COORDINATOR, kind.name).tensors
        return tensors

    def _send(self, message: Message) -> None:
        self._network.post(self._mailboxes[message.sender].send(message, self.now), self.now)

    def _wait(self, kind: Kind, sender: Address, receiver: Address, name: str = "") -> Message:
        """Let time pass until a message is here."""
        key = (kind, sender, receiver, self._round, name)
        begun = heard = self.now
        while key not in self._arrived:
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
                    ping = self._message(Kind.PING, 0)
                    self._send(replace(ping, sender=receiver, receiver=address))
        return self._arrived.pop(key)

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
