"""Fixtures of every test: the shared reference corpora, and the hypothesis profiles. And what the
suite spends: temporary files are in memory where there is room, since most tests wait for the disk;
the garbage collector passes over what collection made, some million objects that stay.
"""

import base64
import contextlib
import gc
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parents[1]
MEMORY = Path("/dev/shm")
ROOM = 6 << 30
"""Free bytes of MEMORY with which tests may write there; the whole suite leaves below 1 GiB."""

# The same examples every time, so more of them find nothing new; HYPOTHESIS_PROFILE=explore does.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=30)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# Images often switch compiled files off. Each of some 200 processes would compile all it imports.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# With a GPU in sight autograd starts a thread for it, and no fork of such a process trains.
if "WAFERMILL_TEST_CUDA" not in os.environ:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_configure(config: pytest.Config) -> None:
    """TMPDIR in memory, where pytest removes what passed; a TMPDIR that is given stays."""
    if config.getini("tmp_path_retention_policy") == "failed" and _has_room(MEMORY):
        tempfile.tempdir = os.environ.setdefault("TMPDIR", str(MEMORY))
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that mostly wait begin, so that others run meanwhile and none is left at the end. Files
    that need an S3 server or Dask workers follow one another: each process that runs tests starts
    its own, and so few of them do."""
    needing = {
        fixture: {item.path for item in items if fixture in getattr(item, "fixturenames", ())}
        for fixture in ("s3_server", "worker_processes")
    }

    def place(item: pytest.Item) -> int:
        if "tests/reliability/" in item.nodeid:
            return int(item.path in needing["s3_server"])
        if item.path in needing["s3_server"]:
            return 2
        return 3 if item.path in needing["worker_processes"] else 4

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """From here on garbage is collected, in what tests make."""
    gc.freeze()
    gc.enable()


def _has_room(directory: Path) -> bool:
    """Whether it is there, lets programs run and has room, in the machine's memory as well."""
    if not os.access(directory, os.W_OK):
        return False
    status = os.statvfs(directory)
    if status.f_flag & os.ST_NOEXEC or status.f_bavail * status.f_frsize < ROOM:
        return False
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return free << 10 >= ROOM


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The reference corpora: WAFERMILL_SHARED_DATA, or ../shared/data beside the repository."""
    given = os.environ.get("WAFERMILL_SHARED_DATA")
    directory = Path(given) if given else REPOSITORY.parent / "shared" / "data"
    if not (directory / "SHA256SUMS").is_file():
        pytest.skip(f"{directory}: no reference corpora there; set WAFERMILL_SHARED_DATA")
    return directory


@dataclass(frozen=True)
class S3Server:
    """An S3 server of its own process (tests/s3_server.py), and the bucket `runs` in it."""

    url: str

    @property
    def environment(self) -> dict[str, str]:
        """What a program needs to find it."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "wafermill",
            "AWS_SECRET_ACCESS_KEY": "hunter2",
            "AWS_REGION": "us-east-1",
        }

    def set_faults(self, share: float, seed: int = 0, outage: int | None = None) -> None:
        """From now on this share of all requests fails, and, after so many, all (`outage`)."""
        data = json.dumps({"share": share, "seed": seed, "outage": outage}).encode()
        self._request("_faults", "PUT", data)

    def count_faults(self) -> dict[str, int]:
        """Requests by kind of fault since the last call of `set_faults`."""
        counts: dict[str, int] = json.loads(self._request("_faults", "GET"))
        return counts

    def client(self) -> Any:
        """A client that is none of ours."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id="x",
            aws_secret_access_key="y",
            region_name="us-east-1",
        )

    def names(self, prefix: str) -> list[str]:
        """The rest of the key of every object below a prefix of the bucket."""
        return sorted(self.read(prefix))

    def read(self, prefix: str) -> dict[str, bytes]:
        """Every object below a prefix of the bucket, by the rest of its key, as it is stored."""
        values = json.loads(self._request(f"_objects/runs?{prefix}", "GET"))
        return {name: base64.b64decode(value) for name, value in values.items()}

    def forget(self, prefix: str) -> None:
        """Delete what is below a prefix of the bucket."""
        self._request(f"_objects/runs?{prefix}", "DELETE")

    def tree_hash(self, prefix: str) -> str:
        """What `tree_hash` gives for the same files on this machine."""
        out = ("journal", "events.jsonl", "events.head", "reviews.jsonl", "holds.jsonl", ".lock")
        sums = sorted(
            hashlib.sha256(data).hexdigest()
            for name, data in self.read(prefix).items()
            if name.split("/")[0] not in out
        )
        return hashlib.sha256("\n".join(sums).encode()).hexdigest()

    def _request(self, path: str, method: str, data: bytes | None = None) -> bytes:
        request = urllib.request.Request(f"{self.url}/{path}", data=data, method=method)
        with urllib.request.urlopen(request) as answer:
            body: bytes = answer.read()
            return body


@contextlib.contextmanager
def serve_s3(address: str = "127.0.0.1") -> Iterator[S3Server]:
    """A server that listens on this address of this machine."""
    pytest.importorskip("obstore", reason="the extra `test` has it")
    pytest.importorskip("moto", reason="the extra `test` has it")
    command = [sys.executable, str(Path(__file__).with_name("s3_server.py")), address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        server = S3Server(f"http://{address}:{process.stdout.readline().strip()}")
        try:
            server._request("runs", "PUT")
            yield server
        finally:
            process.kill()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with serve_s3() as server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server) -> Iterator[S3Server]:
    """The server, without faults but those that the test asks for."""
    s3_server.set_faults(0)
    yield s3_server
    s3_server.set_faults(0)
