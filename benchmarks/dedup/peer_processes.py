"""Where the peers' scripts are, the packages they need, and a running `peers/signing.py`."""

import json
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.common.measuring import one_thread

PEERS = Path(__file__).resolve().parent / "peers"
PACKAGES = ("datasketch", "rensa", "datatrove", "text-dedup")


class Signing:
    """A running `peers/signing.py`."""

    def __init__(self, python: str, cpu: int) -> None:
        self._process = subprocess.Popen(
            [python, str(PEERS / "signing.py"), str(cpu)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=one_thread(),
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            return {"error": f"the process ended with code {self._process.wait()}"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
