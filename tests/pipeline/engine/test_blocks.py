"""What a task reads of a shard, and no more, is verified, and brought from a bucket."""

import errno
import mmap
import os
import random
import shutil
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.core import storage
from pipeline.core.errors import IntegrityError
from pipeline.core.hashes import hash_bytes, verify_file
from pipeline.core.manifest import Shard
from pipeline.core.mirror import fetching, paths
from pipeline.core.mirror.absent import is_absent
from pipeline.core.mirror.listing import open_mirror
from pipeline.core.mirror.paths import mirror_path
from pipeline.engine import arrow_shard, blocks, verified
from pipeline.engine.shared import Shared
from pipeline.engine.stage import Inputs, arrow_output
from pipeline.stages.shuffle import gather
from pipeline.stages.shuffle.stream import Buckets, read_stream

BLOCK = 1 << 12
SHARDS = 16
FLIPS = 300
Usage = namedtuple("Usage", "total used free")


def publish(root: Path, path: str, table: pa.Table) -> Shard:
    output = arrow_output(path, table)
    done = storage.publish(root / path, output.data)
    return Shard(
        path=path, size=done.size, hash=done.hash, content_hash=str(output.content_hash),
        end=output.end,
    )  # fmt: skip


def lists(lengths: "np.ndarray[Any, Any]", rng: np.random.Generator) -> pa.Array:
    ends = np.concatenate([[0], np.cumsum(lengths)])
    tokens = rng.integers(0, 50_000, ends[-1]).astype(np.uint16)
    return pa.LargeListArray.from_arrays(pa.array(ends), pa.array(tokens))


