"""Tables of several parts: the same rows as in one, whoever reads them; and runs of a version that
wrote each table as one file."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline
from pipeline.core.errors import IntegrityError
from pipeline.core.hashes import hash_file
from pipeline.core.manifest import (
    TaskRecord,
    read_manifest,
    read_sealed,
    write_manifest,
    write_sealed,
)
from pipeline.runs import parts
from pipeline.runs.records import DocumentTable
from tests.forked import Ended

TABLES = (
    "documents.parquet",
    "clusters.parquet",
    "evidence.parquet",
    "decisions.parquet",
    "lines.parquet",
    "hdf5/train/inverse.parquet",
)
SETTINGS = (
    "mixture={epochs: {Wiki: 1.5}}",
    "lines={unit: line, min_characters: 10, min_documents: 2}",
)


@dataclass(frozen=True)
class Both:
    """The same corpus as a run whose tables are one part each, and as one with a part per task."""

    whole: Path
    parted: Path


@pytest.fixture(scope="module")
def both(
    make_corpus: Callable[..., Any],
    new_shard: Callable[..., Any],
    write_prose: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Both]:
    root = tmp_path_factory.mktemp("parts")
    corpus = make_corpus(root / "corpus")
    writer = new_shard(corpus, "web", "lines.jsonl")
    for number in range(3):
        writer.add("line", f"A line that repeats.\n{write_prose(60_000 + number)}")
    writer.write()
    config = corpus.config
    pipeline.run(config, root / "whole", 0, overrides=SETTINGS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "TASKS", 1)
        patch.setattr(parts, "RECORDS", 4)
        pipeline.run(config, root / "parted", 0, overrides=SETTINGS)
        yield Both(root / "whole", root / "parted")


@pytest.fixture(scope="module")
def older(both: Both, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run as an earlier version left it: each table one file, by one task without counters."""
    run = tmp_path_factory.mktemp("older") / "run"
    shutil.copytree(both.parted, run)
    for table in TABLES:
        _write_as_one_file(run, table)
    manifest = read_sealed(run / "manifest.json")
    manifest["files"] = [
        _measured(run, f) for f in manifest["files"] if (run / f["path"]).is_file()
    ]
    known = {f["path"] for f in manifest["files"]}
    manifest["files"] += [_measured(run, {"path": t}) for t in TABLES if t not in known]
    write_sealed(run / "manifest.json", manifest)
    return run


def _write_as_one_file(run: Path, table: str) -> None:
    rows = pq.read_table(run / table)
    shutil.rmtree(run / table)
    pq.write_table(rows, run / table)
    for path in (run / "manifests").glob("*.json"):
        manifest = read_manifest(path)
        assert manifest is not None
        shards = [s for s in manifest.shards if s.path.startswith(f"{table}/")]
        if not shards:
            continue
        file = replace(shards[0], path=table, size=(run / table).stat().st_size)
        file = replace(file, hash=hash_file(run / table))
        others = tuple(s for s in manifest.shards if s not in shards)
        record = TaskRecord("0" * 32, (*others, file))
        fields = {**manifest.fields, "version": 0}
        write_manifest(
            path, replace(manifest, fingerprint="0" * 32, fields=fields, tasks=(record,))
        )


def _measured(run: Path, entry: dict[str, Any]) -> dict[str, Any]:
    path = run / entry["path"]
    return {**entry, "size": path.stat().st_size, "hash": hash_file(path)}


@pytest.mark.parametrize("table", TABLES)
def test_the_parts_hold_the_rows_of_the_whole(both: Both, table: str) -> None:
    assert len(list((both.parted / table).iterdir())) > 1
    assert len(list((both.whole / table).iterdir())) == 1
    whole, parted = (pq.read_table(run / table) for run in (both.whole, both.parted))
    assert len(whole) > 0
    assert parted.schema.equals(whole.schema, check_metadata=True)
    assert parted.equals(whole)


