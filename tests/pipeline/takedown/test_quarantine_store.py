"""Quarantined texts leave documents/ in every run that screens, and come back to be looked at."""

import functools
import json
import shutil
import signal
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.config.prep import load_config
from pipeline.core import journal
from pipeline.core.errors import ConfigError
from pipeline.core.hashes import hash_file, tree_hash
from pipeline.core.manifest import read_manifest
from pipeline.stages import document_rows
from pipeline.stories.clean import SCREEN, make_clean_story
from pipeline.stories.run import run_preparation as run_config
from pipeline.stories.verify import verify_run
from pipeline.takedown.quarantine import list_quarantined, release_quarantined
from pipeline.takedown.quarantine_store import restore_texts
from tests.forked import forked
from tests.slow import mark_slow

ALLOW_ALL = "version: 1\nrules: []\n"
OTHER = """\
version: 1
rules:
  - {id: books, when: {origin.target: books3}, decision: drop, reason: a listed origin}
"""


@pytest.fixture(scope="module")
def allowed(small_run: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the same documents in which none is quarantined."""
    root = tmp_path_factory.mktemp("allowed")
    (root / "policy.yaml").write_text(ALLOW_ALL)
    policy = f"screen.policy={root / 'policy.yaml'}"
    pipeline.run(small_run.corpus.config, root / "run", 0, overrides=(policy,))
    return root / "run"


@pytest.fixture
def run(small_run: Any, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_run.directory, tmp_path / "run"))


def tables(run: Path, store: str = "documents") -> Iterator[pa.Table]:
    for path in sorted((run / store).glob("*.arrow")):
        yield pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def texts(run: Path, store: str = "documents") -> dict[str, str]:
    found: dict[str, str] = {}
    for table in tables(run, store):
        keys = [key.hex() for key in table["doc_key"].to_pylist()]
        found |= dict(zip(keys, table["text"].to_pylist(), strict=True))
    return found


def quarantined(run: Path) -> set[str]:
    table = pq.read_table(run / "documents.parquet", filters=pc.field("state") == "quarantined")
    return {key.hex() for key in table["doc_key"].to_pylist()}


def shard_hashes(run: Path) -> dict[str, str]:
    return {p.name: hash_file(p) for p in sorted((run / "documents").glob("*.arrow"))}


def test_every_run_moves_the_texts_and_nothing_else(small_run: Any, allowed: Path) -> None:
    before, after = texts(allowed), texts(small_run.directory)
    held = quarantined(small_run.directory)
    assert held
    assert {key for key in before if after[key] != before[key]} == held
    assert {after[key] for key in held} == {""}
    assert texts(small_run.directory, "quarantine") == {key: before[key] for key in held}
    for one, other in zip(tables(allowed), tables(small_run.directory), strict=True):
        assert one.drop_columns(["text"]).equals(other.drop_columns(["text"]))
    rules = {about.rule for about in list_quarantined(small_run.directory)}
    assert rules == {"origin-listed", "marker-download"}
    verify_run(small_run.directory)


def test_the_text_stands_nowhere_else(small_run: Any, allowed: Path) -> None:
    """Neither in another table, nor in a page."""
    gone = set(texts(small_run.directory, "quarantine").values())
    probes = [text[200:240].encode() for text in gone]
    holds = [
        path.relative_to(small_run.directory).parts[0]
        for path in small_run.directory.rglob("*")
        if path.is_file() and any(probe in path.read_bytes() for probe in probes)
    ]
    assert set(holds) == {"quarantine"}
    openings = [text[:30].encode() for text in gone]
    for page in ("report.html", "clusters.html"):
        assert not any(probe in (small_run.directory / page).read_bytes() for probe in openings)
    assert b"prep quarantine show" in (small_run.directory / "report.html").read_bytes()


def test_nothing_quarantined_makes_no_store(allowed: Path) -> None:
    stage = read_manifest(allowed / "manifests/quarantine.json")
    assert stage is not None
    assert stage.tasks == ()
    assert not (allowed / "quarantine").exists()
    assert not (allowed / "quarantine.json").exists()
    assert list_quarantined(allowed) == []
    verify_run(allowed)


def test_shards_come_back_to_the_byte(run: Path, allowed: Path) -> None:
    with journal.hold_lock(run):
        restore_texts(run)
        assert shard_hashes(run) == shard_hashes(allowed)
        restore_texts(run)
    assert shard_hashes(run) == shard_hashes(allowed)


def test_shards_of_many_batches_come_back_to_the_byte(
    small_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Record batches of a shard stay as the clean stage cut them."""
    monkeypatch.setattr(document_rows, "_TOGETHER", 3000)
    monkeypatch.setattr(document_rows, "_SMALL", 0)
    (tmp_path / "policy.yaml").write_text(ALLOW_ALL)
    policy = f"screen.policy={tmp_path / 'policy.yaml'}"
    one, other = tmp_path / "one", tmp_path / "other"
    pipeline.run(small_run.corpus.config, one, 0)
    pipeline.run(small_run.corpus.config, other, 0, overrides=(policy,))
    assert any(table["text"].num_chunks > 3 for table in tables(one))
    with journal.hold_lock(one):
        restore_texts(one)
    assert shard_hashes(one) == shard_hashes(other)


def changed(name: str, root: Path) -> tuple[str, ...]:
    """Overrides of a config under which some quarantined text has to be looked at again, or has
    not."""
    (root / "allow.yaml").write_text(ALLOW_ALL)
    (root / "other.yaml").write_text(OTHER)
    return {
        "nothing quarantined": (f"screen.policy={root / 'allow.yaml'}",),
        "another policy": (f"screen.policy={root / 'other.yaml'}",),
        "a registry": ('screen.registry=["builtin:quickstart"]',),
        "read and compared anew": ("clean.min_length=210", "dedup.preset=none"),
        "repeated lines": ("lines.unit=line", "lines.min_documents=2"),
        "another seed": ("seed=8",),
        "retention": ("screen.quarantine_days=30",),
    }[name]


REUSED = {
    "nothing quarantined": {"clean", "signatures", "bands", "screen"},
    "another policy": {"clean", "signatures", "bands", "screen"},
    "a registry": {"clean", "signatures", "bands"},
    "read and compared anew": {"plan", "registry"},
    "repeated lines": {"clean", "screen", "verdicts", "keep", "quarantine", "tokenizer"},
    "another seed": {"clean", "screen", "verdicts", "quarantine", "tokenizer"},
    "retention": {"clean", "screen", "verdicts", "keep", "tokenize", "pack", "account"},
}


@pytest.fixture(scope="module")
def fresh(small_run: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The hash of all files of a run that began with a change."""

    @functools.cache
    def hash_of(change: str) -> str:
        root = tmp_path_factory.mktemp("fresh")
        pipeline.run(small_run.corpus.config, root / "run", 0, overrides=changed(change, root))
        return tree_hash(root / "run")

    return hash_of


@pytest.mark.parametrize(
    "change",
    mark_slow(REUSED, "nothing quarantined", "another seed", "a registry", "repeated lines"),
)
def test_a_changed_run_equals_a_fresh_one(
    change: str, run: Path, small_run: Any, tmp_path: Path, fresh: Callable[[str], str]
) -> None:
    """There and back: stages that need not run again do not, and all bytes are the same."""
    overrides = changed(change, tmp_path)
    again = pipeline.run(small_run.corpus.config, run, 0, overrides=overrides)
    assert tree_hash(run) == fresh(change)
    assert REUSED[change] <= set(again.reused)
    held = quarantined(run)
    assert texts(run, "quarantine").keys() == held
    assert all((texts(run)[key] == "") == (key in held) for key in texts(run))
    verify_run(run)
    pipeline.run(small_run.corpus.config, run, 0)
    assert tree_hash(run) == tree_hash(small_run.directory)


def test_an_unchanged_run_reuses_everything(run: Path, small_run: Any) -> None:
    stamps = {p: p.stat().st_mtime_ns for p in (run / "documents").iterdir()}
    manifest = pipeline.run(small_run.corpus.config, run, 0)
    assert set(manifest.reused) == set(manifest.stages)
    assert "quarantine" in manifest.stages
    assert {p: p.stat().st_mtime_ns for p in (run / "documents").iterdir()} == stamps


def test_retention_alone_moves_nothing(run: Path, small_run: Any) -> None:
    stamps = {p: p.stat().st_mtime_ns for p in (run / "documents").iterdir()}
    pipeline.run(small_run.corpus.config, run, 0, overrides=("screen.quarantine_days=30",))
    assert {p: p.stat().st_mtime_ns for p in (run / "documents").iterdir()} == stamps
    assert json.loads((run / "quarantine.json").read_bytes()) == {"days": 30}


def test_a_released_document_is_taken_in(run: Path, small_run: Any, allowed: Path) -> None:
    book = next(a for a in list_quarantined(run) if a.rule == "marker-download")
    release_quarantined(run, book.key, "Jane", "own work")
    pipeline.run(small_run.corpus.config, run, 0)
    fresh = run.parent / "fresh"
    fresh.mkdir()
    for name in ("reviews.jsonl", "events.jsonl", "events.head"):
        shutil.copy(run / name, fresh / name)
    pipeline.run(small_run.corpus.config, fresh, 0)
    assert tree_hash(run) == tree_hash(fresh)
    assert book.key not in quarantined(run)
    assert texts(run)[book.key] == texts(allowed)[book.key]
    assert book.key not in texts(run, "quarantine")
    ends = pq.read_table(run / "documents.parquet").to_pylist()
    [end] = [row for row in ends if row["doc_key"].hex() == book.key]
    assert end["state"] == "kept"
    assert end["tokens"] > 0


@pytest.mark.parametrize("place", ["quarantine", "documents"])
@pytest.mark.parametrize("how", ["deleted", "damaged"])
def test_a_damaged_shard_is_made_again(place: str, how: str, run: Path, small_run: Any) -> None:
    """From the raw shards: what is lost on one side is not taken from the other."""
    name = next((run / "quarantine").glob("*.arrow")).name
    path = run / place / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    if how == "damaged":
        path.write_bytes(data)
    pipeline.run(small_run.corpus.config, run, 0)
    assert tree_hash(run) == tree_hash(small_run.directory)


def test_a_command_that_screens_nothing_leaves_them(run: Path, small_run: Any) -> None:
    """`prep clean` in the directory of a `prep run`."""
    loaded = load_config(small_run.corpus.config)
    with pytest.raises(ConfigError, match="holds a run of `prep run`; choose another --out"):
        run_config(loaded, run, 0, story=make_clean_story("jsonl"))
    assert tree_hash(run) == tree_hash(small_run.directory)


def test_screening_alone_moves_them_too(run: Path, small_run: Any, tmp_path: Path) -> None:
    loaded = load_config(small_run.corpus.config)
    run_config(loaded, tmp_path / "screened", 0, story=SCREEN)
    assert shard_hashes(tmp_path / "screened") == shard_hashes(run)
    assert texts(tmp_path / "screened", "quarantine") == texts(run, "quarantine")
    verify_run(tmp_path / "screened")


@pytest.mark.crash
@pytest.mark.parametrize("change", ["another policy", "repeated lines"])
@pytest.mark.parametrize("stride", [499, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.timeout(1800)
def test_killed_while_texts_go_back_and_forth(
    change: str,
    stride: int,
    run: Path,
    small_run: Any,
    tmp_path: Path,
    fresh: Callable[[str], str],
) -> None:
    """A kill at any fault point of a run that needs the texts, and of the one that goes on, ends in
    the bytes of a fresh run."""
    overrides = changed(change, tmp_path)
    out, expected = tmp_path / "killed", fresh(change)
    number = 1 + date.today().toordinal() % stride
    while True:
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(run, out)

        def call() -> None:
            pipeline.run(small_run.corpus.config, out, 0, overrides=overrides)

        code = forked(call, f"*@{number}=kill")
        if code == 0:
            break
        assert code == -signal.SIGKILL
        assert forked(call, f"storage.publish.renamed@{1 + number % 5}=kill") in (
            0,
            -signal.SIGKILL,
        )
        call()
        assert tree_hash(out) == expected, number
        number += stride
    assert number > 100
