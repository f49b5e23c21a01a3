"""Records that leave a run: `cleaned`, and `records`, the kept ones byte for byte, but for what is
cut from their texts.

`image` is one file of records that `prep` can read again, in the formats of `prep export`. The
stage `records` reads every raw shard again, which must still have the content that the clean stage
noted, and leaves out blank lines, bad records and duplicates; path, format and compression stay.
"""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from dedup.arrays import I64
from dedup.lines import cut_spans
from pipeline.core.errors import InputError
from pipeline.core.ids import array_hash, table_hash
from pipeline.core.manifest import Shard, fingerprint_of
from pipeline.engine.arrow_shard import ArrowShard
from pipeline.engine.stage import Inputs, Output, Result, Stage, Task
from pipeline.runs import layout
from pipeline.runs.layout import STATES
from pipeline.runs.views.cuts import CutsOutput
from pipeline.runs.views.documents import CleanOutput, KeepOutput
from pipeline.sources.copy import NewTexts, copy_records, new_compressor
from pipeline.sources.files import HashingReader, InputFile
from pipeline.sources.output_format import (
    COMPRESSIONS,
    FIELDS,
    Form,
    PluggedForm,
)
from pipeline.sources.record import SOURCE_KEYS, source_label
from pipeline.sources.streams import change_error
from pipeline.stages.cuts import list_cut_spans
from pipeline.stages.plan import Reading

_BATCH = 1024


def columns_for(fields: tuple[str, ...]) -> list[str]:
    """The columns of documents/ behind these fields, text and key apart; meta needs the source."""
    needed = {*fields, *(["source"] if "meta" in fields else [])}
    return [name for name in ("meta", "source", "licence") if name in needed]


def image(path: str, table: pa.Table, form: Form, fields: tuple[str, ...]) -> tuple[bytes, str]:
    """The file that holds these rows in order, and the hash of its content; `path` is for messages.

    Columns of `table`: text, doc_key and `columns_for(fields)`.
    """
    if form == "parquet" or isinstance(form, PluggedForm):
        rows = pa.table({name: _column(table, name) for name in FIELDS if name in fields})
        if isinstance(form, PluggedForm):
            return form.write(rows, path), table_hash(rows)
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="zstd", row_group_size=1 << 14)
        return sink.getvalue().to_pybytes(), table_hash(rows)
    content, compressor, pieces = xxhash.xxh3_128(), new_compressor(COMPRESSIONS[form]), []
    for lines in _lines(table, fields):
        content.update(lines)
        pieces.append(compressor.compress(lines))
    return b"".join([*pieces, compressor.flush()]), content.hexdigest()


def writing_software(form: Form) -> dict[str, str]:
    """What the bytes of a file depend on."""
    software = {"msgspec": msgspec.__version__, "pyarrow": pa.__version__}
    if isinstance(form, PluggedForm):
        software[f"output format {form}"] = str(form.code)
    return software


