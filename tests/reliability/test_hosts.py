"""Three hosts with networks of their own (namespaces on a bridge) and one shared directory: one of
them vanishes, another joins, the scheduler dies.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reliability.conftest import PREP

DASK = Path(sys.executable).with_name("dask")
NAME = f"wm{os.getpid() % 10_000}"
NETWORK = f"10.{os.getpid() % 250 + 1}.77"
SCHEDULER = f"tcp://{NETWORK}.1:8786"


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


class Host:
    """A network of its own, and what runs in it."""

    def __init__(self, number: int) -> None:
        self.name, self.address = f"{NAME}h{number}", f"{NETWORK}.{number + 10}"
        self._link, self._processes = f"{NAME}v{number}", []
        inside = ("-n", self.name)
        for words in (
            ("netns", "add", self.name),
            ("link", "add", self._link, "type", "veth", "peer", "eth0", "netns", self.name),
            ("link", "set", self._link, "master", NAME, "up"),
            (*inside, "link", "set", "lo", "up"),
            (*inside, "addr", "add", f"{self.address}/24", "dev", "eth0"),
            (*inside, "link", "set", "eth0", "up"),
        ):
            assert ip(*words), words
        self.start("worker", SCHEDULER, "--nthreads", "1", "--host", self.address)

    def start(self, *words: str) -> None:
        command = ["ip", "netns", "exec", self.name, str(DASK), *words, "--no-dashboard"]
        self._processes.append(
            subprocess.Popen(
                command, start_new_session=True, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )  # fmt: skip

    def vanish(self) -> None:
        """Unplug it, so that nobody hears of the end of its connections, and end it."""
        ip("link", "delete", self._link)
        listed = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True)
        for process in listed.stdout.split():
            os.kill(int(process), 9)
        for started in self._processes:
            started.wait()
        ip("netns", "delete", self.name)


class Machines:
    """A bridge, a scheduler on it, hosts as they are asked for."""

    def __init__(self) -> None:
        self.hosts: dict[int, Host] = {}
        assert ip("link", "add", NAME, "type", "bridge")
        assert ip("addr", "add", f"{NETWORK}.1/24", "dev", NAME) and ip("link", "set", NAME, "up")
        self.start_scheduler()

    def start_scheduler(self) -> None:
        command = [str(DASK), "scheduler", "--host", f"{NETWORK}.1", "--port", "8786"]
        self.scheduler = subprocess.Popen(
            [*command, "--no-dashboard"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def add(self, number: int) -> None:
        self.hosts[number] = Host(number)

    def remove(self, number: int) -> None:
        self.hosts.pop(number).vanish()

    def stop(self) -> None:
        for number in list(self.hosts):
            self.remove(number)
        self.scheduler.kill()
        self.scheduler.wait()
        ip("link", "delete", NAME)


@pytest.fixture
def machines() -> Iterator[Machines]:
    running = Machines()
    yield running
    running.stop()


@pytest.fixture
def start(collection: Any, tmp_path: Path) -> Callable[[], subprocess.Popen[str]]:
    def call() -> subprocess.Popen[str]:
        command = [PREP, "run", collection.config, "--out", tmp_path / "run"]
        return subprocess.Popen(
            [str(a) for a in (*command, "--cluster", SCHEDULER, "--set", "read.task_bytes=1024")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    return call


def wait_for_stage(stage: str, run: subprocess.Popen[str], directory: Path) -> None:
    path, deadline = directory / "run/journal/events.jsonl", time.monotonic() + 120
    while not (path.exists() and f'"name": "{stage}"' in path.read_text()):
        assert time.monotonic() < deadline and run.poll() is None
        time.sleep(0.02)


def test_hosts_come_and_go_and_the_scheduler_dies(
    machines: Machines, start: Any, tmp_path: Path, collection: Any, prep: Any
) -> None:
    for number in (1, 2):
        machines.add(number)
    run = start()
    wait_for_stage("clean", run, tmp_path)
    machines.remove(1)
    machines.add(3)
    wait_for_stage("tokenize", run, tmp_path)
    machines.scheduler.kill()
    _, err = run.communicate(timeout=300)
    assert run.returncode == 5 and "Traceback" not in err, err
    assert f"the Dask scheduler at {SCHEDULER} is gone" in err
    for number in (2, 3):
        machines.remove(number)
    machines.scheduler.wait()
    machines.start_scheduler()
    machines.add(4)
    resumed = start()
    _, err = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, err
    reference = ("--out", tmp_path / "here", "--workers", 0, "--set", "read.task_bytes=1024")
    assert prep("run", collection.config, *reference).code == 0
    assert tree(tmp_path / "run") == tree(tmp_path / "here")


def tree(directory: Path) -> str:
    from pipeline.core.storage import tree_hash

    return tree_hash(directory)
