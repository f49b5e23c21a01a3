"""The mixture: how many copies of each kept document of train are in the stream -> mixture/.

Copy c of a document (0, 1, ...) is there when c + u < e, with e the epochs of its source and u in
[0, 1) a function of (seed, document, c) alone: other documents never change its copies, and more
epochs only add some. With `epochs`, e is what was asked for; with `weights`, a source gets most
documents, in the order of their draws, that stay within its part of the tokens. N documents, S
sources.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64, U16, U64, Mask
from pipeline.config.sections import MOST_EPOCHS, MixtureConfig
from pipeline.core import ids, rng
from pipeline.core.errors import ConfigError, InputError, IntegrityError, escape_text
from pipeline.core.manifest import Shard
from pipeline.core.words import did_you_mean
from pipeline.engine.shared import Shared
from pipeline.engine.stage import Inputs, Result, Stage, Task, arrow_output
from pipeline.runs import layout, views
from pipeline.runs.references import shorten_list
from pipeline.runs.splits import TRAIN

ALL = 1 << 64
"""The bound of draws that every draw is below."""
_BINS_BITS = 12
_SHIFT = np.uint64(64 - _BINS_BITS)
_NAMED = 50
_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Quota:
    """What one source gets: every document `copies` times, and once more each document whose draw
    for that copy is below `bound` (0 to 2^64)."""

    copies: int
    bound: int

    @property
    def epochs(self) -> float:
        """The epochs these numbers stand for."""
        return self.copies + self.bound / ALL


@dataclass(frozen=True)
class DocumentTokens:
    """Some documents: keys (N, 2), indices of their sources, tokens; all (N,)."""

    key_N2: U64  # noqa: N815 - shape suffix
    source: I64
    tokens: I64


def is_asked(config: MixtureConfig) -> bool:
    """Whether a config asks for a mixture at all."""
    return config != MixtureConfig()


def quota_of_epochs(epochs: float) -> Quota:
    """The quota of a number of epochs.

    >>> quota_of_epochs(2.5) == Quota(2, 1 << 63)
    True
    """
    copies = int(epochs)
    return Quota(copies, int((Fraction(epochs) - copies) * ALL))


def draws(key_N2: U64, seed: int, copy: int) -> U64:
    """The draw of every document for one copy, (N,) uint64."""
    return rng.rank(key_N2, seed, f"mixture/{copy}")


def draw_copies(part: DocumentTokens, quotas: tuple[Quota, ...], seed: int) -> U16:
    """How often each document is in the stream, (N,); `quotas` are those of the S sources."""
    whole = np.array([quota.copies for quota in quotas], np.int64)
    some = np.array([quota.bound > 0 for quota in quotas], np.bool_)
    last = np.array([max(quota.bound, 1) - 1 for quota in quotas], np.uint64)
    once_more = some[part.source] & (_next_draws(part, whole, seed) <= last[part.source])
    return (whole[part.source] + once_more).astype(np.uint16)


def check_sources(config: MixtureConfig, documents: Mapping[str, int]) -> None:
    """Raises ConfigError when a mixture names a source that is not there, or gives no weight to one
    that is; `documents` are the documents of every source that was read."""
    names = sorted(documents)
    for name in {**(config.epochs or {}), **(config.weights or {})}:
        if name not in documents:
            hint = did_you_mean(name, names)
            raise ConfigError(
                f"mixture: no document has the source {escape_text(name)!r}{hint}; sources: "
                f"{shorten_list([escape_text(name) for name in names], _NAMED)}"
            )
    bare = [
        escape_text(name) for name in names if documents[name] and find_weight(config, name) is None
    ]
    if bare:
        raise ConfigError(
            f"mixture.weights: no weight for {shorten_list(bare, _NAMED)}; give each of them a "
            "weight (0 leaves it out), or set mixture.default for all others"
        )


def targets(config: MixtureConfig, tokens: Mapping[str, int]) -> dict[str, int]:
    """The tokens each source is to have, from those it has; for a config with weights.

    Raises InputError for a source that is to have tokens but has none, and for one that would be
    repeated more often than `max_epochs`.
    """
    for name, weight in (config.weights or {}).items():
        if weight and not tokens.get(name):
            raise InputError(
                f"mixture.weights: source {escape_text(name)!r} has no document left in train that "
                "could be repeated; give it weight 0"
            )
    share = shares(config, tokens)
    if not share:
        raise InputError(
            "mixture.weights: no document is left in train from any source with a weight above 0"
        )
    most = Fraction(config.max_epochs or (MOST_EPOCHS if config.tokens else 1))
    largest = min(most * tokens[name] / share[name] for name in share)
    total = largest if config.tokens is None else Fraction(config.tokens)
    if total > largest:
        name = min(share, key=lambda name: tokens[name] / share[name])
        epochs = float(total * share[name] / tokens[name])
        raise InputError(
            f"mixture.tokens: {config.tokens:,} tokens need {epochs:,.2f} epochs of source "
            f"{escape_text(name)!r}, more than {float(most):g}; ask for {int(largest):,} at most"
        )
    return {name: int(total * share.get(name, Fraction(0))) for name in tokens}


def shares(config: MixtureConfig, tokens: Mapping[str, int]) -> dict[str, Fraction]:
    """Of the sources that have tokens and a weight, their part of the total; weights or not."""
    weights = {n: Fraction(find_weight(config, n) or 0) for n, count in tokens.items() if count}
    whole = sum(weights.values())
    return {name: weight / whole for name, weight in weights.items() if weight}


def find_weight(config: MixtureConfig, source: str) -> float | None:
    """The epochs or weight asked for a source; None when the config says nothing of it."""
    by_source = config.epochs if config.weights is None else config.weights
    value = (by_source or {}).get(source, config.default)
    return 1.0 if value is None and config.weights is None else value


def fill_quotas(
    target_S: I64, tokens_S: I64, parts: Callable[[], Iterator[DocumentTokens]], seed: int
) -> tuple[Quota, ...]:
    """The quotas that come closest to S targets of tokens from below.

    tokens_S: all tokens of each source; `parts` gives all documents, and is called twice. Memory
    does not grow with their number, except for one in 4096, which is looked at closely.
    """
    copies = np.where(tokens_S > 0, target_S // np.maximum(tokens_S, 1), 0)
    rest = target_S - copies * tokens_S
    histogram = np.zeros((len(rest), 1 << _BINS_BITS), np.int64)
    for part in parts():
        drawn = _next_draws(part, copies, seed)
        np.add.at(histogram, (part.source, (drawn >> _SHIFT).astype(np.int64)), part.tokens)
    before = np.cumsum(histogram, axis=1)
    edge = (before <= rest[:, None]).sum(axis=1)
    near: list[tuple[I64, U64, I64]] = [(_NONE, _NONE.astype(np.uint64), _NONE)]
    for part in parts():
        drawn = _next_draws(part, copies, seed)
        inside = (drawn >> _SHIFT).astype(np.int64) == edge[part.source]
        near.append((part.source[inside], drawn[inside], part.tokens[inside]))
    source, drawn, tokens = (np.concatenate(column) for column in zip(*near, strict=True))
    order = np.lexsort((drawn, source))
    starts = np.searchsorted(source[order], np.arange(len(rest) + 1))
    quotas = []
    for index in range(len(rest)):
        mine = order[starts[index] : starts[index + 1]]
        room = int(rest[index]) - (int(before[index, edge[index] - 1]) if edge[index] else 0)
        bound = _bound(drawn[mine], tokens[mine], room) if rest[index] else 0
        quotas.append(Quota(int(copies[index]), bound))
    return tuple(quotas)


def _next_draws(part: DocumentTokens, copies: I64, seed: int) -> U64:
    """Each document's draw for the first copy that not all documents of its source get."""
    drawn = np.empty(len(part.source), np.uint64)
    next_copy = copies[part.source]
    for copy in np.unique(next_copy).tolist():
        mine = next_copy == copy
        drawn[mine] = draws(part.key_N2[mine], seed, copy)
    return drawn