def test_nothing_else_depends_on_the_parts(both: Both) -> None:
    def contents(run: Path) -> dict[str, bytes]:
        files = [run / "ledger.json", *run.glob("hdf5/*/*.h5"), *run.glob("mixture/*")]
        return {str(path.relative_to(run)): path.read_bytes() for path in files}

    assert contents(both.parted) == contents(both.whole)


def test_rows_and_names_lead_to_the_same_documents(both: Both) -> None:
    whole, parted = DocumentTable(both.whole), DocumentTable(both.parted)
    assert len(parted) == len(whole)
    rows = np.random.default_rng(1).permutation(len(whole))
    columns = ["doc_key", "source", "line", "tokens"]
    assert parted.take(rows, columns).to_pylist() == whole.take(rows, columns).to_pylist()
    for name in (
        "web/d.jsonl:3",
        "papers/part-0.parquet",
        whole.take(rows, columns)["doc_key"][0].as_py().hex(),
    ):
        assert parted.find(name).tolist() == whole.find(name).tolist()


def test_verify(both: Both) -> None:
    def checks(run: Path) -> list[tuple[str, str]]:
        found = [(check.name, check.detail) for check in pipeline.verify(run)]
        return [check for check in found if check[0] != "hashes"]

    assert checks(both.parted) == checks(both.whole)


@pytest.mark.parametrize("command", ["repack", "export"])
def test_what_is_made_from_a_run(
    both: Both, older: Path, command: str, prep: Callable[..., Ended], tmp_path: Path
) -> None:
    def contents(run: Path) -> dict[str, bytes]:
        out = tmp_path / run.name / run.parent.name
        ended = prep(command, run, "--out", out, "--workers", 0)
        assert ended.code == 0, ended.err
        files = [*out.glob("hdf5/*/*.h5"), *out.glob("records/*/*"), *out.glob("ledger.json")]
        assert files
        return {str(path.relative_to(out)): path.read_bytes() for path in files}

    assert contents(both.parted) == contents(both.whole) == contents(older)


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", "web/d.jsonl:3"),
        ("trace", "--file", "hdf5/train/examples_000000.h5[2]"),
        ("trace", "--document", "web/d.jsonl:3"),
        ("inspect", "--dropped", "too_short"),
        ("search", "harbour"),
        ("verify",),
    ],
)
def test_commands_read_either(
    both: Both, older: Path, arguments: tuple[str, ...], prep: Callable[..., Ended]
) -> None:
    def say(run: Path) -> str:
        ended = prep(arguments[0], run, *arguments[1:])
        assert ended.code == 0, ended.err
        lines = ended.out.replace(str(run), "RUN").splitlines()
        return "\n".join(line for line in lines if "hashes" not in line)

    assert say(older) == say(both.parted)


