"""Runs with raw shards cut into parts: records, places and bytes as when they are read whole."""

import io
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config.prep import DedupConfig, ReadConfig, load_config
from pipeline.core import zstd
from pipeline.core.errors import InputError
from pipeline.core.hashes import hash_bytes, hash_file, tree_hash
from pipeline.sources.streams import decompress_blocks
from pipeline.stages.pieces import pieces_stage
from pipeline.stages.tables import sources_stage
from pipeline.stories.dedup import DEDUP, make_dedup_config
from pipeline.stories.loop import StageRecord
from pipeline.stories.preparation import (
    PREPARATION,
    Preparation,
    Story,
    Unchanged,
    prepare,
    read_inputs,
)
from pipeline.stories.run import run_preparation
from pipeline.stories.status import delete_intermediates
from tests.forked import prep_in_fork
from tests.pipeline.packed import PACKED

CONFIG = """\
name: tiny
inputs: [{name: web, path: raw}]
pack: {max_sequence_length: 64, bucket_tokens: 8192}
"""
SMALL = "read.task_bytes=6000"


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory, write_prose: Callable[..., str]) -> Path:
    """Five shards of which four are too large for one task, with duplicates across their parts."""
    root = tmp_path_factory.mktemp("large")
    (root / "raw").mkdir()
    (root / "c.yaml").write_text(CONFIG)
    for shard, name in enumerate(
        ("a.jsonl", "b.jsonl.zst", "c.jsonl.zst", "d.jsonl.gz", "e.jsonl")
    ):
        lines = []
        for i in range(6 if name == "e.jsonl" else 60):
            text = write_prose(i % 50 if i % 9 == 0 else shard * 1000 + i, 90)
            lines += [json.dumps({"text": text}).encode(), *([b"  \r"] if i % 11 == 4 else [])]
        lines.insert(40, b'{"text": "cut') if len(lines) > 40 else None
        data = b"\n".join(lines)
        cuts = list(range(0, len(data), 700)) if name == "c.jsonl.zst" else []
        (root / "raw" / name).write_bytes(PACKED[name[1:]](data, cuts))
    return root


OVERRIDES = ("read.max_bad_share=10%",)


def _read(prepared: Preparation, run: StageRecord, unchanged: Unchanged) -> None:
    """The beginning of every story: raw shards to documents/ and drops/."""
    run(sources_stage(*read_inputs(prepared, run, unchanged)))


READ = Story("prepare", _read)


def run(root: Path, out: Path, *overrides: str, workers: int = 0, story: Story = READ) -> Any:
    config = load_config(root / "c.yaml", (*OVERRIDES, *overrides))
    return run_preparation(config, out, workers, story=story)


def made(tmp_path_factory: pytest.TempPathFactory, *arguments: Any, **more: Any) -> Path:
    out = tmp_path_factory.mktemp("made") / "run"
    run(arguments[0], out, *arguments[1:], **more)
    return out


@pytest.fixture(scope="module")
def read_whole(collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory, collection)


@pytest.fixture(scope="module")
def read_cut(collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory, collection, SMALL)


@pytest.fixture(scope="module")
def whole(collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory, collection, story=PREPARATION)


@pytest.fixture(scope="module")
def cut(collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory, collection, SMALL, story=PREPARATION)


def records_of(out: Path) -> list[pa.Table]:
    """documents/ and drops/ in order, without the row addresses of the run."""
    documents = [
        pa.ipc.open_file(path).read_all() for path in sorted((out / "documents").glob("*.arrow"))
    ]
    drops = [pq.read_table(path) for path in sorted((out / "drops").glob("*.parquet"))]
    both = (pa.concat_tables(tables) for tables in (documents, drops))
    return [table.drop_columns("doc_id").combine_chunks() for table in both]