def _bound(drawn: U64, tokens: I64, room: int) -> int:
    """The draw of the first document that no longer fits into `room` tokens; draws ascend."""
    beyond = np.flatnonzero(np.cumsum(tokens) > room)
    return int(drawn[beyond[0]]) if len(beyond) else ALL


_COLUMNS = ["doc_key", "source", "state", "split", "tokens"]


@dataclass(frozen=True)
class QuotasJob:
    """The parts of documents.parquet, the sources by name, and the tokens that train has and is to
    have of each."""

    documents: tuple[Shard, ...]
    sources: tuple[str, ...]
    tokens: tuple[int, ...]
    targets: tuple[int, ...]
    seed: int


def _quotas(job: QuotasJob, inputs: Inputs) -> Result:
    """One pass over the documents after the other, a part at a time: counters alone."""

    def read_train() -> Iterator[DocumentTokens]:
        for shard in job.documents:
            documents, train = _read_kept(inputs.path(shard), job.sources)
            yield DocumentTokens(
                documents.key_N2[train], documents.source[train], documents.tokens[train]
            )

    quotas = fill_quotas(np.array(job.targets), np.array(job.tokens), read_train, job.seed)
    return Result((), {"quotas": [[quota.copies, quota.bound] for quota in quotas]})


def quotas_stage(
    config: MixtureConfig, seed: int, clean: views.CleanOutput, documents: views.DocumentsOutput
) -> Stage:
    """One task in constant memory, which a mixture by weights needs. Raises InputError for weights
    that the documents cannot have."""
    totals = _count_train(clean, documents)
    target_tokens = targets(config, {name: tokens for name, (_, tokens) in totals.items()})
    job = QuotasJob(
        documents.parts,
        tuple(totals),
        tuple(tokens for _, tokens in totals.values()),
        tuple(target_tokens[name] for name in totals),
        seed,
    )
    task = Task("quotas of sources", job, documents.parts)
    return Stage(name="quotas", version=1, function=_quotas, tasks=(task,))


