"""The same input and config give the same bytes, wherever and however they are run."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.core import rng
from pipeline.core.hashes import tree_hash
from pipeline.hdf5.read import open_dataset
from pipeline.lineage.trace import trace_row
from pipeline.stories.verify import verify_run
from tests.pipeline.trees import differences

TREE_HASH = tree_hash


@pytest.fixture(scope="module")
def expected(small_run: Any) -> str:
    return TREE_HASH(small_run.directory)


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_workers(
    workers: int, corpus: Any, tmp_path: Path, prep_process: Callable[..., Any]
) -> None:
    """Dask worker processes against a run in this process, with shards cut into pieces."""
    out, pieces = tmp_path / "run", "read.task_bytes=40000"
    ended = prep_process("run", corpus.config, "--out", out, "--workers", workers, "--set", pieces)
    assert ended.code == 0, ended.err
    here = pipeline.run(corpus.config, tmp_path / "here", 0, overrides=(pieces,))
    assert "pieces" in here.stages
    assert differences(out, here.directory) == []
    assert f'"workers": {workers}' in (out / "journal/events.jsonl").read_text()


@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "C", "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "1", "PYTHONUTF8": "0",
         "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "ARROW_NUM_THREADS": "1"},
        pytest.param(
            {"LC_ALL": "tr_TR.UTF-8", "TZ": "America/St_Johns", "PYTHONHASHSEED": "4242"},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["C-Tokyo", "Turkish-Newfoundland"],
)  # fmt: skip
def test_environment(
    environment: dict[str, str], expected: str, corpus: Any, tmp_path: Path,
    prep_process: Callable[..., Any],
) -> None:  # fmt: skip
    """Another cwd, a relative config path, locale, time zone, hash seed, thread counts."""
    cwd = tmp_path / "else where"
    cwd.mkdir()
    config = os.path.relpath(corpus.config, cwd)
    ended = prep_process("run", config, "--workers", 0, cwd=cwd, **environment)
    assert ended.code == 0, ended.err
    assert TREE_HASH(cwd / "runs/tiny") == expected


def test_order_of_inputs_and_listing(
    expected: str, make_corpus: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs named in another order, files listed backwards, copied with other times."""
    corpus = make_corpus(tmp_path / "corpus")
    text = corpus.config.read_text()
    web, papers = "  - name: web\n    path: raw/web\n", "  - name: papers\n    path: raw/papers\n"
    assert web + papers in text
    corpus.config.write_text(text.replace(web + papers, papers + web))
    for number, path in enumerate(sorted((corpus.root / "raw").rglob("*.*"))):
        os.utime(path, (number, 10**9 - number))
    forwards = Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda self, what: reversed(list(forwards(self, what))))
    pipeline.run(corpus.config, tmp_path / "run", 0)
    assert TREE_HASH(tmp_path / "run") == expected


def test_moved_directory(
    expected: str, small_run: Any, tmp_path: Path, prep: Callable[..., Any]
) -> None:
    """DIR is relocatable: it verifies and traces elsewhere, without its inputs."""
    shard = Path("hdf5/train/examples_000000.h5")
    before = trace_row(small_run.directory, shard, 5)
    shutil.copytree(small_run.directory, tmp_path / "first")
    moved = tmp_path / "an other place" / "run"
    moved.parent.mkdir()
    (tmp_path / "first").rename(moved)
    assert TREE_HASH(moved) == expected
    verify_run(moved)
    assert trace_row(moved, shard, 5) == before
    again = prep("run", small_run.corpus.config, "--out", moved, "--workers", 0)
    assert "everything was up to date" in again.out


