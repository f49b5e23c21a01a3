"""Named fault points, so that tests can stop the program at every instant that matters.

The environment variable WAFERMILL_FAILPOINT holds `name@k=action`: at the k-th hit (1-based,
counted in this process) of the point `name` (`*` counts every point) the action happens:

    kill          SIGKILL to this process
    killonce:PATH SIGKILL to this process unless PATH exists; PATH is created first, so that of all
                  processes with the same environment one dies
    killgroup     SIGKILL to the whole process group (scheduler and workers at once)
    raise:ENOSPC  OSError with that errno
    sleep:2       wait two seconds
    stop          SIGSTOP to this process, until another one sends SIGCONT
    torn:0.5      (storage only) half of the bytes reach the temporary file, then SIGKILL

With WAFERMILL_FAILPOINT_LOG set to a path every hit is appended there as one line, which is how a
sweep learns the points of an undisturbed run.
"""

import contextlib
import errno
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass

_hits: Counter[str] = Counter()


@dataclass(frozen=True)
class _Plan:
    name: str
    hit: int
    action: str


def _read_plan() -> _Plan | None:
    text = os.environ.get("WAFERMILL_FAILPOINT", "")
    if not text:
        return None
    target, _, action = text.partition("=")
    name, _, hit = target.partition("@")
    return _Plan(name, int(hit or 1), action)


_plan = _read_plan()
_log = os.environ.get("WAFERMILL_FAILPOINT_LOG", "")


def hit(name: str) -> float | None:
    """Mark that execution reached `name`; returns the share of bytes to write when `torn`."""
    if _plan is None and not _log:
        return None
    _hits[name] += 1
    _hits["*"] += 1
    if _log:
        with open(_log, "a", encoding="utf-8") as log:
            log.write(f"{name}\n")
    if _plan is None or _plan.name not in (name, "*") or _hits[_plan.name] != _plan.hit:
        return None
    return _act(_plan.action)


def die() -> None:
    """End this process the way a power cut would: no cleanup, no exit handlers."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def _act(action: str) -> float | None:
    verb, _, argument = action.partition(":")
    match verb:
        case "kill":
            die()
        case "killonce":
            with contextlib.suppress(FileExistsError):
                os.close(os.open(argument, os.O_CREAT | os.O_EXCL))
                die()
        case "killgroup":
            os.killpg(os.getpgrp(), signal.SIGKILL)
            time.sleep(60)
        case "raise":
            code = getattr(errno, argument)
            raise OSError(code, os.strerror(code))
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "sleep":
            time.sleep(float(argument))
        case "torn":
            return float(argument)
        case _:
            raise ValueError(f"unknown fault action {action!r} in WAFERMILL_FAILPOINT")
    return None
