"""Screen: evidence of origin and markers in every document, and the decision that follows."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline import layout
from pipeline.core.manifest import Shard, StageManifest, fingerprint_of
from pipeline.provenance.literals import first_places
from pipeline.provenance.policy import Rule, Rules, decide
from pipeline.stage import Inputs, Result, Stage, Task, arrow_output, parquet_output

EVIDENCE_SCHEMA = pa.schema(
    [
        ("evidence_id", pa.string()),
        ("doc_id", pa.uint64()),
        ("doc_key", pa.binary(16)),
        ("detector", pa.string()),
        ("rule", pa.string()),
        ("target", pa.string()),
        ("byte_offset", pa.uint64()),
        ("byte_length", pa.uint64()),
        ("declared_licence", pa.string()),
    ]
)
DECISION_SCHEMA = pa.schema(
    [
        ("doc_id", pa.uint64()),
        ("doc_key", pa.binary(16)),
        ("decision", pa.string()),
        ("rule", pa.string()),
        ("reason", pa.string()),
        ("evidence", pa.list_(pa.string())),
    ]
)


@dataclass(frozen=True)
class ScreenJob:
    """One documents shard under a list of rules (as JSON, so that the job stays plain data)."""

    index: int
    documents: Shard
    rules: str


@dataclass(frozen=True)
class _Hit:
    rule: Rule
    detector: str
    target: str
    offset: int
    length: int


def _screen(job: ScreenJob, inputs: Inputs) -> Result:
    rules = Rules.model_validate_json(job.rules).rules
    table = inputs.table(job.documents, ["doc_id", "doc_key", "source", "licence", "text"])
    evidence, decisions = [], []
    for row, hits in find_hits(table["source"], table["text"], rules):
        doc_id, key, licence = (table[c][row].as_py() for c in ("doc_id", "doc_key", "licence"))
        ids = [f"{key.hex()}-{number}" for number in range(len(hits))]
        for evidence_id, hit in zip(ids, hits, strict=True):
            evidence.append(
                (
                    evidence_id,
                    doc_id,
                    key,
                    hit.detector,
                    hit.rule.id,
                    hit.target,
                    hit.offset,
                    hit.length,
                    licence,
                )
            )
        rule = decide([hit.rule for hit in hits])
        if rule is not None:
            decisions.append((doc_id, key, rule.decision, rule.id, rule.reason, ids))
    outputs = (
        arrow_output(f"screen/{job.index:06d}.evidence.arrow", _table(evidence, EVIDENCE_SCHEMA)),
        arrow_output(f"screen/{job.index:06d}.decisions.arrow", _table(decisions, DECISION_SCHEMA)),
    )
    return Result(outputs, {"documents": len(table), "evidence": len(evidence)})


def find_hits(
    sources: pa.ChunkedArray, texts: pa.ChunkedArray, rules: Sequence[Rule]
) -> Iterator[tuple[int, list[_Hit]]]:
    """For every document that a rule matches, in order: its row, and in rule order each match with
    the first place that shows it."""
    origins = {label: _origin_hits(label, rules) for label in pc.unique(sources).to_pylist()}
    labels = [label for label, hits in origins.items() if hits]
    rows = set(np.flatnonzero(pc.is_in(sources, value_set=pa.array(labels, pa.string()))).tolist())
    markers = [(rule, marker) for rule in rules for marker in rule.markers]
    found = first_places(texts, [marker for _, marker in markers])
    places = defaultdict(list)
    for row, literal, offset in zip(found.text, found.literal, found.offset, strict=True):
        rule, marker = markers[literal]
        places[int(row)].append(_Hit(rule, "marker", marker, int(offset), len(marker)))
    order = {rule.id: number for number, rule in enumerate(rules)}
    for row in sorted(rows.union(places)):
        hits = [*origins[sources[row].as_py()], *places[row]]
        yield row, sorted(hits, key=lambda hit: order[hit.rule.id])


def _origin_hits(label: str, rules: Sequence[Rule]) -> list[_Hit]:
    folded = label.casefold()
    return [
        _Hit(rule, "origin", label, 0, 0)
        for rule in rules
        for origin in rule.origin
        if origin.casefold() == folded
    ]


def _table(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )


def screen_stage(clean: StageManifest, rules: Rules) -> Stage:
    """The stage that looks at every document."""
    text = rules.model_dump_json()
    shards = clean.below("documents")
    tasks = tuple(
        Task(f"screening of {s.path}", ScreenJob(i, s, text), (s,), s.size)
        for i, s in enumerate(shards)
    )
    return Stage("screen", 1, _screen, tasks, {"rules": fingerprint_of(rules.model_dump())})


@dataclass(frozen=True)
class MergeJob:
    """All shards of one kind, in order."""

    shards: tuple[Shard, ...]
    output: str


def _merge(job: MergeJob, inputs: Inputs) -> Result:
    table = pa.concat_tables([inputs.table(shard) for shard in job.shards])
    return Result((parquet_output(job.output, table.drop_columns(["doc_id"])),))


def evidence_stage(screen: StageManifest) -> Stage:
    """The stage that publishes evidence.parquet and decisions.parquet."""
    tasks = []
    for kind, output in (("evidence", layout.EVIDENCE), ("decisions", layout.DECISIONS)):
        shards = tuple(s for s in screen.shards if s.path.endswith(f".{kind}.arrow"))
        tasks.append(Task(f"{kind} table", MergeJob(shards, output), shards))
    return Stage("evidence", 1, _merge, tuple(tasks))