def _count_train(
    clean: views.CleanOutput, documents: views.DocumentsOutput
) -> dict[str, tuple[int, int]]:
    """Source -> documents and tokens of train, for all sources by name."""
    trained = count_trained(chain.from_iterable(documents.ends))
    return {name: trained.get(name, (0, 0)) for name in sorted(source_documents(clean))}


def count_trained(ends: Iterable[views.Ends]) -> dict[str, tuple[int, int]]:
    """Source -> documents and tokens of train."""
    trained: dict[str, tuple[int, int]] = {}
    for source, state, _, split, count, _, tokens in ends:
        if state == "kept" and split == TRAIN:
            documents, before = trained.get(source, (0, 0))
            trained[source] = documents + count, before + tokens
    return trained


@dataclass(frozen=True)
class MixtureJob:
    """A part of documents.parquet; the first of its clean tasks, and the kept documents of each;
    the sources by name, with the quota of each."""

    documents: Shard
    task: int
    kept: tuple[int, ...]
    quotas: Shared[tuple[tuple[str, Quota], ...]]
    seed: int


def _mixture(job: MixtureJob, inputs: Inputs) -> Result:
    """Per tokens shard and row-aligned with it: `source`, the number of its name, and `copies`."""
    path = inputs.path(job.documents)
    names, quotas = zip(*job.quotas.value, strict=True)
    documents, train = _read_kept(path, names)
    if len(train) != sum(job.kept):
        raise IntegrityError(
            f"{path}: {len(train):,} kept documents; {sum(job.kept):,} were tokenized"
        )
    copies = np.where(train, draw_copies(documents, quotas, job.seed), 1).astype(np.uint16)
    cuts = np.cumsum(job.kept)[:-1]
    pairs = zip(np.split(documents.source, cuts), np.split(copies, cuts), strict=True)
    outputs = [
        arrow_output(
            layout.shard("mixture", task, "arrow"),
            pa.table({"source": pa.array(s.astype(np.uint32)), "copies": pa.array(c)}),
        )
        for task, (s, c) in enumerate(pairs, job.task)
    ]
    return Result(tuple(outputs), {"in_train": int(copies[train].sum())})


