"""Who may talk to a rank: nothing listens beyond what is needed, and strangers get nothing."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.programs import Program
from tests.wafer_backend.transports.processes import (
    command,
    environment,
    finish,
    free_port,
    start,
)
from wafer_backend.errors import BackendConfigError, TransportError
from wafer_backend.transports import connections, ranks
from wafer_backend.transports.connections import Door, Hello, call
from wafer_backend.transports.messages import COORDINATOR, Address, Kind, Message

SECRET = secrets.token_hex(32)
HOSTS = {"LOCAL_WORLD_SIZE": "1", "WAFERMILL_INTERFACE": "lo", "WAFERMILL_SECRET": SECRET}
"""As if every rank had a machine of its own."""


def listening(pid: int) -> list[tuple[str, int]]:
    """(address, port) of every TCP socket that a process listens on, by /proc/net; not those that
    a fork has from this process, where other tests may have left a Dask cluster."""
    ours, theirs = (
        {tuple(s.laddr) for s in psutil.Process(one).net_connections("tcp")
         if s.status == psutil.CONN_LISTEN}
        for one in (os.getpid(), pid)
    )  # fmt: skip
    return sorted(theirs - ours)


@pytest.fixture
def running() -> Iterator[Callable[..., list[Program]]]:
    """Starts three ranks, which train until they are ended."""
    started: list[Program] = []

    def begin(**where: str) -> list[Program]:
        started.extend(start(3, "rank_program.py", "distributed", 3, 1_000_000, "train", **where))
        started[0].wait_for_line("loss ", count=2)
        return started

    yield begin
    for process in started:
        process.kill()


def test_ranks_of_one_machine_listen_on_no_port(running):
    assert [listening(process.pid) for process in running()] == [[], [], []]


def test_ranks_of_several_machines_listen_on_the_named_interface_only(running):
    places = [listening(process.pid) for process in running(**HOSTS)]
    assert [[host for host, _ in place] for place in places] == [["127.0.0.1"]] * 3


def offers() -> list[bytes]:
    """What strangers send: nothing, noise, and what a rank without the secret would."""
    hello = connections._HELLO.pack(1, 1, 0)
    proof = connections._proof(b"another secret", b"caller", b"")
    noise = [os.urandom(size) for size in (1, 32, 38, 70, 100_000)]
    return [b"", b"GET / HTTP/1.1\r\n\r\n" * 20, *noise, os.urandom(32) + hello + proof]


def test_a_stranger_gets_nothing_and_disturbs_nothing(running):
    """A challenge of 32 random bytes is all that is ever sent to it; losses go on as alone."""
    processes = running(**HOSTS)
    places = [listening(process.pid)[0] for process in processes]
    for process, place in zip(processes, places, strict=True):
        for offer in offers():
            assert process.poll() is None, process.err
            with socket.create_connection(place, timeout=20) as stranger:
                answer = stranger.recv(32, socket.MSG_WAITALL)
                assert len(answer) == 32
                with contextlib.suppress(OSError):
                    stranger.sendall(offer)
                    stranger.shutdown(socket.SHUT_WR)
                    assert stranger.recv(1000) == b""
    silent = [socket.create_connection(place) for place in places for _ in range(50)]
    steps = processes[0].out.count("loss ")
    processes[0].wait_for_line("loss ", count=steps + 5)
    alone = start(1, "rank_program.py", "inline", 1, 4, "train")
    ((expected, _),) = finish(alone)
    assert processes[0].out.splitlines()[:4] == expected.splitlines()[:4]
    for stranger in silent:
        stranger.close()


def test_a_rank_with_another_secret_is_refused_by_name():
    where = {**HOSTS, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}

    def program() -> None:
        ranks.MEETING = ranks.timedelta(seconds=4)
        with pytest.raises(TransportError) as caught:
            ranks.join([], 1.0)
        print(caught.value)

    first = Program(program, **where, RANK="0")
    second = Program(program, **{**where, "WAFERMILL_SECRET": SECRET[::-1]}, RANK="1")
    assert (
        "rank 0 could not connect to the other 1: rank 1 did not connect" in first.communicate()[0]
    )
    assert "rank 1 was refused" in second.communicate()[0]
    assert "WAFERMILL_SECRET differs" in second.out


def test_a_listener_without_the_secret_is_not_believed():
    """Not even when it sends back the proof that it got."""
    ours, theirs = socket.socketpair()

    def reflect() -> None:
        theirs.sendall(os.urandom(32))
        theirs.sendall(theirs.recv(1000)[-32:])

    thread = threading.Thread(target=reflect)
    thread.start()
    with ours, theirs, pytest.raises(TransportError, match="does not know WAFERMILL_SECRET"):
        connections._prove(ours, Hello(1, 1, 0), b"secret")
    thread.join()


def test_proofs_cannot_be_passed_on_from_another_address():
    """Somebody in between, to whom a rank was sent, knows no secret and only copies bytes."""
    door, between = Door(("127.0.0.1", 0), b"secret"), socket.create_server(("127.0.0.1", 0))

    def copy() -> None:
        caller, _ = between.accept()
        with caller, socket.create_connection(door.address) as listener:  # type: ignore[arg-type]
            caller.sendall(listener.recv(32, socket.MSG_WAITALL))
            listener.sendall(caller.recv(70, socket.MSG_WAITALL))
            caller.sendall(listener.recv(32, socket.MSG_WAITALL))

    thread = threading.Thread(target=copy)
    thread.start()
    hello, deadline = Hello(1, 1, 0), time.monotonic() + 20
    with pytest.raises(TransportError, match="the address was changed on the way"):
        call(between.getsockname(), hello, b"secret", deadline)
    thread.join()
    between.close()
    call(door.address, hello, b"secret", deadline).close()
    door.wait(hello, deadline).close()
    door.close()


def test_a_process_of_another_user_is_not_heard(monkeypatch: pytest.MonkeyPatch):
    door = Door("\0wafermill/test/" + secrets.token_hex(8), b"")
    try:
        monkeypatch.setattr(connections.os, "geteuid", lambda: os.getuid() + 1)
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(door.address)
            assert stranger.recv(1) == b""
        with pytest.raises(TimeoutError, match="a process of another user"):
            call(door.address, Hello(1, 1, 0), b"", time.monotonic())
    finally:
        door.close()


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ({"MASTER_PORT": None}, "MASTER_PORT is not set: start this program with torchrun"),
        ({"WAFERMILL_SECRET": ""}, "need WAFERMILL_SECRET in the environment"),
        ({"WAFERMILL_SECRET": "short"}, "at least 32 characters"),
        ({"WAFERMILL_INTERFACE": ""}, "WAFERMILL_INTERFACE = ''"),
        ({"WAFERMILL_INTERFACE": "nope0"}, r"WAFERMILL_INTERFACE = 'nope0': .*; here are .*lo"),
    ],
)
def test_several_machines_need_a_secret_and_an_interface(monkeypatch, missing, message: str):
    where = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "1"}
    for name, value in {**where, **HOSTS, **missing}.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    with pytest.raises(BackendConfigError, match=message):
        ranks.join([], 1.0)


def test_a_rank_that_ends_in_good_order_leaves_the_others_talking():
    """Rank 1 ends while rank 0 waits for whoever calls next; rank 2 calls after that."""
    where = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}

    def program() -> None:
        joined = ranks.join([], 20.0)
        if joined.rank == 2:
            time.sleep(2)
            joined.send(
                Message(kind=Kind.PING, sender=Address("rank", 2), receiver=COORDINATOR, round=0),
                0,
                "up",
            )
            joined.receive(0, "down")
        if joined.rank == 0:
            print(joined.receive(None, "up"))
            joined.send(
                Message(kind=Kind.DONE, sender=COORDINATOR, receiver=Address("rank", 2), round=0),
                2,
                "down",
            )

    said = finish([Program(program, **where, RANK=str(rank)) for rank in range(3)])
    assert said[0] == ("PING from rank 2 to coordinator\n", "")
    assert [errors for _, errors in said] == ["", "", ""]


@pytest.mark.slow
def test_two_nodes_of_torchrun():
    """Two agents, as on two machines; rank 0 is found through their store."""
    store = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
    torchrun = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    torchrun += ["--rdzv-backend=c10d", "--rdzv-id=test", store, "--local-addr=127.0.0.1"]
    line = [
        sys.executable,
        *torchrun,
        *command("rank_program.py", "distributed", 2, 3, "train")[1:],
    ]
    env = {k: v for k, v in environment(**HOSTS).items() if k != "LOCAL_WORLD_SIZE"}
    nodes = [
        subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        said = [node.communicate(timeout=240) for node in nodes]
    finally:
        for node in nodes:
            node.send_signal(signal.SIGKILL)
    ((expected, _),) = finish(start(1, "rank_program.py", "inline", 1, 3, "train"))
    losses = [line for line in expected.splitlines() if not line.startswith("home ")]
    outs = sorted((out.splitlines() for out, _ in said), key=len)
    assert outs == [losses, expected.splitlines()], said
