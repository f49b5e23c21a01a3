"""Clusters of Dask workers by the `kind` of the section `cluster`: started and stopped here, or
there already. `connect` yields a client of one, and lets no worker do a task that cannot do ours.

What all machines have to see is below `shared`, the run directory: a file that a worker must be
able to read before it gets tasks, and for clusters that we start off this machine their
certificates (`tls`), which are gone at the end.
"""

import contextlib
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dedup.user_cache import user_cache
from pipeline.core import storage
from pipeline.core.errors import ConfigError, PrepError, ResourceError, escape_text
from pipeline.core.mirror.fetching import fetch
from pipeline.core.mirror.paths import locate
from pipeline.engine import srun
from pipeline.engine.memory import MEMORY
from pipeline.engine.tls import certificates, secret_directory

LONELY_SECONDS = 60
CONNECT_SECONDS = 20
_DIRECTORY = Path("journal/cluster")
_REFUSALS = "wafermill-refusals"
_GATEKEEPER = "wafermill-gatekeeper"
_DAY = 86_400
"""Seconds after which an idle scheduler on another machine ends, whose starter was killed."""

Note = Callable[[str], None]


@dataclass(frozen=True)
class Connection:
    """A client of a cluster whose workers were checked; at most so many workers, where that is
    known; how many seconds without any are too many."""

    client: Any
    workers: int
    patience: float


@dataclass(frozen=True)
class _Started:
    """What of a cluster a client connects to, and the worker processes that it was asked for."""

    scheduler: Any
    workers: int = 0
    patience: float | None = None


def remove_leftovers(shared: Path) -> None:
    """Remove what a killed process left of its cluster."""
    for directory in {shared / _DIRECTORY, _secrets(shared)}:
        if directory.exists():
            storage.remove_tree(directory)


def _secrets(shared: Path) -> Path:
    return secret_directory(shared / _DIRECTORY)


@contextlib.contextmanager
def connect(settings: Mapping[str, Any], shared: Path, note: Note) -> Iterator[Connection]:
    """A connection to the cluster of these settings, by their `kind`; what was started for it is
    stopped at the end.

    Raises ResourceError when it cannot be reached or started, and when one of the workers that are
    there cannot do our tasks, which it names. One that comes later is sent away, with a note.
    """
    kind, keys = settings["kind"], {k: v for k, v in settings.items() if k != "kind"}
    try:
        with _KINDS[kind](shared, **keys) as started, _client(started) as client:
            patience = started.patience or LONELY_SECONDS
            with scheduler_there(client, client.scheduler.address):
                ticket = _write_ticket(shared)
                present = _check_workers(client, ticket, patience)
            with _gate(client, ticket, note):
                if keys.get("dashboard"):
                    note(f"dashboard at {client.dashboard_link}")
                yield Connection(client, max(started.workers, present), patience)
    finally:
        remove_leftovers(shared)


@contextlib.contextmanager
def scheduler_there(client: Any, address: str) -> Iterator[None]:
    """Turn what follows from a lost scheduler, at that address, into one ResourceError: the client
    gives up after half a minute, and knows no scheduler then; what it asks in the moment of the
    loss finds the connection closed."""
    from distributed.comm.core import CommClosedError

    try:
        yield
    except PrepError:
        raise
    except Exception as error:
        lost = getattr(error, "reason", "") == "scheduler-connection-lost"
        lost |= isinstance(error, CommClosedError)
        if not lost and client.status == "running":
            raise
        raise ResourceError(
            f"the Dask scheduler at {address} is gone; run the same command again once there is "
            "one, finished work is kept"
        ) from error


@contextlib.contextmanager
def _client(started: _Started) -> Iterator[Any]:
    from distributed import Client

    address = str(getattr(started.scheduler, "scheduler_address", started.scheduler))
    try:
        client = Client(started.scheduler, timeout=CONNECT_SECONDS)
    except (TypeError, RuntimeError) as error:  # of TLS that is not set up, or demanded
        raise ResourceError(
            f"cluster.address: {address}: Dask's own config names no certificates, or it "
            f"requires tls:// ({escape_text(str(error), 200)}); docs/clusters.md shows how"
        ) from error
    except (OSError, ValueError, TimeoutError) as error:
        raise ResourceError(
            f"cluster.address: no Dask scheduler answers at {address} "
            f"({escape_text(str(error), 200)})"
        ) from error
    with client:
        yield client


# --- kinds ---


@contextlib.contextmanager
def _dask(shared: Path, *, address: str) -> Iterator[_Started]:
    yield _Started(address)


