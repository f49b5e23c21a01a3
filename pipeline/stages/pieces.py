"""Pieces: cuts every raw shard that is too large for one task into parts of whole records.

One pass over the file, in bounded memory, hashes it, sees that it is sound, and counts the lines
and records before each part, so that records keep their places in the whole file. A part that can
be read from a place nearby is only noted; others are written to pieces/.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, groupby
from operator import attrgetter
from typing import Any

import xxhash

from pipeline.config.prep import Config
from pipeline.core import zstd
from pipeline.core.errors import InputError, escape_text
from pipeline.core.hashes import hash_bytes
from pipeline.core.manifest import Shard
from pipeline.engine.stage import MEMORY_PER_WORK, Inputs, Output, Result, Stage, Task
from pipeline.runs import layout
from pipeline.runs.views.documents import PiecesOutput
from pipeline.sources.files import HashingReader, InputFile, make_allowance, read_rows
from pipeline.sources.part import (
    Chunk,
    Content,
    DamagedFile,
    LineCount,
    Part,
    Piece,
    RowRange,
    Stretch,
    cut_lines,
    cut_records,
    update,
)
from pipeline.sources.ranges import ByteRange
from pipeline.sources.raw_format import RowFormat, StreamFormat
from pipeline.sources.record import START, Place, RecordRules, make_rules
from pipeline.sources.store import is_url
from pipeline.sources.streams import BLOCK, StreamStart, resume_blocks
from pipeline.stages.plan import Reading, ReadPlan, reading

ZSTD_LEVEL = 1
_KEPT = 16
"""Blocks of a file behind a URL that are held: a row group or so, whose columns take turns."""


@dataclass(frozen=True)
class PiecesJob:
    """One raw shard, how to read it, and bytes of text in one part."""

    path_id: int
    file: InputFile
    rules: RecordRules
    part_bytes: int
    on_bad_shard: str


def _pieces(job: PiecesJob, inputs: Inputs) -> Result:
    counters: dict[str, Any] = {"inputs": [], "parts": [], "problem": ""}
    return Result(_outputs(job, inputs, counters), counters)


def _outputs(job: PiecesJob, inputs: Inputs, counters: dict[str, Any]) -> Iterator[Output]:
    """The pieces; notes every part and at last the file's hash in `counters`."""
    file, parts = job.file, counters["parts"]
    with closing(HashingReader(file.location, ByteRange(0, file.size, _KEPT))) as reader:
        try:
            if not file.has_rows:
                yield from _cut_blocks(job, reader, parts)
            elif _are_rows_near(job, reader):
                _cut_rows(job, reader, parts)
            else:
                yield from _cut_copy(job, reader, inputs, parts)
        except InputError as error:
            reader.check_unchanged()
            if job.on_bad_shard == "fail":
                raise
            counters["problem"] = escape_text(str(error).replace(file.shown, file.path))
            parts.clear()
        digest = reader.hash_rest(file.size)
        counters["inputs"].append([file.input, file.path, file.size, digest])


def _note(first: Place, size: int, digest: xxhash.xxh3_128, **how: Any) -> dict[str, Any]:
    """A part as a counter: where it begins, bytes of text and their hash, and how it is read."""
    place = [first.ordinal, first.line, first.byte_offset]
    return {"first": place, "size": size, "hash": digest.hexdigest(), **how}


def _cut_blocks(
    job: PiecesJob, reader: HashingReader, parts: list[dict[str, Any]]
) -> Iterator[Output]:
    """Formats that hold records one after the other."""
    with ThreadPoolExecutor(1) as background:
        for first, chunks in groupby(_chunks(job, reader), attrgetter("first")):
            begin = next(chunks)
            some = (chunk.data for chunk in chain((begin,), chunks))
            start = _start(job, begin, reader.can_seek)
            if start is not None:
                size, digest = _hashed(some)
                parts.append(_note(first, size, digest, start=[start.raw, start.text]))
                continue
            path = f"{layout.PIECES}/{job.path_id:06d}-{len(parts):06d}.zst"
            piece = _Compressor(background)
            size, digest = _hashed(map(piece.add, some))
            parts.append(_note(first, size, digest, piece=path))
            yield Output(path, piece.finish(), digest.hexdigest())


def _hashed(some: Iterable[bytes]) -> tuple[int, xxhash.xxh3_128]:
    size, digest = 0, xxhash.xxh3_128()
    for data in some:
        digest.update(data)
        size += len(data)
    return size, digest


def _chunks(job: PiecesJob, reader: HashingReader) -> Iterator[Chunk]:
    file, rules = job.file, job.rules
    records, compression = file.format.records, file.format.compression
    assert isinstance(records, StreamFormat)
    allowance = make_allowance(file, rules)

    def blocks() -> Iterator[tuple[StreamStart, bytes]]:
        for start, block in resume_blocks(file.shown, reader, compression):
            allowance.use(len(block))
            yield start, block

    if records.parts == "lines":
        count = LineCount(rules.max_document_bytes, records.byte_order_mark)
        return cut_lines(blocks(), job.part_bytes, count)
    read = records.places or records.read
    return cut_records(blocks(), job.part_bytes, lambda some: read(file.shown, some, rules, None))