def test_task_and_bucket_sizes_change_no_row(small_run: Any, tmp_path: Path) -> None:
    """How work is cut is no part of the result: the same rows, documents and ledger."""
    overrides = ("read.task_bytes=4096", "pack.bucket_tokens=2048", "hdf5.shard_bytes=268435456")
    pipeline.run(small_run.corpus.config, tmp_path / "run", 0, overrides=overrides)
    first = open_dataset(small_run.directory / "hdf5/train")
    second = open_dataset(tmp_path / "run/hdf5/train")
    rows = np.arange(first.rows)
    assert (first.read(rows) == second.read(rows)).all()
    assert len(list((tmp_path / "run/documents.parquet").iterdir())) > 1
    for name in ("documents.parquet", "clusters.parquet", "decisions.parquet"):
        assert pq.read_table(tmp_path / "run" / name).equals(small_run.table(name))
    ledger = (tmp_path / "run" / "ledger.json").read_bytes()
    assert ledger == (small_run.directory / "ledger.json").read_bytes()


def facts(directory: Path) -> dict[bytes, dict[str, Any]]:
    rows = pq.read_table(directory / "documents.parquet").to_pylist()
    return {row["doc_key"]: row for row in rows}


def stream_order(documents: dict[bytes, dict[str, Any]], directory: Path) -> dict[str, list[bytes]]:
    """Keys in the order in which the published rows hold them, per split."""
    keys = list(documents)
    orders = {}
    for split in ("train", "validation"):
        first: dict[int, tuple[int, int]] = {}
        for path in (directory / "hdf5" / split).glob("*.lineage.parquet"):
            for span in pq.read_table(path).to_pylist():
                place = span["stream_row"], span["token_start"]
                first[span["doc"]] = min(place, first.get(span["doc"], place))
        orders[split] = [keys[d] for d in sorted(first, key=first.__getitem__)]
    return orders


def check_grown(before_dir: Path, after_dir: Path) -> tuple[set[bytes], set[bytes]]:
    """Adding shards moved no document; returns (new keys, old ones with a new representative)."""
    before, after = facts(before_dir), facts(after_dir)
    assert set(before) < set(after)
    new = set(after) - set(before)
    stood_for = {k for k in before if after[k]["representative"] in new}
    place = ("source", "line", "byte_offset", "byte_length", "text_bytes", "decision", "rule")
    for key, old in before.items():
        assert [after[key][n] for n in place] == [old[n] for n in place]
        if key not in stood_for:
            assert after[key]["split"] == old["split"]
    old_order, new_order = stream_order(before, before_dir), stream_order(after, after_dir)
    for split in old_order:
        stayed = set(old_order[split]) & set(new_order[split])
        kept_order = [k for k in new_order[split] if k in stayed]
        assert kept_order == [k for k in old_order[split] if k in stayed]
        assert set(old_order[split]) - stayed <= stood_for
    return new, stood_for


def test_one_more_shard(
    make_corpus: Callable[..., Any], new_shard: Callable[..., Any], write_prose: Callable[..., str],
    small_run: Any, tmp_path: Path,
) -> None:  # fmt: skip
    """A shard listed before all others; one of its documents becomes a representative."""
    corpus = make_corpus(tmp_path / "corpus")
    target = next(m for m in corpus.of_kind("plain") if m.source == "Code" and len(m.text) > 1200)
    writer = new_shard(corpus, "papers", "aaa.jsonl")
    for number in range(20):
        writer.add("plain", write_prose(500_000 + number, 90), "Code")
    writer.add("near", target.text, "Wiki")
    writer.add("near", next(m for m in corpus.of_kind("exact")).text, "Code")
    writer.write()
    pipeline.run(corpus.config, tmp_path / "run", 0)
    new, stood_for = check_grown(small_run.directory, tmp_path / "run")
    assert len(new) == 22
    after = facts(tmp_path / "run")
    changed = [after[k] for k in stood_for]
    assert any(r["line"] == target.line and r["state"] == "duplicate" for r in changed)
    verify_run(tmp_path / "run")


