"""Three hosts with networks of their own (namespaces on a bridge): one of them vanishes, another
joins, the scheduler dies. They share a directory, or nothing but a bucket.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dedup.user_cache import user_cache
from tests.conftest import serve_s3
from tests.reliability.conftest import PREP

DASK = Path(sys.executable).with_name("dask")
NAME = f"wm{os.getpid() % 10_000}"
NETWORK = f"10.{os.getpid() % 250 + 1}.77"
DRIVER = f"{NETWORK}.1"
COMPILED = ("kernels", "cleaning", "tokenizer-checks")
SMALL_TASKS = ("--set", "read.task_bytes=1024")


def ip(*words: str) -> bool:
    return subprocess.run(["ip", *words], capture_output=True).returncode == 0


def networks_are_allowed() -> bool:
    try:
        return ip("netns", "add", f"{NAME}x") and ip("netns", "delete", f"{NAME}x")
    except FileNotFoundError:
        return False


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not networks_are_allowed(), reason="needs root and ip netns"),
]


@dataclass(frozen=True)
class Software:
    """What runs on every machine: the protocol of Dask, the environment, and for disks of their
    own the directories that a host has empty and an archive of the files that it has copies of."""

    protocol: str = "tcp"
    environment: dict[str, str] = field(default_factory=dict)
    hidden: tuple[Path, ...] = ()
    copies: bytes = b""

    @property
    def scheduler(self) -> str:
        return f"{self.protocol}://{DRIVER}:8786"

    def start(self, *words: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [str(w) for w in words], start_new_session=True, stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, **self.environment},
        )  # fmt: skip

    def start_on_own_disk(self, host: str, *words: object) -> subprocess.Popen[bytes]:
        mounts = [f"mkdir -p {path}; mount -t tmpfs none {path}" for path in self.hidden]
        script = "\n".join([*mounts, *(["tar x -C /"] if self.copies else []), 'exec "$@"'])
        inside = ("ip", "netns", "exec", host, "unshare", "--mount")
        process = self.start(*inside, "sh", "-e", "-c", script, "sh", *words)
        assert process.stdin is not None
        process.stdin.write(self.copies)
        process.stdin.close()
        return process


class Host:
    """A network of its own, and the worker that runs in it."""

    def __init__(self, number: int, software: Software) -> None:
        self.name, address = f"{NAME}h{number}", f"{NETWORK}.{number + 10}"
        self._link = f"{NAME}v{number}"
        inside = ("-n", self.name)
        for words in (
            ("netns", "add", self.name),
            ("link", "add", self._link, "type", "veth", "peer", "eth0", "netns", self.name),
            ("link", "set", self._link, "master", NAME, "up"),
            (*inside, "link", "set", "lo", "up"),
            (*inside, "addr", "add", f"{address}/24", "dev", "eth0"),
            (*inside, "link", "set", "eth0", "up"),
        ):
            assert ip(*words), words
        self.worker = software.start_on_own_disk(
            self.name, DASK, "worker", software.scheduler, "--nthreads", 1, "--host", address,
            "--protocol", software.protocol, "--no-dashboard",
        )  # fmt: skip

    def sees(self, path: Path) -> Path:
        """A path of this host, as this process reaches it."""
        return Path(f"/proc/{self.worker.pid}/root", path.relative_to("/"))

    def vanish(self) -> None:
        """Unplug it, so that nobody hears of the end of its connections, and end it."""
        ip("link", "delete", self._link)
        listed = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True)
        for process in listed.stdout.split():
            os.kill(int(process), 9)
        self.worker.wait()
        ip("netns", "delete", self.name)


class Machines:
    """A scheduler of this machine, hosts as they are asked for."""

    def __init__(self, software: Software) -> None:
        self.hosts: dict[int, Host] = {}
        self.software = software
        self.start_scheduler()

    def start_scheduler(self) -> None:
        self.scheduler = self.software.start(
            DASK, "scheduler", "--host", DRIVER, "--port", 8786, "--no-dashboard",
            "--protocol", self.software.protocol,
        )  # fmt: skip

    def kill_scheduler(self) -> None:
        self.scheduler.kill()
        self.scheduler.wait()

    def add(self, number: int) -> None:
        self.hosts[number] = Host(number, self.software)

    def remove(self, number: int) -> None:
        self.hosts.pop(number).vanish()

    def stop(self) -> None:
        for number in list(self.hosts):
            self.remove(number)
        self.kill_scheduler()


@pytest.fixture
def bridge() -> Iterator[None]:
    assert ip("link", "add", NAME, "type", "bridge")
    assert ip("addr", "add", f"{DRIVER}/24", "dev", NAME) and ip("link", "set", NAME, "up")
    yield
    ip("link", "delete", NAME)


@contextmanager
def running(software: Software) -> Iterator[Machines]:
    machines = Machines(software)
    try:
        yield machines
    finally:
        machines.stop()


def start(machines: Machines, collection: Any, out: str, directory: Path) -> Any:
    """`prep run` on this machine."""
    section = directory / "cluster.yaml"
    address = machines.software.scheduler
    section.write_text(f"cluster: {{kind: dask, address: '{address}'}}\n")
    command = (PREP, "run", collection.config, "--out", out, "--cluster", section, *SMALL_TASKS)
    return subprocess.Popen(
        [str(a) for a in command], env={**os.environ, **machines.software.environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for_stage(stage: str, run: subprocess.Popen[str], directory: Path) -> None:
    path, deadline = directory / "journal/events.jsonl", time.monotonic() + 120
    while not (path.exists() and f'"name": "{stage}"' in path.read_text()):
        assert time.monotonic() < deadline and run.poll() is None, run.stderr.read()
        time.sleep(0.02)


def come_and_go(
    machines: Machines, collection: Any, out: str, directory: Path, journal: Path
) -> None:
    """A run of three hosts that loses one, gets another, and loses the scheduler; and the same
    command again, on a new scheduler."""
    for number in (1, 2, 3):
        machines.add(number)
    run = start(machines, collection, out, directory)
    wait_for_stage("clean", run, journal)
    machines.remove(1)
    machines.add(4)
    wait_for_stage("tokenize", run, journal)
    machines.kill_scheduler()
    _, err = run.communicate(timeout=300)
    assert run.returncode == 5 and "Traceback" not in err, err
    assert f"the Dask scheduler at {machines.software.scheduler} is gone" in err
    for number in (2, 3, 4):
        machines.remove(number)
    machines.start_scheduler()
    machines.add(5)
    machines.add(6)
    resumed = start(machines, collection, out, directory)
    _, err = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, err


@pytest.fixture
def reference(prep: Any, collection: Any, tmp_path: Path) -> str:
    """The tree hash of a run on this machine."""
    from pipeline.core.hashes import tree_hash

    here = ("--out", tmp_path / "here", "--workers", 0)
    assert prep("run", collection.config, *here, *SMALL_TASKS).code == 0
    return tree_hash(tmp_path / "here")


def test_hosts_come_and_go_and_the_scheduler_dies(
    bridge: None, tmp_path: Path, collection: Any, reference: str
) -> None:
    from pipeline.core.hashes import tree_hash

    out = tmp_path / "run"
    with running(Software()) as machines:
        come_and_go(machines, collection, str(out), tmp_path, out)
    assert tree_hash(out) == reference


def pack(*paths: Path) -> bytes:
    names = [str(path.relative_to("/")) for path in paths]
    return subprocess.run(["tar", "c", "-C", "/", *names], capture_output=True, check=True).stdout


def test_hosts_that_share_nothing_but_a_bucket(
    bridge: None, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, collection: Any,
    certificates: Path, reference: str,
) -> None:  # fmt: skip
    """Every host has a cache, a /tmp, inputs and certificates of its own, and sees nothing of what
    this machine writes; they speak TLS."""
    compiled, cache = user_cache(), tmp_path / "cache"
    assert compiled is not None
    for name in COMPILED:
        shutil.copytree(compiled / name, cache / name)
    with serve_s3(DRIVER) as s3:
        software = Software(
            protocol="tls",
            environment={
                **s3.environment,
                "WAFERMILL_CACHE": str(cache),
                "DASK_CONFIG": str(certificates / "dask.yaml"),
            },
            hidden=(Path("/tmp"), Path("/dev/shm"), tmp_path_factory.getbasetemp()),
            copies=pack(cache, collection.directory / "raw", certificates),
        )
        mirror = cache / "buckets/s3/runs/hosts"
        with running(software) as machines:
            come_and_go(machines, collection, "s3://runs/hosts", tmp_path, mirror)
            (tmp_path / "unseen").touch()
            assert (mirror / "manifest.json").exists()
            for host in machines.hosts.values():
                assert host.sees(collection.directory / "raw").exists()
                assert not host.sees(tmp_path / "unseen").exists()
                assert not host.sees(mirror / "manifest.json").exists()
                assert list(host.sees(mirror / "documents").glob("*.arrow"))
        assert s3.tree_hash("hosts/") == reference
