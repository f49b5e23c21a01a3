"""A network inside one process, and delivery exactly once over it: no I/O, no real clock.

The network has virtual time, and seeded delays and faults: it loses, repeats and reorders messages.
A mailbox sends every message but ACK again until it is acknowledged; a message that arrives twice
is acknowledged twice and handed on once. Order is not restored: roles do not depend on it.
"""

import heapq
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from wafer_backend.errors import TransportError
from wafer_backend.transports.messages import Address, Kind, Message


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
