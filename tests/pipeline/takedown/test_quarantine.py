"""The quarantine store: looked at, released, purged, held."""

import json
import shutil
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.config.prep import load_config
from pipeline.core.errors import ConfigError, InputError
from pipeline.explain.find import find_text
from pipeline.runs.events import verify_events
from pipeline.screening.registry.importing import ImportOptions, import_works
from pipeline.screening.reviews import record_review
from pipeline.stories.clean import SCREEN, make_clean_story
from pipeline.stories.run import run_preparation as run_config
from pipeline.stories.verify import verify_run
from pipeline.takedown.claims import lift_hold, read_holds, set_hold
from pipeline.takedown.quarantine import (
    export_quarantined,
    list_quarantined,
    purge_documents,
    release_quarantined,
    show_quarantined,
)
from pipeline.takedown.quarantine_store import read_days

DAY = date(2026, 3, 2)


def quarantined(run: Path) -> list[str]:
    table = pq.read_table(run / "documents.parquet", filters=pc.field("state") == "quarantined")
    return [key.hex() for key in table["doc_key"].to_pylist()]


def texts(run: Path, store: str = "documents") -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted((run / store).glob("*.arrow")):
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        keys = [key.hex() for key in table["doc_key"].to_pylist()]
        found |= dict(zip(keys, table["text"].to_pylist(), strict=True))
    return found


@pytest.fixture
def run(small_run: Any, tmp_path: Path) -> Path:
    """A run whose documents are in quarantine since DAY."""
    out = Path(shutil.copytree(small_run.directory, tmp_path / "run"))
    days = dict.fromkeys(quarantined(out), DAY.isoformat())
    (out / "journal/quarantine.json").write_text(json.dumps(days))
    return out


def test_every_look_is_an_event(run: Path, tmp_path: Path) -> None:
    key = quarantined(run)[0]
    show_quarantined(run, key[:8], "Jane")
    export_quarantined(run, tmp_path / "held.jsonl", "Joe")
    records = [json.loads(line) for line in (tmp_path / "held.jsonl").read_text().splitlines()]
    assert sorted(r["key"] for r in records) == sorted(quarantined(run))
    assert all(record["text"] for record in records)
    told = [(e.by, e.what["action"]) for e in verify_events(run).events if e.kind == "quarantine"]
    assert told[-2:] == [("Jane", "show"), ("Joe", "export")]
    with pytest.raises(ConfigError, match="--by"):
        show_quarantined(run, key, " ")
    with pytest.raises(InputError, match="no such document"):
        show_quarantined(run, "00" * 16, "Jane")
    with pytest.raises(ConfigError, match="exists"):
        export_quarantined(run, tmp_path / "held.jsonl", "Joe")


def test_purge_deletes_texts_and_keeps_the_rest(run: Path, small_run: Any) -> None:
    before = texts(small_run.directory, "quarantine")
    found = quarantined(run)
    held = [key for key in found if [before[k] for k in found].count(before[key]) == 1]
    done = purge_documents(run, (held[0],), None, "Jane", DAY)
    assert done is not None
    assert done.id == "purge-0001"
    about = {a.key: a for a in list_quarantined(run)}
    assert about[held[0]].purged
    assert about[held[0]].text_bytes == len(before[held[0]].encode())
    probe = before[held[0]][40:80].splitlines()[0].encode()
    assert not [p for p in run.rglob("*.arrow") if probe in p.read_bytes()]
    verify_run(run)
    assert purge_documents(run, (held[0],), None, "Jane", DAY) is None
    manifest = pipeline.run(small_run.corpus.config, run, 0)
    assert set(manifest.reused) == set(manifest.stages)
    with pytest.raises(InputError, match="was purged"):
        release_quarantined(run, held[0], "Jane", "own work")
    kinds = [e.kind for e in verify_events(run).events]
    assert kinds.count("purge") == 1


def test_a_purge_leaves_other_copies_of_the_text(run: Path, small_run: Any) -> None:
    """Only the document goes, not whatever has the same text."""
    held = set(quarantined(run))
    before = texts(small_run.directory, "quarantine")
    purge_documents(run, sorted(held), None, "Jane", DAY)
    pipeline.run(small_run.corpus.config, run, 0, overrides=("seed=8",))
    table = pq.read_table(run / "documents.parquet").to_pylist()
    ends = {row["doc_key"].hex(): row["state"] for row in table}
    assert {ends[key] for key in held} == {"dropped"}
    assert sum(state == "kept" for state in ends.values()) > 100
    assert {before[key] for key in held}.isdisjoint(texts(run).values())
    verify_run(run)


def test_retention_counts_days(run: Path) -> None:
    assert purge_documents(run, (), 30, "Jane", DAY + timedelta(days=30)) is None
    done = purge_documents(run, (), 30, "Jane", DAY + timedelta(days=31))
    assert done is not None
    assert done.value["documents"]["count"] == len(quarantined(run))


