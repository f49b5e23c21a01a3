"""The event log: what it shows when it was changed, and what a crash leaves."""

import hashlib
import itertools
import json
import multiprocessing
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import ConfigError, IntegrityError, ResourceError
from pipeline.runs import events
from pipeline.runs.events import EVENTS, FIRST, HEAD, Head, append_event, append_line, verify_events

COUNT = 6


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes, list[Head]]:
    """A log of some events, its head, and all heads it had."""
    directory = tmp_path_factory.mktemp("log")
    heads = []
    for n in range(1, COUNT + 1):
        event = append_event(directory, "review", f"person {n}", {"note": f"ünd {n}", "n": [n]})
        assert event.n == n
        heads.append(verify_events(directory).head)
    return (directory / EVENTS).read_bytes(), (directory / HEAD).read_bytes(), heads


@pytest.fixture
def log(template: tuple[bytes, bytes, list[Head]], tmp_path: Path) -> Path:
    (tmp_path / EVENTS).write_bytes(template[0])
    (tmp_path / HEAD).write_bytes(template[1])
    return tmp_path


def lines_of(log: Path) -> list[bytes]:
    return (log / EVENTS).read_bytes().splitlines(keepends=True)


def write(log: Path, lines: list[bytes]) -> None:
    (log / EVENTS).write_bytes(b"".join(lines))


def problem(log: Path) -> str:
    with pytest.raises(IntegrityError) as found:
        verify_events(log)
    assert str(found.value).startswith(f"{log / EVENTS}:")
    with pytest.raises(IntegrityError):
        append_event(log, "review", "someone", {})
    return str(found.value)


def test_a_line(log: Path) -> None:
    value = json.loads(lines_of(log)[0])
    assert sorted(value) == ["at", "by", "kind", "n", "prev", "what"]
    assert value["prev"] == FIRST
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", value["at"])
    chain = verify_events(log)
    assert [e.n for e in chain.events] == list(range(1, COUNT + 1))
    assert chain.events[2].what == {"note": "ünd 3", "n": [3]}
    assert chain.head.n == COUNT and chain.torn == 0


def test_an_empty_log(tmp_path: Path) -> None:
    assert verify_events(tmp_path) == events.EventChain((), Head(0, FIRST), 0)
    with pytest.raises(ConfigError, match="name"):
        append_event(tmp_path, "purge", " ", {})
    with pytest.raises(ResourceError):
        append_event(tmp_path / "none", "purge", "x", {})
    assert list(tmp_path.iterdir()) == []


def edited(line: bytes, **changes: Any) -> bytes:
    value = {**json.loads(line), **changes}
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return text.encode() + b"\n"


@pytest.mark.parametrize("n", range(1, COUNT + 1))
@pytest.mark.parametrize(
    "change",
    [
        lambda line: edited(line, by="someone else"),
        lambda line: edited(line, at="2020-01-01T00:00:00Z"),
        lambda line: edited(line, what={}),
        lambda line: edited(line, prev="f" * 64),
        lambda line: line.replace(b":", b": ", 1),
        lambda line: line[:-20] + b"\n",
        lambda line: b"\xff\n",
        lambda line: edited(line, more=1),
    ],
)
def test_an_edited_event_is_named(log: Path, n: int, change: Callable[[bytes], bytes]) -> None:
    lines = lines_of(log)
    lines[n - 1] = change(lines[n - 1])
    write(log, lines)
    said = problem(log)
    assert f":{n}: event {n} " in said
    assert "changed" in said


@pytest.mark.parametrize("n", range(1, COUNT + 1))
def test_a_removed_event_is_named(log: Path, n: int) -> None:
    lines = lines_of(log)
    write(log, [*lines[: n - 1], *lines[n:]])
    expected = f"event {n} was removed" if n < COUNT else f"events {n} to {n}, which"
    assert expected in problem(log)


@pytest.mark.parametrize("n", range(1, COUNT))
def test_moved_events_are_named(log: Path, n: int) -> None:
    lines = lines_of(log)
    lines[n - 1], lines[n] = lines[n], lines[n - 1]
    write(log, lines)
    assert f":{n}: event {n + 1} is where event {n} was recorded" in problem(log)


@pytest.mark.parametrize("n", range(1, COUNT + 1))
def test_an_inserted_event_is_named(log: Path, n: int) -> None:
    """One that fits what stands before it, and takes a number that is in use."""
    lines = lines_of(log)
    new = edited(lines[n - 1], by="an inventor")
    write(log, [*lines[: n - 1], new, *lines[n - 1 :]])
    said = problem(log)
    assert f":{n + 1}: there are two events {n} (the other on line {n}): one was inserted" in said


@pytest.mark.parametrize("keep", range(COUNT))
def test_a_cut_end_is_told(log: Path, keep: int) -> None:
    write(log, lines_of(log)[:keep])
    assert f"events {keep + 1} to {COUNT}, which {HEAD} names, were removed" in problem(log)


def test_a_cut_last_line_is_told(log: Path) -> None:
    """Not taken for what a crash leaves: the head names it."""
    data = (log / EVENTS).read_bytes()
    (log / EVENTS).write_bytes(data[:-1])
    assert f"events {COUNT} to {COUNT}" in problem(log)


def test_a_removed_head_is_told(log: Path) -> None:
    (log / HEAD).unlink()
    assert f"{HEAD} is missing" in problem(log)
    (log / HEAD).write_text("{")
    with pytest.raises(IntegrityError, match=r"events\.head: damaged"):
        verify_events(log)


