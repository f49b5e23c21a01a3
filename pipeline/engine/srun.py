"""`cluster.kind: srun`: the tasks of a job step, all of which are the same `prep` command, are one
cluster. The first task is `prep`, with the scheduler; every other one becomes a worker, which ends
when the first one does, however that ends.

dask-jobqueue's SLURMRunner does the same with one task for the scheduler and one for its client;
there the other tasks wait for ever when the client is killed, and a worker that dies is not
replaced.
"""

import atexit
import json
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core import storage
from pipeline.core.errors import ConfigError, ResourceError
from pipeline.engine.tls import secret_directory, write_certificates, write_secret

WAIT_SECONDS = 600
"""How long a task waits for the scheduler of the first one, which may be still loading."""
_DEATH_SECONDS = 60
"""After which a worker without its scheduler ends."""
_SCHEDULER = "scheduler.json"
_JOIN_SECONDS = 60
_running: list[Any] = []
"""The cluster of this process, from its start to the end of the process."""
_joined: set[int] = set()
"""The tasks whose workers were there once."""


@dataclass(frozen=True)
class Step:
    """The job step that this process is a task of, or that there is none (`tasks` is 0)."""

    name: str
    tasks: int
    rank: int
    tasks_here: int


def read_step() -> Step:
    """As `srun` describes it in the environment; the batch script itself is no step."""
    environment = os.environ
    tasks = int(environment.get("SLURM_STEP_NUM_TASKS", 0))
    if not tasks:
        return Step("", 0, 0, 0)
    parts = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    return Step(
        "-".join(environment.get(part, "0") for part in parts),
        tasks,
        int(environment["SLURM_PROCID"]),
        count_tasks(environment["SLURM_STEP_TASKS_PER_NODE"], int(environment["SLURM_NODEID"])),
    )


def count_tasks(per_node: str, node: int) -> int:
    """The tasks on a node, of what Slurm says of all.

    >>> [count_tasks("3(x2),1", node) for node in range(3)]
    [3, 3, 1]
    """
    counts: list[int] = []
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", per_node):
        counts += [int(tasks)] * int(times or 1)
    return counts[node]


def worker_memory(step: Step, total: int) -> int:
    """Bytes of one task: what Slurm gives it, at most an equal part of the `total` of its node."""
    per_cpu, per_node = (
        int(os.environ.get(f"SLURM_MEM_PER_{what}", 0)) << 20 for what in ("CPU", "NODE")
    )
    part = min(total, per_node or total) // step.tasks_here
    cores = int(os.environ.get("SLURM_CPUS_PER_TASK", 1))
    return min(part, per_cpu * cores) if per_cpu else part


def join_step(kind: str, shared: Path, memory: int | None, interface: str | None) -> None:
    """Begin as a task of a step: the first one starts the scheduler and returns, any other one
    becomes a worker and does not. Raises ConfigError where `srun` and the kind do not go together,
    and ResourceError when no scheduler comes."""
    step = read_step()
    if kind == "slurm" and step.tasks > 1:
        raise ConfigError(
            f"cluster.kind slurm: srun started prep {step.tasks} times; use kind srun, which makes "
            "workers of them, or start it once"
        )
    if kind != "srun":
        return
    if step.tasks < 2:
        raise ConfigError(
            "cluster.kind srun: start prep by srun with two or more tasks, such as `srun -n 9 prep "
            "run CONFIG`, of which the first gives work to the others"
        )
    directory = secret_directory(shared.with_name(f".{shared.name}-srun-{step.name}"))
    if step.rank:
        _become_worker(step, directory, memory, interface)
    elif not _running:
        _running.append(_start_scheduler(directory, interface))


def let_all_join() -> None:
    """Wait for workers that are still starting, so that they hear of the end of the first task and
    do not wait for a scheduler that was there."""
    deadline = time.monotonic() + _JOIN_SECONDS
    while _running and len(_joined) < read_step().tasks - 1 and time.monotonic() < deadline:
        time.sleep(0.1)


def running_cluster() -> Any:
    """The cluster whose scheduler `join_step` started in this process."""
    return _running[0]


def _start_scheduler(directory: Path, interface: str | None) -> Any:
    from distributed import Scheduler, SchedulerPlugin, SpecCluster
    from distributed.security import Security

    class Joined(SchedulerPlugin):
        def add_worker(self, scheduler: Any, worker: str) -> None:
            _joined.add(scheduler.workers[worker].name)

    _clear(directory)
    pair = write_certificates(directory)
    atexit.register(_clear, directory)
    roles = {
        f"tls_{role}_{name}": path
        for role in ("scheduler", "client", "worker")
        for name, path in pair.items()
    }
    security = Security(tls_ca_file=pair["cert"], require_encryption=True, **roles)
    options = {
        "protocol": "tls://",
        "port": 0,
        "interface": interface,
        "security": security,
        "dashboard": False,
        "dashboard_address": "127.0.0.1:0",
        "plugins": [Joined()],
    }
    cluster = SpecCluster(
        workers={},
        scheduler={"cls": Scheduler, "options": options},
        security=security,
        silence_logs=50,
    )
    address = {"address": cluster.scheduler_address}
    temp = directory / f"{_SCHEDULER}.new"
    write_secret(temp, json.dumps(address))
    temp.rename(directory / _SCHEDULER)
    return cluster


def _clear(directory: Path) -> None:
    if directory.exists():
        storage.remove_tree(directory)


def _become_worker(step: Step, directory: Path, memory: int | None, interface: str | None) -> None:
    import dask
    from distributed.system import MEMORY_LIMIT

    file, deadline = directory / _SCHEDULER, time.monotonic() + WAIT_SECONDS
    while not file.exists():
        if time.monotonic() > deadline:
            raise ResourceError(
                f"{file}: the first task of the step wrote no such file in {WAIT_SECONDS} s; it "
                "ended before, or the directory is not shared"
            )
        time.sleep(0.2)
    options = {
        "scheduler-file": file,
        "nthreads": 1,
        "memory-limit": memory or worker_memory(step, MEMORY_LIMIT),
        "death-timeout": _DEATH_SECONDS,
        "name": step.rank,
        "tls-ca-file": directory / "cert.pem",
        "tls-cert": directory / "cert.pem",
        "tls-key": directory / "key.pem",
        **({"interface": interface} if interface else {}),
    }
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    os.environ["DASK_INTERNAL_INHERIT_CONFIG"] = dask.config.serialize(dask.config.config)
    words = [f"--{name}={value}" for name, value in options.items()]
    worker = (sys.executable, "-m", "distributed.cli.dask_worker", "--no-dashboard", *words)
    os.execv(worker[0], worker)
