"""`cluster.kind: dask`: tasks on the workers of a Dask cluster that is already there."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from distributed import LocalCluster, Scheduler, SpecCluster

import pipeline
from pipeline.core.errors import ResourceError
from pipeline.engine.executor import executor
from pipeline.stories.selection import demo_registry
from tests.pipeline.trees import differences

Prep = Callable[..., Any]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster of two worker processes that knows nothing of any run."""
    with LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0",
        silence_logs=50, worker_dashboard_address=None,
    ) as cluster:  # fmt: skip
        yield str(cluster.scheduler_address)


@pytest.mark.slow
def test_the_same_bytes_on_a_running_cluster(
    address: str, corpus: Any, small_run: Any, prep_process: Prep, tmp_path: Path, prep: Prep,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """From another directory than the workers', into a relative one."""
    command = ("run", corpus.config, "--out", "run", "--cluster", address)
    ended = prep_process(*command, cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert differences(tmp_path / "run", small_run.directory) == []
    assert '"workers": 2' in (tmp_path / "run/journal/events.jsonl").read_text()
    monkeypatch.chdir(tmp_path)
    assert "everything was up to date" in prep(*command).out


def test_a_conversion_on_a_running_cluster(address: str, tmp_path: Path, prep: Prep) -> None:
    """Gives the bytes of one without workers; what is no text needs none."""
    texts = tmp_path / "texts.jsonl"
    words = ("one two three " * 4000, "four five " * 9000, "six")
    lines = [json.dumps({"text": f"{n} {words[n % 3]}"}) + "\n" for n in range(150)]
    texts.write_text("".join(lines))
    for name, where in (("here", ("--workers", 0)), ("there", ("--cluster", address))):
        ended = prep("convert", texts, "--to", "corpus", "--out", tmp_path / name, *where)
        assert ended.code == 0, ended.err
    assert differences(tmp_path / "here", tmp_path / "there") == []
    assert not list((tmp_path / "there/journal").glob("*/*"))
    ended = prep("convert", tmp_path / "here", "--to", "bin", "--out", tmp_path / "no", *where)
    assert ended.code == 2 and "tokenize text, and the input is hdf5" in ended.err


def test_a_run_with_nothing_to_do_starts_no_workers(
    corpus: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.run(corpus.config, tmp_path / "run", 0)
    monkeypatch.setattr("distributed.LocalCluster", None)
    again = pipeline.run(corpus.config, tmp_path / "run", 2)
    assert set(again.reused) == set(again.stages)
    (tmp_path / "run/ledger.json").unlink()
    with pytest.raises(TypeError, match="NoneType"):
        pipeline.run(corpus.config, tmp_path / "run", 2)


@dataclass(frozen=True)
class Nothing:
    label: str = "nothing"
    memory: int = 1


@pytest.mark.parametrize("run", ["run", "run_in_order"])
def test_a_scheduler_lost_between_two_stages(run: str, address: str, tmp_path: Path) -> None:
    """A client that gave up has closed, and knows neither scheduler nor workers."""
    with executor(None, 0, {"kind": "dask", "address": address}, tmp_path) as workers:
        assert list(workers.run(str, [Nothing()])) == [(0, str(Nothing()))]
        workers._client.close()
        with pytest.raises(ResourceError, match=f"scheduler at {address} is gone; run the same"):
            list(getattr(workers, run)(str, [Nothing()]))


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_share_the_memory_of_the_machine(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the number of cores; one worker may use all of it."""
    for module in ("executor", "memory"):
        monkeypatch.setattr(f"pipeline.engine.{module}.machine_memory", lambda: 12 << 30)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    with executor(workers, 0) as running:
        info = running.start()._client.scheduler_info()["workers"]
    assert [worker["memory_limit"] for worker in info.values()] == [(12 << 30) // workers] * workers


@pytest.mark.parametrize(
    "command",
    [
        ("run", "CONFIG", "--out", "OUT"),
        ("clean", "RAW", "--out", "OUT"),
        ("dedup", "RAW", "--out", "OUT"),
        ("dedup", "index", "build", "OUT", "RAW"),
        ("screen", "RAW", "--out", "OUT"),
        ("export", "RUN", "--out", "OUT"),
        ("repack", "RUN", "--out", "OUT", "--msl", 16),
        ("rescan", "RUN", "--registry", "WORKS"),
        ("convert", "RAW", "--to", "corpus", "--out", "OUT"),
    ],
    ids=lambda command: " ".join(command[: 1 + (command[1] == "index")]),
)
def test_nothing_answers(
    command: tuple[Any, ...], corpus: Any, small_run: Any, prep: Prep, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Every command that takes the option looks for its scheduler."""
    monkeypatch.setattr("pipeline.engine.clusters.CONNECT_SECONDS", 1)
    raw = tmp_path / "raw.jsonl"
    raw.write_text('{"text": "Enough words to be a document of some length, one may say."}\n' * 3)
    run = shutil.copytree(small_run.directory, tmp_path / "run") if "RUN" in command else None
    places = {
        "CONFIG": corpus.config,
        "RAW": raw,
        "OUT": tmp_path / "out",
        "RUN": run,
        "WORKS": demo_registry(),
    }
    ended = prep(*(places.get(w, w) for w in command), "--cluster", "tcp://127.0.0.1:9")
    assert ended.code == 5, ended.err
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in ended.err


def test_no_workers(corpus: Any, prep: Prep, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("pipeline.engine.clusters.LONELY_SECONDS", 1)
    scheduler = {"cls": Scheduler, "options": {"port": 0, "dashboard_address": "127.0.0.1:0"}}
    with SpecCluster(workers={}, scheduler=scheduler, silence_logs=50) as empty:
        options = ("--out", tmp_path / "run", "--cluster", empty.scheduler_address)
        ended = prep("run", corpus.config, *options)
    assert ended.code == 5 and "has no workers; start some" in ended.err


def test_workers_and_address_exclude_each_other(corpus: Any, prep: Prep, tmp_path: Path) -> None:
    options = ("--out", tmp_path / "run", "--workers", 2, "--cluster", "tcp://h:1")
    ended = prep("run", corpus.config, *options)
    assert ended.code == 2 and "leave one of the two out" in ended.err


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (("other", "BUILD"), "does not see the run directory"),
        (("TOKEN", "Python 2.7"), "runs Python 2.7, this process"),
        (ModuleNotFoundError("No module named 'pipeline'"), "cannot import this package"),
    ],
)
def test_workers_that_cannot_do_it(
    seen: Any, message: str, tmp_path: Path, monkeypatch: Any
) -> None:
    from pipeline.core.errors import ResourceError
    from pipeline.engine import clusters

    monkeypatch.setattr(clusters, "describe_build", lambda: "BUILD")
    monkeypatch.setattr(clusters.secrets, "token_hex", lambda _: "TOKEN")

    class Client:
        def wait_for_workers(self, *_: Any, **__: Any) -> None: ...
        def run(self, *_: Any, **__: Any) -> dict[str, Any]:
            return {"tcp://w:1": ("TOKEN", "BUILD"), "tcp://w:2": seen}

    with pytest.raises(ResourceError, match=message):
        clusters._check_workers(Client(), clusters._write_ticket(tmp_path), 1)