def test_a_log_written_anew(
    log: Path, template: tuple[bytes, bytes, list[Head]], tmp_path: Path
) -> None:
    """With its head: only a head kept elsewhere tells; one from before the change does not."""
    heads = template[2]
    (log / EVENTS).unlink()
    (log / HEAD).unlink()
    original = template[0].splitlines()
    at = iter([json.loads(line)["at"] for line in original])
    for n in range(1, COUNT + 1):
        by = f"person {n}" if n != 4 else "someone else"
        append_event(log, "review", by, {"note": f"ünd {n}", "n": [n]})
    # The clock makes other lines: put the times back, and chain again.
    prev, lines = FIRST, []
    for line in lines_of(log):
        new = edited(line, at=next(at), prev=prev)
        prev = hashlib.sha256(new[:-1]).hexdigest()
        lines.append(new)
    write(log, lines)
    (log / HEAD).write_text(json.dumps({"n": COUNT, "hash": prev}))
    assert len(verify_events(log).events) == COUNT
    assert verify_events(log, heads[2]).head.n == COUNT
    for head in heads[3:]:
        with pytest.raises(IntegrityError, match=f"event {head.n} is not the one"):
            verify_events(log, head)


def test_earlier_heads_hold(log: Path, template: tuple[bytes, bytes, list[Head]]) -> None:
    for head in template[2]:
        assert verify_events(log, head).head == template[2][-1]
    with pytest.raises(IntegrityError, match="were removed from the end"):
        verify_events(log, Head(COUNT + 1, "f" * 64))


def test_a_crash_before_the_head(log: Path, template: tuple[bytes, bytes, list[Head]]) -> None:
    """The line is there, the head names the one before; the next event goes on from the line."""
    heads = template[2]
    (log / HEAD).write_text(json.dumps(vars(heads[-2])))
    assert verify_events(log).head == heads[-1]
    assert append_event(log, "takedown", "x", {}).prev == heads[-1].hash
    assert verify_events(log).head.n == COUNT + 1
    (log / HEAD).write_text(json.dumps(vars(heads[-2])))
    assert f"{HEAD} ends with event {COUNT - 1}" in problem(log)


def test_a_crash_before_the_first_head(tmp_path: Path) -> None:
    append_event(tmp_path, "screening", "prep", {})
    (tmp_path / HEAD).unlink()
    assert verify_events(tmp_path).head.n == 1
    append_event(tmp_path, "screening", "prep", {})
    assert verify_events(tmp_path).head.n == 2


def test_a_torn_line_is_replaced(log: Path, template: tuple[bytes, bytes, list[Head]]) -> None:
    """However much of it was written; no earlier event is lost, and no edit becomes valid."""
    whole = template[0]
    line = edited(lines_of(log)[-1], n=COUNT + 1, prev=template[2][-1].hash)
    for cut in range(1, len(line)):
        (log / EVENTS).write_bytes(whole + line[:cut])
        (log / HEAD).write_bytes(template[1])
        assert verify_events(log).torn == cut
        assert append_event(log, "review", "x", {}).n == COUNT + 1
        found = (log / EVENTS).read_bytes()
        assert found.startswith(whole) and found.count(b"\n") == COUNT + 1
        assert verify_events(log).torn == 0
    lines = lines_of(log)
    lines[1] = edited(lines[1], by="someone else")
    write(log, [*lines, b'{"torn'])
    assert ":2: event 2 was changed" in problem(log)
    assert (log / EVENTS).read_bytes().endswith(b'{"torn')


@given(data=st.data())
def test_any_single_change_is_found(
    data: st.DataObject, template: tuple[bytes, bytes, list[Head]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    """Any byte changed, removed or added, any lines removed, moved or doubled."""
    whole = template[0]
    lines = whole.splitlines(keepends=True)
    place = data.draw(st.integers(0, len(whole) - 1))
    byte = bytes([data.draw(st.integers(0, 255))])
    changed = data.draw(
        st.sampled_from([
            whole[:place] + byte + whole[place + 1 :], whole[:place] + whole[place + 1 :],
            whole[:place] + byte + whole[place:], whole[:place],
            b"".join(data.draw(st.permutations(lines))),
            b"".join(data.draw(st.lists(st.sampled_from(lines), max_size=8))),
        ])
    )  # fmt: skip
    log = tmp_path_factory.mktemp("changed")
    (log / EVENTS).write_bytes(changed)
    (log / HEAD).write_bytes(template[1])
    if changed == whole:
        assert verify_events(log).head.n == COUNT
    else:
        with pytest.raises(IntegrityError, match=r"events\.jsonl:\d+: "):
            verify_events(log)


def append_some(directory: Path, name: str) -> None:
    for n in range(10):
        append_event(directory, "review", name, {"n": n})


def test_writers_at_once(tmp_path: Path) -> None:
    """Events of several processes stand one after the other."""
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=append_some, args=(tmp_path, f"w{i}")) for i in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    found = verify_events(tmp_path).events
    for name, own in itertools.groupby(sorted(found, key=lambda e: (e.by, e.n)), lambda e: e.by):
        assert [e.what["n"] for e in own] == list(range(10)), name
    assert len(found) == 30


def test_append_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append_line(path, "a")
    path.write_bytes(path.read_bytes() + b"torn")
    append_line(path, "b")
    assert path.read_bytes() == b"a\nb\n"
    path.write_bytes(b"torn")
    append_line(path, "c")
    assert path.read_bytes() == b"c\n"
