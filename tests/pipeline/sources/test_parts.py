"""One large raw shard cut into parts: records and places as when it is read whole."""

import gzip
import io
import json
from collections.abc import Sequence
from contextlib import closing
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.core import storage, zstd
from pipeline.core.errors import InputError
from pipeline.core.hashes import hash_bytes, hash_file
from pipeline.core.manifest import Shard, StageManifest, TaskRecord
from pipeline.engine.stage import Inputs
from pipeline.runs.views.documents import PiecesOutput
from pipeline.sources import files
from pipeline.sources import text as jsonl
from pipeline.sources.files import HashingReader
from pipeline.sources.part import LineCount, Part, cut_lines, read_part
from pipeline.sources.record import BadRecord, Record, RecordRules
from pipeline.sources.streams import StreamStart, decompress_blocks
from pipeline.sources.text import BOM
from pipeline.stages.pieces import PiecesJob, _pieces, make_reading
from pipeline.stages.plan import ReadPlan
from tests.pipeline.packed import PACKED, cut_into

RULES = RecordRules(text_key="text", max_document_bytes=200, sources=None)
Items = list[Record | BadRecord]


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


@given(bodies, st.lists(st.integers(0, 5000), max_size=6), st.integers(1, 90))
@example(BOM, [1, 2], 1)
@example(BOM + b"\n" + BOM + b"\n", [2], 3)
def test_lines_are_cut_by_the_rule(data: bytes, cuts: list[int], size: int) -> None:
    """Part k holds the lines that begin in [k * size, (k + 1) * size), and knows what came
    before."""
    blocks = [(StreamStart(), block) for block in cut_into(data, cuts) if block]
    chunks = cut_lines(blocks, size, LineCount(RULES.max_document_bytes, BOM))
    parts = [
        (first, b"".join(chunk.data for chunk in some))
        for first, some in groupby(chunks, attrgetter("first"))
    ]
    assert b"".join(body for _, body in parts) == data
    records = list(jsonl.read_jsonl("a.jsonl", iter([data]), RULES))
    offset = 0
    for first, body in parts:
        assert first.byte_offset == offset
        assert first.line == data[:offset].count(b"\n") + 1
        assert first.ordinal == sum(r.place.byte_offset < offset for r in records)
        begins = [offset, *(offset + i + 1 for i, c in enumerate(body[:-1]) if c == 10)]
        assert len({begin // size for begin in begins}) == 1
        offset += len(body)


def items_of(path: Path, rules: RecordRules, kind: str | None = None) -> Items:
    ((file,), _) = files.find("in", str(path), path.parent, kind)
    with closing(HashingReader(file.location)) as reader:
        return list(files.read_records(file, reader, rules))


def run_task(job: PiecesJob, root: Path) -> TaskRecord:
    """The task as the runner does it."""
    inputs = Inputs(root)
    result = _pieces(job, inputs)
    shards = []
    for output in result.outputs:
        done = storage.publish(root / output.path, output.data)
        shards.append(
            Shard(
                path=output.path,
                size=done.size,
                hash=done.hash,
                content_hash=output.content_hash or done.hash,
            )
        )
    return TaskRecord("", tuple(shards), json.loads(json.dumps(result.counters)))


def parts_of(
    path: Path, size: int, root: Path, rules: RecordRules, kind: str | None = None
) -> tuple[Part, ...]:
    ((file,), _) = files.find("in", str(path), path.parent, kind)
    record = run_task(PiecesJob(0, file, rules, size, "fail"), root)
    reading = make_reading(
        ReadPlan((file,), 0, size, (0,)), PiecesOutput(StageManifest("pieces", "", {}, (record,)))
    )
    parts = tuple(part for task in reading.tasks for part in task)
    assert {part.digest for part in parts} == {hash_file(path)}
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
    data = b"".join(b'{"text": "%s"}\n' % hash_bytes(b"%d" % i).encode() for i in range(200_000))
    path.write_bytes(zstd.compress(data))
    ((file,), _) = files.find("in", str(path), tmp_path)
    outputs = iter(_pieces(PiecesJob(0, file, RULES, 1 << 20, "fail"), Inputs(tmp_path)).outputs)
    first = next(outputs)
    assert isinstance(first.data, list)
    assert len(b"".join(decompress_blocks(path, io.BytesIO(b"".join(first.data)), "zst"))) < 2 << 20
    assert sum(1 for _ in outputs) > 5


def test_rows_of_which_only_the_meta_changed(tmp_path: Path) -> None:
    path, texts = tmp_path / "a.parquet", [f"text {i}" * 9 for i in range(60)]
    for number in (1, 2):
        metas = [f'{{"n": {number if i == 40 else 0}}}' for i in range(60)]
        pq.write_table(pa.table({"text": texts, "meta": metas}), path)
        if number == 1:
            parts = parts_of(path, 500, tmp_path / "run", RULES)
    with pytest.raises(InputError, match="changed while this run read it"):
        read_parts(parts, tmp_path / "run", RULES)


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
    with pytest.raises(InputError, match="changed while this run read it"):
        read_parts(parts, tmp_path / "run", RULES)