@contextlib.contextmanager
def _ssh(
    shared: Path,
    *,
    hosts: tuple[str, ...],
    workers: int,
    memory: int | None,
    python: str | None,
    dashboard: bool,
) -> Iterator[_Started]:
    import dask

    needs("asyncssh", "cluster.kind ssh", "ssh")
    from distributed import SSHCluster

    there = {
        "distributed.logging.distributed": "info",  # Dask reads addresses from what they log
        "distributed.scheduler.idle-timeout": _DAY,
    }
    needs("cryptography", "TLS", "ssh")
    with certificates(_secrets(shared)) as security, dask.config.set(there):
        with _starting("ssh", ", ".join(hosts)):
            cluster = SSHCluster(
                [hosts[0], *hosts],
                worker_options={
                    "nthreads": 1,
                    "n_workers": workers,
                    "memory_limit": memory // workers if memory else 0,
                },
                scheduler_options={
                    "protocol": "tls://",
                    "port": 0,
                    "dashboard": dashboard,
                    "dashboard_address": "127.0.0.1:0",
                },
                remote_python=python,
                security=security,
            )
        with cluster:
            yield _Started(cluster, workers * len(hosts))


@contextlib.contextmanager
def _slurm(
    shared: Path,
    *,
    workers: int,
    minimum: int | None,
    workers_per_job: int,
    memory: int,
    walltime: str,
    queue: str | None,
    account: str | None,
    extra: tuple[str, ...],
    interface: str | None,
    python: str | None,
    patience: int,
    dashboard: bool,
) -> Iterator[_Started]:
    needs("dask_jobqueue", "cluster.kind slurm", "slurm")
    needs("cryptography", "TLS", "slurm")
    interrupt = signal.getsignal(signal.SIGINT)
    from dask_jobqueue.slurm import SLURMCluster

    signal.signal(signal.SIGINT, interrupt)  # which the package sets when it is imported
    if dashboard:
        needs("bokeh", "cluster.dashboard", "dashboard")
    with contextlib.ExitStack() as running:
        security = running.enter_context(certificates(_secrets(shared)))
        with _starting("slurm", "this machine"):
            cluster = SLURMCluster(
                cores=workers_per_job,
                processes=workers_per_job,
                memory=f"{memory}B",
                walltime=walltime,
                queue=queue,
                account=account,
                interface=interface,
                python=python,
                job_name="prep",
                job_extra_directives=["--output=/dev/null", *extra],
                job_script_prologue=["export RAYON_NUM_THREADS=1"],
                worker_extra_args=["--no-dashboard"],
                security=security,
                scheduler_options={
                    "port": 0,
                    "dashboard": dashboard,
                    "dashboard_address": "127.0.0.1:0",
                },
                silence_logs=50,
            )
            running.enter_context(cluster)
            _check_job(cluster.job_script())
        follow_work(cluster, minimum or workers, workers)
        yield _Started(cluster, workers, 60 * patience)


def _check_job(script: str) -> None:
    """Raises OSError with what sbatch says to such a job, which later nobody hears."""
    command = ["sbatch", "--test-only"]
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(" ".join(done.stderr.split()))


@contextlib.contextmanager
def _kubernetes(
    shared: Path,
    *,
    image: str,
    workers: int,
    minimum: int | None,
    memory: int,
    claim: str,
    mount: str,
    namespace: str | None,
    patience: int,
) -> Iterator[_Started]:
    needs("dask_kubernetes", "cluster.kind kubernetes", "kubernetes")
    from dask_kubernetes.operator import KubeCluster, make_cluster_spec

    spec = make_cluster_spec(
        name=f"prep-{secrets.token_hex(4)}",
        image=image,
        n_workers=minimum or workers,
        resources={"requests": {"cpu": "1", "memory": str(memory)}},
        env={"RAYON_NUM_THREADS": "1", "DASK_DISTRIBUTED__SCHEDULER__WORKER_SATURATION": "1.0"},
        worker_command=f"dask worker --nthreads 1 --memory-limit {memory}",
        idle_timeout=_DAY,
    )
    pod = spec["spec"]["worker"]["spec"]
    pod["volumes"] = [{"name": "run", "persistentVolumeClaim": {"claimName": claim}}]
    pod["containers"][0]["volumeMounts"] = [{"name": "run", "mountPath": mount}]
    with contextlib.ExitStack() as running:
        with _starting("kubernetes", namespace or "the current namespace"):
            cluster = KubeCluster(custom_cluster_spec=spec, namespace=namespace, quiet=True)
            running.enter_context(cluster)
            if minimum is not None:
                cluster.adapt(minimum=minimum, maximum=workers)
        yield _Started(cluster, workers, 60 * patience)


@contextlib.contextmanager
def _srun(shared: Path, *, memory: int | None, interface: str | None) -> Iterator[_Started]:
    yield _Started(srun.running_cluster(), srun.read_step().tasks - 1, srun.WAIT_SECONDS)


_KINDS: dict[str, Callable[..., AbstractContextManager[_Started]]] = {
    "dask": _dask,
    "ssh": _ssh,
    "slurm": _slurm,
    "srun": _srun,
    "kubernetes": _kubernetes,
}