def test_retention_of_a_config(run: Path, small_run: Any) -> None:
    """The run says how long; nothing but a purge deletes, and a hold keeps."""
    with pytest.raises(ConfigError, match=r"no screen\.quarantine_days"):
        purge_documents(run, (), None, "Jane", DAY)
    for _ in range(2):
        pipeline.run(small_run.corpus.config, run, 0, overrides=("screen.quarantine_days=30",))
    held = list_quarantined(run)
    assert {(about.since, about.until) for about in held} == {(DAY, DAY + timedelta(days=30))}
    assert not any(about.purged for about in held)
    set_hold(run, held[0].key, "Counsel", "case 7")
    late = DAY + timedelta(days=31)
    assert not any(about.is_due(DAY + timedelta(days=30)) for about in held)
    assert [a.is_due(late) for a in list_quarantined(run)] == [False] + [True] * (len(held) - 1)
    done = purge_documents(run, (), None, "Jane", late)
    assert done is not None
    assert done.value["documents"]["count"] == len(held) - 1
    assert done.value["claim"]["basis"] == "in quarantine for over 30 days"
    assert [about.purged for about in list_quarantined(run)] == [False] + [True] * (len(held) - 1)
    assert not any(about.is_due(late) for about in list_quarantined(run))


def test_days_are_those_of_the_first_run(run: Path, small_run: Any) -> None:
    """They go on while texts go back and forth, and end when a document leaves quarantine."""
    pipeline.run(small_run.corpus.config, run, 0, overrides=("seed=8",))
    assert read_days(run) == dict.fromkeys(quarantined(run), DAY)
    about = next(a for a in list_quarantined(run) if a.rule == "marker-download")
    release_quarantined(run, about.key, "Jane", "own work")
    pipeline.run(small_run.corpus.config, run, 0, overrides=("seed=8",))
    assert read_days(run) == dict.fromkeys(quarantined(run), DAY)
    assert about.key not in read_days(run)


def test_purge_of_a_run_that_only_screened(tmp_path: Path, small_run: Any) -> None:
    out = tmp_path / "screened"
    loaded = load_config(small_run.corpus.config)
    run_config(loaded, out, 0, story=SCREEN)
    key = quarantined(out)[0]
    assert purge_documents(out, (key,), None, "Jane", DAY) is not None
    verify_run(out)
    manifest = run_config(loaded, out, 0, story=SCREEN)
    assert set(manifest.reused) == set(manifest.stages)
    assert [about.purged for about in list_quarantined(out) if about.key == key] == [True]


def test_a_purged_document_does_not_come_back(run: Path, small_run: Any) -> None:
    """Neither as texts are put back for another policy, nor as its raw shard is read again."""
    gone = next(about for about in list_quarantined(run) if about.rule == "origin-listed")
    text = texts(run, "quarantine")[gone.key]
    purge_documents(run, (gone.key,), None, "Jane", DAY)
    copies = [p for p in run.rglob("*.arrow") if text[:60].encode() in p.read_bytes()]
    for path in (run / "documents").glob("*.arrow"):
        path.unlink()
    pipeline.run(small_run.corpus.config, run, 0)
    assert texts(run)[gone.key] == texts(run, "quarantine")[gone.key] == ""
    found = [p for p in run.rglob("*.arrow") if text[:60].encode() in p.read_bytes()]
    assert found == copies
    verify_run(run)


def test_holds_forbid_deletion(run: Path, tmp_path: Path) -> None:
    held = quarantined(run)
    set_hold(run, held[0], "Counsel", "case 7")
    with pytest.raises(InputError, match="must be kept for now"):
        purge_documents(run, (held[0],), None, "Jane", DAY)
    done = purge_documents(run, (), 0, "Jane", DAY + timedelta(days=1))
    assert done is None or done.value["documents"]["count"] == len(held) - 1
    assert [hold.what for hold in read_holds(run)] == [held[0]]
    lift_hold(run, held[0], "Counsel", "case closed")
    assert read_holds(run) == ()
    assert purge_documents(run, (held[0],), None, "Jane", DAY) is not None
    with pytest.raises(InputError, match="not on hold"):
        lift_hold(run, held[0], "Counsel", "again")


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
    verify_run(run)


def test_a_released_document_has_a_review(run: Path) -> None:
    """The next run takes it: see test_quarantine_store.py."""
    held = quarantined(run)
    release_quarantined(run, held[0], "Jane", "own work")
    review = json.loads((run / "reviews.jsonl").read_text().splitlines()[-1])
    assert (review["doc_key"], review["decision"], review["by"]) == (held[0], "allow", "Jane")


