"""Counts over evidence.parquet and decisions.parquet: detectors, works, opt-out signals."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core.mirror.fetching import fetch
from pipeline.disclosure.facts import EvidenceFacts, OptOutFacts, Passage, WorkFacts
from pipeline.runs import layout
from pipeline.runs.parts import group_parts, list_parts
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
    """evidence.parquet and decisions.parquet of a run, part by part and in the columns of today;
    the titles of the registry's works."""

    directory: Path
    titles: Mapping[str, str]

    def evidence(self, columns: list[str]) -> Iterator[pa.Table]:
        """These columns of each part of evidence. All on one document is in one part."""
        return _read_parts(self.directory / layout.EVIDENCE, EVIDENCE_SCHEMA, columns)

    def decisions(self, columns: list[str]) -> Iterator[pa.Table]:
        """These columns of each part of decisions."""
        return _read_parts(self.directory / layout.DECISIONS, DECISION_SCHEMA, columns)

    def find_quoted(self, reasons: set[tuple[str, str]]) -> set[tuple[str, str]]:
        """Those of these (rule, reason) that hold what the evidence of the first such decision saw,
        or the title of the work it names."""
        evidence_ids: dict[tuple[str, str], list[str]] = {}
        for table in self.decisions(["rule", "reason", "evidence"]):
            for rule, reason in reasons - evidence_ids.keys():
                same = pc.and_(pc.equal(table["rule"], rule), pc.equal(table["reason"], reason))
                for names in table["evidence"].filter(same).slice(0, 1).to_pylist():
                    evidence_ids[rule, reason] = names or []
        ids = pa.array({name for names in evidence_ids.values() for name in names}, pa.string())
        words: dict[str, list[str]] = {}
        for table in self.evidence(_QUOTABLE):
            for row in table.filter(pc.is_in(table["evidence_id"], value_set=ids)).to_pylist():
                words.setdefault(row["evidence_id"], []).extend(self._quoted_words(row))
        return {
            (rule, reason)
            for (rule, reason), names in evidence_ids.items()
            if any(word in reason for name in names for word in words.get(name, ()))
        }

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


_QUOTABLE = ["evidence_id", "detector", "seen", "target", "attributes", "work_id"]


def _read_attributes(row: Mapping[str, Any]) -> dict[str, Any]:
    return dict(json.loads(row["attributes"])) if row["attributes"] else {}


def read_matches(directory: Path, works: Mapping[str, Mapping[str, Any]]) -> Matches:
    """Both tables, empty ones when nothing was screened; and the titles of the registry's works."""
    titles = {work: str(about.get("title_raw") or "") for work, about in works.items()}
    return Matches(directory, titles)


def _read_parts(path: Path, schema: pa.Schema, columns: list[str]) -> Iterator[pa.Table]:
    """Columns of a table, one part after the other; those that a file lacks are null, strings
    empty."""
    fields = [schema.field(name) for name in columns]
    for file in map(fetch, list_parts(path)) if path.exists() else ():
        names = pq.read_schema(file).names
        table = pq.read_table(file, columns=[f.name for f in fields if f.name in names])
        for position, field in enumerate(fields):
            if field.name not in names:
                empty = pa.nulls(len(table), field.type)
                if pa.types.is_string(field.type):
                    empty = pc.fill_null(empty, "")
                table = table.add_column(position, field, empty)
        yield table.select(columns)
    yield pa.schema(fields).empty_table()


def count_evidence(matches: Matches) -> tuple[EvidenceFacts, ...]:
    """Evidence by detector and kind; filters have no kind, so their rule is named."""
    tables = (
        table.append_column(
            "what", pc.if_else(pc.equal(table["kind"], ""), table["rule"], table["kind"])
        )
        for table in matches.evidence(["detector", "kind", "rule", "doc_key"])
    )
    rows = group_parts(tables, ["detector", "what"], _ROWS_AND_DOCUMENTS)
    ordered = rows.sort_by([("detector", "ascending"), ("what", "ascending")]).to_pylist()
    return tuple(EvidenceFacts(*row.values()) for row in ordered)


_ROWS_AND_DOCUMENTS = {
    "rows": ("doc_key", "count"),
    "documents": ("doc_key", "count_distinct"),
}


class DecidedDocuments(Protocol):
    """The documents of a run (`pipeline.disclosure.counts`)."""

    def look_up(self, keys: pa.ChunkedArray, column: str) -> pa.ChunkedArray:
        """A column of the documents with these keys."""


