"""Fault plans in this process, and calls in another one that dies of them."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from pipeline.core import failpoint


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Set the fault plan of this process; it ends with the test."""

    def plan(text: str) -> None:
        monkeypatch.setenv("WAFERMILL_FAILPOINT", text)
        monkeypatch.setattr(failpoint, "_plan", failpoint._read_plan())
        failpoint._hits.clear()

    yield plan
    failpoint._hits.clear()


@pytest.fixture
def killed_by() -> Callable[[str, str], int]:
    """Run code that uses `storage` in a process under a fault plan; returns the exit code."""

    def run(plan: str, code: str) -> int:
        program = f"import pathlib\nfrom pipeline.core import journal as lock, storage\n{code}"
        environment = {**os.environ, "WAFERMILL_FAILPOINT": plan}
        return subprocess.run([sys.executable, "-c", program], env=environment).returncode

    return run
