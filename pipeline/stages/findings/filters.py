"""Filters: every rule that a document fails, as evidence, and the decision that follows; the rules
of `pipeline.filters` and functions of the user's own. Detectors of plug-ins, which only find.

The first failing rule in the order of `pipeline.filters.rules.RULES` is the rule of the decision,
and so the reason why a dropped document left; all of them are in the evidence, with the value
measured and the limit.
"""

import json
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from pipeline.config.filters import FiltersConfig
from pipeline.core.errors import FunctionError, escape_text
from pipeline.core.manifest import Shard
from pipeline.engine.shared import Shared
from pipeline.engine.stage import Inputs, Output, Result, Stage, Task, arrow_output
from pipeline.filters.custom_calls import describe_rows, document_batches, judge
from pipeline.filters.custom_functions import CustomFilter
from pipeline.filters.rules import RULES, Failures, Filters, find_failures
from pipeline.filters.word_functions import WordFunctions
from pipeline.runs import layout
from pipeline.runs.views.documents import CleanOutput
from pipeline.screening.detectors.plug_ins import CustomDetector, find_problem, load_detector
from pipeline.screening.evidence import (
    DECISION_SCHEMA,
    EVIDENCE_SCHEMA,
    Finding,
    encode_attributes,
    findings_table,
    make_evidence_rows,
    make_table,
)
from pipeline.stages.plan import Reading

Row = tuple[object, ...]


def finding_outputs(
    directory: str, index: int, evidence: list[Row], decisions: list[Row], prefix: str = ""
) -> tuple[Output, Output]:
    """The evidence and the decisions on one documents shard."""
    evidence_path = layout.shard(directory, index, prefix + layout.EVIDENCE_SHARD)
    decisions_path = layout.shard(directory, index, prefix + layout.DECISIONS_SHARD)
    return (
        arrow_output(evidence_path, make_table(evidence, EVIDENCE_SCHEMA)),
        arrow_output(decisions_path, make_table(decisions, DECISION_SCHEMA)),
    )


@dataclass(frozen=True)
class FiltersJob:
    """One documents shard under the section `filters` (as JSON) and the bad words it names."""

    index: int
    documents: Shard
    config: str
    bad_words: Shared[tuple[str, ...]]


@dataclass(frozen=True)
class FiltersByWordsJob(FiltersJob):
    """The same with functions that cut words. A class of its own, so that the jobs of other
    filters, and so their fingerprints, are what they were without it."""

    words: WordFunctions = ()


def _filters(job: FiltersJob, inputs: Inputs) -> Result:
    config = FiltersConfig.model_validate_json(job.config)
    table = inputs.table(job.documents, ["doc_id", "doc_key", "text"])
    words = job.words if isinstance(job, FiltersByWordsJob) else ()
    filters = Filters(config, job.bad_words.value, words)
    failures = find_failures(
        table["text"], filters, lambda row: f"document {table['doc_key'][row].as_py().hex()}"
    )
    evidence, decisions = _findings(failures, table)
    decided = (
        [] if config.action == "report" else [(*d[:2], config.action, *d[2:]) for d in decisions]
    )
    failed = {reason: failures.reason.count(reason) for reason in RULES}
    counters = {
        "documents": len(table),
        "evidence": len(evidence),
        "failing": len(decisions),
        "rules": {reason: count for reason, count in failed.items() if count},
    }
    return Result(finding_outputs("filters", job.index, evidence, decided), counters)


def _findings(failures: Failures, table: pa.Table) -> tuple[list[Row], list[Row]]:
    """Rows of evidence, and rows of decisions without the decision, both by document."""
    evidence: list[Row] = []
    decisions: list[Row] = []
    about = table.select(["doc_id", "doc_key"]).take(pa.array(failures.row)).to_pylist()
    columns = (failures.reason, failures.target, _measured(failures))
    for row, reason, target, measured in zip(about, *columns, strict=True):
        doc_id, key = row["doc_id"], row["doc_key"]
        if not decisions or decisions[-1][0] != doc_id:
            ids: list[str] = []
            decisions.append((doc_id, key, reason, RULES[reason], ids, None))
        ids.append(f"{key.hex()}-f{len(ids)}")
        family = reason.partition("_")[0]
        head = (ids[-1], doc_id, key, family, reason, "", target)
        evidence.append((*head, "", "", 0, 0, None, measured))
    return evidence, decisions


def _measured(failures: Failures) -> Iterator[str]:
    """Attributes of the evidence: what was measured and allowed, and for which language."""
    columns = (failures.value.tolist(), failures.limit.tolist(), failures.language)
    for value, limit, language in zip(*columns, strict=True):
        attributes = {"value": value, "limit": limit} if value == value else {}
        attributes |= {"language": language} if language else {}
        yield encode_attributes(attributes) if attributes else ""


def filters_stage(clean: CleanOutput, filters: Filters) -> Stage:
    """The stage that measures every document; with no rules it counts them only."""
    config = filters.config.model_dump_json(
        exclude={"c4": {"bad_words"}, "custom": True, "words": True}
    )
    bad_words = Shared(filters.bad_words)
    make = partial(FiltersByWordsJob, words=filters.words) if filters.words else FiltersJob
    tasks = tuple(
        Task(f"filters of {s.path}", make(i, s, config, bad_words), (s,), s.size)
        for i, s in enumerate(clean.documents)
    )
    software = filters.software()
    return Stage(name="filters", version=3, function=_filters, tasks=tasks, software=software)


CUSTOM_DETECTOR = "custom"
"""What evidence names as its detector."""


