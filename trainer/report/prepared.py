"""What a prep run tells of the data: sources, licences, decisions; read from its tables."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.core.ledger import Ledger, ledger_from_dict
from pipeline.provenance.document_table import DocumentTable
from trainer.json_file import read_json

_COLUMNS = ["source", "licence", "state", "split", "decision", "rule", "tokens"]
UNKNOWN = "unknown"


@dataclass(frozen=True)
class SourceRead:
    """One source of a data set. `documents`, `tokens`: in the training split, copy by copy;
    `licences`: tokens by licence of its documents, most first; the other counts: of documents that
    left before."""

    name: str
    documents: int
    tokens: int
    licences: tuple[tuple[str, int], ...]
    dropped: int
    duplicates: int
    quarantined: int


@dataclass(frozen=True)
class PrepRun:
    """A prep run. `decisions`: (decision, rule) with their documents."""

    directory: Path
    config: str
    manifest_hash: str
    sources: tuple[SourceRead, ...]
    decisions: tuple[tuple[str, str, int], ...]

    @property
    def tokens(self) -> int:
        """Of the stream of the training split."""
        return sum(source.tokens for source in self.sources)

    @property
    def licences(self) -> list[tuple[str, int]]:
        """Tokens by licence, most first."""
        total: Counter[str] = Counter()
        for source in self.sources:
            total.update(dict(source.licences))
        return total.most_common()


@dataclass
class _SplitCounts:
    """Of the training split: documents and tokens by source, tokens by source and licence."""

    documents: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    licences: dict[str, Counter[str]] = field(default_factory=dict)
    decisions: Counter[tuple[str, str]] = field(default_factory=Counter)


def read_prepared(run: Path, split: str) -> PrepRun:
    """Raises InputError for a directory that is no finished prep run, IntegrityError for damage."""
    manifest, ledger = (
        read_json(run / name, "finished prep run") for name in (layout.MANIFEST, layout.LEDGER)
    )
    try:
        books = ledger_from_dict(ledger)
        config, manifest_hash = str(manifest["config"]), str(manifest["seal"])
    except (KeyError, TypeError) as error:
        raise InputError(f"{run}: not the records of a prep run: {error!r}") from error
    counts = _counted(run, split)
    return PrepRun(
        run,
        config,
        manifest_hash,
        tuple(_sources(books, counts)),
        tuple((what, rule, n) for (what, rule), n in sorted(counts.decisions.items())),
    )


def _counted(run: Path, split: str) -> _SplitCounts:
    found = _SplitCounts()
    for _, part in DocumentTable(run).parts(_COLUMNS):
        decided = part.filter(pc.not_equal(part["rule"], ""))
        for row in _grouped(decided, ["decision", "rule"]):
            found.decisions[row["decision"], row["rule"]] += row["tokens_count"]
        mine = part.filter(pc.and_(pc.equal(part["split"], split), pc.equal(part["state"], "kept")))
        for row in _grouped(mine, ["source", "licence"]):
            source, licence = row["source"], row["licence"] or UNKNOWN
            found.documents[source] += row["tokens_count"]
            found.tokens[source] += row["tokens_sum"]
            found.licences.setdefault(source, Counter())[licence] += row["tokens_sum"]
    return found


def _grouped(table: pa.Table, keys: list[str]) -> Iterator[dict[str, Any]]:
    """Rows with the keys, `tokens_count` and `tokens_sum`."""
    plain = table.select([*keys, "tokens"])
    for place, key in enumerate(keys):
        plain = plain.set_column(place, key, pc.cast(plain[key], pa.string()))
    counted = plain.group_by(keys).aggregate([("tokens", "count"), ("tokens", "sum")])
    yield from counted.to_pylist()


def _sources(books: Ledger, counts: _SplitCounts) -> Iterator[SourceRead]:
    """Sources by tokens. A mixture repeats documents; its copies count, and licences in
    proportion."""
    for name in sorted(books.sources, key=lambda n: (-counts.tokens[n], n)):
        account, tokens, documents = (
            books.sources[name],
            counts.tokens[name],
            counts.documents[name],
        )
        copies = books.mixture.get(name)
        times = copies.stream_tokens / tokens if copies is not None and tokens else 1.0
        licences = counts.licences.get(name, Counter()).most_common()
        yield SourceRead(
            name,
            copies.stream_documents if copies is not None else documents,
            copies.stream_tokens if copies is not None else tokens,
            tuple((licence, round(n * times)) for licence, n in licences),
            sum(tally.documents for tally in account.dropped.values()),
            account.duplicates.documents,
            account.quarantined.documents,
        )
