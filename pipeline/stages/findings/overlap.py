"""Decontaminate: documents that hold text of evaluation items, as evidence and decisions.

Two stages: `eval_index` reads the evaluation sets and publishes what is looked for, and which items
are too short for that; `overlap` looks at every documents shard.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from dedup.arrays import I64, U8
from pipeline.config.prep import DecontaminateConfig
from pipeline.core.errors import InputError
from pipeline.core.manifest import Shard
from pipeline.engine.stage import Inputs, Output, Result, Stage, Task, arrow_output, parquet_output
from pipeline.runs import layout
from pipeline.runs.views.documents import CleanOutput, EvalIndexOutput
from pipeline.screening.evidence import encode_attributes
from pipeline.sources.eval_sets import EvalSet, item_name, item_texts, read_eval_set
from pipeline.stages.findings.filters import Row, finding_outputs

if TYPE_CHECKING:
    from dedup.eval_index import ItemIndex
    from dedup.overlap import Hits

DETECTOR = "eval_overlap"
RULE = "eval-overlap"
REASON = "It contains text of an evaluation item."

NO_TEXT = "no text"
_MISSES = ("", "too short", "common", NO_TEXT)
"""Why an item is not looked for, by the status of its best text in `dedup.overlap`."""


@dataclass(frozen=True)
class IndexJob:
    """All evaluation sets, and the settings that the index depends on (see `dedup.overlap`)."""

    sets: tuple[EvalSet, ...]
    n: int
    min_words: int
    min_overlap: float
    fields: tuple[str, ...] | None


class _ItemText(NamedTuple):
    """One text of an item, and which of all items it belongs to."""

    eval_set: str
    item: str
    field: str
    text: str
    number: int


def _index(job: IndexJob, inputs: Inputs) -> Result:
    """The index of `dedup.overlap`, with set, item and field of every part; the items table: every
    item, and why it is not looked for."""
    from dedup.eval_index import build_item_index

    items, names = _read_items(job)
    texts = [item.text for item in items]
    index, entry, status = build_item_index(texts, job.n, job.min_words, job.min_overlap)
    table = _items_table(items, names, status)
    checked = table["checked"].to_numpy(zero_copy_only=False)
    outputs = (*_index_outputs(index, entry, items), parquet_output(layout.EVAL_ITEMS, table))
    counts = {s.name: {"items": 0, "unchecked": 0} for s in job.sets}
    for (name, _), looked_for in zip(names, checked, strict=True):
        counts[name]["items"] += 1
        counts[name]["unchecked"] += not looked_for
    counters = {"sets": counts, "parts": len(index.gram), "grams": len(index.gram_key)}
    return Result(outputs, counters)


def _read_items(job: IndexJob) -> tuple[list[_ItemText], list[tuple[str, str]]]:
    """The texts of all items, and set and name of every item."""
    items: list[_ItemText] = []
    names: list[tuple[str, str]] = []
    for eval_set in job.sets:
        before = len(items)
        for line, record in read_eval_set(eval_set):
            name = item_name(record, line)
            try:
                texts = item_texts(record, job.fields, job.min_words)
            except RecursionError as error:
                raise InputError(f"{eval_set.location}:{line}: nested too deeply") from error
            items += [_ItemText(eval_set.name, name, *field, len(names)) for field in texts]
            names.append((eval_set.name, name))
        if len(items) == before:
            expected = f"the fields {', '.join(job.fields)}" if job.fields else "a string"
            raise InputError(
                f"{eval_set.location}: no record has {expected}; see decontaminate.fields"
            )
    return items, names


def _items_table(items: list[_ItemText], names: list[tuple[str, str]], status: U8) -> pa.Table:
    """One row per item, in order: its set and name, whether it is looked for, and why not."""
    best = np.full(len(names), _MISSES.index(NO_TEXT), np.uint8)
    np.minimum.at(best, [item.number for item in items], status)
    sets, own = zip(*names, strict=True) if names else ((), ())
    return pa.table(
        {
            "eval_set": pa.array(sets, pa.string()),
            "item": pa.array(own, pa.string()),
            "checked": pa.array(best == 0),
            "reason": pa.array(_MISSES).take(pa.array(best)),
        }
    )


def _index_outputs(index: "ItemIndex", entry: I64, items: list[_ItemText]) -> tuple[Output, Output]:
    entries = pa.array(entry)
    words = pa.LargeListArray.from_arrays(pa.array(index.starts), pa.array(index.words))
    parts = {
        **{
            name: pa.array([getattr(item, name) for item in items], pa.string()).take(entries)
            for name in _ItemText._fields[:3]
        },
        "gram": pa.array(index.gram),
        "searched": pa.array(index.searched),
        "words": words,
    }
    grams = {
        "key": pa.array(index.gram_key),
        "part": pa.array(index.gram_part),
        "position": pa.array(index.gram_position),
    }
    return (
        arrow_output(layout.EVAL_PARTS, pa.table(parts)),
        arrow_output(layout.EVAL_GRAMS, pa.table(grams)),
    )


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


def eval_index_stage(sets: tuple[EvalSet, ...], rules: DecontaminateConfig) -> Stage:
    """The stage that reads the evaluation sets and publishes what is looked for; it needs no other
    stage."""
    job = IndexJob(sets, rules.n, rules.min_words, rules.min_overlap, rules.fields)
    task = Task("index of evaluation items", job, (), sum(s.size for s in sets))
    settings = {"sets": {s.name: s.hash for s in sets}}
    return Stage(name="eval_index", version=1, function=_index, tasks=(task,), settings=settings)


@dataclass(frozen=True, kw_only=True)
class OverlapJob:
    """One documents shard and the index."""

    index: int
    documents: Shard
    parts: Shard
    grams: Shard
    min_overlap: float
    action: str


def _overlap(job: OverlapJob, inputs: Inputs) -> Result:
    """Evidence: a row per span of a part of which the document holds `min_overlap`; decisions: a
    row per such document, unless the action is to report only."""
    from dedup.overlap import find_overlaps

    table = inputs.table(job.documents, ["doc_id", "doc_key", "text"])
    index, names = _load_index(job, inputs)
    hits = find_overlaps(table["text"], index).at_least(job.min_overlap)
    evidence, decisions = _overlap_findings(hits, table, names)
    decided = [] if job.action == "report" else [(*d[:2], job.action, *d[2:]) for d in decisions]
    counters = {
        "documents": len(table),
        "evidence": len(evidence),
        "contaminated": len(decisions),
        "parts": len(np.unique(hits.part)),
    }
    return Result(finding_outputs("overlap", job.index, evidence, decided), counters)


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
            head = (evidence_id, doc_id, key, DETECTOR, RULE, "item")
            target = f"{part['eval_set']}:{part['item']}"
            place = (offset, int(hits.byte_end[hit]) - offset)
            measured = (float(hits.share[hit]), encode_attributes({"field": part["field"]}))
            evidence.append((*head, target, "", "", *place, *measured))
        decisions.append((doc_id, key, RULE, REASON, ids, None))
    return evidence, decisions


def overlap_stage(clean: CleanOutput, index: EvalIndexOutput, rules: DecontaminateConfig) -> Stage:
    """The stage that looks for evaluation items in every document."""
    parts, grams = index.parts, index.grams
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
        for i, s in enumerate(clean.documents)
    )
    return Stage(name="overlap", version=3, function=_overlap, tasks=tasks)
