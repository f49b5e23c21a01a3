"""One large raw shard cut into many tasks: records, places and bytes as when it is read whole."""

import bz2
import gzip
import io
import json
import lzma
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import pipeline
from pipeline.config import DedupConfig, ReadConfig, load_config
from pipeline.core import storage
from pipeline.core.errors import InputError, NondeterminismError
from pipeline.core.manifest import Shard, StageManifest, TaskRecord
from pipeline.dedup_alone import DEDUP, config_of
from pipeline.preparation import (
    PREPARATION,
    Prepared,
    RunStage,
    Story,
    Unchanged,
    prepare,
    read_inputs,
)
from pipeline.runner import _Call, _perform
from pipeline.sources import files, jsonl
from pipeline.sources.cut import BOM, LineCount, cut_lines
from pipeline.sources.files import HashingReader
from pipeline.sources.part import Part, read_part
from pipeline.sources.record import BadRecord, Record
from pipeline.sources.rules import RecordRules
from pipeline.sources.streams import Start, decompressed, zstd
from pipeline.stage import Inputs, Output, Result, Stage, Task, bytes_output
from pipeline.stages.pieces import PiecesJob, _parts, _pieces
from pipeline.stages.plan import Plan
from pipeline.stages.tables import sources_stage
from pipeline.upkeep import clean_up
from tests.forked import prep_in_fork

RULES = RecordRules("text", 200, None)
Items = list[Record | BadRecord]

# --- the readers: a file in parts equals the file ---

lines_of_json = st.one_of(
    st.integers(0, 120).map(lambda n: json.dumps({"text": "x" * n, "meta": {}}).encode()),
    st.sampled_from([b"", b" ", b"\t \r", b"\r", b"not json", b"\xff", b'{"text": 1}', b"x" * 400,
                     b" " * 300, BOM, BOM + b"  ", '{"text": "é"}'.encode()]),
)  # fmt: skip
bodies = st.tuples(
    st.sampled_from([b"", BOM]),
    st.lists(lines_of_json, max_size=14),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
).map(lambda t: t[0] + t[2].join(t[1]) + (t[2] if t[3] else b""))


def cut_into(data: bytes, places: Sequence[int]) -> list[bytes]:
    ends = sorted(p % (len(data) + 1) for p in places)
    return [data[a:b] for a, b in pairwise([0, *ends, len(data)])]


