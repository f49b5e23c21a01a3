"""Connections between ranks: how they find one another, where a rank listens, whom it lets in.

Ranks of one machine use Unix sockets without a file, named by MASTER_PORT, and accept processes of
the same user only. Ranks of several machines use TCP on the interface that WAFERMILL_INTERFACE
names; rank 0 collects where the others listen. Before anything else is read both ends prove that
they know WAFERMILL_SECRET, by HMAC-SHA256 over random bytes of both, the hello and the listener's
address, so that nobody in between can pass proofs on:

    listener to caller    32 random bytes
    caller to listener    32 random bytes, hello, proof
    listener to caller    proof

What follows on the connection is neither encrypted nor signed.
"""

import fcntl
import hmac
import os
import secrets
import socket
import struct
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, NamedTuple

from wafer_backend.errors import BackendConfigError, TransportError

SECRET = "WAFERMILL_SECRET"
Address = str | tuple[str, int]
"""Name of a Unix socket without a file, or (IPv4 address, port)."""

_RANDOM_BYTES = _PROOF_BYTES = 32
_PROOF_SECONDS = 10.0
_MOST_STRANGERS = 32
_RETRY_SECONDS = 0.05
_HELLO = struct.Struct("!HHH")


class Hello(NamedTuple):
    """Which connection a caller wants: its rank, the number of the cluster, the channel."""

    rank: int
    cluster: int
    channel: int


class Door:
    """The socket that a rank listens on, and the connections that it has let in.

    A stranger has 10 seconds and 102 bytes; 32 at a time are heard.
    """

    def __init__(self, address: Address, secret: bytes) -> None:
        self._secret = secret
        self._socket = _socket(address)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(address)
            self._socket.listen()
        except OSError as error:
            self._socket.close()
            raise OSError(f"cannot listen at {_shown(address)}: {error.strerror}") from error
        self.address: Address = (
            self._socket.getsockname() if isinstance(address, tuple) else address
        )
        self._inside: dict[Hello, socket.socket] = {}
        self._changed = threading.Condition()
        self._strangers = threading.Semaphore(_MOST_STRANGERS)
        threading.Thread(target=self._watch, name="door", daemon=True).start()

    def wait(self, hello: Hello, deadline: float) -> socket.socket:
        """The connection of a caller. Raises TimeoutError past the deadline."""
        with self._changed:
            while hello not in self._inside:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"rank {hello.rank} did not connect")
                self._changed.wait(left)
            return self._inside[hello]

    def close(self) -> None:
        """Listen no more, and drop who is inside."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in self._inside.values():
            connection.close()

    def _watch(self) -> None:
        while True:
            self._strangers.acquire()
            try:
                connection, _ = self._socket.accept()
            except OSError:
                self._strangers.release()
                if self._socket.fileno() < 0:
                    return
                time.sleep(_RETRY_SECONDS)
                continue
            threading.Thread(target=self._hear, args=(connection,), daemon=True).start()

    def _hear(self, connection: socket.socket) -> None:
        """Let a caller in that proves who it is; close the connection of any other."""
        try:
            hello, answer = _heard(connection, self._secret)
            with self._changed:
                if hello in self._inside:
                    raise ConnectionError(f"rank {hello.rank} is already connected")
                connection.sendall(answer)
                self._inside[hello] = _opened(connection)
                self._changed.notify_all()
        except OSError:
            connection.close()
        finally:
            self._strangers.release()


def call(address: Address, hello: Hello, secret: bytes, deadline: float) -> socket.socket:
    """Connect to a rank, again and again until it listens.

    Raises TimeoutError past the deadline, TransportError when one of both does not believe.
    """
    while True:
        connection = _socket(address)
        try:
            connection.settimeout(_PROOF_SECONDS)
            connection.connect(address)
            _prove(connection, hello, secret)
            return _opened(connection)
        except OSError as error:
            connection.close()
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody answers at {_shown(address)}: {error}") from error
        except TransportError:
            connection.close()
            raise
        time.sleep(_RETRY_SECONDS)


def _heard(connection: socket.socket, secret: bytes) -> tuple[Hello, bytes]:
    """Who calls, and the proof to answer with. Raises OSError when the caller proves nothing."""
    _check_user(connection)
    drawn = secrets.token_bytes(_RANDOM_BYTES)
    connection.settimeout(_PROOF_SECONDS)
    connection.sendall(drawn)
    size = _RANDOM_BYTES + _HELLO.size
    whole = read_exactly(connection, size + _PROOF_BYTES, time.monotonic() + _PROOF_SECONDS)
    said, proof = whole[:size], whole[size:]
    agreed = drawn + said + repr(connection.getsockname()).encode()
    if not hmac.compare_digest(proof, _proof(secret, b"caller", agreed)):
        raise ConnectionError("no proof")
    hello = Hello(*_HELLO.unpack(said[_RANDOM_BYTES:]))
    return hello, _proof(secret, b"listener", agreed)


def _prove(connection: socket.socket, hello: Hello, secret: bytes) -> None:
    """The caller's side. Raises OSError as long as nobody listens, then TransportError."""
    _check_user(connection)
    drawn = read_exactly(connection, _RANDOM_BYTES, time.monotonic() + _PROOF_SECONDS)
    said = secrets.token_bytes(_RANDOM_BYTES) + _HELLO.pack(*hello)
    agreed = drawn + said + repr(connection.getpeername()).encode()
    try:
        connection.sendall(said + _proof(secret, b"caller", agreed))
        proof = read_exactly(connection, _PROOF_BYTES, time.monotonic() + _PROOF_SECONDS)
    except OSError as error:
        raise TransportError(
            f"rank {hello.rank} was refused: another process has its RANK, {SECRET} differs, or "
            "the address was changed on the way"
        ) from error
    if not hmac.compare_digest(proof, _proof(secret, b"listener", agreed)):
        raise TransportError(f"who answers rank {hello.rank} does not know {SECRET}")


