"""Delivery exactly once over a network that loses, repeats and reorders: no I/O, no clock.

Every message but ACK is sent again until it is acknowledged; a message that arrives twice is
acknowledged twice and handed on once. Order is not restored: roles do not depend on it.
"""

from dataclasses import dataclass, field

from wafer_backend.errors import TransportError
from wafer_backend.transports.messages import Address, Kind, Message


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
            Kind.ACK, self.owner, message.sender, message.round, message.number, name=message.name
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
