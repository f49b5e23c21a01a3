"""The processes of a cluster: started and ended together, who is who, and noticing who has died.

Messages travel point to point over sockets (`connections`). Three channels keep them apart: `up`
carries requests and partials to a rank's server thread, `down` its answers, `side` what the ranks'
main threads tell each other. A fourth carries heartbeats.

On one machine `run_ranks` does what torchrun does for several: a signal goes to every rank, and
when one rank is lost the others are given `liveness` seconds to end by themselves.
"""

import atexit
import contextlib
import functools
import os
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType

import torch

from wafer_backend.errors import TransportError
from wafer_backend.transports import messages
from wafer_backend.transports.connections import Channel, Peers, meet
from wafer_backend.transports.messages import Message

LOST = 75
"""Exit code of a process whose cluster lost a rank while it was waiting (EX_TEMPFAIL)."""
MEETING = timedelta(minutes=5)
"""How long ranks that have started wait for the others."""
_BEAT, _FAREWELL = b".", b"!"
_FAREWELL_SECONDS = 3.0


def joined_environment() -> bool:
    """Whether this process was started as a rank, by `launch` or by torchrun."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


@dataclass
class Ranks:
    """This process among the others: `rank` of `size`."""

    rank: int
    size: int
    _names: dict[bytes, str]
    _connections: dict[Channel, dict[int, socket.socket]]
    _farewells: dict[int, threading.Event]

    def __post_init__(self) -> None:
        self._callers = selectors.DefaultSelector()
        for other, connection in self._connections["up"].items():
            self._callers.register(connection, selectors.EVENT_READ, other)

    @property
    def others(self) -> list[int]:
        """All ranks but this one."""
        return [rank for rank in range(self.size) if rank != self.rank]

    def send(self, message: Message, to: int, channel: Channel) -> None:
        """Send a message; returns when it is on its way. Raises TransportError."""
        connection = self._connections[channel][to]
        for part in messages.encode_message(message):
            self._try(to, functools.partial(connection.sendall, part.numpy().data))

    def receive(self, sender: int | None, channel: Channel) -> Message:
        """The next message from a rank, or on `up` from any. Raises TransportError."""
        source = self._next_caller() if sender is None else sender
        connection = self._connections[channel][source]
        return messages.decode_message(
            lambda part: self._try(source, functools.partial(_fill, part, connection)), self._names
        )

    def _next_caller(self) -> int:
        """The rank whose message comes next; one that ended in good order sends none."""
        while True:
            (key, _), *_ = self._callers.select()
            connection, caller = key.fileobj, key.data
            assert isinstance(connection, socket.socket)
            with contextlib.suppress(OSError):
                if connection.recv(1, socket.MSG_PEEK):
                    return int(caller)
            self._callers.unregister(connection)
            left = self._farewells[caller].wait(_FAREWELL_SECONDS)
            if not left or not self._callers.get_map():
                raise self._lost(caller, "its connection ended")

    def know(self, words: Iterable[str]) -> None:
        """Messages that come may be about these, too."""
        self._names.update((messages.name_hash(word), word) for word in words)

    def _try(self, other: int, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            raise self._lost(other, str(error)) from error

    def _lost(self, other: int, why: str) -> TransportError:
        return TransportError(
            f"rank {self.rank} lost rank {other} ({why}); resume from the last checkpoint"
        )


def _fill(part: torch.Tensor, connection: socket.socket) -> None:
    """Receive into the tensor's own memory; one wait for the interpreter, whatever its size."""
    view = part.numpy().data
    while view:
        count = connection.recv_into(view, 0, socket.MSG_WAITALL)
        if not count:
            raise ConnectionError("its connection ended")
        view = view[count:]


@dataclass
class _Program:
    """What the clusters of this process share; `farewells`: set when a rank ends in good order."""

    peers: Peers
    farewells: dict[int, threading.Event]


_program: _Program | None = None


