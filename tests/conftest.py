"""Fixtures of every test: the shared reference corpora, and the hypothesis profiles. And what the
suite spends: temporary files are in memory where there is room, since most tests wait for the disk;
the garbage collector passes over what collection made, some million objects that stay.
"""

import gc
import os
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parents[1]
MEMORY = Path("/dev/shm")
ROOM = 6 << 30
"""Free bytes of MEMORY with which tests may write there; the whole suite leaves below 1 GiB."""

# The same examples every time, so more of them find nothing new; HYPOTHESIS_PROFILE=explore does.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# Images often switch compiled files off. Each of some 200 processes would compile all it imports.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_configure(config: pytest.Config) -> None:
    """TMPDIR in memory, where pytest removes what passed; a TMPDIR that is given stays."""
    if config.getini("tmp_path_retention_policy") == "failed" and _has_room(MEMORY):
        tempfile.tempdir = os.environ.setdefault("TMPDIR", str(MEMORY))
    gc.disable()


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
