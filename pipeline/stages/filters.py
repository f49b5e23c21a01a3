"""The stages that find and decide at once: filters and decontamination.

Filters: every rule that a document fails, as evidence, and the decision that follows.

The first failing rule in the order of `pipeline.filters.rules.RULES` is the rule of the decision,
and so the reason why a dropped document left; all of them stand in the evidence, with the value
measured and the limit.

Decontaminate: documents that hold text of evaluation items, as evidence and decisions.

Two stages: `eval_index` reads the evaluation sets and publishes what is looked for, and which items
are too short for that; `overlap` looks at every documents shard.
"""

import json
import unicodedata
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from dedup.arrays import I64, U8
from pipeline.config.filters import FiltersConfig
from pipeline.core.errors import InputError
from pipeline.core.manifest import Shard, StageManifest
from pipeline.engine.stage import Inputs, Output, Result, Stage, Task, arrow_output, parquet_output
from pipeline.filters.custom.calls import document_batches, judge
from pipeline.filters.custom.functions import CustomFilter
from pipeline.filters.rules import RULES, Failures, Filters, find_failures
from pipeline.runs import layout
from pipeline.screening.evidence import DECISION_SCHEMA, EVIDENCE_SCHEMA, attributes_json, table_of
from pipeline.sources.eval_sets import EvalSet, item_name, item_texts, read_eval_set
from pipeline.stages.plan import Reading

if TYPE_CHECKING:
    from dedup.eval_index import ItemIndex
    from dedup.overlap import Hits


Row = tuple[object, ...]


@dataclass(frozen=True)
class FiltersJob:
    """One documents shard under the section `filters` (as JSON) and the bad words it names."""

    index: int
    documents: Shard
    config: str
    bad_words: tuple[str, ...]


def _filters(job: FiltersJob, inputs: Inputs) -> Result:
    config = FiltersConfig.model_validate_json(job.config)
    table = inputs.table(job.documents, ["doc_id", "doc_key", "text"])
    failures = find_failures(table["text"], Filters(config, job.bad_words))
    evidence, decisions = _findings(failures, table)
    decided = (
        [] if config.action == "report" else [(*d[:2], config.action, *d[2:]) for d in decisions]
    )
    stem = f"filters/{job.index:06d}"
    outputs = (
        arrow_output(f"{stem}.evidence.arrow", table_of(evidence, EVIDENCE_SCHEMA)),
        arrow_output(f"{stem}.decisions.arrow", table_of(decided, DECISION_SCHEMA)),
    )
    failed = {reason: failures.reason.count(reason) for reason in RULES}
    counters = {
        "documents": len(table),
        "evidence": len(evidence),
        "failing": len(decisions),
        "rules": {reason: count for reason, count in failed.items() if count},
    }
    return Result(outputs, counters)


def _findings(failures: Failures, table: pa.Table) -> tuple[list[Row], list[Row]]:
    """Rows of evidence, and rows of decisions without the decision, both by document."""
    evidence: list[Row] = []
    decisions: list[Row] = []
    about = table.select(["doc_id", "doc_key"]).take(pa.array(failures.row)).to_pylist()
    columns = (failures.reason, failures.target, failures.value.tolist(), failures.limit.tolist())
    for row, reason, target, value, limit in zip(about, *columns, strict=True):
        doc_id, key = row["doc_id"], row["doc_key"]
        if not decisions or decisions[-1][0] != doc_id:
            ids: list[str] = []
            decisions.append((doc_id, key, reason, RULES[reason], ids, None))
        ids.append(f"{key.hex()}-f{len(ids)}")
        family = reason.partition("_")[0]
        evidence.append(
            (
                ids[-1],
                doc_id,
                key,
                family,
                reason,
                "",
                target,
                "",
                "",
                0,
                0,
                None,
                _measured(value, limit),
            )
        )
    return evidence, decisions


def _measured(value: float, limit: float) -> str:
    """What was measured and what was allowed; empty for a rule that measures nothing."""
    known = {"value": value, "limit": limit}
    return attributes_json(known) if value == value else ""


def filters_stage(clean: StageManifest, filters: Filters) -> Stage:
    """The stage that measures every document; with no rules it counts them only."""
    config = filters.config.model_dump_json(exclude={"c4": {"bad_words"}, "custom": True})
    tasks = tuple(
        Task(f"filters of {s.path}", FiltersJob(i, s, config, filters.bad_words), (s,), s.size)
        for i, s in enumerate(clean.below("documents"))
    )
    return Stage(
        name="filters",
        version=3,
        function=_filters,
        tasks=tasks,
        settings={},
        software=filters.software(),
    )


DETECTOR = "eval_overlap"
RULE = "eval-overlap"
REASON = "It contains text of an evaluation item."

PARTS, GRAMS = "overlap/index.parts.arrow", "overlap/index.grams.arrow"
NO_TEXT = "no text"
_MISSES = ("", "too short", "common", NO_TEXT)
"""Why an item is not looked for, by the status of its best text in `dedup.overlap`."""

Action = Literal["drop", "quarantine", "review", "report"]


