"""`cluster.kind: ssh`, with an sshd of this machine that stands for two hosts."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reliability.conftest import PREP

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(SSHD is None, reason="no sshd (Debian: apt-get install openssh-server)"),
]
SECTION = "cluster: {kind: ssh, hosts: [%s], workers: 1, memory: 2 GB}\n"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home whose ~/.ssh/config knows node1 and node2, and the sshd behind both."""
    pytest.importorskip("asyncssh")
    ssh = tmp_path / "home/.ssh"
    ssh.mkdir(parents=True, mode=0o700)
    for name in ("host", "id"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(ssh / name)]
        subprocess.run(command, check=True)
    (ssh / "keys").write_bytes((ssh / "id.pub").read_bytes())
    port = free_port()
    public = " ".join((ssh / "host.pub").read_text().split()[:2])
    (ssh / "known").write_text(f"[127.0.0.1]:{port} {public}\n")
    (ssh / "config").write_text(
        f"Host node1 node2\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {ssh}/id\n"
        f"  UserKnownHostsFile {ssh}/known\n"
    )
    (ssh / "sshd").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {ssh}/host\nPidFile none\nStrictModes no\n"
        f"AuthorizedKeysFile {ssh}/keys\nUsePAM no\nPermitRootLogin yes\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    with subprocess.Popen([str(SSHD), "-D", "-e", "-f", str(ssh / "sshd")],
                          stderr=subprocess.DEVNULL) as daemon:  # fmt: skip
        wait_for(port)
        yield tmp_path / "home"
        daemon.terminate()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def run(collection: Any, directory: Path, home: Path, hosts: str) -> Any:
    (directory / "cluster.yaml").write_text(SECTION % hosts)
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    command = [PREP, "run", collection.config, "--out", directory / "run"]
    return subprocess.run(
        [str(a) for a in (*command, "--cluster", directory / "cluster.yaml")],
        env={**os.environ, "HOME": str(home), "XDG_CACHE_HOME": cache},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def processes() -> str:
    return subprocess.run(["ps", "axww"], capture_output=True, text=True, check=True).stdout


def test_hosts_make_the_same_bytes(
    collection: Any, tmp_path: Path, home: Path, undamaged: Any
) -> None:
    """Nothing of it is left there, and no key."""
    done = run(collection, tmp_path, home, "node1, node2")
    assert done.returncode == 0, done.stderr
    undamaged(tmp_path / "run")
    assert '"workers": 2' in (tmp_path / "run/journal/events.jsonl").read_text()
    assert not (tmp_path / "run/journal/cluster").exists()
    deadline = time.monotonic() + 60
    while "distributed.cli.dask_spec" in processes():
        assert time.monotonic() < deadline, processes()
        time.sleep(0.5)


def test_a_host_that_cannot_be_reached_is_one_line(
    collection: Any, tmp_path: Path, home: Path
) -> None:
    (home / ".ssh/known").write_text("")
    done = run(collection, tmp_path, home, "node1")
    assert done.returncode == 5 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "cluster.kind ssh: cannot start it on node1: Host key is not trusted" in done.stderr