def test_a_newer_version_makes_parts_of_the_file(
    both: Both, older: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(older, run)
    config = both.whole.parent / "corpus" / "tiny.yaml"
    pipeline.run(config, run, 0, overrides=SETTINGS)
    for table in TABLES:
        assert (run / table).is_dir()
        assert pq.read_table(run / table).equals(pq.read_table(both.whole / table))
    pipeline.verify(run)


@pytest.mark.parametrize("library", ["duckdb", "polars"])
def test_query_engines_read_them(both: Both, library: str) -> None:
    module = pytest.importorskip(library, reason="an extra of the tests")
    rows = pq.read_table(both.parted / "documents.parquet", columns=["doc_key"])
    files = f"{both.parted}/documents.parquet/*.parquet"
    if library == "duckdb":
        found = module.sql(f"SELECT doc_key FROM '{files}'").fetchall()
        keys = [key for (key,) in found]
    else:
        keys = module.read_parquet(both.parted / "documents.parquet")["doc_key"].to_list()
    assert keys == rows["doc_key"].to_pylist()


def test_a_missing_part_is_named(both: Both, tmp_path: Path, prep: Callable[..., Ended]) -> None:
    run = tmp_path / "run"
    shutil.copytree(both.parted, run)
    (run / "documents.parquet" / "000001.parquet").unlink()
    ended = prep("verify", run)
    assert ended.code == 4
    assert "documents.parquet/000001.parquet" in ended.err
    shutil.rmtree(run / "documents.parquet")
    (run / "documents.parquet").mkdir()
    with pytest.raises(IntegrityError, match=r"documents\.parquet: no part"):
        DocumentTable(run)


@given(st.lists(st.integers(0, parts.RECORDS * 2), max_size=60))
def test_groups_of_tasks(records: list[int]) -> None:
    groups = parts.group_tasks(records)
    assert [task for group in groups for task in group] == list(range(len(records)))
    for group in groups:
        assert 1 <= len(group) <= parts.TASKS
        assert sum(records[group.start : group.stop - 1]) < parts.RECORDS


def test_row_groups_of_several_files(tmp_path: Path) -> None:
    table = pa.table({"doc": pa.array(range(10), pa.uint32()), "label": ["a", "b"] * 5})
    directory = tmp_path / "table.parquet"
    directory.mkdir()
    pq.write_table(table.slice(0, 7), directory / "000000.parquet", row_group_size=3)
    pq.write_table(table.slice(7), directory / "000001.parquet", row_group_size=3)
    groups = parts.RowGroups(directory, ["label"])
    assert groups.starts.tolist() == [0, 3, 6, 7, 10]
    assert [groups.bounds(group, "doc") for group in range(4)] == [(0, 2), (3, 5), (6, 6), (7, 9)]
    assert groups.read([1, 3])["doc"].to_pylist() == [3, 4, 5, 7, 8, 9]
    assert groups.read([1, 3])["label"].cast(pa.string()).to_pylist() == [
        "b",
        "a",
        "b",
        "b",
        "a",
        "b",
    ]
    assert groups.read([]).schema.names == ["doc", "label"]
    (directory / "000001.parquet").unlink()
    with pytest.raises(IntegrityError, match=r"000001\.parquet: missing or damaged"):
        groups.read([3])


PEAK = """
import sys
from pathlib import Path
import pyarrow as pa, pyarrow.compute as pc, pyarrow.parquet as pq
from pipeline.disclosure.counts import CountedDocuments
from pipeline.runs.records import DocumentTable

run, parts, rows = Path(sys.argv[1]), int(sys.argv[2]), 20_000
names = ["source", "licence", "state", "reason", "decision", "rule", "split"]
(run / "documents.parquet").mkdir(parents=True)
pq.write_table(pa.table({"input": ["web"], "path": ["a.jsonl"]}), run / "sources.parquet")
for part in range(parts):
    keys = [(part * rows + row).to_bytes(16, "little") for row in range(rows)]
    numbers = {n: pa.array(range(rows), pa.uint32()) for n in ("path_id", "text_bytes", "tokens")}
    texts = {name: [f"{name} {row % 7}" for row in range(rows)] for name in names}
    table = pa.table({"doc_key": pa.array(keys, pa.binary(16)), **texts, **numbers})
    pq.write_table(table, run / f"documents.parquet/{part:06d}.parquet")
    del table, keys, numbers, texts
few = pa.array([b"\\1" + bytes(15), (parts * rows - 1).to_bytes(16, "little")], pa.binary(16))
before = pa.default_memory_pool().max_memory()
for _ in range(2):
    counted, documents = CountedDocuments(run), DocumentTable(run)
    assert len(counted.group(["source", "licence"], pc.field("state") != "kept")) == 7
    assert len(counted.look_up(pa.chunked_array([few]), "decision")) == 2
    assert len(documents.rows_of_keys(few)) == 2
    assert len(documents.rows_of_source("kept")) == 0
print(before, pa.default_memory_pool().max_memory())
"""


def test_readers_hold_one_part_at_a_time(tmp_path: Path) -> None:
    """Peaks of Arrow's memory in fresh processes: writing one part took as much as reading may."""
    for parts_of_run in (2, 16):
        arguments = [str(tmp_path / f"{parts_of_run}"), str(parts_of_run)]
        command = [sys.executable, "-c", PEAK, *arguments]
        ended = subprocess.run(command, capture_output=True, check=True, text=True)
        written, peak = map(int, ended.stdout.split())
        assert peak < 1.5 * written, parts_of_run
