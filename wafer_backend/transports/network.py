"""A network inside one process: virtual time, seeded delays and faults."""

import heapq
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from wafer_backend.transports.messages import Address, Message


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