@dataclass(frozen=True)
class OverlapRules:
    """What of an item is looked for; see `dedup.overlap`. `fields`: dotted names of the fields that
    hold an item's text, None for every string; `action`: what follows for the document.
    """

    n: int
    min_words: int
    min_overlap: float
    fields: tuple[str, ...] | None
    action: Action


@dataclass(frozen=True)
class IndexJob:
    """All evaluation sets, and what of `OverlapRules` the index depends on."""

    sets: tuple[EvalSet, ...]
    n: int
    min_words: int
    min_overlap: float
    fields: tuple[str, ...] | None


@dataclass
class _Items:
    """Columns over the texts of all items."""

    eval_set: list[str]
    item: list[str]
    field: list[str]
    text: list[str]
    number: list[int]
    """Which item of all a text belongs to."""


def _index(job: IndexJob, inputs: Inputs) -> Result:
    """PARTS, GRAMS: the index of `dedup.overlap`, with set, item and field of every part; the
    items table: every item, and why it is not looked for."""
    from dedup.eval_index import build_item_index

    items, names = _read_items(job)
    index, entry, status = build_item_index(items.text, job.n, job.min_words, job.min_overlap)
    table = _items_table(items, names, status)
    checked = table["checked"].to_numpy(zero_copy_only=False)
    outputs = (*_index_outputs(index, entry, items), parquet_output(layout.EVAL_ITEMS, table))
    counts = {s.name: {"items": 0, "unchecked": 0} for s in job.sets}
    for (name, _), looked_for in zip(names, checked, strict=True):
        counts[name]["items"] += 1
        counts[name]["unchecked"] += not looked_for
    counters = {"sets": counts, "parts": len(index.gram), "grams": len(index.gram_key)}
    return Result(outputs, counters)


def _read_items(job: IndexJob) -> tuple[_Items, list[tuple[str, str]]]:
    items = _Items([], [], [], [], [])
    names: list[tuple[str, str]] = []
    for found in job.sets:
        before = len(items.text)
        for line, record in read_eval_set(found):
            name = item_name(record, line)
            try:
                texts = item_texts(record, job.fields, job.min_words)
            except RecursionError as error:
                raise InputError(f"{found.location}:{line}: nested too deeply") from error
            for field, text in texts:
                items.eval_set.append(found.name)
                items.item.append(name)
                items.field.append(field)
                items.text.append(text)
                items.number.append(len(names))
            names.append((found.name, name))
        if len(items.text) == before:
            wanted = f"the fields {', '.join(job.fields)}" if job.fields else "a string"
            raise InputError(f"{found.location}: no record has {wanted}; see decontaminate.fields")
    return items, names


def _items_table(items: _Items, names: list[tuple[str, str]], status: U8) -> pa.Table:
    """One row per item, in order: its set and name, whether it is looked for, and why not."""
    best = np.full(len(names), _MISSES.index(NO_TEXT), np.uint8)
    np.minimum.at(best, items.number, status)
    sets, own = zip(*names, strict=True) if names else ((), ())
    return pa.table(
        {
            "eval_set": pa.array(sets, pa.string()),
            "item": pa.array(own, pa.string()),
            "checked": pa.array(best == 0),
            "reason": pa.array(_MISSES).take(pa.array(best)),
        }
    )


def _index_outputs(index: "ItemIndex", entry: I64, items: _Items) -> tuple[Output, Output]:
    entries = pa.array(entry)
    words = pa.LargeListArray.from_arrays(pa.array(index.starts), pa.array(index.words))
    parts = {
        "eval_set": pa.array(items.eval_set, pa.string()).take(entries),
        "item": pa.array(items.item, pa.string()).take(entries),
        "field": pa.array(items.field, pa.string()).take(entries),
        "gram": pa.array(index.gram),
        "searched": pa.array(index.searched),
        "words": words,
    }
    grams = {
        "key": pa.array(index.gram_key),
        "part": pa.array(index.gram_part),
        "position": pa.array(index.gram_position),
    }
    return arrow_output(PARTS, pa.table(parts)), arrow_output(GRAMS, pa.table(grams))


def _load_index(job: "OverlapJob", inputs: Inputs) -> tuple["ItemIndex", pa.Table]:
    """The published index, memory-mapped, and the names of its parts."""
    from dedup.eval_index import ItemIndex

    parts, grams = inputs.table(job.parts), inputs.table(job.grams)
    words = _array(parts, "words")
    index = ItemIndex(
        words.flatten().to_numpy(),
        words.offsets.to_numpy(),
        _array(parts, "gram").to_numpy(),
        _array(parts, "searched").to_numpy(),
        _array(grams, "key").to_numpy(),
        _array(grams, "part").to_numpy(),
        gram_position=_array(grams, "position").to_numpy(),
    )
    return index, parts.select(["eval_set", "item", "field"])


def _array(table: pa.Table, name: str) -> pa.Array:
    column = table[name]
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def eval_index_stage(sets: tuple[EvalSet, ...], rules: OverlapRules) -> Stage:
    """The stage that reads the evaluation sets and publishes what is looked for; it needs no other
    stage."""
    job = IndexJob(sets, rules.n, rules.min_words, rules.min_overlap, rules.fields)
    task = Task("index of evaluation items", job, (), sum(s.size for s in sets))
    return Stage(
        name="eval_index",
        version=1,
        function=_index,
        tasks=(task,),
        settings={"sets": {s.name: s.hash for s in sets}},
    )