def _proof(secret: bytes, side: bytes, agreed: bytes) -> bytes:
    return hmac.digest(secret, side + agreed, "sha256")


def _check_user(connection: socket.socket) -> None:
    """Raise PermissionError when the other end of a Unix socket runs as another user."""
    if connection.family == socket.AF_UNIX:
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", peer)[1] != os.geteuid():
            raise PermissionError("a process of another user")


def read_exactly(connection: socket.socket, size: int, deadline: float) -> bytes:
    """Exactly so many bytes. Raises OSError at the end of the stream or past the deadline."""
    data = b""
    while len(data) < size:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the connection was closed")
        data += part
    return data


def _socket(address: Address) -> socket.socket:
    return socket.socket(socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX)


def _opened(connection: socket.socket) -> socket.socket:
    """Ready for messages: they may take as long as they take."""
    connection.settimeout(None)
    if connection.family == socket.AF_INET:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _shown(address: Address) -> str:
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else address[1:]


INTERFACE = "WAFERMILL_INTERFACE"
Channel = Literal["up", "down", "side", "beat"]

_CHANNELS: tuple[Channel, ...] = ("up", "down", "side", "beat")
_MEETING_CLUSTER = 0
_MIN_SECRET = 32
_PLACE = struct.Struct("!4sH")
_ANNOUNCED = "rank 0 listens at"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_GET_INTERFACE_ADDRESS = 0x8915


@dataclass
class Peers:
    """The processes of the other ranks: where each listens, and how to reach it."""

    rank: int
    addresses: list[Address]
    secret: bytes
    door: Door
    _clusters: int = _MEETING_CLUSTER

    def connect(
        self, channels: tuple[Channel, ...], deadline: float
    ) -> list[dict[int, socket.socket]]:
        """A connection to every other rank for each of some channels of a new cluster.

        All ranks call it in the same order. `deadline`: in seconds of the monotonic clock. Raises
        OSError past it, and TransportError when a rank is refused.
        """
        self._clusters += 1
        opened = []
        for channel in channels:
            number = _CHANNELS.index(channel)
            hello = Hello(self.rank, self._clusters, number)
            connections = {
                other: call(address, hello, self.secret, deadline)
                for other, address in enumerate(self.addresses[: self.rank])
            }
            for other in range(self.rank + 1, len(self.addresses)):
                connections[other] = self.door.wait(hello._replace(rank=other), deadline)
            opened.append(connections)
        return opened


