"""Large files behind URLs, read by ranges: the bytes of a run on local files, and no copy."""

import gzip
import io
import itertools
import json
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.prep import load_config
from pipeline.core.errors import InputError, ResourceError
from pipeline.core.hashes import hash_bytes, tree_hash
from pipeline.sources.files import HashingReader
from pipeline.sources.ranges import ByteRange
from pipeline.stages.tables import sources_stage
from pipeline.stories.preparation import Story, read_inputs
from pipeline.stories.run import run_preparation
from tests.pipeline.packed import PACKED
from tests.slow import mark_slow

TEXTS = 300
CONFIG = """\
name: r
inputs: [{name: in, path: PATH}]
read: {task_bytes: 80 kB}
dedup: {preset: none}
pack: {max_sequence_length: 64, validation_share: 0}
"""
READ = Story("prepare", lambda *some: some[1](sources_stage(*read_inputs(*some))))
"""The beginning of every story: raw shards to documents/ and drops/."""


def as_lines(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def as_frames(suffix: str, texts: list[str]) -> bytes:
    data = as_lines(texts)
    return PACKED[suffix](data, list(range(0, len(data), 20_000)))


def as_parquet(group: int, texts: list[str]) -> bytes:
    sink = io.BytesIO()
    columns = {"text": texts, "other": [text[::-1] for text in texts], "meta": ["{}"] * len(texts)}
    pq.write_table(pa.table(columns), sink, row_group_size=group)
    return sink.getvalue()


def as_feather(texts: list[str]) -> bytes:
    sink = io.BytesIO()
    feather.write_feather(pa.table({"text": texts}), sink, chunksize=20)
    return sink.getvalue()


NEAR: dict[str, Callable[[list[str]], bytes]] = {
    "a.jsonl": as_lines,
    "a.jsonl.zst": lambda texts: as_frames(".jsonl.zst", texts),
    "a.jsonl.gz": lambda texts: as_frames(".jsonl.gz", texts),
    "a.jsonl.bz2": lambda texts: as_frames(".jsonl.bz2", texts),
    "a.parquet": lambda texts: as_parquet(15, texts),
}
"""Files of which every part is near a place where reading can begin."""

FAR: dict[str, Callable[[list[str]], bytes]] = {
    "a.jsonl.gz": lambda texts: gzip.compress(as_lines(texts), mtime=0),
    "a.parquet": lambda texts: as_parquet(TEXTS, texts),
    "a.feather": as_feather,
}


@pytest.fixture(scope="module")
def texts(write_prose: Callable[..., str]) -> list[str]:
    return [write_prose(number, 150) for number in range(TEXTS)]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    (tmp_path / "raw").mkdir()
    return tmp_path / "raw"


def run(path: object, out: Path, workers: int = 0, *overrides: str) -> Path:
    config = out.with_suffix(".yaml")
    config.write_text(CONFIG.replace("PATH", str(path)))
    run_preparation(load_config(config, overrides), out, workers, story=READ)
    return out


def scratch(out: Path) -> int:
    """Bytes of the parts that were written."""
    return sum(path.stat().st_size for path in (out / "pieces").glob("*"))


def documents(out: Path) -> list[pa.Table]:
    return [pa.ipc.open_file(p).read_all() for p in sorted((out / "documents").glob("*.arrow"))]


@pytest.mark.parametrize("name", mark_slow(NEAR, "a.jsonl.gz", "a.jsonl.bz2"))
def test_by_ranges_a_run_is_that_of_the_local_file(
    name: str, raw: Path, web: Any, texts: list[str], tmp_path: Path
) -> None:
    """Every byte of the run directory, and nothing is copied."""
    (raw / name).write_bytes(NEAR[name](texts))
    here = run(raw / name, tmp_path / "here")
    web.has_ranges = True
    there = run(f"{web.address}/raw/{name}", tmp_path / "there")
    assert len(documents(there)) > 3
    assert tree_hash(there) == tree_hash(here)
    assert scratch(there) == 0


@pytest.mark.parametrize(
    ("make", "name", "has_ranges"),
    [*((FAR, name, True) for name in FAR), (NEAR, "a.jsonl", False), (NEAR, "a.parquet", False)],
)
def test_what_has_to_be_copied_gives_the_same_documents(
    make: Any, name: str, has_ranges: bool, raw: Path, web: Any, texts: list[str], tmp_path: Path
) -> None:
    (raw / name).write_bytes(make[name](texts))
    here = run(raw / name, tmp_path / "here")
    web.has_ranges = has_ranges
    there = run(f"{web.address}/raw/{name}", tmp_path / "there")
    assert documents(there) == documents(here)
    assert scratch(there)


@pytest.mark.parametrize("name", mark_slow(NEAR, "a.jsonl", "a.jsonl.gz", "a.jsonl.bz2"))
def test_a_file_is_transferred_twice_and_little_more(
    name: str, raw: Path, web: Any, write_prose: Callable[..., str], tmp_path: Path
) -> None:
    """Once to number and check the records, once to read them; of parquet the columns in use."""
    some = [write_prose(number, 150) for number in range(3000)]
    make = NEAR[name] if name != "a.parquet" else lambda texts: as_parquet(100, texts)
    (raw / name).write_bytes(make(some))
    web.has_ranges = True
    there = run(f"{web.address}/raw/{name}", tmp_path / "there", 0, "read.task_bytes=2 MB")
    assert scratch(there) == 0
    size = (raw / name).stat().st_size
    print(name, size, web.sent / size)
    assert 1.3 * size < web.sent < 2.4 * size


@given(
    moves=st.lists(st.tuples(st.sampled_from(["read", "seek"]), st.integers(0, 90_000))),
    start=st.integers(0, 60_000), length=st.integers(0, 60_000), kept=st.integers(6, 16),
)  # fmt: skip
def test_reading_here_and_there(
    moves: list[tuple[str, int]], start: int, length: int, kept: int
) -> None:
    """Like a file, wherever the reader goes; in the end all bytes are hashed, each once."""
    data = os.urandom(8) * 8000
    fsspec.filesystem("memory").pipe("/moves/a.jsonl", data)
    span = ByteRange(start, start + length if length else 0, kept)
    with closing(HashingReader("memory://moves/a.jsonl", span)) as reader:
        position = 0
        for move, count in moves:
            if move == "seek":
                position = reader.seek(min(count, len(data)))
            else:
                some = reader.read(count)
                assert some == data[position : position + len(some)]
                assert some or not count or position == len(data)
                position += len(some)
        assert reader.hash_rest(len(data)) == hash_bytes(data)


class TestTrouble:
    """A store that fails, and a file that is replaced."""

    @pytest.mark.parametrize("name", ["a.jsonl.zst", "a.parquet"])
    def test_failed_ranges_are_asked_for_again(
        self, name: str, raw: Path, web: Any, texts: list[str], tmp_path: Path
    ) -> None:
        (raw / name).write_bytes(NEAR[name](texts))
        expected = tree_hash(run(raw / name, tmp_path / "here"))
        web.has_ranges = True
        requests = itertools.count()

        def fail(path: str) -> None:
            if path.endswith(name) and next(requests) % 3 == 1:
                web.troubles[:] = [next(kinds)]

        kinds = itertools.cycle([503, 0, 500])
        web.before = fail
        there = run(f"{web.address}/raw/{name}", tmp_path / "there")
        assert tree_hash(there) == expected
        assert next(requests) > 20

    @pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
    @pytest.mark.parametrize("share", [0.3, 1.3])
    def test_a_store_that_goes_on_to_fail_is_no_damaged_shard(
        self, name: str, share: float, raw: Path, web: Any, texts: list[str], tmp_path: Path
    ) -> None:
        data = NEAR[name](texts)
        (raw / name).write_bytes(data)
        web.has_ranges = True
        web.before = lambda path: vars(web).update(
            status=503 if web.sent > share * len(data) else 0
        )
        with pytest.raises(ResourceError, match=f"/raw/{name}: the store does not answer"):
            run(f"{web.address}/raw/{name}", tmp_path / "there", 0, "read.on_bad_shard=skip")

    @pytest.mark.parametrize("name", mark_slow(["a.jsonl", "a.jsonl.gz", "a.parquet"], "a.jsonl"))
    @pytest.mark.parametrize(
        ("share", "skip"),
        [
            (0.2, True), (1.1, False), pytest.param(0.6, False, marks=pytest.mark.slow),
            pytest.param(1.4, True, marks=pytest.mark.slow),
        ],
    )  # fmt: skip
    def test_a_file_that_is_replaced_is_named(
        self, name: str, share: float, skip: bool, raw: Path, web: Any, texts: list[str],
        tmp_path: Path,
    ) -> None:  # fmt: skip
        """While it is cut, or between that and the reading of its last part; never a damaged shard,
        which `on_bad_shard: skip` would leave out. The same command then reads the new file."""
        (raw / name).write_bytes(NEAR[name](texts))
        os.utime(raw / name, (1, 1))
        other = tmp_path / "other"
        other.write_bytes(NEAR[name]([text[::-1] for text in texts]))
        size = (raw / name).stat().st_size
        web.has_ranges = True

        def replace(path: str) -> None:
            if web.sent > share * size and other.exists():
                os.utime(other, (2, 2))
                os.replace(other, raw / name)

        web.before = replace
        rule = f"read.on_bad_shard={'skip' if skip else 'fail'}"
        command = (f"{web.address}/raw/{name}", tmp_path / "there", 0, rule)
        with pytest.raises(InputError, match=f"/raw/{name}: changed while this run read it"):
            run(*command)
        assert not other.exists()
        assert tree_hash(run(*command)) == tree_hash(run(raw / name, tmp_path / "fresh", 0, rule))