@dataclass(frozen=True)
class CustomFiltersJob:
    """One documents shard, the functions to ask in order, what happens to documents that go, and
    the names of the raw shards by `path_id`."""

    index: int
    documents: Shard
    functions: tuple[CustomFilter, ...]
    action: str
    files: tuple[tuple[int, str], ...]


def _custom_filters(job: CustomFiltersJob, inputs: Inputs) -> Result:
    table = inputs.table(job.documents)
    batches = list(document_batches(table, dict(job.files)))
    verdicts = [judge(own, batches) for own in job.functions]
    evidence: list[Row] = []
    decisions: list[Row] = []
    counts: Counter[str] = Counter()
    about = zip(table["doc_id"].to_pylist(), table["doc_key"].to_pylist(), strict=True)
    for row, (doc_id, key) in enumerate(about):
        failed = [
            (own, answer)
            for own, of_all in zip(job.functions, verdicts, strict=True)
            if (answer := of_all[row]) is not None
        ]
        ids = [f"{key.hex()}-c{number}" for number in range(len(failed))]
        for name, (own, answer) in zip(ids, failed, strict=True):
            counts[own.rule] += 1
            head = (name, doc_id, key, CUSTOM_DETECTOR, own.rule, "", answer or own.name)
            evidence.append((*head, "", "", 0, 0, None, ""))
        if failed and job.action != "report":
            own, answer = failed[0]
            why = answer or f"The filter {own.name} refuses it."
            decisions.append((doc_id, key, job.action, own.rule, why, ids, None))
    outputs = finding_outputs("filters", job.index, evidence, decisions, prefix="custom.")
    counters = {
        "documents": len(table),
        "evidence": len(evidence),
        "rules": dict(sorted(counts.items())),
    }
    return Result(outputs, counters)


def custom_filters_stage(
    clean: CleanOutput, reading: Reading, functions: tuple[CustomFilter, ...], action: str
) -> Stage:
    """The stage that asks the user's functions about every document."""
    tasks = []
    for index, shard in enumerate(clean.documents):
        parts = {part.path_id: part.file for part in reading.tasks[index]}
        files = tuple((number, f"{f.input}/{f.path}") for number, f in parts.items())
        job = CustomFiltersJob(index, shard, functions, action, files)
        tasks.append(Task(f"custom filters of {shard.path}", job, (shard,), shard.size))
    settings = {
        own.name: {
            "file_hash": own.file_hash,
            "settings": json.loads(own.settings),
            "batch": own.batch,
            **({"distribution": own.location.distribution} if own.location.distribution else {}),
        }
        for own in functions
    }
    software = {"pyarrow": pa.__version__, "unicode": unicodedata.unidata_version}
    return Stage(
        name="custom_filters",
        version=1,
        function=_custom_filters,
        tasks=tuple(tasks),
        settings=settings,
        software=software,
    )


_LETTER = "d"
"""In ids of the evidence of plug-ins."""


@dataclass(frozen=True)
class CustomDetectorsJob:
    """One documents shard, the detectors of plug-ins in order, and the names of the raw shards by
    `path_id`."""

    index: int
    documents: Shard
    detectors: tuple[CustomDetector, ...]
    files: tuple[tuple[int, str], ...]


def _detect_custom(job: CustomDetectorsJob, inputs: Inputs) -> Result:
    table = inputs.table(job.documents)
    batches = list(document_batches(table, dict(job.files)))
    findings_by_detector = [(own.name, detect_with(own, batches)) for own in job.detectors]
    evidence = make_evidence_rows(table, findings_by_detector, _LETTER)
    path = layout.shard("screen", job.index, f"custom.{layout.EVIDENCE_SHARD}")
    output = arrow_output(path, evidence)
    counts = {name: len(findings) for name, findings in findings_by_detector if len(findings)}
    return Result((output,), {"documents": len(table), "evidence": counts})


def detect_with(own: CustomDetector, batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """FINDINGS of a plug-in's detector. Raises FunctionError when it fails, or yields what its
    class does not declare."""
    detector, findings, first = load_detector(own), list[Finding](), 0
    for batch in batches:
        try:
            of_batch = list(detector.detect(batch))
        except (Exception, SystemExit) as error:
            failure = own.describe_failure(error)
            raise FunctionError(
                f"{own.label} failed on {describe_rows(batch)}: {failure}"
            ) from error
        for finding in of_batch:
            if problem := find_problem(finding, detector, batch):
                raise FunctionError(
                    f"{own.label} found {escape_text(repr(finding), 300)} in "
                    f"{describe_rows(batch)}: {problem}"
                )
            findings.append(replace(finding, row=finding.row + first))
        first += len(batch)
    return findings_table(findings)


def custom_detectors_stage(
    clean: CleanOutput, reading: Reading, detectors: tuple[CustomDetector, ...]
) -> Stage:
    """The stage in which detectors of plug-ins look at every document."""
    tasks = []
    for index, shard in enumerate(clean.documents):
        parts = {part.path_id: part.file for part in reading.tasks[index]}
        files = tuple((number, f"{f.input}/{f.path}") for number, f in parts.items())
        job = CustomDetectorsJob(index, shard, detectors, files)
        tasks.append(Task(f"custom detectors of {shard.path}", job, (shard,), shard.size))
    settings = {
        own.name: {**vars(own.code), "settings": json.loads(own.settings)} for own in detectors
    }
    return Stage(
        name="custom_detectors",
        version=1,
        function=_detect_custom,
        tasks=tuple(tasks),
        settings=settings,
        software={"pyarrow": pa.__version__, "unicode": unicodedata.unidata_version},
    )