def follow_work(cluster: Any, minimum: int, maximum: int) -> None:
    """Have as many workers as there are tasks, within these limits; lost ones are replaced."""
    cluster.adapt(minimum=minimum, maximum=maximum, target_duration="100ms")


def needs(module: str, what: str, extra: str) -> None:
    """Raises ConfigError naming the extra to install, unless there is such a module."""
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise ConfigError(f"{what} needs {module}: pip install 'wafermill[{extra}]'")


@contextlib.contextmanager
def _starting(kind: str, where: str) -> Iterator[None]:
    """Every way to start machines has errors of its own."""
    try:
        yield
    except Exception as error:
        reason = escape_text(str(error.__cause__ or error), 400) or type(error).__name__
        raise ResourceError(f"cluster.kind {kind}: cannot start it on {where}: {reason}") from error


# --- workers ---


@dataclass(frozen=True)
class _Ticket:
    """What a worker has to read in a file of the run directory, and the versions it has to have."""

    shared: Path
    path: Path
    token: str
    build: str

    def complaint(self, answer: Any) -> str | None:
        """Why the worker that gave this answer cannot do our tasks, after its name."""
        if isinstance(answer, Exception | str):
            return (
                f"cannot import this package ({escape_text(str(answer), 200)}); "
                "install the same version there"
            )
        token, build = answer
        if token != self.token:
            mend = "a path that all machines share"
            if locate(self.shared) is not None:
                mend = f"WAFERMILL_CACHE={user_cache()} and credentials on all machines"
            return f"does not see the run directory {self.shared}; use {mend}"
        if build != self.build:
            return f"runs {build}, this process {self.build}; install the same versions there"
        return None


def _write_ticket(shared: Path) -> _Ticket:
    ticket = _Ticket(shared, shared / _DIRECTORY / "ticket", secrets.token_hex(8), describe_build())
    storage.publish(ticket.path, ticket.token.encode())
    return ticket


def _check_workers(client: Any, ticket: _Ticket, patience: float) -> int:
    """How many workers there are, each of which can do our tasks."""
    from distributed.client import FutureCancelledError

    try:
        with contextlib.suppress(TimeoutError):
            client.wait_for_workers(1, timeout=patience)
        answers = client.run(probe, str(ticket.path), on_error="return")
    except FutureCancelledError:
        answers = {}
    if not answers:
        raise ResourceError(
            f"the Dask cluster at {client.scheduler.address} has no workers; start some"
        )
    for worker, answer in sorted(answers.items()):
        if complaint := ticket.complaint(answer):
            raise ResourceError(f"worker {worker} {complaint}")
    return len(answers)


@contextlib.contextmanager
def _gate(client: Any, ticket: _Ticket, note: Note) -> Iterator[None]:
    """Until the end, workers that join get no task before they are known to do ours; others leave,
    with a note."""

    def refuse(event: tuple[float, Any]) -> None:
        worker, answer = event[1]
        note(f"worker {worker} was sent away: it {ticket.complaint(answer)}")

    client.subscribe_topic(_REFUSALS, refuse)
    client.register_plugin(_make_gatekeeper(str(ticket.path), (ticket.token, ticket.build)))
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # the scheduler may be gone
            client.unregister_worker_plugin(_GATEKEEPER)


def _make_gatekeeper(path: str, expected: tuple[str, str]) -> Any:
    """A plug-in of workers, whose class travels by value: a worker without this package has it."""
    from distributed import Status, WorkerPlugin

    class Gatekeeper(WorkerPlugin):
        name = _GATEKEEPER

        async def setup(self, worker: Any) -> None:
            try:
                from pipeline.engine.clusters import probe
                from pipeline.engine.memory import worker_room

                answer: Any = probe(path)
            except Exception as error:  # noqa: BLE001 - whatever it is, it cannot do our tasks
                answer = str(error)
            if answer != expected:
                worker.log_event(_REFUSALS, (worker.address, answer))
                await worker.close(nanny=True, reason="wafermill-refused")
                return
            room = worker_room(worker.memory_manager.memory_limit)
            await worker.set_resources(**{MEMORY: room})
            # Tasks that wait for a resource are looked at again when a worker begins to run.
            worker.status = Status.paused
            worker.status = Status.running

    return Gatekeeper()


def probe(path: str) -> tuple[str, str]:
    """Runs on a worker: what it reads of the ticket, and its versions."""
    try:
        token = fetch(Path(path)).read_text()
    except OSError as error:
        token = str(error)
    return token, describe_build()


def describe_build() -> str:
    """Versions that decide what a task writes."""
    names = ("wafermill", "deflate", "ftfy", "h5py", "numpy", "pyarrow", "tokenizers")
    python = ".".join(map(str, sys.version_info[:3]))
    return ", ".join([f"Python {python}", *(f"{name} {version(name)}" for name in names)])