def join(parameters: list[str], liveness: float) -> Ranks:
    """Meet the other processes. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say where.

    `parameters`: names that messages may be about. `liveness`: seconds of silence after which a
    rank counts as dead. Clusters of one program share the processes and their heartbeats; each has
    channels of its own. Raises TransportError when the others do not come in time,
    BackendConfigError when ranks on several machines have no secret or interface.
    """
    global _program
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    names = {messages.name_hash(name): name for name in ("", *parameters)}
    if size == 1:
        return Ranks(rank, size, names, {"up": {}, "down": {}, "side": {}}, {})
    deadline = time.monotonic() + MEETING.total_seconds()
    try:
        if _program is None:
            _program = _first_join(rank, size, deadline, liveness)
        up, down, side = _program.peers.connect(("up", "down", "side"), deadline)
    except OSError as error:
        raise TransportError(
            f"rank {rank} could not connect to the other {size - 1}: {error}"
        ) from error
    return Ranks(rank, size, names, {"up": up, "down": down, "side": side}, _program.farewells)


def _first_join(rank: int, size: int, deadline: float, liveness: float) -> _Program:
    peers = meet(rank, size, deadline)
    try:
        (beats,) = peers.connect(("beat",), deadline)
    except BaseException:
        peers.door.close()
        raise
    return _Program(peers, _Beats(rank, beats, liveness).farewells)


class _Beats:
    """The heartbeats of this rank, once a second, and what it hears of the others."""

    def __init__(self, rank: int, others: dict[int, socket.socket], liveness: float) -> None:
        self._rank = rank
        self._others = others
        self._liveness = liveness
        self._heard = dict.fromkeys(others, time.monotonic())
        self._leaving = threading.Event()
        self.farewells = {other: threading.Event() for other in others}
        for connection in others.values():
            connection.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def _end(self) -> None:
        """The last beat says that this rank ends in good order."""
        self._leaving.set()
        self._thread.join(timeout=self._liveness)
        for connection in self._others.values():
            with contextlib.suppress(OSError):
                connection.send(_FAREWELL)

    def _run(self) -> None:
        while not self._leaving.is_set():
            for other, connection in self._others.items():
                with contextlib.suppress(OSError):
                    connection.send(_BEAT)
                self._listen(other, connection)
                silent = time.monotonic() - self._heard[other]
                if silent > self._liveness and not self.farewells[other].is_set():
                    self._give_up(other)
            self._leaving.wait(min(1.0, self._liveness / 4))

    def _listen(self, other: int, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            beats = connection.recv(4096)
            if beats:
                self._heard[other] = time.monotonic()
            if _FAREWELL in beats:
                self.farewells[other].set()

    def _give_up(self, other: int) -> None:
        """End this process: its main thread may wait for the other for ever.

        The message goes to the file itself: torch's excepthook replaces `sys.stderr` while the main
        thread reports why it ends.
        """
        line = (
            f"rank {self._rank}: rank {other} has been silent for {self._liveness:g} s; "
            "resume from the last checkpoint\n"
        )
        os.write(2, line.encode())
        os._exit(LOST)


_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_POLL_SECONDS = 0.1


def run_ranks(command: Sequence[str], ranks: int, liveness: float) -> int:
    """Run `command` as so many ranks; returns when all have ended.

    The exit code is that of the ranks: 0 when all are, else the first that is none of a rank that
    only lost another one, else LOST. A rank that a signal killed counts as LOST.
    """
    where = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
    }
    processes = [
        subprocess.Popen(
            command, env={**os.environ, **where, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(ranks)
    ]
    with _forwarding(processes):
        codes = _wait(processes, liveness)
    own = [code for code in codes if code > 0 and code != LOST]
    if own:
        return own[0]
    return LOST if any(codes) else 0


def _wait(processes: Sequence[subprocess.Popen[bytes]], liveness: float) -> list[int]:
    """Exit codes of all; once one has failed, those that do not end in time are killed."""
    deadline = float("inf")
    while any(process.poll() is None for process in processes):
        if deadline == float("inf") and any(process.returncode for process in processes):
            deadline = time.monotonic() + 2 * liveness
        if time.monotonic() > deadline:
            for process in processes:
                process.kill()
        time.sleep(_POLL_SECONDS)
    return [process.wait() for process in processes]


@contextlib.contextmanager
def _forwarding(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Signals to this process go to the ranks, which end in good order."""

    def forward(number: int, frame: FrameType | None) -> None:
        for process in processes:
            process.send_signal(number)

    previous = {number: signal.signal(number, forward) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