def _read_kept(path: Path, sources: tuple[str, ...]) -> tuple[DocumentTokens, Mask]:
    """The kept documents of a part of documents.parquet; which of them are in train."""
    table = pq.read_table(path, columns=_COLUMNS)
    table = table.filter(pc.equal(table["state"], "kept"))
    source = pc.index_in(table["source"], value_set=pa.array(sources, pa.string()))
    documents = DocumentTokens(
        ids.keys_as_u64(table["doc_key"]),
        source.to_numpy().astype(np.int64),
        table["tokens"].to_numpy().astype(np.int64),
    )
    return documents, pc.equal(table["split"], TRAIN).to_numpy()


def mixture_stage(
    config: MixtureConfig,
    seed: int,
    clean: views.CleanOutput,
    tokens: views.TokensOutput,
    documents: views.DocumentsOutput,
    quotas: views.QuotasOutput | None,
) -> Stage:
    """One task per part of documents.parquet; the copies that it publishes are parallel to the
    tokens shards. `quotas` are those of a mixture by weights."""
    totals = _count_train(clean, documents)
    if quotas is None:
        filled = [quota_of_epochs(find_weight(config, name) or 0.0) for name in totals]
    else:
        filled = [Quota(copies, bound) for copies, bound in quotas.quotas]
    shared = Shared(tuple(zip(totals, filled, strict=True)))
    tasks = []
    for part, group in zip(documents.parts, documents.tasks_of_parts(clean), strict=True):
        kept = tuple(tokens.documents[group.start : group.stop])
        job = MixtureJob(part, group.start, kept, shared, seed)
        tasks.append(Task(f"mixture of {part.path}", job, (part,)))
    settings = {"sources": _facts(config, totals, filled)}
    return Stage(
        name="mixture", version=2, function=_mixture, tasks=tuple(tasks), settings=settings
    )


def _facts(
    config: MixtureConfig, totals: Mapping[str, tuple[int, int]], quotas: Sequence[Quota]
) -> list[dict[str, Any]]:
    """Per source: what was asked for, what train has of it, and its epochs."""
    asked_shares = shares(config, {name: tokens for name, (_, tokens) in totals.items()})
    return [
        {
            "source": name,
            "asked_epochs": find_weight(config, name) if config.weights is None else None,
            "asked_share": float(asked_shares.get(name, 0)) if config.weights is not None else None,
            "documents": documents,
            "tokens": tokens,
            "epochs": quota.epochs,
        }
        for (name, (documents, tokens)), quota in zip(totals.items(), quotas, strict=True)
    ]


def check_mixture(mixture: views.MixtureOutput) -> None:
    """Raises InputError when nothing is left in train."""
    if not sum(mixture.in_train):
        raise InputError("mixture: no document would be left in train; raise epochs or weights")


MixtureCounts = dict[str, Any]
"""What a mixture made of one source: the fields of a MixtureLedger that the stages counted."""


def mixture_accounts(
    mixture: views.MixtureOutput, scatter: views.ScatterOutput
) -> dict[str, MixtureCounts]:
    """What was asked for and what was shuffled, per source, as the scatter counted it."""
    facts = mixture.sources
    counts = np.zeros((len(facts), 4), np.int64)
    for number, *counted in chain.from_iterable(scatter.mixture):
        counts[number] += counted
    names = ("scattered_documents", "scattered_tokens", "stream_documents", "stream_tokens")
    return {
        fact["source"]: {
            **{name: fact[name] for name in ("asked_epochs", "asked_share", "epochs")},
            **dict(zip(names, row.tolist(), strict=True)),
        }
        for fact, row in zip(facts, counts, strict=True)
    }


def source_documents(clean: views.CleanOutput) -> dict[str, int]:
    """source -> documents that the length filter left."""
    total: Counter[str] = Counter()
    for documents in clean.documents_by_source:
        total.update(documents)
    return total
