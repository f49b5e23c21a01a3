"""Read and clean: raw shards -> documents/ (the only full copy of the text) and drops/.

Every record gets `doc_id` = task << 32 | its index among all records of the task. Text is fixed by
ftfy with NFC and all other defaults, unless `clean.fix_text` says no; documents shorter than
`clean.min_length` by SlimPajama's rule are dropped. Whatever does not become a document stands in
drops/ with its reason.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import ftfy
import pyarrow as pa

from dedup.normalize import is_short
from pipeline import layout
from pipeline.config import Config
from pipeline.core.errors import InputError, printable
from pipeline.core.ids import key_of_prefix, path_prefix, text_key
from pipeline.core.ledger import Tally
from pipeline.sources import files
from pipeline.sources.files import InputFile
from pipeline.sources.jsonl import RecordRules
from pipeline.sources.record import BadRecord, Place, Record
from pipeline.stage import Inputs, Output, Result, Stage, Task, arrow_output, parquet_output
from pipeline.stages.plan import Plan

TOO_SHORT = "too_short"
EXCERPT = 120
_PLACE = [("doc_id", pa.uint64()), ("doc_key", pa.binary(16)), ("source", pa.string()),
          ("path_id", pa.uint32()), ("line", pa.uint64()), ("byte_offset", pa.uint64()),
          ("byte_length", pa.uint64()), ("licence", pa.string())]  # fmt: skip
DOCUMENT_SCHEMA = pa.schema([*_PLACE, ("text_key", pa.binary(16)), ("text_bytes", pa.uint64()),
                             ("meta", pa.string()), ("text", pa.large_string())])  # fmt: skip
DROP_SCHEMA = pa.schema([*_PLACE, ("reason", pa.string()), ("bad_record", pa.bool_()),
                         ("text_bytes", pa.uint64()), ("excerpt", pa.string())])  # fmt: skip
_FLUSH_BYTES = 16 << 20

_ASCII_CHANGED_BY_FTFY = re.compile(r"[^\t\n\f -%'-~]")
"""What ftfy may change in ASCII text: `&` (entities), ESC, carriage returns, control characters."""


def clean_text(text: str) -> str:
    """`ftfy.fix_text(text, normalization="NFC")`; plain ASCII that ftfy cannot change skips it.

    >>> clean_text("schÃ¶n")
    'schön'
    """
    if text.isascii() and not _ASCII_CHANGED_BY_FTFY.search(text):
        return text
    return ftfy.fix_text(text, normalization="NFC")


@dataclass(frozen=True)
class CleanJob:
    """One task: its raw shards with their path ids, and how to read and filter them."""

    index: int
    files: tuple[InputFile, ...]
    path_ids: tuple[int, ...]
    rules: tuple[RecordRules, ...]
    min_length: int
    fix_text: bool
    on_bad_record: str
    on_bad_shard: str


@dataclass
class _Columns:
    """Rows being collected, flushed to Arrow batches every 16 MiB of text."""

    schema: pa.Schema
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    batches: list[pa.RecordBatch] = field(default_factory=list)
    held: int = 0

    def add(self, row: tuple[Any, ...], size: int) -> None:
        self.rows.append(row)
        self.held += size
        if self.held > _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        if self.rows:
            columns = zip(*self.rows, strict=True)
            arrays = [pa.array(c, f.type) for c, f in zip(columns, self.schema, strict=True)]
            self.batches.append(pa.RecordBatch.from_arrays(arrays, schema=self.schema))
        self.rows, self.held = [], 0

    def table(self) -> pa.Table:
        self.flush()
        return pa.Table.from_batches(self.batches, self.schema)


@dataclass
class _Account:
    """Per source: records and documents as read (for the ledger)."""

    records: Tally = field(default_factory=Tally)
    bad: dict[str, Tally] = field(default_factory=dict)
    document_record_bytes: int = 0
    documents: Tally = field(default_factory=Tally)
    dropped: dict[str, Tally] = field(default_factory=dict)


class _Task:
    """Collects one task's documents, drops and counters."""

    def __init__(self, job: CleanJob) -> None:
        self.job = job
        self.documents = _Columns(DOCUMENT_SCHEMA)
        self.drops = _Columns(DROP_SCHEMA)
        self.accounts: dict[str, _Account] = {}
        self.records = 0
        self.bad = 0

    def take(self, item: Record | BadRecord, file: InputFile, path_id: int, prefix: bytes) -> None:
        """One record of `file`: a document, a drop or a bad record."""
        place = item.place
        key = key_of_prefix(prefix, place.ordinal)
        source = (item.source or file.input) if isinstance(item, Record) else file.input
        account = self.accounts.setdefault(source, _Account())
        account.records.add(1, place.byte_length)
        where = (
            self.doc_id(),
            key,
            source,
            path_id,
            place.line,
            place.byte_offset,
            place.byte_length,
        )
        self.records += 1
        if isinstance(item, BadRecord):
            self.bad += 1
            account.bad.setdefault(item.reason, Tally()).add(1, place.byte_length)
            self.drops.add((*where, "", item.reason, True, 0, ""), 0)
        else:
            account.document_record_bytes += place.byte_length
            self.document(item, where, account)

    def document(self, item: Record, where: tuple[Any, ...], account: _Account) -> None:
        text = clean_text(item.text) if self.job.fix_text else item.text
        encoded = text.encode()
        account.documents.add(1, len(encoded))
        if is_short(text, self.job.min_length):
            account.dropped.setdefault(TOO_SHORT, Tally()).add(1, len(encoded))
            row = (*where, item.licence, TOO_SHORT, False, len(encoded), printable(text, EXCERPT))
            self.drops.add(row, 0)
        else:
            row = (*where, item.licence, text_key(encoded), len(encoded), item.meta, text)
            self.documents.add(row, len(encoded))

    def doc_id(self) -> int:
        return self.job.index << 32 | self.records


