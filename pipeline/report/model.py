"""What the report shows: plain frozen data, filled from published tables.

Nothing here may hold a time, a host, a worker count or an absolute path: the report is a pure
function of what was published, so its bytes are stable. Texts may be hostile; the renderer escapes.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pipeline.report.cluster_summary import ClusterSummary

__all__ = [
    "Bin",
    "Decision",
    "DropReason",
    "MixtureRow",
    "RecordLedger",
    "Report",
    "Sample",
    "SourceRow",
    "Split",
    "StageIdentity",
    "excerpt",
    "log_bins",
]

EXCERPT_CHARACTERS = 200


@dataclass(frozen=True)
class StageIdentity:
    """One stage by its hashes (hex)."""

    name: str
    fingerprint: str
    content_hash: str


@dataclass(frozen=True, kw_only=True)
class SourceRow:
    """The ledger of one source.

    records = documents + bad; documents = sum(dropped) + quarantined + duplicates + kept.
    """

    source: str
    records: int
    bad: int
    dropped: dict[str, int]  # reason -> documents
    quarantined: int
    duplicates: int
    kept: int
    bytes_in: int  # UTF-8 text of the decoded documents
    bytes_kept: int  # UTF-8 text after cleaning
    tokens: int  # with one EOS per kept document

    @property
    def documents(self) -> int:
        """Records that could be decoded."""
        return self.records - self.bad

    @property
    def dropped_total(self) -> int:
        """Documents dropped for any reason."""
        return sum(self.dropped.values())


@dataclass(frozen=True)
class RecordLedger:
    """Every record of the run, by source."""

    sources: tuple[SourceRow, ...] = ()

    def total(self) -> SourceRow:
        """The sum over all sources.

        >>> counts = {"records": 5, "bad": 1, "quarantined": 0, "duplicates": 1, "kept": 2}
        >>> sizes = {"bytes_in": 90, "bytes_kept": 40, "tokens": 12}
        >>> row = SourceRow(source="a", dropped={"too short": 1}, **counts, **sizes)
        >>> RecordLedger((row, row)).total().documents
        8
        """
        dropped: dict[str, int] = {}
        for row in self.sources:
            for reason, count in row.dropped.items():
                dropped[reason] = dropped.get(reason, 0) + count
        names = ["records", "bad", "quarantined", "duplicates", "kept"]
        names += ["bytes_in", "bytes_kept", "tokens"]
        sums = {name: sum(getattr(row, name) for row in self.sources) for name in names}
        return SourceRow(source="All sources", dropped=dropped, **sums)


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
class Split:
    """One packed split."""

    name: str
    documents: int
    rows: int
    max_sequence_length: int
    tokens: int
    padding: int  # positions of rows that hold no label
    format: str = "sample"


@dataclass(frozen=True, kw_only=True)
class MixtureRow:
    """One source in the training split, before a mixture and in its stream."""

    source: str
    asked: str  # epochs, or a share of the tokens
    epochs: float
    documents: int
    tokens: int
    stream_documents: int
    stream_tokens: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that `render` shows."""

    config_name: str
    manifest_hash: str
    stages: tuple[StageIdentity, ...] = ()
    software: tuple[tuple[str, str], ...] = ()  # (name, version)
    ledger: RecordLedger = field(default_factory=RecordLedger)
    reasons: tuple[DropReason, ...] = ()
    clusters: ClusterSummary = field(default_factory=ClusterSummary)
    decisions: tuple[Decision, ...] = ()
    document_bytes: tuple[Bin, ...] = ()
    document_tokens: tuple[Bin, ...] = ()
    splits: tuple[Split, ...] = ()
    mixture: tuple[MixtureRow, ...] = ()
    notes: tuple[str, ...] = ()


def excerpt(text: str) -> str:
    """The beginning of `text`, at most 200 characters; a cut is marked by an ellipsis.

    >>> len(excerpt("x" * 300)), excerpt("short")
    (200, 'short')
    """
    cut = EXCERPT_CHARACTERS
    return text if len(text) <= cut else text[: cut - 1] + "…"


def log_bins(lengths_N: npt.ArrayLike, kept_N: npt.ArrayLike | None = None) -> tuple[Bin, ...]:
    """Histogram over powers of two: [0, 1), [1, 2), [2, 4), ..., without empty ends.

    `lengths_N` are integers from 0 to 2^53, `kept_N` says of each whether its document was kept;
    without it all were.

    >>> log_bins([5, 6, 9], [True, False, True])
    (Bin(low=4, high=8, count=2, kept=1), Bin(low=8, high=16, count=1, kept=1))
    """
    lengths = np.asarray(lengths_N, dtype=np.float64)
    if lengths.size == 0:
        return ()
    bits_N = np.frexp(lengths)[1]  # the bit length of an integer
    counts = np.bincount(bits_N)
    kept = np.asarray(np.ones(lengths.size) if kept_N is None else kept_N, dtype=np.bool_)
    kept_counts = np.bincount(bits_N[kept], minlength=counts.size)
    first = int(np.flatnonzero(counts)[0])
    return tuple(
        Bin((1 << bits) >> 1, 1 << bits, int(counts[bits]), int(kept_counts[bits]))
        for bits in range(first, counts.size)
    )