def make_table(rows: int, seed: int) -> pa.Table:
    """Every kind of column that stages write, with nulls."""
    rng = np.random.default_rng(seed)
    words = ["", "a", "word", "b" * 300, None]
    return pa.table(
        {
            "number": np.sort(rng.integers(0, rows, rows)).astype(np.uint32),
            "key": pa.array([rng.bytes(16) for _ in range(rows)], pa.binary(16)),
            "text": pa.array([words[i] for i in rng.integers(0, 5, rows)], pa.large_string()),
            "meta": pa.array([words[i] for i in rng.integers(0, 5, rows)], pa.string()),
            "source": pa.array([f"s{i}" for i in rng.integers(0, 9, rows)]).dictionary_encode(),
            "flag": pa.array([(True, False, None)[i] for i in rng.integers(0, 3, rows)]),
            "tokens": lists(rng.integers(1, 40, rows), rng),
            "parts": pa.array([list(range(i)) for i in rng.integers(0, 9, rows)]),
            "names": pa.array([["x" * i, "y"] for i in rng.integers(0, 9, rows)]),
            "signature": pa.FixedSizeListArray.from_arrays(
                pa.array(rng.integers(0, 99, rows * 8).astype(np.uint64)), 8
            ),
        }
    )


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory, on a host that has verified nothing, with small blocks."""
    monkeypatch.setenv("WAFERMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(blocks, "BLOCK", BLOCK)
    monkeypatch.setattr(blocks, "LEAST", 4 * BLOCK)
    monkeypatch.setattr(arrow_shard, "_SEARCHED", 1 << 9)
    blocks._find_marks.cache_clear()
    return tmp_path / "run"


def test_parts_of_every_kind_of_column_are_those_of_the_table(run: Path) -> None:
    for seed, cuts in enumerate(([0, 900], [0, 333, 334, 900], [0, 0, 900])):
        whole = make_table(900, seed)
        table = pa.concat_tables(
            [whole.slice(a, b - a) for a, b in pairwise(cuts)]
        ).unify_dictionaries()
        shard = publish(run, "a.arrow", table)
        assert shard.end is not None
        assert pa.ipc.open_file(run / "a.arrow").read_all().equals(table), "plain readers"
        opened = Inputs(run).open(shard)
        rng = np.random.default_rng(seed)
        for _ in range(20):
            first, stop = sorted(rng.integers(0, 901, 2).tolist())
            assert opened.read(None, first, stop).equals(table.slice(first, stop - first))
            rows = rng.integers(0, 900, 7)
            names = [str(n) for n in rng.choice(table.column_names, 3, replace=False)]
            assert opened.take(names, rows).equals(table.select(names).take(pa.array(rows)))
            for name in ("text", "meta"):
                texts = [bytes(opened.text(name, row)).decode() for row in rows.tolist()]
                assert texts == [table[name][row].as_py() or "" for row in rows]
            number = table["number"].to_numpy()
            found = opened.find("number", first, stop)
            assert found == tuple(np.searchsorted(number, np.array([first, stop], np.uint32)))
        assert opened.lengths("tokens").tolist() == [len(t) for t in table["tokens"].to_pylist()]
        assert opened.find("number", 0, 1 << 64) == (0, 900)


def test_texts_without_a_byte(run: Path) -> None:
    shard = publish(run, "a.arrow", pa.table({"text": pa.array(["", ""], pa.large_string())}))
    assert [len(Inputs(run).open(shard).text("text", row)) for row in (0, 1)] == [0, 0]


def test_no_flipped_bit_changes_what_is_read(run: Path) -> None:
    """Whatever is damaged: what is read is as it was, or an error names the file."""
    rng = random.Random(3)
    table = make_table(900, 1)
    shard = publish(run, "a.arrow", table)
    path, good = run / "a.arrow", (run / "a.arrow").read_bytes()
    seen = {"same": 0, "named": 0}
    for _ in range(FLIPS):
        bad = bytearray(good)
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        path.write_bytes(bad)
        first = rng.randrange(850)
        names = rng.sample(table.column_names, 3)
        for is_text in (False, True):
            try:
                opened = Inputs(run).open(shard)
                if is_text:
                    texts = [bytes(opened.text("text", row)) for row in range(first, first + 50)]
                else:
                    part = opened.read(names, first, first + 50)
            except IntegrityError as error:
                seen["named"] += f"{path}: damaged: expected hash" in str(error)
                continue
            if is_text:
                expected = table["text"].slice(first, 50).to_pylist()
                assert texts == [(text or "").encode() for text in expected]
            else:
                assert part.equals(table.select(names).slice(first, 50))
            seen["same"] += 1
    assert sum(seen.values()) == 2 * FLIPS
    assert min(seen.values()) > 20, seen
    with pytest.raises(IntegrityError, match="damaged"):
        verify_file(path, shard.hash)


def test_a_file_that_was_cut_is_named(run: Path) -> None:
    shard = publish(run, "a.arrow", make_table(900, 1))
    os.truncate(run / "a.arrow", shard.size - 5000)
    with pytest.raises(IntegrityError, match=r"a.arrow: damaged: expected [\d,]+ bytes, found"):
        Inputs(run).open(shard)
    (run / "a.arrow").unlink()
    with pytest.raises(IntegrityError, match=r"a.arrow: missing"):
        Inputs(run).open(shard)


class Counts:
    """Bytes that this process hashed and fetched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hashed = self.fetched = 0
        find_problem, read_part = blocks.BlockFile._find_problem, fetching.read_span

        def count_hashed(file: blocks.BlockFile, block: int, data: memoryview) -> Any:
            self.hashed += len(data)
            return find_problem(file, block, data)

        def count_fetched(path: Path, start: int, stop: int) -> bytes:
            self.fetched += stop - start
            return read_part(path, start, stop)

        monkeypatch.setattr(blocks.BlockFile, "_find_problem", count_hashed)
        monkeypatch.setattr(fetching, "read_span", count_fetched)


def test_what_one_process_verified_no_other_hashes_again(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = publish(run, "a.arrow", make_table(900, 1))
    time.sleep(2 * verified._SETTLED_NS / 1e9)
    counts = Counts(monkeypatch)
    hashed = []
    for _ in range(3):
        blocks._find_marks.cache_clear()  # as another process begins
        Inputs(run).open(shard).read(["tokens"], 100, 500)
        hashed.append(counts.hashed)
    assert 0 < hashed[0] < shard.size / 2
    assert hashed == [hashed[0]] * 3
    verified.verify_once(run / "a.arrow", shard.hash)
    blocks._find_marks.cache_clear()
    Inputs(run).table(shard)
    assert counts.hashed == hashed[0], "the whole file was verified"


# --- in a bucket ---


def make_scatter(seed: int, documents: int = 1000) -> pa.Table:
    """What the first round of the shuffle leaves of one task."""
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "doc_id": np.arange(documents, dtype=np.uint64) + np.uint64(seed << 32),
            "doc_key": pa.array([rng.bytes(16) for _ in range(documents)], pa.binary(16)),
            "tokens": lists(rng.integers(200, 800, documents), rng),
            "split": np.repeat(np.array([0, 1], np.uint8), [documents - 50, 50]),
            "rank": np.concatenate(
                [np.sort(rng.integers(0, 1 << 63, n).astype(np.uint64) * np.uint64(2))
                 for n in (documents - 50, 50)]
            ),
        }
    )  # fmt: skip


