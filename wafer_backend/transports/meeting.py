"""Where the ranks of a program find one another.

MASTER_ADDR, MASTER_PORT and what torchrun sets say how many there are and whether they share a
machine. On one machine the names of their Unix sockets follow from MASTER_PORT; of several, rank 0
collects where the others listen.
"""

import fcntl
import os
import socket
import struct
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from wafer_backend.errors import BackendConfigError
from wafer_backend.transports.connections import SECRET, Address, Door, Hello, call, read

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
            found = {
                other: call(address, hello, self.secret, deadline)
                for other, address in enumerate(self.addresses[: self.rank])
            }
            for other in range(self.rank + 1, len(self.addresses)):
                found[other] = self.door.wait(hello._replace(rank=other), deadline)
            opened.append(found)
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
    door = Door((_interface_address(), _port_to_listen_on(rank)), secret)
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
            return _unpacked(read(connection, size * _PLACE.size, deadline))
    callers = [door.wait(Hello(other, _MEETING_CLUSTER, 0), deadline) for other in range(1, size)]
    table = own + b"".join(read(caller, _PLACE.size, deadline) for caller in callers)
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
        (found,) = _unpacked(store.get(_ANNOUNCED))
    except (RuntimeError, struct.error, ValueError) as error:
        raise OSError(f"torchrun's store does not say where rank 0 is: {error}") from error
    return found


def _packed(address: tuple[str, int]) -> bytes:
    return _PLACE.pack(socket.inet_aton(address[0]), address[1])


def _unpacked(table: bytes) -> list[tuple[str, int]]:
    return [(socket.inet_ntoa(host), port) for host, port in _PLACE.iter_unpack(table)]


def _port_to_listen_on(rank: int) -> int:
    """Rank 0 is found at MASTER_PORT, unless torchrun listens there; any port does for others."""
    return 0 if rank or _under_torchrun() else int(os.environ["MASTER_PORT"])


def _under_torchrun() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _secret() -> bytes:
    found = os.environ.get(SECRET, "")
    if len(found) < _MIN_SECRET:
        raise BackendConfigError(
            f"ranks on several machines need {SECRET} in the environment, the same for all and at "
            f"least {_MIN_SECRET} characters, such as `openssl rand -hex 32` prints"
        )
    return found.encode()


def _interface_address() -> str:
    """The IPv4 address of the interface that WAFERMILL_INTERFACE names."""
    name = os.environ.get(INTERFACE, "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            wanted = struct.pack("256s", name.encode()[:15])
            found = fcntl.ioctl(any_socket, _GET_INTERFACE_ADDRESS, wanted)
        except OSError as error:
            every = ", ".join(each for _, each in socket.if_nameindex())
            raise BackendConfigError(
                f"{INTERFACE} = {name!r}: ranks on several machines need the name of the "
                f"interface to listen on, with an IPv4 address; here are {every}"
            ) from error
    return socket.inet_ntoa(found[20:24])


# One machine.


def _on_one_machine() -> bool:
    local = os.environ.get("LOCAL_WORLD_SIZE")
    if local is not None:
        return local == os.environ["WORLD_SIZE"]
    return os.environ["MASTER_ADDR"] in _LOOPBACK


def _local_name(rank: int) -> str:
    """MASTER_PORT tells clusters of one user apart; nobody listens on it."""
    return f"\0wafermill/{os.geteuid()}/{os.environ['MASTER_PORT']}/{rank}"
