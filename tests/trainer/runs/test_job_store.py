"""The list of jobs: concurrent entry, phases of processes that are gone, cancelling, labels."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from pipeline.core.errors import ConfigError
from trainer.runs import jobs
from trainer.runs.jobs import JobEntry, JobStore, Phase, Process, parse_labels


@pytest.fixture
def store(tmp_path) -> JobStore:
    return JobStore(tmp_path / "jobs")


def enter(store: JobStore, **labels: str) -> str:
    return store.register(command=["train", "CSX"], systems=2, labels=labels)


SLEEPER = """
import sys, time
from pathlib import Path
from trainer.runs.jobs import JobEntry, JobStore
store = JobStore(Path(sys.argv[1]))
name = store.register(command=["sleep"], systems=1, labels={})
JobEntry(store, name, print).running()
print(name, flush=True)
time.sleep(100)
"""


def sleeper(store: JobStore) -> tuple[subprocess.Popen, str]:
    """A process that lists itself and waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(store.directory)],
        stdout=subprocess.PIPE,
        text=True,
    )
    return process, process.stdout.readline().strip()


def test_ids_count_up_past_gaps(store):
    assert [enter(store) for _ in range(3)] == ["wsjob-000001", "wsjob-000002", "wsjob-000003"]
    (store.directory / "wsjob-000002.json").unlink()
    (store.directory / "wsjob-000041.json").write_text("{}")
    (store.directory / "notes.json").write_text("not a job")
    assert enter(store) == "wsjob-000042"


def test_a_life(store):
    entry = JobEntry(store, store.register(command=["train"], systems=4, labels={"a": "b"}), print)
    assert store.job(entry.name).phase is Phase.QUEUED
    entry.running()
    running = store.job(entry.name)
    assert (running.phase, running.ended) == (Phase.RUNNING, None)
    entry.ended(0)
    ended = store.job(entry.name)
    assert (ended.phase, ended.systems, ended.labels) == (Phase.SUCCEEDED, 4, {"a": "b"})
    assert ended.created <= ended.started <= ended.ended


@pytest.mark.parametrize(
    ("code", "phase"), [(0, "SUCCEEDED"), (1, "FAILED"), (143, "CANCELLED"), (130, "CANCELLED")]
)
def test_how_it_ended(store, code, phase):
    entry = JobEntry(store, store.register(command=["train"], systems=1, labels={}), print)
    entry.ended(code)
    assert store.job(entry.name).phase == phase


def register_some(directory, count: int) -> None:
    for _ in range(count):
        enter(JobStore(directory), a="1")


def test_concurrent_runs_get_ids_of_their_own(store):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=register_some, args=(store.directory, 8)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [job.name for job in store.jobs()] == [f"wsjob-{i:06d}" for i in range(1, 33)]


def test_concurrent_labels_are_all_kept(store):
    name = enter(store)
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=store.label, args=(name, {f"key{i}": "x"})) for i in range(6)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert len(store.job(name).labels) == 6


@pytest.mark.crash
def test_a_dead_process_has_failed_even_while_nobody_reaped_it(store):
    process, name = sleeper(store)
    assert store.job(name).phase is Phase.RUNNING
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
    assert store.job(name).phase is Phase.FAILED
    process.wait()
    process.stdout.close()
    assert store.job(name).phase is Phase.FAILED
    assert json.loads((store.directory / f"{name}.json").read_bytes())["phase"] == "RUNNING"


@pytest.mark.crash
def test_cancel_ends_a_process_that_does_not_listen(store):
    process, name = sleeper(store)
    store.cancel(name)
    assert process.wait() == -signal.SIGTERM
    process.stdout.close()
    assert store.job(name).phase is Phase.CANCELLED
    with pytest.raises(ConfigError, match=rf"{name} has already ended \(CANCELLED\)"):
        store.cancel(name)


def test_a_second_cancel_is_refused_as_it_would_kill(store, monkeypatch):
    received = []
    monkeypatch.setattr(jobs, "_terminate", received.append)
    name = enter(store)
    store.cancel(name)
    with pytest.raises(ConfigError, match="being cancelled and is writing a checkpoint"):
        store.cancel(name)
    assert len(received) == 1


def test_a_reused_pid_another_boot_and_another_host(store):
    name = enter(store)
    job = store.job(name)
    for changes, phase in (
        ({"start": job.process.start + 1}, Phase.FAILED),
        ({"boot": "another"}, Phase.FAILED),
        ({"host": "elsewhere", "pid": 1}, Phase.QUEUED),
    ):
        store._write(replace(job, process=replace(job.process, **changes)))
        assert store.job(name).phase is phase
    with pytest.raises(ConfigError, match="runs on elsewhere; cancel it there"):
        store.cancel(name)


def test_a_process_that_ends_before_the_signal(store, monkeypatch):
    name = enter(store)
    job = store.job(name)
    gone = replace(job, process=replace(job.process, start=0))
    with pytest.raises(ConfigError, match="has just ended"):
        jobs._terminate(gone)


def test_this_process_is_alive_and_knows_its_name():
    process = Process.current()
    assert process.alive
    assert process.here
    assert not replace(process, pid=2**22 + 1).alive


def test_what_is_not_a_job_is_named(store):
    enter(store)
    path = store.directory / "wsjob-000002.json"
    for text in ("{", "{}", '{"name": 1}', "[]"):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"wsjob-000002.json: not a job file"):
            store.jobs()
    for name in ("wsjob-000003", "../wsjob-000001", "wsjob-1", ""):
        with pytest.raises(ConfigError, match="no such job"):
            store.job(name)


def test_an_empty_store_needs_no_directory(tmp_path):
    assert JobStore(tmp_path / "none").jobs() == []
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("word", ["a", "=b", "a b=1", "a=b c", "a=" + "x" * 64, "-a=1", "a-"])
def test_malformed_labels(word):
    with pytest.raises(ConfigError, match="expected key=value"):
        parse_labels([word])


def test_labels_with_prefix_and_empty_value():
    assert parse_labels(["org.io/team=a.b_c-d", "x="]) == {"org.io/team": "a.b_c-d", "x": ""}
    with pytest.raises(ConfigError, match="key- to remove"):
        parse_labels(["=-"], removals=True)


def test_where_the_list_lies(monkeypatch, tmp_path):
    monkeypatch.setenv("WAFERMILL_JOBS", str(tmp_path / "here"))
    assert JobStore.default().directory == tmp_path / "here"
    monkeypatch.delenv("WAFERMILL_JOBS")
    monkeypatch.setenv("WAFERMILL_CACHE", str(tmp_path / "cache"))
    assert JobStore.default().directory == tmp_path / "cache" / "jobs"
