"""The processes of a cluster: who is who, sending and receiving, and noticing who has died.

Messages travel point to point over torch.distributed. Three channels keep them apart: `up` carries
requests and partials to a rank's server thread, `down` its answers, `side` what the ranks' main
threads tell each other.
"""

import atexit
import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed import Store, TCPStore, rendezvous  # type: ignore[attr-defined]

from wafer_backend.errors import TransportError
from wafer_backend.transports import wire
from wafer_backend.transports.messages import Message

Channel = Literal["up", "down", "side"]
LOST = 75
"""Exit code of a process whose cluster lost a rank while it was waiting (EX_TEMPFAIL)."""
MEETING = timedelta(minutes=5)
"""How long ranks that have started wait for the others."""
_FOREVER = timedelta(days=30)


def joined_environment() -> bool:
    """Whether this process was started as a rank, by `launch` or by torchrun."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


@dataclass
class Ranks:
    """This process among the others: `rank` of `size`."""

    rank: int
    size: int
    _names: dict[bytes, str]
    _groups: dict[str, dist.ProcessGroup | None]
    _leaving: threading.Event

    @property
    def others(self) -> list[int]:
        """All ranks but this one."""
        return [rank for rank in range(self.size) if rank != self.rank]

    def send(self, message: Message, to: int, channel: Channel) -> None:
        """Send a message; returns when it is on its way. Raises TransportError."""
        for part in wire.encode(message):
            self._try(to, functools.partial(self._send, part, to, channel))

    def _send(self, part: torch.Tensor, to: int, channel: Channel) -> int:
        dist.send(part, to, group=self._groups[channel])
        return to

    def receive(self, sender: int | None, channel: Channel) -> Message:
        """The next message from a rank, or from any. Raises TransportError."""
        source = sender

        def fill(part: torch.Tensor) -> None:
            nonlocal source
            source = self._try(source, functools.partial(self._receive, part, source, channel))

        return wire.decode(fill, self._names)

    def _receive(self, part: torch.Tensor, sender: int | None, channel: Channel) -> int:
        return dist.recv(part, sender, group=self._groups[channel])

    def know(self, words: Iterable[str]) -> None:
        """Messages that come may be about these, too."""
        self._names.update((wire.name_hash(word), word) for word in words)

    def leave(self) -> None:
        """Say that this rank ends in good order."""
        self._leaving.set()

    @property
    def leaving(self) -> bool:
        """Whether it does."""
        return self._leaving.is_set()

    def wait(self, seconds: float) -> None:
        """Wait so long, or until this rank ends."""
        self._leaving.wait(seconds)

    def _try(self, other: int | None, action: Callable[[], int]) -> int:
        try:
            return action()
        except RuntimeError as error:
            who = "a rank" if other is None else f"rank {other}"
            raise TransportError(
                f"rank {self.rank} lost {who} ({str(error).splitlines()[0][:120]}); go on from the "
                "last checkpoint"
            ) from error


def join(parameters: list[str], liveness: float) -> Ranks:
    """Meet the other processes. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say where.

    `parameters`: names that messages may be about. `liveness`: seconds of silence after which a
    rank counts as dead. Clusters of one program share the processes and their heartbeats; each has
    channels of its own. Raises TransportError when the others do not come in time.
    """
    first = not dist.is_initialized()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        if first:
            store = _meet(rank, size)
            dist.init_process_group(
                "gloo", store=store, rank=rank, world_size=size, timeout=_FOREVER
            )
        everyone = list(range(size))
        groups = {
            channel: dist.new_group(everyone, timeout=_FOREVER, backend="gloo")
            for channel in ("up", "down", "side")
        }
    except (RuntimeError, ValueError) as error:
        why = str(error).splitlines()[0][:200]
        raise TransportError(f"rank {rank} did not meet the other {size - 1}: {why}") from error
    found = Ranks(rank, size, {}, groups, threading.Event())
    found.know(("", *parameters))
    if first and size > 1:
        _start_heartbeats(found, liveness)
    return found


def _meet(rank: int, size: int) -> Store:
    """The store of all ranks, when all are there. Raises RuntimeError after `MEETING`."""
    store: Store = next(rendezvous("env://", timeout=MEETING))[0]
    store.set(f"rank {rank} is here", "")
    store.wait([f"rank {other} is here" for other in range(size)], MEETING)
    return store


def _start_heartbeats(ranks: Ranks, liveness: float) -> None:
    """Beat in a store of rank 0 once a second, and watch the beats of the others."""
    host = os.environ["MASTER_ADDR"]
    port = torch.zeros(1, dtype=torch.int64)
    wait = timedelta(seconds=liveness)
    server = None
    if ranks.rank == 0:
        server = TCPStore(host, 0, None, is_master=True, wait_for_workers=False, timeout=wait)
        port[0] = server.port
        for other in ranks.others:
            dist.send(port, other)
    else:
        dist.recv(port, 0)
    store = TCPStore(host, int(port), None, is_master=False, wait_for_workers=False, timeout=wait)
    beats = _Beats(ranks, store, server, liveness)
    beats.thread.start()
    atexit.register(beats.end)


class _Beats:
    """The heartbeats of this rank, and what it hears of the others; `server` is kept alive."""

    def __init__(
        self, ranks: Ranks, store: TCPStore, server: TCPStore | None, liveness: float
    ) -> None:
        self._ranks = ranks
        self._store = store
        self._server = server
        self._liveness = liveness
        now = time.monotonic()
        self._heard = dict.fromkeys(ranks.others, (b"", now))
        self.thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)

    def end(self) -> None:
        """The last beat says that this rank ends in good order."""
        self._ranks.leave()
        self.thread.join(timeout=self._liveness)
        with contextlib.suppress(RuntimeError):
            self._store.set(_beat(self._ranks.rank), "end")

    def _run(self) -> None:
        count = 0
        while not self._ranks.leaving:
            count += 1
            self._listen(count)
            for other, (beat, last) in self._heard.items():
                if beat != b"end" and time.monotonic() - last > self._liveness:
                    self._give_up(other)
            self._ranks.wait(min(1.0, self._liveness / 4))

    def _listen(self, count: int) -> None:
        """Beat, and note who did; without rank 0 there is nobody to hear."""
        with contextlib.suppress(RuntimeError):
            self._store.set(_beat(self._ranks.rank), str(count))
            for other, (beat, _) in self._heard.items():
                now = self._store.get(_beat(other)) if self._store.check([_beat(other)]) else b""
                if now != beat:
                    self._heard[other] = now, time.monotonic()

    def _give_up(self, other: int) -> None:
        """End this process: its main thread may wait inside torch.distributed for ever.

        The message goes to the file itself: torch's excepthook replaces `sys.stderr` while the main
        thread tells why it ends.
        """
        line = (
            f"rank {self._ranks.rank}: rank {other} has been silent for {self._liveness:g} s; go "
            "on from the last checkpoint\n"
        )
        os.write(2, line.encode())
        os._exit(LOST)


def _beat(rank: int) -> str:
    return f"beat {rank}"
