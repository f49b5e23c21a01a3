"""What the report shows: plain frozen data, filled from published tables.

Nothing here may hold a time, a host, a worker count or an absolute path: the report is a pure
function of what was published, so its bytes are stable. Texts may be hostile; the renderer escapes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from pipeline.core.ledger import MixtureLedger, SourceLedger, SplitLedger
from pipeline.core.words import pluralise
from pipeline.report.cluster_summary import ClusterSummary

EXCERPT_CHARACTERS = 200


@dataclass(frozen=True, kw_only=True)
class SourceRow:
    """The ledger of one source, by its label.

    records = documents + bad; documents = sum(dropped) + quarantined + duplicates + kept.
    """

    label: str
    records: int
    bad: int
    dropped: dict[str, int]  # reason -> documents
    quarantined: int
    duplicates: int
    kept: int
    bytes_in: int  # UTF-8 text of the decoded documents
    bytes_kept: int  # UTF-8 text after cleaning
    tokens: int  # with one EOS per kept document

    @classmethod
    def from_ledger(cls, label: str, account: SourceLedger, **more: Any) -> Self:
        """The row of a source with this account."""
        return cls(
            label=label,
            records=account.records.documents,
            bad=sum(tally.documents for tally in account.bad.values()),
            dropped={reason: tally.documents for reason, tally in account.dropped.items()},
            quarantined=account.quarantined.documents,
            duplicates=account.duplicates.documents,
            kept=account.kept.documents,
            bytes_in=account.documents.bytes,
            bytes_kept=account.kept.bytes,
            tokens=account.tokens,
            **more,
        )

    @classmethod
    def sum(cls, label: str, rows: Sequence["SourceRow"]) -> Self:
        """The row of several sources together.

        >>> counts = {"records": 5, "bad": 1, "quarantined": 0, "duplicates": 1, "kept": 2}
        >>> sizes = {"bytes_in": 90, "bytes_kept": 40, "tokens": 12}
        >>> row = SourceRow(label="a", dropped={"too short": 1}, **counts, **sizes)
        >>> SourceRow.sum("both", [row, row]).documents
        8
        """
        dropped: Counter[str] = Counter()
        for row in rows:
            dropped.update(row.dropped)
        names = ["records", "bad", "quarantined", "duplicates", "kept"]
        names += ["bytes_in", "bytes_kept", "tokens"]
        sums = {name: sum(getattr(row, name) for row in rows) for name in names}
        return cls(label=label, dropped=dict(dropped), **sums)

    @classmethod
    def fold(cls, rows: Sequence[Self], most: int) -> list[Self]:
        """At most this many rows: the last one is the sum of all that are too many."""
        if len(rows) <= most:
            return list(rows)
        rest = rows[most - 1 :]
        return [*rows[: most - 1], cls.sum(pluralise(len(rest), "smaller source"), rest)]

    @property
    def documents(self) -> int:
        """Records that could be decoded."""
        return self.records - self.bad

    @property
    def dropped_total(self) -> int:
        """Documents dropped for any reason."""
        return sum(self.dropped.values())


@dataclass(frozen=True)
class Sample:
    """One document or record shown as an example."""

    key: str  # doc_key in hex; empty for a record that never became a document
    source: str
    path: str  # input and path of the raw shard
    line: int  # 1-based; of a row format the 0-based row
    excerpt: str  # at most 200 characters, see `excerpt`


@dataclass(frozen=True)
class DropReason:
    """Why documents left: a bad record, a drop, a quarantine or a duplicate."""

    reason: str
    state: str  # "bad record", "dropped", "quarantined" or "duplicate"
    count: int
    bytes: int
    samples: tuple[Sample, ...] = ()  # up to three


@dataclass(frozen=True)
class Decision:
    """What one policy rule decided."""

    rule: str
    action: str  # allow, review, quarantine or drop
    documents: int
    reason: str


@dataclass(frozen=True)
class Bin:
    """Values in [low, high): all of them, and those of kept documents."""

    low: int
    high: int
    count: int
    kept: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that `html.render_report` shows."""

    config_name: str
    manifest_hash: str
    stages: tuple[tuple[str, str, str], ...] = ()  # (name, fingerprint, content hash)
    software: tuple[tuple[str, str], ...] = ()  # (name, version)
    sources: tuple[SourceRow, ...] = ()
    reasons: tuple[DropReason, ...] = ()
    clusters: ClusterSummary = field(default_factory=ClusterSummary)
    decisions: tuple[Decision, ...] = ()
    document_bytes: tuple[Bin, ...] = ()
    document_tokens: tuple[Bin, ...] = ()
    splits: Mapping[str, SplitLedger] = field(default_factory=dict)
    mixture: Mapping[str, MixtureLedger] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def excerpt(text: str) -> str:
    """The beginning of `text`, at most 200 characters; a cut is marked by an ellipsis.

    >>> len(excerpt("x" * 300)), excerpt("short")
    (200, 'short')
    """
    cut = EXCERPT_CHARACTERS
    return text if len(text) <= cut else text[: cut - 1] + "…"


class LogBins:
    """Histogram over powers of two: [0, 1), [1, 2), [2, 4), ..., of values and of those of kept
    documents; parts are added one by one."""

    def __init__(self) -> None:
        self._counts = np.zeros((2, 64), np.int64)

    def add(self, lengths_N: npt.ArrayLike, kept_N: npt.ArrayLike | None = None) -> Self:
        """Integers from 0 to 2^53; `kept_N` says of each whether its document was kept, without it
        all were."""
        lengths = np.asarray(lengths_N, dtype=np.float64)
        bits_N = np.frexp(lengths)[1]  # the bit length of an integer
        is_kept = np.asarray(np.ones(lengths.size) if kept_N is None else kept_N, dtype=np.bool_)
        for number, bits in enumerate((bits_N, bits_N[is_kept])):
            self._counts[number] += np.bincount(bits, minlength=64)
        return self

    def bins(self) -> tuple[Bin, ...]:
        """All bins but empty ones at the ends.

        >>> LogBins().add([5, 6], [True, False]).add([9]).bins()
        (Bin(low=4, high=8, count=2, kept=1), Bin(low=8, high=16, count=1, kept=1))
        """
        present = np.flatnonzero(self._counts[0])
        places = range(present[0], present[-1] + 1) if len(present) else ()
        counts = self._counts.T.tolist()
        return tuple(Bin((1 << bits) >> 1, 1 << bits, *counts[bits]) for bits in places)
