"""Connections between ranks: where a rank listens, and whom it lets in.

Ranks of one machine use Unix sockets without a file, and talk to processes of the same user only.
Ranks of several machines use TCP: each listens on the interface that WAFERMILL_INTERFACE names, and
both ends of a connection prove that they know WAFERMILL_SECRET before anything else is read. The
proof is HMAC-SHA256 over random bytes of both ends, who calls and where the listener is, so that
nobody in between can pass proofs on from another address:

    listener to caller    32 random bytes
    caller to listener    32 random bytes, hello, proof
    listener to caller    proof

What follows on the connection is neither encrypted nor signed.
"""

import hmac
import os
import secrets
import socket
import struct
import threading
import time
from typing import NamedTuple

from wafer_backend.errors import TransportError

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
    whole = read(connection, size + _PROOF_BYTES, time.monotonic() + _PROOF_SECONDS)
    said, proof = whole[:size], whole[size:]
    agreed = drawn + said + repr(connection.getsockname()).encode()
    if not hmac.compare_digest(proof, _proof(secret, b"caller", agreed)):
        raise ConnectionError("no proof")
    hello = Hello(*_HELLO.unpack(said[_RANDOM_BYTES:]))
    return hello, _proof(secret, b"listener", agreed)


def _prove(connection: socket.socket, hello: Hello, secret: bytes) -> None:
    """The caller's side. Raises OSError as long as nobody listens, then TransportError."""
    _check_user(connection)
    drawn = read(connection, _RANDOM_BYTES, time.monotonic() + _PROOF_SECONDS)
    said = secrets.token_bytes(_RANDOM_BYTES) + _HELLO.pack(*hello)
    agreed = drawn + said + repr(connection.getpeername()).encode()
    try:
        connection.sendall(said + _proof(secret, b"caller", agreed))
        proof = read(connection, _PROOF_BYTES, time.monotonic() + _PROOF_SECONDS)
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


def read(connection: socket.socket, size: int, deadline: float) -> bytes:
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
