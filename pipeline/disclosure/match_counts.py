"""Counts over evidence.parquet and decisions.parquet: detectors, works, opt-out signals."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.disclosure.facts import EvidenceFacts, OptOutFacts, Passage, WorkFacts
from pipeline.runs import layout
from pipeline.runs.parts import read_schema
from pipeline.screening.detectors.catalogue import DECIDE_FOR_THEMSELVES, DETECTORS
from pipeline.screening.evidence import DECISION_SCHEMA, EVIDENCE_SCHEMA

Decisions = tuple[tuple[str, int], ...]
"""Documents by decision."""

MOST_WORKS, MOST_PASSAGES, MOST_OPTOUTS = 200, 3, 500
OPT_OUT = "optout"
_QUOTES = {name: entry.quotes for name, entry in DETECTORS.items()} | dict.fromkeys(
    DECIDE_FOR_THEMSELVES, "text"
)
"""What evidence repeats, by detector; that of plug-ins may name people."""
_TITLE_BEGINS = 30
"""Characters by which a title is known: reasons cut long ones."""


@dataclass(frozen=True)
class Matches:
    """evidence.parquet and decisions.parquet in the columns of today, nulls for missing ones."""

    evidence: pa.Table
    decisions: pa.Table
    titles: Mapping[str, str]

    def is_quoted(self, rule: str, reason: str) -> bool:
        """Whether the reason of a rule's first decision holds what its evidence saw, or the title
        of the work it names."""
        decisions = self.decisions
        same = pc.and_(pc.equal(decisions["rule"], rule), pc.equal(decisions["reason"], reason))
        decided = decisions.filter(same)
        ids = decided["evidence"].slice(0, 1).combine_chunks().flatten()
        rows = self.evidence.filter(pc.is_in(self.evidence["evidence_id"], value_set=ids))
        return any(word in reason for row in rows.to_pylist() for word in self._quoted_words(row))

    def _quoted_words(self, row: Mapping[str, Any]) -> list[str]:
        """What evidence repeats from documents, registries or people, short words left out."""
        quotes = _QUOTES.get(row["detector"], "people")
        words = [] if quotes == "list" else [row["seen"]]
        if quotes == "people":
            words += [row["target"], *_read_attributes(row).values()]
        title = self.titles.get(row["work_id"], "")[:_TITLE_BEGINS]
        return [
            *(w for w in words if isinstance(w, str) and len(w) > 2),
            *([title] if title else []),
        ]


def _read_attributes(row: Mapping[str, Any]) -> dict[str, Any]:
    return dict(json.loads(row["attributes"])) if row["attributes"] else {}


def read_matches(directory: Path, works: Mapping[str, Mapping[str, Any]]) -> Matches:
    """Both tables, empty ones when nothing was screened; and the titles of the registry's works."""
    return Matches(
        _read_table(directory / layout.EVIDENCE, EVIDENCE_SCHEMA),
        _read_table(directory / layout.DECISIONS, DECISION_SCHEMA),
        {work: str(about.get("title_raw") or "") for work, about in works.items()},
    )


def _read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """The columns of `schema` without doc_id; those that the file lacks are null, strings empty."""
    fields = [field for field in schema if field.name != "doc_id"]
    if not path.exists():
        return pa.schema(fields).empty_table()
    names = read_schema(path).names
    table = pq.read_table(path, columns=[f.name for f in fields if f.name in names])
    for position, field in enumerate(fields):
        if field.name not in names:
            empty = pa.nulls(len(table), field.type)
            if pa.types.is_string(field.type):
                empty = pc.fill_null(empty, "")
            table = table.add_column(position, field, empty)
    return table


def count_evidence(matches: Matches) -> tuple[EvidenceFacts, ...]:
    """Evidence by detector and kind; filters have no kind, so their rule is named."""
    table = matches.evidence
    kind = pc.if_else(pc.equal(table["kind"], ""), table["rule"], table["kind"])
    with_kind = pa.table({"detector": table["detector"], "kind": kind, "doc_key": table["doc_key"]})
    rows = with_kind.group_by(["detector", "kind"], use_threads=False).aggregate(
        [("doc_key", "count"), ("doc_key", "count_distinct")]
    )
    ordered = rows.sort_by([("detector", "ascending"), ("kind", "ascending")]).to_pylist()
    return tuple(
        EvidenceFacts(r["detector"], r["kind"], r["doc_key_count"], r["doc_key_count_distinct"])
        for r in ordered
    )


