"""`train jobs` with real runs: listed, labelled, cancelled with a checkpoint."""

import json
import os
import signal
import time

import pytest
from typer.testing import CliRunner

from tests.programs import Program
from trainer.cli import app
from trainer.commands.runs import format_jobs
from trainer.runs.jobs import JobStore, Phase

RUNNER = CliRunner()


def invoke(*words: str, code: int = 0) -> str:
    """Output of a command that ends with `code`."""
    result = RUNNER.invoke(app, list(words))
    assert result.exit_code == code, result.output
    return result.output


def command(trainer, *more: str) -> list[str]:
    return [
        "CSX", "--params", str(trainer.params), "--num_csx", "2", "--num_steps", "2", "--model_dir",
        str(trainer.root / "out"), "--data", str(trainer.data), *more,
    ]  # fmt: skip


def wait_for(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_run_registers_itself(trainer):
    output = invoke(*command(trainer, "--job_labels", "team=nlp", "--job_labels", "stage=tiny"))
    assert "Job id: wsjob-000001" in output
    assert invoke("jobs", "get") == "No jobs found\n"
    head, row = invoke("jobs", "get", "-a").splitlines()
    assert head.split() == ["NAME", "AGE", "DURATION", "PHASE", "SYSTEMS", "USER", "LABELS"]
    cells = row.split()
    assert (cells[0], cells[3], cells[4]) == ("wsjob-000001", "SUCCEEDED", "2")
    assert cells[6] == "stage=tiny,team=nlp"
    (job,) = json.loads(invoke("jobs", "get", "-a", "-o", "json"))
    assert job["phase"] == "SUCCEEDED"
    assert job["created"] <= job["started"] <= job["ended"]


def test_my_own_runs(trainer):
    """`train jobs` alone: all of this user's, and of nobody else."""
    assert invoke("jobs") == "No jobs found\n"
    invoke(*command(trainer))
    invoke(*command(trainer), "--seed", "6", code=2)
    other = trainer.root / "jobs" / "wsjob-000003.json"
    told = json.loads((trainer.root / "jobs" / "wsjob-000001.json").read_text())
    other.write_text(json.dumps({**told, "name": "wsjob-000003", "user": "somebody"}))
    assert [line.split()[0] for line in invoke("jobs").splitlines()[1:]] == [
        "wsjob-000001",
        "wsjob-000002",
    ]
    assert "wsjob-000003" in invoke("jobs", "get", "-a")


def test_a_run_that_fails_and_a_config_error(trainer):
    invoke(*command(trainer, "--num_csx", "9"), code=2)  # refused before anything began
    assert not (trainer.root / "jobs").exists()
    invoke(*command(trainer), "--data", str(trainer.root / "nowhere"), code=2)
    invoke(*command(trainer), "--job_labels", "team nlp", code=2)
    assert not (trainer.root / "jobs").exists()
    invoke(*command(trainer))
    invoke(*command(trainer), "--seed", "6", code=2)  # MODEL_DIR holds another run
    assert [job.phase for job in JobStore.default().jobs()] == [Phase.SUCCEEDED, Phase.FAILED]


def test_a_list_that_cannot_be_written_does_not_stop_a_run(trainer, monkeypatch):
    (trainer.root / "file").write_text("")
    monkeypatch.setenv("WAFERMILL_JOBS", str(trainer.root / "file" / "jobs"))
    output = invoke(*command(trainer))
    assert "`train jobs get` will not show this run: " in output
    assert "Training completed successfully!" in output


def test_a_list_that_vanishes_does_not_stop_a_run(trainer, monkeypatch):
    monkeypatch.setattr(JobStore, "advance", lambda self, name, phase: self._path("wsjob-9"))
    output = invoke(*command(trainer))
    assert output.count("The list of jobs could not be updated: wsjob-9: no such job") == 2


def test_labels(trainer):
    invoke(*command(trainer))
    assert invoke("jobs", "label", "job", "wsjob-000001", "a=1", "b=2") == "wsjob-000001 labeled\n"
    invoke("jobs", "label", "wsjob-000001", "a-", "c=x.y")
    assert JobStore.default().job("wsjob-000001").labels == {"b": "2", "c": "x.y"}
    for words in (("wsjob-000001", "a b=1"), ("wsjob-000002", "a=1"), ("wsjob-000001", "a")):
        assert "error: " in invoke("jobs", "label", *words, code=2)


@pytest.mark.crash
def test_cancel_writes_a_checkpoint_and_a_kill_shows_as_failed(trainer):
    params = trainer.configure(runconfig={"checkpoint_steps": 0})

    def start(name: str) -> Program:
        words = ("--params", params, "--data", trainer.data, "--num_steps", 1_000_000,
                 "--model_dir", trainer.root / name)  # fmt: skip
        return Program(lambda: app([*map(str, words)]))

    runs = [start("one"), start("two")]
    metrics = [trainer.root / name / "metrics.jsonl" for name in ("one", "two")]
    wait_for(lambda: all(path.exists() for path in metrics))
    jobs = {job.process.pid: job for job in JobStore.default().jobs()}
    assert {job.name for job in jobs.values()} == {"wsjob-000001", "wsjob-000002"}
    assert {job.phase for job in jobs.values()} == {Phase.RUNNING}
    assert invoke("jobs", "get").count("RUNNING") == 2
    runs[1].send_signal(signal.SIGKILL)
    runs[1].wait()
    name = jobs[runs[0].pid].name
    assert invoke("jobs", "cancel", "job", name) == "Job canceled successfully\n"
    assert runs[0].wait() == 143
    assert list((trainer.root / "one" / "checkpoints").iterdir())
    assert JobStore.default().job(name).phase is Phase.CANCELLED
    assert JobStore.default().job(jobs[runs[1].pid].name).phase is Phase.FAILED
    assert "has already ended (CANCELLED)" in invoke("jobs", "cancel", name, code=2)
    assert "has already ended (FAILED)" in invoke("jobs", "cancel", jobs[runs[1].pid].name, code=2)


def test_the_table_says_what_is_unknown(trainer):
    store = JobStore(trainer.root / "jobs")
    store.register(command=["train"], systems=0, labels={})
    queued = store.jobs()[0]
    assert format_jobs([queued], queued.created + 61).splitlines()[1].split()[:5] == [
        "wsjob-000001", "1m1s", "-", "QUEUED", "-",
    ]  # fmt: skip
    assert os.getpid() == queued.process.pid