def tree(directory: Path) -> dict[str, str]:
    return {
        path.relative_to(directory).as_posix(): hash_file(path)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_the_run_is_the_same(whole: Path, cut: Path) -> None:
    """Every record at its place with its key and end, every text, and the HDF5 byte for byte."""
    assert len(list((cut / "documents").iterdir())) > 20
    assert len(list((cut / "pieces").iterdir())) > 5
    assert not (whole / "pieces").exists()
    one, other = (pq.read_table(out / "documents.parquet") for out in (whole, cut))
    assert one.equals(other)
    assert records_of(whole) == records_of(cut)
    assert tree(whole / "hdf5") == tree(cut / "hdf5")
    assert (whole / "ledger.json").read_bytes() == (cut / "ledger.json").read_bytes()


def test_tables_of_the_inputs(read_whole: Path, read_cut: Path, collection: Path) -> None:
    """A row per raw shard with its own hash; `task` is its first task, `tasks` how many it has."""
    tables = [
        pq.read_table(out / "sources.parquet").drop_columns("task")
        for out in (read_whole, read_cut)
    ]
    assert tables[0].equals(tables[1])
    for row in tables[1].to_pylist():
        assert row["hash"] == hash_file(collection / "raw" / row["path"])
    rows = pq.read_table(read_cut / "inputs.parquet").to_pylist()
    assert [row["task"] for row in rows[1:]] == [row["task"] + row["tasks"] for row in rows[:-1]]
    assert [row["tasks"] > 1 for row in rows] == [True] * 4 + [False]


def test_any_number_of_workers(
    collection: Path, read_cut: Path, tmp_path: Path, two_workers: int
) -> None:
    run(collection, tmp_path / "run", SMALL, workers=two_workers)
    assert tree_hash(tmp_path / "run") == tree_hash(read_cut)


@pytest.mark.parametrize("hit", [4, 7, 12])
def test_killed_among_the_pieces(
    collection: Path, read_cut: Path, tmp_path: Path, hit: int
) -> None:
    """What was published before is published again, byte for byte, and nothing else is left."""
    command = ("run", collection / "c.yaml", "--out", tmp_path / "run", "--workers", 0,
               "--set", SMALL, "--set", OVERRIDES[0])  # fmt: skip
    ended = prep_in_fork(*command, fault=f"storage.publish.renamed@{hit}=kill")
    assert ended.code == -signal.SIGKILL
    assert not (tmp_path / "run/manifests/pieces.json").exists()
    run(collection, tmp_path / "run", SMALL)
    assert tree_hash(tmp_path / "run") == tree_hash(read_cut)


def test_reuse_and_clean_up(collection: Path, tmp_path: Path) -> None:
    """A second run does nothing; pieces go with clean-up and come back when clean needs them."""
    out = tmp_path / "run"
    first = run(collection, out, SMALL)
    removed, _ = delete_intermediates(out)
    assert "pieces" in removed
    assert set(run(collection, out, SMALL).reused) == set(first.stages)
    again = run(collection, out, SMALL, "clean.min_length=201")
    assert "plan" in again.reused and "clean" not in again.reused
    assert (out / "pieces").exists()
    fresh = tmp_path / "fresh"
    run(collection, fresh, SMALL, "clean.min_length=201")
    assert records_of(fresh) == records_of(out)


def copy_of(collection: Path, root: Path) -> Path:
    (root / "raw").mkdir(parents=True)
    for path in (collection / "c.yaml", *(collection / "raw").iterdir()):
        (root / path.relative_to(collection)).write_bytes(path.read_bytes())
    return root


def test_a_changed_file_is_cut_again(collection: Path, tmp_path: Path) -> None:
    root = copy_of(collection, tmp_path / "copy")
    run(root, tmp_path / "run", SMALL)
    path = root / "raw/b.jsonl.zst"
    data = b"".join(decompress_blocks(path, io.BytesIO(path.read_bytes()), "zst"))
    path.write_bytes(zstd.compress(data.replace(b"harbour", b"seaport")))
    run(root, tmp_path / "run", SMALL)
    run(root, tmp_path / "fresh", SMALL)
    assert tree_hash(tmp_path / "run") == tree_hash(tmp_path / "fresh")


@pytest.fixture
def damaged(collection: Path, tmp_path: Path) -> Path:
    """The collection with a large file whose last bytes are missing."""
    root = copy_of(collection, tmp_path / "damaged")
    large = root / "raw/b.jsonl.zst"
    large.write_bytes(large.read_bytes()[:-3])
    return root


def test_damage_in_the_last_part_fails(damaged: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"raw/b\.jsonl\.zst: cut off in the middle"):
        run(damaged, tmp_path / "run", SMALL)
    assert not (tmp_path / "run/documents").exists()


def test_damage_in_the_last_part_leaves_the_whole_file_out(damaged: Path, tmp_path: Path) -> None:
    """Never counted by half: as if it had been read whole."""
    skip = "read.on_bad_shard=skip"
    runs = run(damaged, tmp_path / "cut", SMALL, skip), run(damaged, tmp_path / "whole", skip)
    assert records_of(tmp_path / "cut") == records_of(tmp_path / "whole")
    noted = [
        [shard for task in made.stages["clean"].tasks for shard in task.counters["skipped_shards"]]
        for made in runs
    ]
    problem = "b.jsonl.zst: cut off in the middle of the compressed data"
    assert noted[0] == noted[1] == [["web", "b.jsonl.zst", problem]]
    sources = pq.read_table(tmp_path / "cut/sources.parquet").to_pylist()
    assert [row["skipped"] for row in sources] == ["", problem, "", "", ""]


def test_parquet_damaged_in_the_middle(tmp_path: Path) -> None:
    """Found before any part is cleaned, though only a page inside is wrong."""
    (tmp_path / "raw").mkdir()
    (tmp_path / "c.yaml").write_text(CONFIG)
    texts = [hash_bytes(b"%d" % i) * 9 for i in range(400)]
    path = tmp_path / "raw/a.parquet"
    pq.write_table(pa.table({"text": texts}), path, row_group_size=50, compression="zstd")
    (tmp_path / "raw/b.jsonl").write_text(json.dumps({"text": texts[0]}) + "\n")
    data = bytearray(path.read_bytes())
    start = pq.read_metadata(path).row_group(6).column(0).dictionary_page_offset
    data[start : start + 200] = bytes(200)
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"a\.parquet: not a valid parquet file"):
        run(tmp_path, tmp_path / "run", SMALL)
    run(tmp_path, tmp_path / "run", SMALL, "read.on_bad_shard=skip")
    documents, drops = records_of(tmp_path / "run")
    assert documents["path_id"].to_pylist() == [1] and len(drops) == 0