def _clean(job: CleanJob, inputs: Inputs) -> Result:
    task = _Task(job)
    noted: list[list[str | int]] = []
    skipped: list[list[str]] = []
    problems: list[str] = []
    for file, path_id, rules in zip(job.files, job.path_ids, job.rules, strict=True):
        reader = files.HashingReader(file.location)
        try:
            found = _read_whole(file, reader, rules, job.on_bad_record)
        except InputError as error:
            problems.append(str(error))
            skipped.append(
                [file.input, file.path, printable(str(error).replace(file.location, file.path))]
            )
            found = []
        finally:
            digest = reader.hash_rest()
            reader.close()
        noted.append([file.input, file.path, file.size, digest])
        prefix = path_prefix(file.input, file.path)
        for item in found:
            task.take(item, file, path_id, prefix)
    if problems and job.on_bad_shard == "fail":
        raise InputError("\n".join(problems))
    counters = {
        "documents": sum(a.documents.documents for a in task.accounts.values()),
        "records": task.records,
        "bad": task.bad,
        "inputs": noted,
        "skipped_shards": skipped,
        "sources": {name: asdict(account) for name, account in sorted(task.accounts.items())},
    }
    return Result(_outputs(job.index, task), counters)


def _outputs(index: int, task: _Task) -> tuple[Output, ...]:
    return (
        arrow_output(layout.shard("documents", index, "arrow"), task.documents.table()),
        parquet_output(layout.shard("drops", index, "parquet"), task.drops.table()),
    )


def _read_whole(
    file: InputFile, reader: files.HashingReader, rules: RecordRules, on_bad_record: str
) -> list[Record | BadRecord]:
    """All records of a file, so that a file damaged near its end never counts by half."""
    found = []
    for item in files.read(file, reader, rules):
        if isinstance(item, BadRecord) and on_bad_record == "fail":
            raise InputError(f"{file.location}:{_line(item.place)}: bad record: {item.reason}")
        found.append(item)
    return found


def _line(place: Place) -> str:
    return str(place.line) if place.line else f"row {place.byte_offset}"


def clean_stage(
    config: Config, plan: Plan, still_valid: Callable[[Mapping[str, Any]], bool]
) -> Stage:
    """The stage that reads every raw shard once."""
    text_keys = {i.name: i for i in config.inputs}
    tasks = []
    for index, members in enumerate(plan.tasks):
        chosen = tuple(plan.files[m] for m in members)
        rules = tuple(
            RecordRules(
                text_keys[f.input].text_key,
                config.read.max_document_bytes,
                text_keys[f.input].sources,
            )
            for f in chosen
        )
        job = CleanJob(
            index, chosen, tuple(members), rules, config.clean.min_length, config.clean.fix_text,
            config.read.on_bad_record, config.read.on_bad_shard,
        )  # fmt: skip
        label = f"clean task {index} ({chosen[0].path} … {chosen[-1].path})"
        tasks.append(Task(label, job, work=sum(f.text_estimate for f in chosen)))
    return Stage(
        "clean",
        1,
        _clean,
        tuple(tasks),
        {"min_length": config.clean.min_length, "fix_text": config.clean.fix_text},
        _software(),
        still_valid,
    )


def _software() -> dict[str, str]:
    import unicodedata

    return {"ftfy": ftfy.__version__, "unicode": unicodedata.unidata_version}
