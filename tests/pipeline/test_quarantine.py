"""The quarantine store: moved, looked at, released, purged, held."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.core import failpoint, lock, storage
from pipeline.core.errors import ConfigError, InputError
from pipeline.provenance.events import verify_events
from pipeline.quarantine.access import (
    export_quarantined,
    list_quarantined,
    release_quarantined,
    show_quarantined,
)
from pipeline.quarantine.command import collect_texts
from pipeline.quarantine.purge import purge
from pipeline.quarantine.store import is_apart, is_moved, restore
from pipeline.takedown.holds import lift_hold, read_holds, set_hold
from pipeline.verify import verify

DAY = date(2026, 3, 2)


def quarantined(run: Path) -> list[str]:
    table = pq.read_table(run / "documents.parquet", filters=pc.field("state") == "quarantined")
    return [key.hex() for key in table["doc_key"].to_pylist()]


def texts(run: Path) -> dict[str, str]:
    found = {}
    for path in sorted((run / "documents").glob("*.arrow")):
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        keys = [key.hex() for key in table["doc_key"].to_pylist()]
        found |= dict(zip(keys, table["text"].to_pylist(), strict=True))
    return found


@pytest.fixture
def run(small_run: Any, tmp_path: Path) -> Path:
    shutil.copytree(small_run.directory, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def apart(run: Path) -> Path:
    collect_texts(run, DAY)
    return run


def test_texts_are_moved_and_nothing_else(run: Path, small_run: Any) -> None:
    before = texts(run)
    held = quarantined(run)
    assert held
    assert collect_texts(run, DAY) == len(held)
    after = texts(run)
    assert {key for key in before if after[key] != before[key]} == set(held)
    assert {after[key] for key in held} == {""}
    for key in held:
        about, text = show_quarantined(run, key, "Jane")
        assert text == before[key]
        assert about.rule
    verify(run)
    manifest = pipeline.run(small_run.corpus.config, run, 0)
    assert set(manifest.reused) == set(manifest.stages) - {"quarantine"}
    assert texts(run) == after
    verify(run)


def test_restored_bytes_are_those_that_were_read(run: Path, small_run: Any) -> None:
    collect_texts(run, DAY)
    with lock.hold(run):
        restore(run)
    for path in sorted((small_run.directory / "documents").glob("*.arrow")):
        assert storage.hash_file(run / "documents" / path.name) == storage.hash_file(path)
    assert is_apart(run)
    assert not is_moved(run)


def test_a_run_that_screens_again_sees_the_texts_and_moves_them_again(
    apart: Path, small_run: Any
) -> None:
    """Another tokenizer setting reads texts; the outcome is that of a run without quarantine."""
    before = texts(small_run.directory)
    held = quarantined(apart)
    changes = ("clean.min_length=210", "dedup.preset=none")
    pipeline.run(small_run.corpus.config, apart, 0, overrides=changes)
    fresh = apart.parent / "fresh"
    pipeline.run(small_run.corpus.config, fresh, 0, overrides=changes)
    params = [json.loads((r / "hdf5/train/data_params.json").read_bytes()) for r in (apart, fresh)]
    assert params[0]["dataset_hash"] == params[1]["dataset_hash"]
    again = quarantined(apart)
    assert again == quarantined(fresh)
    assert {texts(apart)[key] for key in again} == {""}
    assert show_quarantined(apart, held[0], "Jane")[1] == before[held[0]]
    verify(apart)


def test_every_look_is_an_event(apart: Path, tmp_path: Path) -> None:
    key = quarantined(apart)[0]
    show_quarantined(apart, key[:8], "Jane")
    export_quarantined(apart, tmp_path / "held.jsonl", "Joe")
    records = [json.loads(line) for line in (tmp_path / "held.jsonl").read_text().splitlines()]
    assert sorted(r["key"] for r in records) == sorted(quarantined(apart))
    assert all(record["text"] for record in records)
    told = [(e.by, e.what["action"]) for e in verify_events(apart).events if e.kind == "quarantine"]
    assert told[-2:] == [("Jane", "show"), ("Joe", "export")]
    with pytest.raises(ConfigError, match="--by"):
        show_quarantined(apart, key, " ")
    with pytest.raises(InputError, match="no such document"):
        show_quarantined(apart, "00" * 16, "Jane")
    with pytest.raises(ConfigError, match="exists"):
        export_quarantined(apart, tmp_path / "held.jsonl", "Joe")


def test_purge_deletes_texts_and_keeps_the_rest(apart: Path, small_run: Any) -> None:
    before = texts(small_run.directory)
    found = quarantined(apart)
    held = [key for key in found if [before[k] for k in found].count(before[key]) == 1]
    done = purge(apart, (held[0],), None, "Jane", DAY)
    assert done is not None
    assert done.id == "purge-0001"
    about = {a.key: a for a in list_quarantined(apart)}
    assert about[held[0]].purged
    assert about[held[0]].text_bytes == len(before[held[0]].encode())
    probe = before[held[0]][40:80].splitlines()[0].encode()
    assert not [p for p in apart.rglob("*.arrow") if probe in p.read_bytes()]
    verify(apart)
    assert purge(apart, (held[0],), None, "Jane", DAY) is None
    manifest = pipeline.run(small_run.corpus.config, apart, 0)
    assert set(manifest.reused) == set(manifest.stages) - {"quarantine"}
    with pytest.raises(InputError, match="was purged"):
        release_quarantined(apart, held[0], "Jane", "own work")
    kinds = [e.kind for e in verify_events(apart).events]
    assert kinds.count("purge") == 1


def test_a_purge_leaves_other_copies_of_the_text(apart: Path, small_run: Any) -> None:
    """Only the document goes, not whatever has the same text."""
    held = set(quarantined(apart))
    before = texts(small_run.directory)
    purge(apart, sorted(held), None, "Jane", DAY)
    pipeline.run(small_run.corpus.config, apart, 0, overrides=("seed=8",))
    table = pq.read_table(apart / "documents.parquet").to_pylist()
    ends = {row["doc_key"].hex(): row["state"] for row in table}
    assert {ends[key] for key in held} == {"dropped"}
    assert sum(state == "kept" for state in ends.values()) > 100
    assert {before[key] for key in held}.isdisjoint(texts(apart).values())
    verify(apart)


def test_retention_counts_days(apart: Path) -> None:
    assert purge(apart, (), 30, "Jane", DAY + timedelta(days=30)) is None
    done = purge(apart, (), 30, "Jane", DAY + timedelta(days=31))
    assert done is not None
    assert done.value["documents"]["count"] == len(quarantined(apart))


def test_holds_forbid_deletion(apart: Path, tmp_path: Path) -> None:
    held = quarantined(apart)
    set_hold(apart, held[0], "Counsel", "case 7")
    with pytest.raises(InputError, match="must be kept for now"):
        purge(apart, (held[0],), None, "Jane", DAY)
    done = purge(apart, (), 0, "Jane", DAY + timedelta(days=1))
    assert done is None or done.value["documents"]["count"] == len(held) - 1
    assert [hold.what for hold in read_holds(apart)] == [held[0]]
    lift_hold(apart, held[0], "Counsel", "case closed")
    assert read_holds(apart) == ()
    assert purge(apart, (held[0],), None, "Jane", DAY) is not None
    with pytest.raises(InputError, match="not on hold"):
        lift_hold(apart, held[0], "Counsel", "again")


def test_holds_forbid_takedowns(run: Path, tmp_path: Path, prep: Callable[..., Any]) -> None:
    key = pq.read_table(run / "documents.parquet")["doc_key"][0].as_py().hex()
    claim = tmp_path / "claim.yaml"
    claim.write_text(
        f"id: c1\nclaimant: P\nreceived: 2026-03-01\nbasis: b\nwhat: {{documents: ['{key}']}}\n"
    )
    set_hold(run, key, "Counsel", "case 7")
    ended = prep("takedown", claim, "--run", run, "--apply", "--by", "Jane")
    assert ended.code == 3
    assert "on hold by Counsel" in ended.err
    assert not (run / "takedowns").exists()
    verify(run)


def test_a_released_document_is_taken_in(apart: Path, small_run: Any) -> None:
    held = quarantined(apart)
    release_quarantined(apart, held[0], "Jane", "own work")
    review = json.loads((apart / "reviews.jsonl").read_text().splitlines()[-1])
    assert (review["doc_key"], review["decision"], review["by"]) == (held[0], "allow", "Jane")


def test_command(run: Path, prep: Callable[..., Any], tmp_path: Path) -> None:
    assert "no texts in quarantine" in prep("quarantine", "list", run).err
    assert prep("quarantine", "collect", run).code == 0
    told = json.loads(prep("quarantine", "list", run, "--json").out)
    assert {about["key"] for about in told} == set(quarantined(run))
    key = told[0]["key"]
    assert prep("quarantine", "show", run, key, "--by", "Jane").code == 0
    options = ("--by", "Jane", "--reason", "case 7")
    assert prep("quarantine", "hold", run, key, *options).code == 0
    assert "on hold by Jane" in prep("quarantine", "list", run).out
    assert prep("quarantine", "purge", run, "--by", "Jane").code == 2
    assert prep("quarantine", "purge", run, "--by", "J", "--document", key).code == 3
    assert prep("quarantine", "unhold", run, key, *options).code == 0
    assert prep("quarantine", "purge", run, "--by", "J", "--document", key).code == 0
    assert prep("verify", run).code == 0


@pytest.mark.crash
def test_collect_killed_at_fault_points(run: Path, small_run: Any, tmp_path: Path) -> None:
    """No text is lost: the same command, or the run itself, brings the undisturbed end."""
    whole = tmp_path / "whole"
    shutil.copytree(run, whole)
    collect_texts(whole, DAY)
    for number in range(1, 200, 5):
        out = tmp_path / "killed"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(run, out)
        code = _forked(out, f"*@{number}=kill")
        if code == 0:
            break
        assert code == -signal.SIGKILL
        if number % 2:
            pipeline.run(small_run.corpus.config, out, 0)
        collect_texts(out, DAY)
        verify(out)
        assert texts(out) == texts(whole)
        shown = {a.key: show_quarantined(out, a.key, "J")[1] for a in list_quarantined(out)}
        assert shown == {a.key: show_quarantined(whole, a.key, "J")[1]
                         for a in list_quarantined(whole)}  # fmt: skip
    assert number > 15


def _forked(run: Path, plan: str) -> int:
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.environ["WAFERMILL_FAILPOINT"] = plan
            failpoint._hits.clear()
            failpoint._plan = failpoint._read_plan()
            collect_texts(run, DAY)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
