"""One writer per directory; a log that survives its torn last line."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pipeline.core import journal as lock
from pipeline.core.errors import ResourceError
from pipeline.core.journal import Journal

HOLD = "\n".join(
    [
        "import pathlib, sys, time",
        "from pipeline.core import journal as lock",
        "with lock.hold_lock(pathlib.Path(sys.argv[1])):",
        "    print('held', flush=True)",
        "    time.sleep(60)",
    ]
)


@pytest.mark.crash
def test_a_second_holder_is_refused_by_name_until_the_first_is_dead(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(ResourceError) as caught,
            lock.hold_lock(directory),
        ):
            pytest.fail("held twice")
        who = f"in use by pid {holder.pid} on {socket.gethostname()}"
        message = str(caught.value)
        assert message.startswith(f"{directory}: {who} since ") and "; wait for it" in message
        name, is_held = lock.holder(directory)
        assert is_held and f"in use by {name}; wait" in message
        assert caught.value.exit_code == 5
    finally:
        holder.kill()
        holder.communicate()
    with lock.hold_lock(directory):
        text = (directory / ".lock").read_text()
        assert text.startswith(f"pid {os.getpid()} on {socket.gethostname()} since ")
        assert lock.holder(directory) == (text.strip(), True)
    assert lock.holder(directory) == (text.strip(), False)


def test_looking_who_holds_a_lock_stops_nobody(tmp_path: Path) -> None:
    """A look holds the lock for a moment; a command that begins just then waits for it."""
    assert lock.holder(tmp_path) == ("", False)
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            lock.holder(tmp_path)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(300):
            with lock.hold_lock(tmp_path):
                assert lock.holder(tmp_path)[1]
    finally:
        over.set()
        looking.join()


def test_the_lock_ends_with_the_block_and_on_errors(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(KeyError), lock.hold_lock(tmp_path):
            raise KeyError
    with lock.hold_lock(tmp_path), pytest.raises(ResourceError, match="in use by pid"):
        lock.hold_lock(tmp_path).__enter__()


def test_a_longer_name_of_an_earlier_holder_is_gone(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("pid 123456789123456789 on " + "x" * 100)
    with lock.hold_lock(tmp_path):
        assert "x" * 100 not in (tmp_path / ".lock").read_text()


def test_a_lock_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="cannot write: "), lock.hold_lock(tmp_path / "file"):
        pytest.fail("held a file")
    (tmp_path / "run/.lock").mkdir(parents=True)
    with (
        pytest.raises(ResourceError, match="run: cannot write: "),
        lock.hold_lock(tmp_path / "run"),
    ):
        pytest.fail("held a directory")


def test_the_journal_keeps_events_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert journal.events() == []
    journal.event("run", workers=2)
    Journal(tmp_path).event("done", name="ü\n")
    first, second = journal.events()
    assert (first["event"], first["workers"]) == ("run", 2)
    assert (second["event"], second["name"]) == ("done", "ü\n")
    assert first["time"] <= second["time"]


@pytest.mark.parametrize("torn", [b'{"event": "ru', b"\xff\xfe{", b"\x00\x00\n\n", b"["])
def test_a_torn_last_line_is_passed_over(tmp_path: Path, torn: bytes) -> None:
    journal = Journal(tmp_path)
    journal.event("run")
    with open(journal.path, "ab") as file:
        file.write(torn)
    assert [e["event"] for e in journal.events()] == ["run"]


def test_what_follows_a_torn_line_is_read(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.event("run")
    os.truncate(journal.path, journal.path.stat().st_size - 5)
    journal.event("lost with the torn line")
    journal.event("done")
    assert journal.events()[-1]["event"] == "done"
    assert len(journal.path.read_text().splitlines()) == 2
    assert json.loads(journal.path.read_text().splitlines()[-1])["event"] == "done"