def test_incremental_run_equals_a_fresh_one(
    make_corpus: Callable[..., Any], new_shard: Callable[..., Any], write_prose: Callable[..., str],
    small_run: Any, tmp_path: Path,
) -> None:  # fmt: skip
    """Adding a shard to a finished run ends where a run from nothing ends."""
    corpus = make_corpus(tmp_path / "corpus")
    shutil.copytree(small_run.directory, tmp_path / "grown")
    writer = new_shard(corpus, "web", "zzz.jsonl")
    for number in range(10):
        writer.add("plain", write_prose(600_000 + number, 90), "Code")
    writer.write()
    grown = pipeline.run(corpus.config, tmp_path / "grown", 0)
    assert "tokenizer" in grown.reused
    pipeline.run(corpus.config, tmp_path / "fresh", 0)
    assert TREE_HASH(tmp_path / "grown") == TREE_HASH(tmp_path / "fresh")


def test_rank_depends_on_the_key_alone() -> None:
    keys = np.arange(20, dtype=np.uint64).reshape(10, 2)
    together = rng.rank(keys, 7, "shuffle")
    assert [int(rng.rank(k[None], 7, "shuffle")[0]) for k in keys] == together.tolist()


PILE = """\
name: pile
inputs: [{{name: pile, path: "{path}"}}]
read: {{task_bytes: 16 MiB}}
"""


@pytest.mark.slow
@pytest.mark.shared_data
def test_pile_sample_workers(
    shared_data: Path, tmp_path: Path, prep_process: Callable[..., Any]
) -> None:
    config = tmp_path / "pile.yaml"
    config.write_text(PILE.format(path=shared_data / "pile_sample"))
    hashes = set()
    for workers in (1, 2, 4):
        out = tmp_path / f"run-{workers}"
        options = ("--out", out, "--workers", workers)
        environment = {"TZ": f"Etc/GMT+{workers}", "PYTHONHASHSEED": str(workers), "LC_ALL": "C"}
        ended = prep_process("run", config, *options, cwd=tmp_path, timeout=3600, **environment)
        assert ended.code == 0, ended.err
        verify_run(out)
        hashes.add(TREE_HASH(out))
        shutil.rmtree(out)
    assert len(hashes) == 1


@pytest.mark.slow
@pytest.mark.shared_data
def test_pile_sample_thirteenth_shard(shared_data: Path, tmp_path: Path) -> None:
    """The twelfth added to eleven, which is the same question."""
    raw = tmp_path / "raw"
    raw.mkdir()
    shards = sorted((shared_data / "pile_sample").glob("*.jsonl.zst"))
    for shard in shards[1:]:
        (raw / shard.name).symlink_to(shard)
    config = tmp_path / "pile.yaml"
    config.write_text(PILE.format(path=raw))
    pipeline.run(config, tmp_path / "before", 2)
    shutil.copytree(tmp_path / "before", tmp_path / "after")
    (raw / shards[0].name).symlink_to(shards[0])
    pipeline.run(config, tmp_path / "after", 2)
    new, stood_for = check_grown(tmp_path / "before", tmp_path / "after")
    assert len(new) > 2000 and stood_for


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_shards_rebuilt_a_hundred_times(tmp_path: Path, prep_process: Callable[..., Any]) -> None:
    """`prep run quickstart` with one worker and with two, then `rm -rf hdf5` and the same command
    a hundred times, each in fresh processes: one tree."""
    run = tmp_path / "run"
    for directory, workers in ((run, 1), (tmp_path / "two", 2)):
        ended = prep_process(
            "run", "quickstart", "--out", directory, "--workers", workers, timeout=1200
        )
        assert ended.code == 0, ended.err
    assert differences(run, tmp_path / "two") == []
    for attempt in range(100):
        shutil.rmtree(run / "hdf5")
        ended = prep_process("run", "quickstart", "--out", run, "--workers", 0, timeout=1200)
        assert ended.code == 0, ended.err
        assert differences(run, tmp_path / "two") == [], attempt