def meet(rank: int, size: int, deadline: float) -> Peers:
    """Find the other ranks, by MASTER_ADDR, MASTER_PORT and what torchrun sets.

    Raises BackendConfigError when these are not set, or when several machines have no secret or
    interface, OSError past the deadline.
    """
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise BackendConfigError(f"{name} is not set: start this program with torchrun")
    if _on_one_machine():
        names = [_local_name(other) for other in range(size)]
        return Peers(rank, [*names], b"", Door(names[rank], b""))
    secret = _secret()
    # Rank 0 is found at MASTER_PORT, unless torchrun listens there; any port does for others.
    port = 0 if rank or _under_torchrun() else int(os.environ["MASTER_PORT"])
    door = Door((_interface_address(), port), secret)
    try:
        return Peers(rank, [*_exchange(rank, size, door, secret, deadline)], secret, door)
    except BaseException:
        door.close()
        raise


# Several machines.


def _exchange(
    rank: int, size: int, door: Door, secret: bytes, deadline: float
) -> list[tuple[str, int]]:
    """Where every rank listens: rank 0 collects it and sends it to all."""
    assert isinstance(door.address, tuple)
    own = _packed(door.address)
    first = _address_of_rank_0(rank, door.address)
    if rank:
        with call(first, Hello(rank, _MEETING_CLUSTER, 0), secret, deadline) as connection:
            connection.sendall(own)
            return _unpacked(read_exactly(connection, size * _PLACE.size, deadline))
    callers = [door.wait(Hello(other, _MEETING_CLUSTER, 0), deadline) for other in range(1, size)]
    table = own + b"".join(read_exactly(caller, _PLACE.size, deadline) for caller in callers)
    for caller in callers:
        caller.sendall(table)
        caller.close()
    return _unpacked(table)


def _address_of_rank_0(rank: int, own: tuple[str, int]) -> tuple[str, int]:
    """From MASTER_ADDR and MASTER_PORT, or from the store of torchrun, which listens there."""
    if not _under_torchrun():
        return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    from torch.distributed import rendezvous  # type: ignore[attr-defined]

    try:
        store = next(rendezvous("env://", timeout=timedelta(minutes=5)))[0]
        if rank == 0:
            store.set(_ANNOUNCED, _packed(own))
        (address,) = _unpacked(store.get(_ANNOUNCED))
    except (RuntimeError, struct.error, ValueError) as error:
        raise OSError(f"torchrun's store does not say where rank 0 is: {error}") from error
    return address


def _packed(address: tuple[str, int]) -> bytes:
    return _PLACE.pack(socket.inet_aton(address[0]), address[1])


def _unpacked(table: bytes) -> list[tuple[str, int]]:
    return [(socket.inet_ntoa(host), port) for host, port in _PLACE.iter_unpack(table)]


def _under_torchrun() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _secret() -> bytes:
    secret = os.environ.get(SECRET, "")
    if len(secret) < _MIN_SECRET:
        raise BackendConfigError(
            f"ranks on several machines need {SECRET} in the environment, the same for all and at "
            f"least {_MIN_SECRET} characters, such as `openssl rand -hex 32` prints"
        )
    return secret.encode()


def _interface_address() -> str:
    """The IPv4 address of the interface that WAFERMILL_INTERFACE names."""
    name = os.environ.get(INTERFACE, "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            request = struct.pack("256s", name.encode()[:15])
            answer = fcntl.ioctl(any_socket, _GET_INTERFACE_ADDRESS, request)
        except OSError as error:
            every = ", ".join(each for _, each in socket.if_nameindex())
            raise BackendConfigError(
                f"{INTERFACE} = {name!r}: ranks on several machines need the name of the "
                f"interface to listen on, with an IPv4 address; here are {every}"
            ) from error
    return socket.inet_ntoa(answer[20:24])


# One machine.


def _on_one_machine() -> bool:
    local = os.environ.get("LOCAL_WORLD_SIZE")
    if local is not None:
        return local == os.environ["WORLD_SIZE"]
    return os.environ["MASTER_ADDR"] in _LOOPBACK


def _local_name(rank: int) -> str:
    """MASTER_PORT tells clusters of one user apart; nobody listens on it."""
    return f"\0wafermill/{os.geteuid()}/{os.environ['MASTER_PORT']}/{rank}"