@given(bodies, st.lists(st.integers(0, 5000), max_size=6), st.integers(1, 90))
@example(BOM, [1, 2], 1)
@example(BOM + b"\n" + BOM + b"\n", [2], 3)
def test_lines_are_cut_by_the_rule(data: bytes, cuts: list[int], size: int) -> None:
    """Part k holds the lines that begin in [k * size, (k + 1) * size), and knows what came
    before."""
    blocks = [(Start(), block) for block in cut_into(data, cuts) if block]
    chunks = cut_lines(blocks, size, LineCount(RULES.max_document_bytes, BOM))
    parts = [
        (first, b"".join(chunk.data for chunk in some))
        for first, some in groupby(chunks, attrgetter("first"))
    ]
    assert b"".join(body for _, body in parts) == data
    records = list(jsonl.read(iter([data]), RULES))
    offset = 0
    for first, body in parts:
        assert first.byte_offset == offset
        assert first.line == data[:offset].count(b"\n") + 1
        assert first.ordinal == sum(r.place.byte_offset < offset for r in records)
        begins = [offset, *(offset + i + 1 for i, c in enumerate(body[:-1]) if c == 10)]
        assert len({begin // size for begin in begins}) == 1
        offset += len(body)


def frames(pack: Callable[[bytes], bytes]) -> Callable[[bytes, list[int]], bytes]:
    return lambda data, cuts: b"".join(pack(piece) for piece in cut_into(data, cuts))


PACKED: dict[str, Callable[[bytes, list[int]], bytes]] = {
    ".jsonl": lambda data, cuts: data,
    ".jsonl.zst": frames(zstd.compress),
    ".jsonl.gz": frames(lambda data: gzip.compress(data, mtime=0)),
    ".jsonl.bz2": frames(bz2.compress),
    ".jsonl.xz": frames(lzma.compress),
}


def items_of(path: Path, rules: RecordRules, kind: str | None = None) -> Items:
    ((file,), _) = files.find("in", str(path), path.parent, kind)
    with closing(HashingReader(file.location)) as reader:
        return list(files.read(file, reader, rules))


def run_task(job: PiecesJob, root: Path) -> TaskRecord:
    """The task as the runner does it."""
    inputs = Inputs(root)
    result = _pieces(job, inputs)
    shards = []
    for output in result.outputs:
        done = storage.publish(root / output.path, output.data)
        shards.append(Shard(output.path, done.size, done.hash, output.content_hash or done.hash))
    return TaskRecord("", tuple(shards), json.loads(json.dumps(result.counters)))


def parts_of(
    path: Path, size: int, root: Path, rules: RecordRules, kind: str | None = None
) -> tuple[Part, ...]:
    ((file,), _) = files.find("in", str(path), path.parent, kind)
    record = run_task(PiecesJob(0, file, rules, size, "fail"), root)
    parts = _parts(Plan((file,), 0, size, (0,)), 0, record)
    assert {part.digest for part in parts} == {storage.hash_file(path)}
    return parts


def read_parts(parts: Sequence[Part], root: Path, rules: RecordRules) -> Items:
    return [item for part in parts for item in read_part(part, Inputs(root), rules)]


def in_parts(path: Path, size: int, rules: RecordRules = RULES, kind: str | None = None) -> Items:
    root = path.parent / "run"
    return read_parts(parts_of(path, size, root, rules, kind), root, rules)


@pytest.mark.parametrize("suffix", PACKED)
@settings(max_examples=60)
@given(data=bodies, cuts=st.lists(st.integers(0, 5000), max_size=6), size=st.integers(1, 300))
def test_parts_equal_the_whole_file(
    suffix: str, data: bytes, cuts: list[int], size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Blank lines, CRLF, a byte order mark, no last newline, lines longer than a part or than the
    limit; frames that end anywhere. The same records at the same places."""
    path = tmp_path_factory.mktemp("parts") / f"a{suffix}"
    path.write_bytes(PACKED[suffix](data, cuts))
    assert in_parts(path, size) == items_of(path, RULES)


@settings(max_examples=40)
@given(data=bodies, size=st.integers(1, 300))
def test_lines_of_text(data: bytes, size: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("parts") / "a.txt"
    path.write_bytes(data)
    assert in_parts(path, size, kind="lines") == items_of(path, RULES, "lines")


def warc_record(kind: str, body: bytes) -> bytes:
    head = f"WARC/1.0\r\nWARC-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body + b"\r\n\r\n"


@pytest.mark.parametrize("per_record", [True, False])
@settings(max_examples=30)
@given(
    kinds=st.lists(st.sampled_from(["conversion", "response", "warcinfo"]), max_size=9),
    size=st.integers(1, 700),
)
def test_warc(
    per_record: bool, kinds: list[str], size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A gzip member for each record, as crawls have them, or one for all."""
    path = tmp_path_factory.mktemp("parts") / "a.warc.gz"
    made = [warc_record(kind, b"text %d\n" % n * (n * 7)) for n, kind in enumerate(kinds)]
    pieces = made if per_record else [b"".join(made)]
    path.write_bytes(b"".join(gzip.compress(piece, mtime=0) for piece in pieces))
    if "response" in kinds and "conversion" not in kinds:
        with pytest.raises(InputError, match="responses and no extracted text"):
            in_parts(path, size)
    else:
        assert in_parts(path, size) == items_of(path, RULES)


@pytest.mark.parametrize("suffix", [".parquet", ".feather"])
@settings(max_examples=30)
@given(
    lengths=st.lists(st.one_of(st.none(), st.integers(0, 300)), max_size=30),
    group=st.integers(1, 40), size=st.integers(1, 1500),
)  # fmt: skip
def test_rows(
    suffix: str, lengths: list[int | None], group: int, size: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    """Row groups of any size, cut inside where they hold more than a part."""
    path = tmp_path_factory.mktemp("parts") / f"a{suffix}"
    texts = [None if n is None else "x" * n for n in lengths]
    table = pa.table({"text": pa.array(texts, pa.string()), "other": list(range(len(texts)))})
    if suffix == ".parquet":
        pq.write_table(table, path, row_group_size=group)
    else:
        feather.write_feather(table, path, chunksize=group, compression="uncompressed")
    assert in_parts(path, size) == items_of(path, RULES)


def text_lines(count: int) -> bytes:
    return b"".join(b'{"text": "%s"}\n' % (b"%d " % i * 30) for i in range(count))


def test_what_becomes_a_piece(tmp_path: Path) -> None:
    """Plain files and short frames are read where they are; one long frame is written in pieces."""
    data = text_lines(300)
    every = [i * 997 for i in range(1, len(data) // 997)]
    made = {}
    for name, cuts in {"a.jsonl": [], "b.jsonl.zst": [], "c.jsonl.zst": every}.items():
        suffix = name.removeprefix(name[0])
        path = tmp_path / name
        path.write_bytes(PACKED[suffix](data, cuts))
        parts = parts_of(path, 4000, tmp_path / f"run-{name}", RULES)
        assert len(parts) > 5
        made[name] = sum(len(part.shards) for part in parts)
    assert made == {"a.jsonl": 0, "b.jsonl.zst": len(parts) - 1, "c.jsonl.zst": 0}


def test_memory_of_a_piece_is_bounded(tmp_path: Path) -> None:
    """Pieces come one by one: when the first is handed over, most of the file is not read yet."""
    path = tmp_path / "a.jsonl.zst"
    data = b"".join(
        b'{"text": "%s"}\n' % storage.hash_bytes(b"%d" % i).encode() for i in range(200_000)
    )
    path.write_bytes(zstd.compress(data))
    ((file,), _) = files.find("in", str(path), tmp_path)
    outputs = iter(_pieces(PiecesJob(0, file, RULES, 1 << 20, "fail"), Inputs(tmp_path)).outputs)
    first = next(outputs)
    assert isinstance(first.data, list)
    assert len(b"".join(decompressed(path, io.BytesIO(b"".join(first.data)), "zst"))) < 2 << 20
    assert sum(1 for _ in outputs) > 5


@pytest.mark.parametrize("name", ["a.jsonl", "b.jsonl.zst", "c.parquet"])
def test_a_file_that_changed_since_it_was_cut(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    texts = [f"text {i}" * 9 for i in range(60)]

    def write(texts: list[str]) -> None:
        if name.endswith("parquet"):
            pq.write_table(pa.table({"text": texts}), path)
            return
        data = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)
        path.write_bytes(PACKED[name[1:]](data, list(range(0, 4000, 100))))

    write(texts)
    parts = parts_of(path, 500, tmp_path / "run", RULES)
    assert len(parts) > 3
    write([*texts[:30], "other 30" * 9, *texts[31:]])
    with pytest.raises(InputError, match="changed while this run was going on"):
        read_parts(parts, tmp_path / "run", RULES)


# --- the runner: outputs as they come ---


def call_of(root: Path, function: Callable[..., Result]) -> _Call:
    return _Call(root, function, Task("toy", None), "f" * 32, root / "journal/records/toy/0.json")


def streaming(job: Any, inputs: Inputs) -> Result:
    counters: dict[str, Any] = {}

    def outputs() -> Iterator[Output]:
        for index in range(3):
            assert index == 0 or (inputs.root / f"toy/{index - 1}").exists()
            yield Output(f"toy/{index}", iter([b"piece ", b"%d" % index]))
        counters["seen"] = 3

    return Result(outputs(), counters)


def test_outputs_are_published_as_they_come(tmp_path: Path) -> None:
    done = _perform(call_of(tmp_path, streaming)).record
    assert done is not None
    assert done.counters == {"seen": 3}
    for index, shard in enumerate(done.shards):
        assert (tmp_path / shard.path).read_bytes() == b"piece %d" % index
        assert shard.hash == shard.content_hash == storage.hash_file(tmp_path / shard.path)
    assert _perform(call_of(tmp_path, streaming)).record == done


def test_a_second_attempt_never_replaces_other_bytes(tmp_path: Path) -> None:
    def other(job: Any, inputs: Inputs) -> Result:
        return Result(iter([Output("toy/0", b"piece 0"), Output("toy/1", b"something else")]))

    def fewer(job: Any, inputs: Inputs) -> Result:
        return Result((bytes_output("toy/0", b"piece 0"),))

    committed = _perform(call_of(tmp_path, streaming)).record
    assert committed is not None
    for attempt in (other, fewer):
        with pytest.raises(NondeterminismError, match="toy: two attempts gave different bytes"):
            _perform(call_of(tmp_path, attempt))
        for shard in committed.shards:
            storage.verify_file(tmp_path / shard.path, shard.hash)
    assert not list(tmp_path.rglob(f"{storage.TEMP_MARK}*"))


def test_an_error_after_the_first_output_commits_nothing(tmp_path: Path) -> None:
    def damaged(job: Any, inputs: Inputs) -> Result:
        def pieces() -> Iterator[bytes]:
            yield b"half"
            raise InputError("cut off")

        return Result(iter([Output("toy/0", b"whole"), Output("toy/1", pieces())]))

    call = call_of(tmp_path, damaged)
    assert _perform(call).problem == "cut off"
    assert not call.record_path.exists()
    assert [path.name for path in (tmp_path / "toy").iterdir()] == ["0"]


# --- whole runs ---

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


def _read(
    prepared: Prepared, run_stage: RunStage, unchanged: Unchanged
) -> dict[str, StageManifest]:
    """The beginning of every story: raw shards to documents/ and drops/."""
    done: dict[str, StageManifest] = {}

    def run(stage: Stage) -> StageManifest:
        done[stage.name] = run_stage(stage)
        return done[stage.name]

    run(sources_stage(*read_inputs(prepared, run, unchanged)))
    return done


READ = Story("prepare", _read)


def run(root: Path, out: Path, *overrides: str, workers: int = 0, story: Story = READ) -> Any:
    config = load_config(root / "c.yaml", (*OVERRIDES, *overrides))
    return pipeline.run(config, out, workers, story=story)


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
        path.relative_to(directory).as_posix(): storage.hash_file(path)
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
        assert row["hash"] == storage.hash_file(collection / "raw" / row["path"])
    rows = pq.read_table(read_cut / "inputs.parquet").to_pylist()
    assert [row["task"] for row in rows[1:]] == [row["task"] + row["tasks"] for row in rows[:-1]]
    assert [row["tasks"] > 1 for row in rows] == [True] * 4 + [False]


def test_any_number_of_workers(
    collection: Path, read_cut: Path, tmp_path: Path, two_workers: int
) -> None:
    run(collection, tmp_path / "run", SMALL, workers=two_workers)
    assert storage.tree_hash(tmp_path / "run") == storage.tree_hash(read_cut)


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
    assert storage.tree_hash(tmp_path / "run") == storage.tree_hash(read_cut)


def test_reuse_and_clean_up(collection: Path, tmp_path: Path) -> None:
    """A second run does nothing; pieces go with clean-up and come back when clean needs them."""
    out = tmp_path / "run"
    first = run(collection, out, SMALL)
    removed, _ = clean_up(out)
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
    data = b"".join(decompressed(path, io.BytesIO(path.read_bytes()), "zst"))
    path.write_bytes(zstd.compress(data.replace(b"harbour", b"seaport")))
    run(root, tmp_path / "run", SMALL)
    run(root, tmp_path / "fresh", SMALL)
    assert storage.tree_hash(tmp_path / "run") == storage.tree_hash(tmp_path / "fresh")


# --- damage ---


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
    texts = [storage.hash_bytes(b"%d" % i) * 9 for i in range(400)]
    path = tmp_path / "raw/a.parquet"
    pq.write_table(pa.table({"text": texts}), path, row_group_size=50, compression="zstd")
    (tmp_path / "raw/b.jsonl").write_text(json.dumps({"text": texts[0]}) + "\n")
    data = bytearray(path.read_bytes())
    start = pq.read_metadata(path).row_group(6).column(0).dictionary_page_offset
    data[start : start + 200] = bytes(200)
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"a\.parquet: not a sound parquet file"):
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


# --- what a user asks of such a run ---


def test_plan_shows_the_cut(collection: Path, tmp_path: Path, prep: Callable[..., Any]) -> None:
    shown = prep("plan", collection / "c.yaml", "--out", tmp_path / "x", "--set", SMALL).out
    assert "pieces" in shown
    assert "pieces" not in prep("plan", collection / "c.yaml", "--out", tmp_path / "x").out
    loaded = load_config(collection / "c.yaml", (SMALL,))
    plan = prepare(loaded, tmp_path / "x").plan
    sizes = [file.text_estimate for file in plan.files]
    assert len(plan.estimate) == sum(-(-size // 6000) for size in sizes)
    assert max(plan.estimate) <= 6000


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
        loaded = config_of([str(collection / "raw")], DedupConfig(max_source_share=1.0), read=read)
        pipeline.run(loaded, tmp_path / name, 0, story=DEDUP)
    assert len(list((tmp_path / "cut/documents").iterdir())) > 20
    assert tree(tmp_path / "cut/records") == tree(tmp_path / "whole/records")
    assert len(tree(tmp_path / "cut/records")) == 5
