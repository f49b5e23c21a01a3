"""What is shown while something runs: lines for people, lines of JSON for programs, memory."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.engine import progress
from pipeline.engine.progress import Printer, Progress, memory_in_use

Prep = Callable[..., Any]


def events(text: str) -> list[dict[str, Any]]:
    """Every line of standard error is an object."""
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_EVERY_SECONDS", -1.0)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_tells_programs_which_stage_of_how_many(
    corpus: Any, tmp_path: Path, prep: Prep, workers: int
) -> None:
    made = prep("run", corpus.config, "--out", tmp_path / "run", "--workers", workers, "--json")
    assert made.code == 0, made.err
    told = [event for event in events(made.err) if event["event"] == "progress"]
    names = [path.stem for path in (tmp_path / "run" / "manifests").glob("*.json")]
    assert sorted(event["stage"] for event in told) == sorted(names)
    assert [event["number"] for event in told] == list(range(1, len(names) + 1))
    assert {event["of"] for event in told} == {len(names)}
    (clean,) = (event for event in told if event["stage"] == "clean")
    assert clean["tasks_done"] == clean["tasks"] > 0
    assert clean["bytes"] == clean["bytes_total"] > 0
    assert clean["documents"] > 0
    assert clean["memory_bytes"] > 20_000_000
    *_, last = events(made.err)
    assert last == {**last, "event": "done", "stages": len(names), "reused": 0}

    again = prep("run", corpus.config, "--out", tmp_path / "run", "--workers", 0, "--json")
    assert {event["event"] for event in events(again.err)} == {"reused", "done"}
    assert events(again.err)[-1]["reused"] == len(names)


def test_a_run_tells_people(corpus: Any, tmp_path: Path, prep: Prep) -> None:
    made = prep("run", corpus.config, "--out", tmp_path / "run", "--workers", 0)
    lines = made.err.splitlines()
    assert any(
        re.fullmatch(r"\[3/\d+] clean: \d/\d tasks?, [\d,]+ documents, .* in memory, .*s", line)
        for line in lines
    ), made.err
    assert re.fullmatch(r"done: \d+ stages, [\d.]+s", lines[-1])


@pytest.mark.usefixtures("every_time")
def test_tasks_are_counted_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Progress(as_json=True)
    shown.expect(2)
    with shown.stage("clean", [30, 10], 1) as bar:
        bar.done(0, {"documents": 4})
        bar.done(1, {"documents": 1})
    shown.note("a word")
    first, last, note = events(capsys.readouterr().err)
    assert (first["tasks_done"], first["documents"], first["bytes"]) == (1, 4, 30)
    assert first["seconds_left"] == pytest.approx(first["seconds"] / 3, abs=0.1)
    assert (last["tasks_done"], last["documents"], last["seconds_left"]) == (2, 5, None)
    assert (last["number"], last["of"], last["reused"]) == (1, 2, 1)
    assert note == {"event": "note", "text": "a word"}


@pytest.mark.usefixtures("every_time")
def test_what_is_counted_says_when_it_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress().meter("rows", "samples", 10) as counted:
        counted.advance(4)
    assert re.fullmatch(
        r"rows: 4 of 10 samples, [\d,]+ a second, [\d.]+ .B in memory, about [\d.]+s left\n",
        capsys.readouterr().err,
    )
    with Progress(as_json=True).meter("rows", "samples", None) as counted:
        counted.advance(4)
    (event,) = events(capsys.readouterr().err)
    assert (event["done"], event["total"], event["seconds_left"]) == (4, None, None)
    with Progress(quiet=True).meter("rows", "samples", 10) as counted:
        counted.advance(4)
    assert capsys.readouterr().err == ""


def test_more_stages_than_expected_are_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Progress(as_json=True)
    shown.expect(1)
    shown.reused("plan", 1)
    shown.reused("clean", 1)
    assert [(e["number"], e["of"]) for e in events(capsys.readouterr().err)] == [(1, 1), (2, 2)]


def test_memory_of_other_processes_is_counted() -> None:
    program = "import sys; held = b'x' * 200_000_000; print(flush=True); sys.stdin.read()"
    before = memory_in_use()
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert memory_in_use() - before > 190_000_000
        child.communicate(b"")
    assert memory_in_use() - before < 100_000_000


def test_the_api_is_quiet_unless_asked(
    corpus: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline.run(corpus.config, tmp_path / "run", 0)
    assert capsys.readouterr().err == ""


def test_looking_for_memory_takes_a_hundredth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With many workers a look takes a second, and blocks the process that starts tasks."""
    now, looks = 100.0, 0

    def look() -> int:
        nonlocal now, looks
        now, looks = now + 0.05, looks + 1
        return looks

    monkeypatch.setattr(progress, "memory_in_use", look)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    printer = Printer(quiet=True)
    while now < 120:
        assert printer.memory() == looks > 0
        now += 0.1
    assert looks == 4
