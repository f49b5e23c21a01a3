"""What the report says of documents: how large they are, what became of them, what was decided on
them, and examples.

Tables come part by part, and only a part is in memory. Rows of documents.parquet that the pages
show are noted with the number of their part (`part`), which leads to their texts.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core import ids
from pipeline.report.cluster_summary import DUPLICATE, count_values
from pipeline.report.html import SourceShare
from pipeline.report.model import Decision, LogBins

COLUMNS = ["doc_key", "source", "path_id", "line", "byte_offset", "text_bytes", "state", "reason",
           "representative", "tokens"]  # fmt: skip
DECISION_COLUMNS = ["rule", "decision", "reason", "propagated_from"]
_KEPT, _BAD = "kept", "bad_record"
_EXAMPLES = 3
_REASONS_COUNTED, _REASONS_SHOWN = 1000, 20
"""Of one rule and decision."""
_TAKEN_OVER, _OTHER_REASONS = "taken over from a document of the same cluster", "other reasons"

Row = dict[str, Any]


@dataclass
class Loss:
    """Records that left for one reason: how many, their bytes of text, and the first by key."""

    records: int = 0
    bytes: int = 0
    examples: list[Row] = field(default_factory=list)

    def add(self, rows: pa.Table, part: int) -> None:
        """Rows of a part."""
        self.records += len(rows)
        self.bytes += pc.sum(rows["text_bytes"]).as_py()
        both = [*self.examples, *_list_rows(_take_first(rows), part)]
        self.examples = sorted(both, key=lambda row: row["doc_key"])[:_EXAMPLES]


def _take_first(rows: pa.Table) -> pa.Table:
    """A few rows, among which are those with the smallest keys."""
    starts = ids.keys_as_u64(rows["doc_key"])[:, 0].byteswap()
    last = min(_EXAMPLES, len(rows)) - 1
    return rows.filter(pa.array(starts <= np.partition(starts, last)[last]))


def _list_rows(rows: pa.Table, part: int) -> list[Row]:
    return [{**row, "part": part} for row in rows.to_pylist()]


class DocumentCounts:
    """Adds up the parts; `shown`: keys of documents whose rows are noted."""

    def __init__(self, shown: pa.Array) -> None:
        self._shown = shown
        self._compared: Counter[str] = Counter()
        self._duplicates: Counter[str] = Counter()
        self._losses: dict[tuple[str, str], Loss] = {}
        self.bytes, self.tokens = LogBins(), LogBins()
        self.rows: dict[bytes, Row] = {}
        """Those of `shown`, by key."""

    def add(self, part: int, documents: pa.Table) -> None:
        """All rows of a part, with `COLUMNS`."""
        live = documents.filter(pc.not_equal(documents["state"], _BAD))
        is_kept = pc.equal(live["state"], _KEPT)
        self.bytes.add(live["text_bytes"].to_numpy(), is_kept.to_numpy())
        self.tokens.add(live["tokens"].filter(is_kept).to_numpy())
        compared = documents.filter(pc.is_valid(documents["representative"]))
        self._compared.update(count_values(compared, "source"))
        is_duplicate = pc.equal(compared["state"], DUPLICATE)
        self._duplicates.update(count_values(compared.filter(is_duplicate), "source"))
        gone = documents.filter(pc.not_equal(documents["state"], _KEPT))
        ends = gone.group_by(["state", "reason"], use_threads=False).aggregate([])
        for end in ends.to_pylist():
            same = pc.and_(*(pc.equal(gone[name], value) for name, value in end.items()))
            loss = self._losses.setdefault((end["state"], end["reason"]), Loss())
            loss.add(gone.filter(same), part)
        noted = documents.filter(pc.is_in(documents["doc_key"], self._shown))
        self.rows |= {row["doc_key"]: row for row in _list_rows(noted, part)}

    def shares(self) -> tuple[SourceShare, ...]:
        """By source: documents that reached dedup, and how many of them were duplicates."""
        compared = sorted(self._compared.items())
        return tuple(SourceShare(name, n, self._duplicates[name]) for name, n in compared)

    def losses(self) -> Iterator[tuple[str, str, Loss]]:
        """State, reason and the records that left so, the most frequent first."""
        for state, reason in sorted(
            self._losses, key=lambda end: (-self._losses[end].records, end[1], end[0])
        ):
            yield state, reason, self._losses[state, reason]


def count_reasons(parts: Iterable[pa.Table]) -> Iterator[Decision]:
    """How many documents every rule decided on and why, the most frequent first. Reasons can say
    something of a single document, so those of one rule beyond the first are summed up."""
    reasons: dict[tuple[str, str], Counter[str]] = {}
    for decisions in parts:
        own = pc.is_null(decisions["propagated_from"])
        reason = pc.if_else(own, decisions["reason"], _TAKEN_OVER)
        table = decisions.select(["rule", "decision"]).append_column("reason", reason)
        grouped = table.group_by(table.column_names, use_threads=False)
        order = [("count_all", "descending"), ("reason", "ascending")]
        for row in grouped.aggregate([([], "count_all")]).sort_by(order).to_pylist():
            counts = reasons.setdefault((row["rule"], row["decision"]), Counter({_TAKEN_OVER: 0}))
            is_counted = row["reason"] in counts or len(counts) < _REASONS_COUNTED
            counts[row["reason"] if is_counted else _OTHER_REASONS] += row["count_all"]
    found = []
    for (rule, decision), counts in reasons.items():
        total, other = counts.total(), counts.pop(_OTHER_REASONS, 0)
        shown = sorted((+counts).items(), key=lambda pair: (-pair[1], pair[0]))
        shown = shown[: _REASONS_SHOWN - bool(other or len(shown) > _REASONS_SHOWN)]
        if rest := total - sum(count for _, count in shown):
            shown.append((_OTHER_REASONS, rest))
        found += [Decision(rule, decision, count, reason) for reason, count in shown]
    yield from sorted(found, key=lambda d: (-d.documents, d.rule, d.action, d.reason))