@pytest.fixture
def far(run: Path, s3: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The mirror, on another host, of a run whose scatter shards are in a bucket."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    paths._bucket.cache_clear()
    near = mirror_path("s3", f"runs/blocks-{run.parent.name}")
    tables = [make_scatter(seed) for seed in range(SHARDS)]
    shards.value = tuple(publish(near, f"shuffle/{i}.arrow", t) for i, t in enumerate(tables))
    cache = run.parent / "other"
    monkeypatch.setenv("WAFERMILL_CACHE", str(cache))
    root = mirror_path("s3", f"runs/blocks-{run.parent.name}")
    open_mirror(root)
    yield root
    paths._bucket.cache_clear()


shards: Shared[tuple[Shard, ...]] = Shared(())


def gather_bucket(root: Path, bucket: int) -> str:
    """A hash of the documents of a bucket and their tokens."""
    inputs = Inputs(root)
    (output,) = gather._gather(gather.GatherJob(0, "train", bucket, SHARDS, shards), inputs).outputs
    listed = publish(root, output.path, pa.ipc.open_file(b"".join(output.data)).read_all())
    listed = replace(listed, end=None)  # read whole, not by blocks, which are counted
    count = int(inputs.table(listed)["tokens"].to_numpy().sum())
    buckets = Buckets(split=0, begin=0, lists=(listed,), shards=shards)
    part = read_stream(buckets, 0, count, inputs)
    assert len(part.tokens) == count
    return hash_bytes(part.doc_id.tobytes() + part.tokens.tobytes())


def near_root(run: Path) -> Path:
    return run.parent / "cache/buckets/s3/runs" / f"blocks-{run.parent.name}"


def kept_bytes(run: Path) -> int:
    parts = (run.parent / "other/buckets/.parts").glob("*")
    return sum(path.stat().st_blocks * 512 for path in parts)


def test_a_sixteenth_of_the_shuffle_is_about_a_sixteenth_of_the_bytes(
    run: Path, far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sum(shard.size for shard in shards.value)
    expected = [gather_bucket(near_root(run), bucket) for bucket in (4, 9)]
    counts = Counts(monkeypatch)
    assert gather_bucket(far, 4) == expected[0]
    one = counts.fetched
    assert whole / SHARDS * 0.9 < one < whole / SHARDS * 1.6
    assert counts.hashed == one
    assert gather_bucket(far, 4) == expected[0]
    assert (counts.fetched, counts.hashed) == (one, one), "once"
    assert gather_bucket(far, 9) == expected[1]
    assert counts.fetched < whole / SHARDS * 3
    assert counts.fetched <= kept_bytes(run) < counts.fetched * 1.2
    assert all(is_absent(far / shard.path) for shard in shards.value)


READ = """
import sys
from pathlib import Path
from pipeline.core.mirror import fetching
from pipeline.engine import blocks
blocks.BLOCK = {block}
from pipeline.core.manifest import read_record
from pipeline.engine.stage import Inputs
from pipeline.core.ids import table_hash
fetched = 0
read_part = fetching.read_span
def count(path, start, stop):
    global fetched
    fetched += stop - start
    return read_part(path, start, stop)
fetching.read_span = count
root = Path(sys.argv[1])
inputs = Inputs(root)
for shard in read_record(root.parent / "record.json").shards:
    print(table_hash(inputs.open(shard).read(None, 150, 750)))
print(fetched)
"""


def read_elsewhere(root: Path, s3: Any, cache: Path, fault: str = "") -> "subprocess.Popen[str]":
    """A process that reads parts of all shards."""
    own = {"WAFERMILL_CACHE": str(cache), "WAFERMILL_FAILPOINT": fault}
    return subprocess.Popen(
        [sys.executable, "-c", READ.format(block=BLOCK), str(root)],
        env={**os.environ, **s3.environment, **own}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_killed_while_it_brings_blocks_and_then_in_several_processes_at_once(
    run: Path, far: Path, s3: Any
) -> None:
    from pipeline.core.ids import table_hash
    from pipeline.core.manifest import TaskRecord, write_record

    write_record(far.parent / "record.json", TaskRecord("", shards.value))
    expected = [table_hash(make_scatter(seed).slice(150, 600)) for seed in range(SHARDS)]
    cache = run.parent / "other"
    for hit in (1, 50):
        dead = read_elsewhere(far, s3, cache, f"blocks.bring.written@{hit}=kill")
        dead.communicate(120)
        assert dead.returncode == -9
    before = kept_bytes(run)
    programs = [read_elsewhere(far, s3, cache) for _ in range(3)]
    answers = [program.communicate(120)[0].split() for program in programs]
    assert [program.returncode for program in programs] == [0, 0, 0]
    assert all(answer[:-1] == expected for answer in answers)
    fetched = [int(answer[-1]) for answer in answers]
    left = kept_bytes(run) - before
    assert left * 0.8 < sum(fetched) < left + 8 * blocks._RUN * BLOCK, "no block twice"


def test_a_full_cache_forgets_parts_and_they_are_brought_again(
    run: Path, far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = gather_bucket(far, 2)
    counts = Counts(monkeypatch)
    assert gather_bucket(far, 2) == expected
    assert counts.fetched == 0
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _: Usage(1 << 40, 1 << 40, 1))
        gather_bucket(far, 3)
        assert kept_bytes(run) < counts.fetched / 4
    before = counts.fetched
    assert gather_bucket(far, 2) == expected
    assert counts.fetched > before * 1.5


def test_damage_in_the_bucket_is_named_where_it_is_read(run: Path, far: Path, s3: Any) -> None:
    key = f"blocks-{run.parent.name}/shuffle/3.arrow"
    good = s3.read(key)[""]
    client = s3.client()
    seen = []
    for place in (0.2, 0.5, 0.8, 1):
        bad = bytearray(good)
        bad[int(len(bad) * place) - 1] ^= 1
        client.put_object(Bucket="runs", Key=key, Body=bytes(bad))
        shutil.rmtree(run.parent / "other/buckets/.parts", ignore_errors=True)
        try:
            gather_bucket(far, 7)
        except IntegrityError as error:
            seen.append((place, f"s3://runs/{key}: damaged" in str(error)))
    assert seen[-1] == (1, True), "the end is always read"
    assert all(is_named for _, is_named in seen)
    assert len(seen) < 4, "only what is read"
    client.delete_object(Bucket="runs", Key=key)
    shutil.rmtree(run.parent / "other/buckets/.parts")
    with pytest.raises(IntegrityError, match=r"3.arrow: missing"):
        gather_bucket(far, 7)


@pytest.mark.parametrize("columns", [["number"], ["text"], ["number", "tokens"]])
def test_the_system_is_told_to_read_what_is_read(
    run: Path, monkeypatch: pytest.MonkeyPatch, columns: list[str]
) -> None:
    """Of a large file, verified or not, not the columns around it."""
    monkeypatch.setattr(blocks, "_LARGE", 4 * BLOCK)
    monkeypatch.setattr(blocks, "BLOCK", mmap.ALLOCATIONGRANULARITY)
    table = make_table(20_000, 3)
    shard = publish(run, "a.arrow", table)
    asked: list[tuple[int, int]] = []
    for _ in range(2):
        opened = Inputs(run).open(shard)
        assert opened._blocks is not None and opened._blocks.is_advised
        asked.clear()
        opened._blocks._advise = lambda _, start, size: asked.append((start, size))
        read = opened.read(columns)
        assert read.equals(table.select(columns))
        wanted = {
            (buffer.address - opened._blocks.buffer.address) // blocks.BLOCK + block
            for column in read.columns
            for buffer in column.chunk(0).buffers()
            if buffer is not None
            for block in range(-(-buffer.size // blocks.BLOCK))
        }
        told = {
            block
            for start, size in asked
            for block in range(start // blocks.BLOCK, -(-(start + size) // blocks.BLOCK))
        }
        assert wanted <= told and len(told) < len(wanted) + 8 * len(columns)
        assert sum(size for _, size in asked) < shard.size / 2


def test_a_system_that_takes_no_advice(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class DeafMap(mmap.mmap):
        asked = 0

        def madvise(self, *_: int) -> None:
            DeafMap.asked += 1
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(blocks, "_LARGE", 4 * BLOCK)
    monkeypatch.setattr(blocks.mmap, "mmap", DeafMap)
    table = make_table(2_000, 4)
    opened = Inputs(run).open(publish(run, "a.arrow", table))
    assert opened.read(["number", "tokens"]).equals(table.select(["number", "tokens"]))
    assert opened.read().equals(table) and DeafMap.asked


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_taken_in_any_order(run: Path, seed: int) -> None:
    """From several batches, repeated ones and none."""
    rng = np.random.default_rng(seed)
    parts = [make_table(rows, seed) for rows in (700, 40, 900)]
    table = pa.concat_tables(parts).unify_dictionaries()
    opened = Inputs(run).open(publish(run, "a.arrow", table))
    for rows in (rng.permutation(len(table)), rng.integers(0, len(table), 50), np.arange(0)):
        expected = table.take(pa.array(rows.astype(np.int64)))
        assert opened.take(table.column_names, rows).equals(expected)