def count_works(
    matches: Matches, documents: DecidedDocuments, works: Mapping[str, Mapping[str, Any]]
) -> tuple[WorkFacts, ...]:
    """The works that evidence names, those with most documents first, at most `MOST_WORKS`."""

    def read(chosen: pc.Expression, *columns: str) -> Iterator[pa.Table]:
        names = ["work_id", *columns]
        return (table.filter(chosen) for table in matches.evidence(names))

    is_work = pc.field("work_id") != ""
    counts = group_parts(read(is_work, "doc_key"), ["work_id"], _ROWS_AND_DOCUMENTS)
    top = counts.sort_by([("documents", "descending"), ("work_id", "ascending")])
    top = top.slice(0, MOST_WORKS)
    if not len(top):
        return ()
    is_top = pc.field("work_id").isin(top["work_id"].combine_chunks())
    keys = ["work_id", "detector"]
    found_by = group_parts(read(is_top, "detector"), keys, {"rows": ("", "count_all")})
    detectors: dict[str, list[str]] = {}
    for row in found_by.to_pylist():
        detectors.setdefault(row["work_id"], []).append(row["detector"])
    decisions = _count_decisions(read(is_top, "doc_key"), documents, "work_id")
    passages = _list_passages(read(is_top & (pc.field("byte_length") > 0), *_PASSAGE))
    return tuple(
        WorkFacts(
            work_id=row["work_id"],
            title=str(works.get(row["work_id"], {}).get("title_raw") or ""),
            authors=tuple(works.get(row["work_id"], {}).get("authors") or ()),
            status=str(works.get(row["work_id"], {}).get("status") or ""),
            detectors=tuple(sorted(detectors[row["work_id"]])),
            rows=row["rows"],
            documents=row["documents"],
            decisions=decisions.get(row["work_id"], ()),
            passages=passages.get(row["work_id"], ()),
        )
        for row in top.to_pylist()
    )


_PASSAGE = ("doc_key", "byte_offset", "byte_length", "seen", "attributes")


def _list_passages(parts: Iterable[pa.Table]) -> dict[str, tuple[Passage, ...]]:
    """The longest passages of each work, at most `MOST_PASSAGES`."""
    order = [
        ("work_id", "ascending"),
        ("byte_length", "descending"),
        ("doc_key", "ascending"),
        ("byte_offset", "ascending"),
    ]
    longest: pa.Table | None = None
    for part in parts:
        rows = part if longest is None else pa.concat_tables([longest, part])
        rows = rows.sort_by(order).combine_chunks()
        work = pc.rank(rows["work_id"], tiebreaker="min").to_numpy() - 1
        longest = rows.filter(pa.array(np.arange(len(rows)) - work < MOST_PASSAGES))
    passages: dict[str, tuple[Passage, ...]] = {}
    for value in longest.to_pylist() if longest is not None else ():
        passage = Passage(
            value["doc_key"].hex(),
            value["byte_offset"],
            value["byte_length"],
            value["seen"] or "",
            _read_attributes(value),
        )
        passages[value["work_id"]] = (*passages.get(value["work_id"], ()), passage)
    return passages


def count_optouts(matches: Matches, documents: DecidedDocuments) -> tuple[OptOutFacts, ...]:
    """The opt-out signals about documents, those with most documents first, at most
    `MOST_OPTOUTS`."""

    def read() -> Iterator[pa.Table]:
        tables = matches.evidence(["detector", "kind", "target", "attributes", "doc_key"])
        return (_add_signals(table.filter(pc.field("detector") == OPT_OUT)) for table in tables)

    sums = {"documents": ("doc_key", "count_distinct"), "captured": ("captured", "max")}
    counts = group_parts(read(), ["name"], sums)
    if not len(counts):
        return ()
    decisions = _count_decisions(read(), documents, "name")
    rows = counts.sort_by([("documents", "descending"), ("name", "ascending")])
    optouts = []
    for row in rows.slice(0, MOST_OPTOUTS).to_pylist():
        kind, target, signal, status = json.loads(row["name"])
        optout = OptOutFacts(
            kind=kind,
            target=target,
            signal=signal,
            status=status,
            captured=row["captured"],
            documents=row["documents"],
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


def _count_decisions(
    parts: Iterable[pa.Table], documents: DecidedDocuments, key: str
) -> dict[str, Decisions]:
    """Documents by decision for every value of the column `key`."""

    def decide(part: pa.Table) -> pa.Table:
        distinct = part.group_by([key, "doc_key"], use_threads=False).aggregate([])
        decision = documents.look_up(distinct["doc_key"], "decision")
        return distinct.append_column("decision", decision)

    sums = {"documents": ("doc_key", "count")}
    counts = group_parts(map(decide, parts), [key, "decision"], sums)
    result: dict[str, Decisions] = {}
    for row in counts.sort_by([(key, "ascending"), ("decision", "ascending")]).to_pylist():
        result[row[key]] = (*result.get(row[key], ()), (row["decision"], row["documents"]))
    return result
