"""Forks of this process, which may be killed without ending the tests, and which spare the seconds
that a fresh `prep` takes to import everything, load its kernels and read its vocabulary."""

import functools
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pipeline
from pipeline.commands import app
from pipeline.core import failpoint


@dataclass(frozen=True)
class Ended:
    """How a command ended; a negative code is the signal that ended it."""

    code: int
    out: str
    err: str


def forked(call: Callable[[], object], plan: str = "", log: str = "", seconds: int = 240) -> int:
    """Call it in a fork under a fault plan; returns the exit code, or minus the signal."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(seconds)
            os.environ["WAFERMILL_FAILPOINT"] = plan
            failpoint._hits.clear()
            failpoint._plan, failpoint._log = failpoint._read_plan(), log
            call()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:  # noqa: BLE001 - the child has nobody above
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@functools.cache
def load_everything() -> None:
    """Prepare a few words in this process: what that imports and loads its forks have then."""
    text = "A sentence of eight words for the kernels. " * 30
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "a.jsonl").write_text(
            "".join(json.dumps({"text": f"{n} {text}"}) + "\n" for n in range(4))
        )
        config = {"name": "a", "inputs": [{"name": "a", "path": f"{place}/a.jsonl"}]}
        pipeline.run(config, f"{place}/run", 0)
        pipeline.verify(f"{place}/run")


def prep_in_fork(
    *arguments: object, cwd: Path | None = None, fault: str = "", before: str = ""
) -> Ended:
    """The `prep` command in a fork; `fault` is a fault plan, `before` a program that runs there
    first."""
    load_everything()
    with tempfile.TemporaryDirectory() as place:
        out, err = Path(place) / "out", Path(place) / "err"

        def call() -> None:
            os.chdir(cwd or ".")
            exec(before, {})
            with open(out, "w", buffering=1) as sys.stdout, open(err, "w", buffering=1) as stderr:
                sys.stderr = stderr
                sys.argv = ["prep", *map(str, arguments)]
                app.main()

        code = forked(call, fault)
        return Ended(code, out.read_text(), err.read_text())
