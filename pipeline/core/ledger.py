"""The balancing ledger: every record, document, byte and token has exactly one end.

Per source, in documents and bytes:
    records    = documents + bad records(reason)                (blank lines apart)
    documents  = dropped(reason) + quarantined + duplicates + kept
Per split (there are none when nothing is packed), in tokens, with T the tokens of the kept
documents (one EOS each), S packed streams, D documents:
    sample     rows = ceil((T - S) / MSL), sum(mask) = T - S
    vsl        sum(mask) = T - D, as the first token of a document is never a label
    both       padding = rows * MSL - sum(mask)
    corpus     tokens in the shards = T, nothing padded
With a mixture, T and D count every copy: those of all splits together are those of the kept
documents, and what the mixture added to train or took from it, per source.
A ledger that does not balance stops the run with exit code 4.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from pipeline.core.errors import IntegrityError

Equation = tuple[str, int, int]
"""What is compared, and the two sides that must be equal."""


def _find_unequal(equations: Iterable[Equation], words: str) -> list[str]:
    """The equations that do not hold, in `words` with a place for each side."""
    return [f"{name}: {words.format(a, b)}" for name, a, b in equations if a != b]


@dataclass
class Tally:
    """A number of documents and their bytes."""

    documents: int = 0
    bytes: int = 0

    def add(self, documents: int, size: int) -> None:
        """Count more."""
        self.documents += documents
        self.bytes += size


@dataclass(kw_only=True)
class SourceLedger:
    """One source's account. `records` and `bad` count raw record bytes, the rest cleaned text
    bytes.
    """

    records: Tally = field(default_factory=Tally)
    bad: dict[str, Tally] = field(default_factory=dict)
    document_record_bytes: int = 0
    documents: Tally = field(default_factory=Tally)
    dropped: dict[str, Tally] = field(default_factory=dict)
    quarantined: Tally = field(default_factory=Tally)
    duplicates: Tally = field(default_factory=Tally)
    kept: Tally = field(default_factory=Tally)
    tokens: int = 0

    def problems(self) -> list[str]:
        """Equations that do not hold, as text."""
        ends = [*self.dropped.values(), self.quarantined, self.duplicates, self.kept]
        records, size = self.documents.documents, self.document_record_bytes
        records += sum(tally.documents for tally in self.bad.values())
        size += sum(tally.bytes for tally in self.bad.values())
        equations = (
            ("records", self.records.documents, records),
            ("record bytes", self.records.bytes, size),
            ("documents", self.documents.documents, sum(t.documents for t in ends)),
            ("document bytes", self.documents.bytes, sum(t.bytes for t in ends)),
        )
        return _find_unequal(equations, "{:,} in, {:,} accounted for")


@dataclass(kw_only=True)
class SplitLedger:
    """One split's account of tokens and rows; `segments` count in the `vsl` format, `corpus_tokens`
    in the `corpus` format only, which has no rows."""

    documents: int
    tokens: int
    streams: int
    rows: int
    mask_sum: int
    padding: int
    max_sequence_length: int
    format: str = "sample"
    segments: int = 0
    corpus_tokens: int = 0

    def problems(self) -> list[str]:
        """Equations that do not hold, as text."""
        padding = self.rows * self.max_sequence_length - self.mask_sum
        equations = [*self._format_equations(), ("padding", self.padding, padding)]
        return _find_unequal(equations, "{:,}, expected {:,}")

    def _format_equations(self) -> list[Equation]:
        match self.format:
            case "corpus":
                return [("tokens in the shards", self.corpus_tokens, self.tokens)]
            case "vsl":
                return [("loss mask", self.mask_sum, self.tokens - self.documents)]
        labels = self.tokens - self.streams
        return [
            ("rows", self.rows, -(-labels // self.max_sequence_length)),
            ("loss mask", self.mask_sum, labels),
        ]


@dataclass(kw_only=True)
class StreamLedger:
    """Some documents in the training split before a mixture, as documents.parquet has them, and in
    its stream, copy by copy. `scattered_*`: what the shuffle counted before making copies."""

    documents: int
    tokens: int
    scattered_documents: int
    scattered_tokens: int
    stream_documents: int
    stream_tokens: int

    def problems(self) -> list[str]:
        """Equations that do not hold, as text."""
        equations = (
            ("documents", self.documents, self.scattered_documents),
            ("tokens", self.tokens, self.scattered_tokens),
        )
        return _find_unequal(equations, "{:,} in train, {:,} shuffled")


_STREAM_COUNTS = tuple(field.name for field in fields(StreamLedger))


@dataclass(kw_only=True)
class ClusterSizeLedger(StreamLedger):
    """The documents of one source whose clusters have `least` documents or more, up to the next
    size, and their cluster weight."""

    least: int
    weight: float


@dataclass(kw_only=True)
class MixtureLedger(StreamLedger):
    """One source of a mixture: what was asked for, epochs or a share of the tokens (the other is
    None), and the `epochs` that followed; what train has of it, and its stream; with cluster
    weights the same by size of the clusters, in words."""

    asked_epochs: float | None
    asked_share: float | None
    epochs: float
    group: str = ""
    """The expression, where groups are mixed and no sources."""
    cluster_sizes: dict[str, ClusterSizeLedger] = field(default_factory=dict)

    def problems(self) -> list[str]:
        """Equations that do not hold, as text."""
        problems = super().problems()
        for size, account in self.cluster_sizes.items():
            problems += [f"clusters of {size}: {problem}" for problem in account.problems()]
        if self.cluster_sizes:
            by_size = self.cluster_sizes.values()
            sums = [
                (name, getattr(self, name), sum(getattr(one, name) for one in by_size))
                for name in _STREAM_COUNTS
            ]
            problems += _find_unequal(sums, "{:,}, {:,} by size of the cluster")
        return problems

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "MixtureLedger":
        """What a source of ledger.json says."""
        by_size = value.get("cluster_sizes", {})
        sizes = {size: ClusterSizeLedger(**account) for size, account in by_size.items()}
        return cls(**{**value, "cluster_sizes": sizes})

    def as_dict(self) -> dict[str, Any]:
        """Plain data; `cluster_sizes` and `group` are there only when there are some."""
        absent = [name for name in ("cluster_sizes", "group") if not getattr(self, name)]
        return _leave_out(asdict(self), *absent)


def sum_cluster_sizes(mixture: Mapping[str, MixtureLedger]) -> dict[str, ClusterSizeLedger]:
    """Sizes in words -> the accounts of all sources together, by size; nothing without cluster
    weights."""
    sums: dict[str, ClusterSizeLedger] = {}
    for size, one in (item for m in mixture.values() for item in m.cluster_sizes.items()):
        so_far = sums.setdefault(size, replace(one, **dict.fromkeys(_STREAM_COUNTS, 0)))
        for name in _STREAM_COUNTS:
            setattr(so_far, name, getattr(so_far, name) + getattr(one, name))
    return dict(sorted(sums.items(), key=lambda item: item[1].least))


@dataclass
class Ledger:
    """The account of a whole run, per source and per split."""

    sources: dict[str, SourceLedger] = field(default_factory=dict)
    splits: dict[str, SplitLedger] = field(default_factory=dict)
    skipped_shards: int = 0
    mixture: dict[str, MixtureLedger] = field(default_factory=dict)

    def source(self, name: str) -> SourceLedger:
        """The account of a source, opened when new."""
        return self.sources.setdefault(name, SourceLedger())

    def check(self) -> None:
        """Raise IntegrityError naming every equation that does not hold."""
        problems = [f"source {n!r}: {p}" for n, s in self.sources.items() for p in s.problems()]
        problems += [f"split {n!r}: {p}" for n, s in self.splits.items() for p in s.problems()]
        mixed = self.mixture.values()
        problems += [
            f"mixture of {n!r}: {p}" for n, m in self.mixture.items() for p in m.problems()
        ]
        kept = sum(s.kept.documents for s in self.sources.values())
        kept += sum(m.stream_documents - m.documents for m in mixed)
        tokens = sum(s.tokens for s in self.sources.values())
        tokens += sum(m.stream_tokens - m.tokens for m in mixed)
        how = ", after the mixture," if mixed else ""
        if self.splits and kept != sum(s.documents for s in self.splits.values()):
            problems.append(f"kept documents{how} differ from the documents of the splits")
        if tokens != sum(s.tokens for s in self.splits.values()):
            problems.append(f"tokens of the sources{how} differ from the tokens of the splits")
        if problems:
            raise IntegrityError("the ledger does not balance: " + "; ".join(problems))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ledger.json; `mixture` is there only when there is one."""
        value = _leave_out(asdict(self), "mixture")
        mixture = {name: source.as_dict() for name, source in self.mixture.items()}
        return {**value, "mixture": mixture} if mixture else value


def _leave_out(value: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: inner for key, inner in value.items() if key not in names}


def ledger_from_dict(value: Mapping[str, Any]) -> Ledger:
    """Rebuild a ledger from ledger.json."""
    ledger = Ledger(skipped_shards=value["skipped_shards"])
    for name, account in value["sources"].items():
        source = SourceLedger()
        for key, content in account.items():
            if key in ("bad", "dropped"):
                setattr(source, key, {reason: Tally(**tally) for reason, tally in content.items()})
            elif isinstance(content, Mapping):
                setattr(source, key, Tally(**content))
            else:
                setattr(source, key, content)
        ledger.sources[name] = source
    ledger.splits = {name: SplitLedger(**fields) for name, fields in value["splits"].items()}
    mixture = value.get("mixture", {})
    ledger.mixture = {name: MixtureLedger.from_dict(source) for name, source in mixture.items()}
    return ledger