def test_bad_records_that_refuse_a_shard_leave_it_uncut(collection: Path, tmp_path: Path) -> None:
    """`on_bad_record: fail` with `on_bad_shard: skip`: known only when all of it was read."""
    rules = ("read.on_bad_record=fail", "read.on_bad_shard=skip")
    run(collection, tmp_path / "cut", SMALL, *rules)
    run(collection, tmp_path / "whole", *rules)
    assert not (tmp_path / "cut/pieces").exists()
    assert records_of(tmp_path / "cut") == records_of(tmp_path / "whole")
    with pytest.raises(InputError, match=r"a\.jsonl:41: bad record: bad_json"):
        run(collection, tmp_path / "fail", SMALL, rules[0])


def test_plan_shows_the_cut(collection: Path, tmp_path: Path, prep: Callable[..., Any]) -> None:
    shown = prep("plan", collection / "c.yaml", "--out", tmp_path / "x", "--set", SMALL).out
    assert "pieces" in shown
    assert "pieces" not in prep("plan", collection / "c.yaml", "--out", tmp_path / "x").out
    loaded = load_config(collection / "c.yaml", (SMALL,))
    plan = prepare(loaded, tmp_path / "x").plan
    sizes = [file.text_estimate for file in plan.files]
    assert len(plan.estimate) == sum(-(-size // 6000) for size in sizes)
    assert max(plan.estimate) <= 6000


def test_memory_to_cut_a_file_does_not_grow_with_it(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "c.yaml").write_text(CONFIG)
    for size in (1 << 30, 1 << 40):
        with open(tmp_path / "raw/a.jsonl", "wb") as file:
            file.truncate(size)
        prepared = prepare(load_config(tmp_path / "c.yaml"), tmp_path / "x")
        stage = pieces_stage(prepared.config, prepared.plan, lambda counters: False)
        assert stage is not None
        assert stage.tasks[0].peak_memory < 1 << 30


def test_explain_finds_a_line_of_a_later_part(
    cut: Path, whole: Path, prep: Callable[..., Any]
) -> None:
    there = [prep("explain", out, "web/b.jsonl.zst:57") for out in (cut, whole)]
    assert there[0].code == there[1].code == 0
    assert there[0].out == there[1].out


def test_dedup_copies_the_kept_records(collection: Path, tmp_path: Path) -> None:
    """`prep dedup` writes one file per raw shard, however many tasks read it."""
    for name, size in (("cut", 6000), ("whole", 64 << 20)):
        read = ReadConfig(task_bytes=size, max_bad_share=1.0)
        loaded = make_dedup_config(
            [str(collection / "raw")], DedupConfig(max_source_share=1.0), read=read
        )
        run_preparation(loaded, tmp_path / name, 0, story=DEDUP)
    assert len(list((tmp_path / "cut/documents").iterdir())) > 20
    assert tree(tmp_path / "cut/records") == tree(tmp_path / "whole/records")
    assert len(tree(tmp_path / "cut/records")) == 5
