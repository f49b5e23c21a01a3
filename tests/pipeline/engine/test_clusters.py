"""The section `cluster`: its keys, and what the executor makes of them with real processes."""

import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from distributed.comm.core import CommClosedError

from pipeline.config import cluster as section
from pipeline.core.errors import ConfigError, ResourceError
from pipeline.core.mirror.paths import mirror_path
from pipeline.engine import clusters
from pipeline.engine.executor import executor
from pipeline.engine.tls import certificates, secret_directory

Prep = Callable[..., Any]
SLURM = "{kind: slurm, workers: 16, memory: 32 GB%s}"


def models() -> tuple[type[Any], ...]:
    return get_args(get_args(section.Cluster)[0])


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@dataclass(frozen=True)
class Job:
    number: int
    label: str = "a job"
    memory: int = 1


def add(job: Job) -> int:
    return job.number + 1


def where(_: Job) -> str:
    """A task that takes a moment, so that other workers get some as well."""
    from distributed import get_worker

    time.sleep(0.05)
    return str(get_worker().address)


def when(_: Job) -> tuple[float, float]:
    began = time.monotonic()
    time.sleep(0.3)
    return began, time.monotonic()


def run_all(running: Any, call: Callable[[Any], Any], count: int) -> list[Any]:
    results = dict(running.run(call, [Job(n) for n in range(count)]))
    return [results[n] for n in range(count)]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (SLURM % ", waltime: 1", "cluster.waltime: unknown key; did you mean 'walltime'?"),
        ("{kind: slurm, workers: 4}", "cluster.memory: missing; expected memory of one job"),
        (SLURM % ", minimum: 17", "expected a minimum of at most `workers`"),
        ("{kind: dask}", "cluster.address: missing"),
        ("{kind: local, address: 'tcp://h:1'}", "cluster.address: unknown key"),
        ("{kind: pbs}", "'local', 'dask', 'ssh', 'slurm', 'srun', 'kubernetes'"),
        ("{workers: 4}", "cluster"),
    ],
)
def test_keys_of_another_kind_are_mistakes(
    written: str, message: str, corpus: Any, prep: Prep, tmp_path: Path
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(f"cluster: {written}\n")
    for options in (("--set", f"cluster={written}"), ("--cluster", path)):
        ended = prep("run", corpus.config, "--out", tmp_path / "run", *options)
        assert ended.code == 2 and message in ended.err, ended.err


def test_every_kind_is_started_with_the_keys_of_its_section() -> None:
    from inspect import signature

    kinds = {get_args(m.model_fields["kind"].annotation)[0]: m for m in models()}
    local = kinds.pop("local")
    assert set(local.model_fields) == {"kind", "workers", "minimum", "dashboard"}
    assert set(clusters._KINDS) == set(kinds)
    for kind, model in kinds.items():
        keys = set(signature(clusters._KINDS[kind]).parameters) - {"shared"}
        assert keys == set(model.model_fields) - {"kind"}, kind


def test_a_missing_package_names_its_extra() -> None:
    with pytest.raises(ConfigError, match=r"pip install 'wafermill\[ssh\]'"):
        clusters.needs("nothing_of_that_name", "cluster.kind ssh", "ssh")


# --- local ---


def test_workers_follow_the_work() -> None:
    """One worker at first, two for many tasks."""
    settings = {"kind": "local", "workers": 2, "minimum": 1}
    with executor(None, 0, settings) as late:
        running = late.start()
        assert running._client.scheduler_info()["n_workers"] == 1
        assert len(set(run_all(running, where, 150))) == 2


def test_the_dashboard_is_where_the_note_says(tmp_path: Path) -> None:
    pytest.importorskip("bokeh")
    notes: list[str] = []
    settings = {"kind": "local", "workers": 1, "dashboard": True}
    with executor(None, 0, settings, tmp_path, notes.append) as late:
        late.start()
        (note,) = notes
        assert note.startswith("dashboard at http://127.0.0.1:")
        with urllib.request.urlopen(note.removeprefix("dashboard at ")) as page:
            assert page.status == 200 and b"Dask" in page.read()


# --- workers that come later, TLS ---


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """With one worker."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0",
        silence_logs=50, worker_dashboard_address=None,
    ) as cluster:  # fmt: skip
        yield str(cluster.scheduler_address)


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Start a worker as `dask worker` does, after some code."""
    started: list[subprocess.Popen[bytes]] = []

    def call(address: str, before: str = "", *options: str) -> subprocess.Popen[bytes]:
        code = f"import sys\n{before}\nfrom distributed.cli.dask_worker import main\nmain()"
        command = [sys.executable, "-c", code, address, "--no-nanny", "--nthreads", "1"]
        started.append(
            subprocess.Popen(
                [*command, "--no-dashboard", *options], cwd=tmp_path,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
        )  # fmt: skip
        return started[-1]

    yield call
    for process in started:
        process.kill()
        process.wait()


OTHER_VERSION = """
import importlib.metadata
from importlib.metadata import version as own
importlib.metadata.version = lambda name: "0.0.1" if name == "wafermill" else own(name)
"""


@pytest.mark.parametrize(
    ("before", "complaint"),
    [
        (OTHER_VERSION, "wafermill 0.0.1,"),
        # what such a worker answers is in test_workers_that_cannot_do_it as well
        pytest.param(
            "sys.modules['pipeline'] = None", "cannot import this package", marks=pytest.mark.slow
        ),
    ],
)
def test_a_worker_that_comes_late_and_cannot_do_it_is_sent_away(
    before: str, complaint: str, scheduler: str, join: Any, tmp_path: Path
) -> None:
    """By name, before it has a task; one that can gets its share."""
    notes: list[str] = []
    settings = {"kind": "dask", "address": scheduler}
    with executor(None, 0, settings, tmp_path, notes.append) as running:
        bad = join(scheduler, before)
        wait_until(lambda: notes)
        bad.wait(timeout=30)
        assert complaint in notes[0] and notes[0].startswith("worker tcp://127.0.0.1:"), notes
        assert len(set(run_all(running, where, 20))) == 1
        join(scheduler)
        wait_until(lambda: running._client.scheduler_info()["n_workers"] == 2)
        assert len(set(run_all(running, where, 100))) == 2
    assert len(notes) == 1 and not (tmp_path / "journal/cluster").exists()


# --- memory ---


@pytest.fixture
def empty() -> Iterator[str]:
    """A scheduler without workers."""
    from distributed import Scheduler, SpecCluster

    options = {"host": "127.0.0.1", "port": 0, "dashboard_address": "127.0.0.1:0"}
    scheduler = {"cls": Scheduler, "options": options}
    with SpecCluster(workers={}, scheduler=scheduler, silence_logs=50) as cluster:
        yield str(cluster.scheduler_address)


def test_tasks_go_to_workers_with_room_for_them(empty: str, join: Any, tmp_path: Path) -> None:
    """Or wait for one, or none begins."""

    def jobs(count: int, memory: int) -> list[Job]:
        return [Job(n, memory=memory) for n in range(count)]

    join(empty, "", "--memory-limit", "1 GB")
    large = join(empty, "", "--memory-limit", "3 GB")
    with executor(None, 0, {"kind": "dask", "address": empty}, tmp_path) as running:

        def addresses() -> dict[int, str]:
            workers = running._client.scheduler_info()["workers"]
            return {worker["memory_limit"]: name for name, worker in workers.items()}

        wait_until(lambda: len(addresses()) == 2)
        assert len(set(dict(running.run(where, jobs(40, 900_000_000))).values())) == 2
        results = dict(running.run(where, jobs(40, 2_000_000_000)))
        assert set(results.values()) == {addresses()[3_000_000_000]}
        with pytest.raises(ResourceError, match=r"a job: needs 2,900,000,000 bytes of memory, the "
                           r"largest worker has 2,850,000,000"):  # fmt: skip
            next(running.run(where, jobs(1, 2_900_000_000)))
        left = running.run(where, jobs(40, 2_000_000_000))
        next(left)
        large.kill()
        join(empty, "", "--memory-limit", "4 GB")
        results = dict(left)
        assert len(results) == 39 and addresses()[4_000_000_000] in results.values()


def test_workers_do_as_many_tasks_at_a_time_as_they_have_room_for(
    empty: str, join: Any, tmp_path: Path
) -> None:
    """One of four threads, whose tasks take half of its memory."""
    join(empty, "", "--memory-limit", "2 GB", "--nthreads", "4")
    with executor(None, 0, {"kind": "dask", "address": empty}, tmp_path) as running:
        began = list(
            dict(running.run(when, [Job(n, memory=900_000_000) for n in range(8)])).values()
        )
    together = [sum(a <= at < b for a, b in began) for at, _ in began]
    assert max(together) == 2


def test_certificates_of_a_run_let_only_its_own_in(tmp_path: Path) -> None:
    """A cluster with them on loopback; a client without them, or with others, gets no word in."""
    pytest.importorskip("cryptography")
    from distributed import Client, LocalCluster
    from distributed.security import Security

    with certificates(tmp_path / "journal/cluster") as security:
        keys = sorted((tmp_path / "journal/cluster").iterdir())
        assert [(p.name, oct(p.stat().st_mode & 0o777)) for p in keys] == [
            ("cert.pem", "0o600"), ("key.pem", "0o600"),
        ]  # fmt: skip
        with LocalCluster(
            n_workers=1, threads_per_worker=1, host="127.0.0.1", protocol="tls://",
            security=security, dashboard_address="127.0.0.1:0", silence_logs=50,
            worker_dashboard_address=None,
        ) as cluster:  # fmt: skip
            settings = {"kind": "dask", "address": cluster.scheduler_address}
            assert settings["address"].startswith("tls://")
            with executor(None, 0, settings, tmp_path / "run") as running:
                assert run_all(running, add, 5) == [1, 2, 3, 4, 5]
            for other in (Security.temporary(), None):
                address = settings["address"].replace("tls", "tls" if other else "tcp")
                with pytest.raises((OSError, TimeoutError, RuntimeError)):
                    Client(address, security=other, timeout=2)


def test_keys_of_a_run_in_a_bucket_are_outside_of_its_mirror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing is sent to the bucket, or deleted because it is not there."""
    monkeypatch.setenv("WAFERMILL_CACHE", str(tmp_path / "cache"))
    mirrored = mirror_path("s3", "runs/mine")
    keys = [secret_directory(mirrored / name) for name in ("a", "b")]
    assert {path.parent for path in keys} == {tmp_path / "cache/secrets"} and len(set(keys)) == 2
    assert secret_directory(tmp_path / "run") == tmp_path / "run"


def test_a_cluster_without_certificates_is_no_cluster_with_them(
    scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tls:// to a scheduler that speaks tcp: an error, never plain text."""
    pytest.importorskip("cryptography")
    monkeypatch.setattr(clusters, "CONNECT_SECONDS", 1)
    settings = {"kind": "dask", "address": scheduler.replace("tcp", "tls")}
    with (
        certificates(tmp_path / "keys"),
        pytest.raises(ResourceError, match="no Dask scheduler answers"),
        executor(None, 0, settings, tmp_path),
    ):
        pass


# --- kubernetes, which no test can run here ---

PODS = {"kind": "kubernetes", "image": "registry/prep", "workers": 8, "minimum": 2,
        "memory": 4 << 30, "claim": "corpus", "mount": "/data", "namespace": "own",
        "patience": 1}  # fmt: skip


def test_pods_are_asked_for_as_the_operator_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in with the signatures of the real one notes what it is asked for."""
    operator = pytest.importorskip("dask_kubernetes.operator")
    from inspect import signature

    from distributed import LocalCluster

    real, asked = operator.KubeCluster, []

    class StandIn(LocalCluster):
        def __init__(self, **options: Any) -> None:
            signature(real.__init__).bind(self, **options)
            asked.append(options)
            super().__init__(
                n_workers=1, threads_per_worker=1, host="127.0.0.1", silence_logs=50,
                dashboard_address="127.0.0.1:0", worker_dashboard_address=None,
            )  # fmt: skip

        def adapt(self, **limits: Any) -> None:
            signature(real.adapt).bind(self, **limits)
            asked.append(limits)

        def __exit__(self, *reason: Any) -> None:
            asked.append("closed")
            super().__exit__(*reason)

    monkeypatch.setattr(operator, "KubeCluster", StandIn)
    with executor(None, 0, section_of(PODS), tmp_path) as running:
        assert running.workers == 8
        assert run_all(running, add, 3) == [1, 2, 3]
    options, limits, closed = asked
    assert (limits, closed) == ({"minimum": 2, "maximum": 8}, "closed")
    assert options["namespace"] == "own"
    spec = options["custom_cluster_spec"]["spec"]
    assert spec["idleTimeout"] == 86_400 and spec["worker"]["replicas"] == 2
    pod = spec["worker"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == spec["scheduler"]["spec"]["containers"][0]["image"]
    assert container["args"][:6] == [
        "dask", "worker", "--nthreads", "1", "--memory-limit", str(4 << 30),
    ]  # fmt: skip
    assert container["volumeMounts"] == [{"name": "run", "mountPath": "/data"}]
    assert pod["volumes"] == [{"name": "run", "persistentVolumeClaim": {"claimName": "corpus"}}]


def section_of(keys: dict[str, Any]) -> dict[str, Any]:
    """As the config hands it on."""
    return dict(section.KubernetesWorkers.model_validate(keys).model_dump())


def test_a_connection_that_closes_while_it_is_asked_is_a_lost_scheduler() -> None:
    """The client only knows of it a moment later."""
    client = SimpleNamespace(status="running")
    for error, expected in (
        (CommClosedError("in <TCP (closed) ConnectionPool.gather>"), ResourceError),
        (ZeroDivisionError(), ZeroDivisionError),
    ):
        with (
            pytest.raises(expected, match=r"the Dask scheduler at tcp://a:1 is gone|^$"),
            clusters.scheduler_there(client, "tcp://a:1"),
        ):
            raise error