def test_command(run: Path, prep: Callable[..., Any], tmp_path: Path) -> None:
    told = json.loads(prep("quarantine", "list", run, "--json").out)
    assert {about["key"] for about in told} == set(quarantined(run))
    assert {(about["since"], about["until"], about["due"]) for about in told} == {
        (DAY.isoformat(), None, False)
    }
    key = told[0]["key"]
    assert prep("quarantine", "show", run, key, "--by", "Jane").code == 0
    options = ("--by", "Jane", "--reason", "case 7")
    assert prep("quarantine", "hold", run, key, *options).code == 0
    assert "on hold by Jane" in prep("quarantine", "list", run).out
    assert prep("quarantine", "purge", run, "--by", "Jane").code == 2
    both = ("--document", key, "--older-than", 1)
    assert prep("quarantine", "purge", run, "--by", "Jane", *both).code == 2
    assert prep("quarantine", "purge", run, "--by", "J", "--document", key).code == 3
    assert prep("quarantine", "unhold", run, key, *options).code == 0
    assert prep("quarantine", "purge", run, "--by", "J", "--document", key).code == 0
    assert prep("verify", run).code == 0


def test_due_documents_are_listed(run: Path, small_run: Any, prep: Callable[..., Any]) -> None:
    pipeline.run(small_run.corpus.config, run, 0, overrides=("screen.quarantine_days=1",))
    assert "2026-03-03, due" in prep("quarantine", "list", run).out
    ended = prep("quarantine", "purge", run, "--by", "Jane")
    assert ended.code == 0
    assert "purge-0001: 3 texts deleted" in ended.out
    assert "due" not in prep("quarantine", "list", run).out


def test_other_commands_show_no_text(run: Path, prep: Callable[..., Any]) -> None:
    """They say where it stands and how to look at it."""
    held = texts(run, "quarantine")
    for key, text in held.items():
        explained = prep("explain", run, key)
        assert f"in quarantine; `prep quarantine show DIR {key[:6]} --by NAME`" in explained.out
        assert json.loads(prep("explain", run, key, "--json").out)["in_quarantine"] is True
        assert text[:40] not in explained.out
    key = next(key for key in held if list(held.values()).count(held[key]) == 2)
    cluster = prep("inspect", run, "--cluster", key)
    dropped = prep("inspect", run, "--dropped", "origin-listed")
    for shown in (cluster, dropped):
        assert shown.code == 0
        assert "its text is in quarantine" in shown.out
        assert held[key][:40] not in shown.out


def test_a_run_that_screens_nothing_has_no_store(
    small_run: Any, tmp_path: Path, prep: Callable[..., Any]
) -> None:
    run_config(
        load_config(small_run.corpus.config), tmp_path / "run", 0, story=make_clean_story("jsonl")
    )
    ended = prep("quarantine", "list", tmp_path / "run")
    assert ended.code == 3
    assert "nothing was screened here" in ended.err


def test_texts_in_quarantine_are_compared(
    run: Path, small_run: Any, tmp_path: Path, prep: Callable[..., Any]
) -> None:
    """Whoever looks for a text finds it there: a pasted one, a claim, a registry that comes later,
    a review of a span."""
    about = next(a for a in list_quarantined(run) if a.rule == "marker-download")
    text = texts(run, "quarantine")[about.key]
    words = text.split()
    part = " ".join(words[10:90])
    keys = pq.read_table(run / "documents.parquet")["doc_key"].to_pylist()
    row = keys.index(bytes.fromhex(about.key))
    assert row in find_text(run, part).rows
    edited = text.replace(words[40], "elsewhere", 1)
    assert row in find_text(run, edited, with_passages=False).rows
    shown = prep("search", run, " ".join(words[10:16]))
    assert about.key in shown.out and "its text is in quarantine" in shown.out
    told = json.loads(prep("search", run, " ".join(words[10:16]), "--json").out)
    (held,) = [d for d in told["documents"] if d["document"] == about.key]
    assert held["in_quarantine"] and not any(p["match"] or p["before"] for p in held["places"])
    (tmp_path / "book.txt").write_text(text)
    claim = "id: c1\nclaimant: P\nreceived: 2026-03-01\nbasis: b\nwhat: {texts: [book.txt]}\n"
    (tmp_path / "claim.yaml").write_text(claim)
    planned = prep("takedown", tmp_path / "claim.yaml", "--run", run, "--plan", "--json")
    assert planned.code == 0, planned.err
    assert about.key in planned.out
    (tmp_path / "works.csv").write_text("title,text\nA book,book.txt\n")
    import_works([tmp_path / "works.csv"], tmp_path / "works", ImportOptions(texts=tmp_path))
    assert prep("rescan", run, "--registry", tmp_path / "works", "--name", "later").code == 0
    found = pq.read_table(run / "rescans/later/evidence.parquet")
    matched = found.filter(pc.equal(found["detector"], "text_match"))["doc_key"].to_pylist()
    assert bytes.fromhex(about.key) in matched
    review = record_review(run, about.key, "redact", "Jane", "a name", [(0, 5)])
    assert review.text_key == about.text_key