def _start(job: PiecesJob, chunk: Chunk, can_seek: bool) -> StreamStart | None:
    """Where to read a part from that begins with this chunk; None if it is to be a piece, because
    that is far away, as everything but the beginning is where a server has no ranges."""
    first = chunk.first.byte_offset
    plain = job.file.format.compression is None
    start = StreamStart(first, first) if plain else chunk.start
    if start.raw and not can_seek:
        return None
    return start if first - start.text < job.part_bytes else None


class _Compressor:
    """Compresses one piece while what follows is decompressed."""

    def __init__(self, background: ThreadPoolExecutor) -> None:
        self._background = background
        self._compressor = zstd.ZstdCompressor(level=ZSTD_LEVEL)
        self._pieces: list[Future[bytes]] = []

    def add(self, data: bytes) -> bytes:
        self._pieces.append(self._background.submit(self._compressor.compress, data))
        return data

    def finish(self) -> list[bytes]:
        return [*(piece.result() for piece in self._pieces), self._compressor.flush()]


def _are_rows_near(job: PiecesJob, reader: HashingReader) -> bool:
    """Whether every part can be read where the file is, and not much besides it."""
    file, records = job.file, job.file.format.records
    assert isinstance(records, RowFormat)
    if not is_url(file.location):
        return True
    if not reader.can_seek or records.distance is None:
        return False
    return records.distance(file.shown, reader.file, job.rules) <= job.part_bytes // 2


def _cut_copy(
    job: PiecesJob, reader: HashingReader, inputs: Inputs, parts: list[dict[str, Any]]
) -> Iterator[Output]:
    """Rows that are far away are read from a copy."""
    reader.seek(0)
    path = f"{layout.PIECES}/{job.path_id:06d}.copy"
    yield Output(path, iter(lambda: reader.read(BLOCK), b""))
    here = replace(job.file, location=str(inputs.root / path), kind=job.file.format.records.name)
    with closing(HashingReader(here.location)) as copy:
        _cut_rows(replace(job, file=here), copy, parts)
    for part in parts:
        part["piece"] = path


def _cut_rows(job: PiecesJob, reader: HashingReader, parts: list[dict[str, Any]]) -> None:
    """Formats that hold rows: a part ends with the row that fills it."""
    first, size, rows, digest = START, 0, 0, xxhash.xxh3_128()
    for item in read_rows(job.file, reader, job.rules):
        if size >= job.part_bytes:
            parts.append(_note(first, size, digest, rows=rows))
            first, size, rows, digest = item.place, 0, 0, xxhash.xxh3_128()
        size += update(digest, item)
        rows += 1
    if rows:
        parts.append(_note(first, size, digest, rows=rows))


def pieces_stage(
    config: Config, plan: ReadPlan, unchanged: Callable[[Mapping[str, Any]], bool]
) -> Stage | None:
    """One task per file that is to be cut; None when there is none."""
    all_rules, tasks = make_rules(config), []
    for path_id in plan.large:
        file = plan.files[path_id]
        rules = all_rules[file.input]
        job = PiecesJob(path_id, file, rules, plan.task_bytes, config.read.on_bad_shard)
        memory = MEMORY_PER_WORK * plan.task_bytes
        tasks.append(Task(f"pieces of {file.path}", job, work=file.text_estimate, memory=memory))
    if not tasks:
        return None
    return Stage(
        name="pieces", version=2, function=_pieces, tasks=tuple(tasks), still_valid=unchanged
    )


def make_reading(plan: ReadPlan, pieces: PiecesOutput | None) -> Reading:
    """What every task reads; None where nothing is to be cut."""
    if pieces is None:
        return reading(plan, {})
    shards = {shard.path: shard for shard in pieces.manifest.shards}
    counted = zip(plan.large, pieces.inputs, pieces.parts, pieces.problem, strict=True)
    return reading(
        plan,
        {
            path_id: _parts(plan.files[path_id], path_id, digest, notes, problem, shards)
            for path_id, ((_, _, _, digest),), notes, problem in counted
        },
    )


def _parts(
    file: InputFile,
    path_id: int,
    digest: str,
    notes: list[dict[str, Any]],
    problem: str,
    shards: Mapping[str, Shard],
) -> tuple[Part, ...]:
    part = Part(file=file, path_id=path_id, digest=digest)
    if problem:
        return (replace(part, content=DamagedFile(problem)),)
    parts = []
    for index, note in enumerate(notes):
        ordinal, line, byte_offset = note["first"]
        first = Place(ordinal, line, byte_offset, 0)
        parts.append(replace(part, content=_content(note, shards), index=index, first=first))
    nothing = hash_bytes(b"")
    empty = RowRange(0, 0, nothing) if file.has_rows else Stretch(0, nothing, StreamStart())
    return tuple(parts) or (replace(part, content=empty),)


def _content(note: Mapping[str, Any], shards: Mapping[str, Shard]) -> Content:
    shard = shards[note["piece"]] if "piece" in note else None
    if "rows" in note:
        return RowRange(note["rows"], note["size"], note["hash"], shard)
    if shard is not None:
        return Piece(shard)
    return Stretch(note["size"], note["hash"], StreamStart(*note["start"]))
