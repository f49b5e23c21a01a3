"""Read and clean: raw shards -> documents/ (the only full copy of the text) and drops/.

Every record gets `doc_id` = task << 32 | its index among all records of the task. Text is fixed by
ftfy with NFC and all other defaults, unless `clean.fix_text` or `clean.ftfy` say otherwise; what
`clean.mask` names is masked; documents shorter than `clean.min_length` by SlimPajama's rule are
dropped. Whatever does not become a document is in drops/ with its reason.
"""

import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from pipeline.cleaning.mask import read_mask_versions as mask_software
from pipeline.config.prep import Config
from pipeline.core.errors import InputError, escape_text
from pipeline.engine.stage import Inputs, Result, Stage, Task
from pipeline.sources import files
from pipeline.sources.files import InputFile
from pipeline.sources.part import DamagedFile, Part, WholeFile, read_part
from pipeline.sources.record import BadRecord, RecordRules, make_rules, typed_columns
from pipeline.stages.document_rows import Cleaning, DocumentRows, Item
from pipeline.stages.findings.withheld import load_withheld
from pipeline.stages.plan import Reading


@dataclass(frozen=True, kw_only=True)
class CleanJob:
    """One task: its raw shards or parts of them, and how to read and filter them."""

    index: int
    parts: tuple[Part, ...]
    rules: tuple[RecordRules, ...]
    cleaning: Cleaning
    on_bad_record: str
    on_bad_shard: str


def _clean(job: CleanJob, inputs: Inputs) -> Result:
    withheld = load_withheld(inputs.root, job.cleaning.withheld)
    task = DocumentRows(job.index, job.cleaning, withheld)
    read_files: list[list[str | int]] = []
    skipped: list[list[str]] = []
    problems: list[str] = []
    for part, rules in zip(job.parts, job.rules, strict=True):
        file, digest, problem = part.file, part.digest, ""
        if isinstance(part.content, WholeFile):
            digest, problem = _take_file(task, part, rules, job.on_bad_record)
        elif isinstance(part.content, DamagedFile):
            problem = part.content.problem
        else:
            records = _check_records(read_part(part, inputs, rules), file, job.on_bad_record)
            task.take(records, part)
        if part.index == 0:
            read_files.append([file.input, file.path, file.size, digest])
        if problem:
            problems.append(problem)
            why = escape_text(problem.replace(file.shown, file.path))
            skipped.append([file.input, file.path, why])
    if problems and job.on_bad_shard == "fail":
        raise InputError("\n".join(problems))
    counters: dict[str, Any] = {
        "documents": sum(a.documents.documents for a in task.accounts.values()),
        "records": task.records,
        "bad": task.bad,
        "inputs": read_files,
        "skipped_shards": skipped,
        "sources": {name: asdict(account) for name, account in sorted(task.accounts.items())},
    }
    keyed = {p.file.input for p, r in zip(job.parts, job.rules, strict=True) if r.source_key}
    if keyed:
        counters["unlabelled"] = {name: task.unlabelled[name] for name in sorted(keyed)}
    if job.cleaning.mask:
        counters["masked"] = task.masked_counts()
    return Result(task.outputs(), counters)


def _take_file(
    task: DocumentRows, part: Part, rules: RecordRules, on_bad_record: str
) -> tuple[str, str]:
    """Take all records of a file, or none of one that is damaged, even near its end; returns its
    hash, and what is wrong with it."""
    file, problem = part.file, ""
    with closing(files.HashingReader(file.location)) as reader:
        try:
            records = _check_records(files.read_records(file, reader, rules), file, on_bad_record)
            task.take(records, part)
        except InputError as error:
            problem = str(error)
        return reader.hash_rest(file.size), problem


def _check_records(items: Iterator[Item], file: InputFile, on_bad_record: str) -> Iterator[Item]:
    for item in items:
        if isinstance(item, BadRecord) and on_bad_record == "fail":
            where = item.place.line or f"row {item.place.byte_offset}"
            raise InputError(f"{file.shown}:{where}: bad record: {item.reason}")
        yield item


def clean_stage(
    config: Config,
    reading: Reading,
    still_valid: Callable[[Mapping[str, Any]], bool],
    withheld: tuple[str, ...] = (),
) -> Stage:
    """The stage that reads every raw shard once. Texts of the documents in the tables `withheld`
    are left out (`pipeline.stages.findings.withheld`)."""
    rules = make_rules(config)
    clean, read = config.clean, config.read
    cleaning = Cleaning(
        min_length=clean.min_length,
        fix_text=clean.fix_text,
        ftfy=tuple(clean.ftfy_options.items()),
        mask=clean.mask,
        phone_regions=clean.phone_regions,
        columns=typed_columns(config),
        withheld=withheld,
    )
    readers = {name: version for file in reading.files for name, version in file.software.items()}
    tasks = []
    for index, parts in enumerate(reading.tasks):
        chosen = tuple(rules[part.file.input] for part in parts)
        job = CleanJob(
            index=index,
            parts=parts,
            rules=chosen,
            cleaning=cleaning,
            on_bad_record=read.on_bad_record,
            on_bad_shard=read.on_bad_shard,
        )
        shards = tuple(shard for part in parts for shard in part.shards)
        work = sum(part.work for part in parts)
        tasks.append(Task(_label(index, parts), job, shards, work))
    return Stage(
        name="clean",
        version=2,
        function=_clean,
        tasks=tuple(tasks),
        settings={
            "min_length": clean.min_length,
            "fix_text": clean.fix_text,
            "mask": clean.mask,
            **({"ftfy": clean.ftfy_options} if clean.ftfy_options else {}),
        },
        software={
            "ftfy": version("ftfy"),
            "unicode": unicodedata.unidata_version,
            **mask_software(clean.mask),
            **readers,
        },
        still_valid=still_valid,
    )


def _label(index: int, parts: tuple[Part, ...]) -> str:
    first, last = parts[0], parts[-1]
    if isinstance(first.content, WholeFile):
        return f"clean task {index} ({first.file.path} … {last.file.path})"
    where = f"line {first.first.line:,}" if first.first.line else f"row {first.first.ordinal:,}"
    return f"clean task {index} ({first.file.path} from {where})"