def count_works(
    matches: Matches, documents: pa.Table, works: Mapping[str, Mapping[str, Any]]
) -> tuple[WorkFacts, ...]:
    """The works that evidence names, those with most documents first, at most `MOST_WORKS`."""
    evidence = matches.evidence.filter(pc.not_equal(matches.evidence["work_id"], ""))
    if not len(evidence):
        return ()
    counts = evidence.group_by(["work_id"], use_threads=False).aggregate(
        [("doc_key", "count"), ("doc_key", "count_distinct"), ("detector", "distinct")]
    )
    top = counts.sort_by([("doc_key_count_distinct", "descending"), ("work_id", "ascending")])
    top = top.slice(0, MOST_WORKS)
    of_top = evidence.filter(
        pc.is_in(evidence["work_id"], value_set=top["work_id"].combine_chunks())
    )
    decisions = _count_decisions(of_top, documents, "work_id")
    passages = _list_passages(of_top)
    return tuple(
        WorkFacts(
            work_id=row["work_id"],
            title=str(works.get(row["work_id"], {}).get("title_raw") or ""),
            authors=tuple(works.get(row["work_id"], {}).get("authors") or ()),
            status=str(works.get(row["work_id"], {}).get("status") or ""),
            detectors=tuple(sorted(row["detector_distinct"])),
            rows=row["doc_key_count"],
            documents=row["doc_key_count_distinct"],
            decisions=decisions.get(row["work_id"], ()),
            passages=passages.get(row["work_id"], ()),
        )
        for row in top.to_pylist()
    )


def _list_passages(evidence: pa.Table) -> dict[str, tuple[Passage, ...]]:
    """The longest passages of each work, at most `MOST_PASSAGES`."""
    passages_in_text = evidence.filter(pc.greater(evidence["byte_length"], 0)).sort_by(
        [
            ("work_id", "ascending"),
            ("byte_length", "descending"),
            ("doc_key", "ascending"),
            ("byte_offset", "ascending"),
        ]
    )
    names = ["work_id", "doc_key", "byte_offset", "byte_length", "seen", "attributes"]
    passages: dict[str, tuple[Passage, ...]] = {}
    for batch in passages_in_text.select(names).to_batches():
        for row, work in enumerate(batch["work_id"].to_pylist()):
            if len(passages.get(work, ())) < MOST_PASSAGES:
                value = {name: batch[name][row].as_py() for name in names}
                passage = Passage(
                    value["doc_key"].hex(),
                    value["byte_offset"],
                    value["byte_length"],
                    value["seen"] or "",
                    _read_attributes(value),
                )
                passages[work] = (*passages.get(work, ()), passage)
    return passages


def count_optouts(matches: Matches, documents: pa.Table) -> tuple[OptOutFacts, ...]:
    """The opt-out signals about documents, those with most documents first, at most
    `MOST_OPTOUTS`."""
    table = matches.evidence
    evidence = table.filter(pc.equal(table["detector"], OPT_OUT))
    if not len(evidence):
        return ()
    evidence = _add_signals(evidence)
    decisions = _count_decisions(evidence, documents, "name")
    counts = evidence.group_by(["name"], use_threads=False).aggregate(
        [("doc_key", "count_distinct"), ("captured", "max")]
    )
    rows = counts.sort_by([("doc_key_count_distinct", "descending"), ("name", "ascending")])
    optouts = []
    for row in rows.slice(0, MOST_OPTOUTS).to_pylist():
        kind, target, signal, status = json.loads(row["name"])
        optout = OptOutFacts(
            kind=kind,
            target=target,
            signal=signal,
            status=status,
            captured=row["captured_max"],
            documents=row["doc_key_count_distinct"],
            decisions=decisions[row["name"]],
        )
        optouts.append(optout)
    return tuple(optouts)


def _add_signals(evidence: pa.Table) -> pa.Table:
    """Opt-out evidence with `name` (kind, target, signal and status as JSON) and `captured`."""
    columns = ["kind", "target", "attributes"]
    distinct = (
        evidence.select(columns).group_by(columns, use_threads=False).aggregate([]).to_pylist()
    )
    about = {tuple(row.values()): _read_attributes(row) for row in distinct}
    names, captured = [], []
    for key in zip(*(evidence[name].to_pylist() for name in columns), strict=True):
        attributes = about[key]
        names.append(
            json.dumps([*key[:2], attributes.get("signal", ""), attributes.get("status", "")])
        )
        captured.append(str(attributes.get("captured_at") or ""))
    with_name = evidence.append_column("name", pa.array(names, pa.string()))
    return with_name.append_column("captured", pa.array(captured, pa.string()))


def _count_decisions(evidence: pa.Table, documents: pa.Table, key: str) -> dict[str, Decisions]:
    """Documents by decision for every value of the column `key`."""
    pairs = evidence.select([key, "doc_key"]).group_by([key, "doc_key"], use_threads=False)
    distinct = pairs.aggregate([])
    at = pc.index_in(distinct["doc_key"], value_set=documents["doc_key"].combine_chunks())
    decided = distinct.append_column("decision", pc.take(documents["decision"], at))
    counts = decided.group_by([key, "decision"], use_threads=False).aggregate(
        [("doc_key", "count")]
    )
    rows = counts.sort_by([(key, "ascending"), ("decision", "ascending")]).to_pylist()
    result: dict[str, Decisions] = {}
    for row in rows:
        result[row[key]] = (*result.get(row[key], ()), (row["decision"], row["doc_key_count"]))
    return result