@dataclass(frozen=True, kw_only=True)
class OverlapJob:
    """One documents shard and the index."""

    index: int
    documents: Shard
    parts: Shard
    grams: Shard
    min_overlap: float
    action: Action


def _overlap(job: OverlapJob, inputs: Inputs) -> Result:
    """Evidence: a row per span of a part of which the document holds `min_overlap`; decisions: a
    row per such document, unless the action is to report only."""
    from dedup.overlap import find_overlaps

    table = inputs.table(job.documents, ["doc_id", "doc_key", "text"])
    index, names = _load_index(job, inputs)
    hits = find_overlaps(table["text"], index).at_least(job.min_overlap)
    evidence, decisions = _overlap_findings(hits, table, names)
    decided = [] if job.action == "report" else [(*d[:2], job.action, *d[2:]) for d in decisions]
    stem = f"overlap/{job.index:06d}"
    outputs = (
        arrow_output(f"{stem}.evidence.arrow", table_of(evidence, EVIDENCE_SCHEMA)),
        arrow_output(f"{stem}.decisions.arrow", table_of(decided, DECISION_SCHEMA)),
    )
    counters = {
        "documents": len(table),
        "evidence": len(evidence),
        "contaminated": len(decisions),
        "parts": len(np.unique(hits.part)),
    }
    return Result(outputs, counters)


def _overlap_findings(
    hits: "Hits", table: pa.Table, names: pa.Table
) -> tuple[list[Row], list[Row]]:
    """Rows of evidence, and rows of decisions without the decision, both by document."""
    evidence: list[Row] = []
    decisions: list[Row] = []
    parts = names.take(pa.array(hits.part)).to_pylist()
    documents, first = np.unique(hits.document, return_index=True)
    about = table.select(["doc_id", "doc_key"]).take(pa.array(documents)).to_pylist()
    ends = np.append(first, len(hits))[1:]
    for row, start, end in zip(about, first.tolist(), ends.tolist(), strict=True):
        doc_id, key = row["doc_id"], row["doc_key"]
        ids = [f"{key.hex()}-e{number}" for number in range(end - start)]
        for evidence_id, hit in zip(ids, range(start, end), strict=True):
            part, offset = parts[hit], int(hits.byte_start[hit])
            evidence.append(
                (
                    evidence_id,
                    doc_id,
                    key,
                    DETECTOR,
                    RULE,
                    "item",
                    f"{part['eval_set']}:{part['item']}",
                    "",
                    "",
                    offset,
                    int(hits.byte_end[hit]) - offset,
                    float(hits.share[hit]),
                    attributes_json({"field": part["field"]}),
                )
            )
        decisions.append((doc_id, key, RULE, REASON, ids, None))
    return evidence, decisions


def overlap_stage(clean: StageManifest, index: StageManifest, rules: OverlapRules) -> Stage:
    """The stage that looks for evaluation items in every document."""
    parts, grams = index.find(PARTS), index.find(GRAMS)
    tasks = tuple(
        Task(
            f"evaluation items in {s.path}",
            OverlapJob(
                index=i,
                documents=s,
                parts=parts,
                grams=grams,
                min_overlap=rules.min_overlap,
                action=rules.action,
            ),
            (s, parts, grams),
            s.size,
        )
        for i, s in enumerate(clean.below("documents"))
    )
    return Stage(name="overlap", version=3, function=_overlap, tasks=tasks)


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
            (own, said)
            for own, of_all in zip(job.functions, verdicts, strict=True)
            if (said := of_all[row]) is not None
        ]
        ids = [f"{key.hex()}-c{number}" for number in range(len(failed))]
        for name, (own, said) in zip(ids, failed, strict=True):
            counts[own.rule] += 1
            found = (name, doc_id, key, CUSTOM_DETECTOR, own.rule, "", said or own.name)
            evidence.append((*found, "", "", 0, 0, None, ""))
        if failed and job.action != "report":
            own, said = failed[0]
            why = said or f"The filter {own.name} refuses it."
            decisions.append((doc_id, key, job.action, own.rule, why, ids, None))
    stem = f"filters/{job.index:06d}.custom"
    outputs = (
        arrow_output(f"{stem}.evidence.arrow", table_of(evidence, EVIDENCE_SCHEMA)),
        arrow_output(f"{stem}.decisions.arrow", table_of(decisions, DECISION_SCHEMA)),
    )
    counters = {
        "documents": len(table),
        "evidence": len(evidence),
        "rules": dict(sorted(counts.items())),
    }
    return Result(outputs, counters)


def custom_filters_stage(
    clean: StageManifest, reading: Reading, functions: tuple[CustomFilter, ...], action: str
) -> Stage:
    """The stage that asks the user's functions about every document."""
    tasks = []
    for index, shard in enumerate(clean.below("documents")):
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