def _lines(table: pa.Table, fields: tuple[str, ...]) -> Iterator[bytes]:
    encoder = msgspec.json.Encoder()
    names = [name for name in FIELDS if name in fields]
    for first in range(0, len(table), _BATCH):
        part = table.slice(first, _BATCH)
        columns = [_column(part, name).to_pylist() for name in names]
        if "meta" in names:
            at = names.index("meta")
            columns[at] = [msgspec.Raw(meta.encode()) for meta in columns[at]]
        yield encoder.encode_lines(
            [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        )


def _column(table: pa.Table, name: str) -> pa.Array:
    if name == "key":
        return pa.array([key.hex() for key in table["doc_key"].to_pylist()], pa.string())
    if name == "meta":
        pairs = zip(table["meta"].to_pylist(), table["source"].to_pylist(), strict=True)
        return pa.array([label_meta(meta, source) for meta, source in pairs], pa.large_string())
    return table[name]


def label_meta(meta: str, source: str) -> str:
    """The JSON of a record's meta on one line, with the source label where it says another.

    >>> label_meta('{"url": "u"}', "web"), label_meta('{"pile_set_name": "Wiki"}', "Wiki")
    ('{"pile_set_name": "web", "url": "u"}', '{"pile_set_name": "Wiki"}')
    """
    if "\n" in meta or "\r" in meta:
        meta = json.dumps(json.loads(meta), ensure_ascii=False)
    value = json.loads(meta) or {}
    if source_label(value, bool(value), None) == source:
        return meta
    labelled = {SOURCE_KEYS[0]: source, **{k: v for k, v in value.items() if k not in SOURCE_KEYS}}
    return json.dumps(labelled, ensure_ascii=False)


@dataclass(frozen=True)
class CleanedJob:
    """One documents shard, the states of its documents, and the format to write."""

    index: int
    form: Form
    documents: Shard
    keep: Shard


def _cleaned(job: CleanedJob, inputs: Inputs) -> Result:
    table = inputs.table(job.documents, ["doc_key", "text", *columns_for(FIELDS)])
    state = inputs.table(job.keep, ["state"])["state"].to_numpy()
    rows = table.filter(pa.array(state == STATES.index("kept")))
    path = layout.shard(layout.CLEANED, job.index, str(job.form))
    data, content = image(path, rows, job.form, FIELDS)
    return Result((Output(path, data, content),), {"documents": len(rows), "bytes": len(data)})


def cleaned_stage(clean: CleanOutput, keep: KeepOutput, form: Form) -> Stage:
    """One task per documents shard."""
    pairs = zip(clean.documents, keep.states, strict=True)
    tasks = tuple(
        Task(f"cleaned records of task {i}", CleanedJob(i, form, *pair), pair, pair[0].size)
        for i, pair in enumerate(pairs)
    )
    return Stage(
        name="cleaned",
        version=1,
        function=_cleaned,
        tasks=tasks,
        software=writing_software(form),
    )


@dataclass(frozen=True, kw_only=True)
class RecordsJob:
    """One raw shard, the hash it was read with, and the shards that tell which records stay: those
    of its first task, of its second, …"""

    file: InputFile
    path_id: int
    digest: str
    documents: tuple[Shard, ...]
    keep: tuple[Shard, ...]


@dataclass(frozen=True, kw_only=True)
class CutRecordsJob(RecordsJob):
    """The same with the cuts of each of these tasks, and the field of the text."""

    cuts: tuple[Shard, ...]
    text_key: str


def _records(job: RecordsJob, inputs: Inputs) -> Result:
    pairs = zip(job.documents, job.keep, strict=True)
    places = [_kept_places(job, *pair, inputs) for pair in pairs]
    starts, sizes = (np.concatenate(column) for column in zip(*places, strict=True))
    content: dict[str, Any] = {"input": job.digest, "starts": array_hash(starts)}
    new_texts = None
    if isinstance(job, CutRecordsJob):
        new_texts = _find_new_texts(job, inputs)
        content["cuts"] = [shard.identity for shard in job.cuts]
    path = f"{layout.RECORDS}/{job.file.path}"
    output = Output(path, _copy(job, starts, sizes, new_texts), fingerprint_of(content))
    return Result((output,), {"documents": len(starts)})


def _find_new_texts(job: CutRecordsJob, inputs: Inputs) -> NewTexts:
    """The texts of the raw shard's documents without their cuts, each made when it is asked for."""
    shards: list[tuple[ArrowShard, dict[int, list[tuple[int, int]]]]] = []
    starts, places = [np.zeros(0, np.int64)], [np.zeros((0, 2), np.int64)]
    for number, (documents, cuts) in enumerate(zip(job.documents, job.cuts, strict=True)):
        spans = list_cut_spans(inputs.table(cuts))
        shards.append((inputs.open(documents), spans))
        table = inputs.table(documents, ["path_id", "byte_offset"])
        rows = np.array(list(spans), np.int64)
        rows = rows[table["path_id"].to_numpy()[rows] == job.path_id]
        starts.append(table["byte_offset"].to_numpy()[rows].astype(np.int64))
        places.append(np.column_stack([np.full(len(rows), number), rows]))
    place_K2 = np.concatenate(places)

    def text(number: int) -> str:
        shard, row = place_K2[number].tolist()
        documents, spans = shards[shard]
        return cut_spans(documents.text("text", row).tobytes(), spans[row]).decode()

    return NewTexts(np.concatenate(starts), job.text_key, text)


def _kept_places(job: RecordsJob, documents: Shard, keep: Shard, inputs: Inputs) -> tuple[I64, I64]:
    """Byte offset in the decompressed shard and length of the kept records, ascending; of a file of
    rows, the rows and 0."""
    table = inputs.table(documents, ["path_id", "byte_offset", "byte_length"])
    state = inputs.table(keep, ["state"])["state"].to_numpy()
    here = table["path_id"].to_numpy() == job.path_id
    chosen = np.flatnonzero(here & (state == STATES.index("kept")))
    starts, sizes = (table[name].to_numpy()[chosen] for name in ("byte_offset", "byte_length"))
    return starts.astype(np.int64), sizes.astype(np.int64)


def _copy(job: RecordsJob, starts: I64, sizes: I64, new_texts: NewTexts | None) -> Iterator[bytes]:
    """The output file, piece by piece. Raises InputError at its end when the raw shard is not what
    it was."""
    file = job.file
    with closing(HashingReader(file.location)) as reader:
        problem = None
        try:
            yield from copy_records(file, reader, starts, sizes, new_texts)
        except InputError as error:
            problem = error
        if reader.hash_rest() != job.digest:
            raise change_error(file.shown)
    if problem is not None:
        raise problem


def records_stage(
    reading: Reading,
    clean: CleanOutput,
    keep: KeepOutput,
    cuts: CutsOutput | None = None,
    text_key: str = "text",
) -> Stage:
    """One task per raw shard that was read; `cuts`: what is cut from the texts, which are in this
    field or column."""
    documents, kept, hashes, skipped = clean.documents, keep.states, clean.hashes, clean.skipped
    tasks = []
    for path_id, (file, of) in enumerate(zip(reading.files, reading.tasks_of_file, strict=True)):
        place = (file.input, file.path)
        if place not in skipped:
            shards = (documents[of.start : of.stop], kept[of.start : of.stop])
            inputs = (*shards[0], *shards[1])
            job = RecordsJob(
                file=file,
                path_id=path_id,
                digest=hashes[place],
                documents=shards[0],
                keep=shards[1],
            )
            if cuts is not None:
                spans = cuts.cuts[of.start : of.stop]
                job = CutRecordsJob(**vars(job), cuts=spans, text_key=text_key)
                inputs += spans
            tasks.append(Task(f"records of {file.path}", job, inputs, file.text_estimate))
    return Stage(name="records", version=2, function=_records, tasks=tuple(tasks))
