"""The mixture: how many copies of each kept document of train are in the stream -> mixture/.

Copy c of a document (0, 1, ...) is there when c + u < e, with e the epochs of its source and u in
[0, 1) a function of (seed, document, c) alone: other documents never change its copies, and more
epochs only add some. With `epochs`, e is what was asked for; with `weights`, a source gets most
documents, in the order of their draws, that stay within its part of the tokens. N documents, S
sources.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
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
_ROWS = 1 << 18


Paths = tuple[Path, ...]


@dataclass(frozen=True)
class MixtureJob:
    """What is asked for, the sources by name, and the kept documents of every tokens shard."""

    documents: tuple[Shard, ...]
    asked: dict[str, Any]
    sources: tuple[str, ...]
    kept: tuple[int, ...]
    seed: int


def _mixture(job: MixtureJob, inputs: Inputs) -> Result:
    """Per tokens shard and row-aligned with it: `source`, an index into the counter `sources`, and
    `copies`."""
    paths = tuple(inputs.path(shard) for shard in job.documents)
    config = MixtureConfig.model_validate(job.asked)
    documents, tokens = _totals(paths, job)
    quotas = _quotas(paths, job, config, tokens)
    source = np.empty(sum(job.kept), np.uint32)
    copies = np.empty(sum(job.kept), np.uint16)
    row, in_train = 0, 0
    for part, train in _kept(paths, job.sources):
        end = row + len(train)
        source[row:end] = part.source
        copies[row:end] = np.where(train, draw_copies(part, quotas, job.seed), 1)
        in_train += int(copies[row:end][train].sum())
        row = end
    if row != len(copies):
        raise IntegrityError(
            f"{layout.DOCUMENTS}: {row:,} kept documents; {len(copies):,} were tokenized"
        )
    if not in_train:
        raise InputError("mixture: no document would be left in train; raise epochs or weights")
    cuts = np.cumsum(job.kept)[:-1]
    outputs = [
        arrow_output(
            layout.shard("mixture", index, "arrow"),
            pa.table({"source": pa.array(s), "copies": pa.array(c)}),
        )
        for index, (s, c) in enumerate(
            zip(np.split(source, cuts), np.split(copies, cuts), strict=True)
        )
    ]
    return Result(tuple(outputs), {"sources": _facts(job, config, documents, tokens, quotas)})


def _facts(
    job: MixtureJob, config: MixtureConfig, documents: I64, tokens: I64, quotas: tuple[Quota, ...]
) -> list[dict[str, Any]]:
    """Per source: what was asked for, what train has of it, and its epochs."""
    asked_shares = shares(config, dict(zip(job.sources, tokens.tolist(), strict=True)))
    return [
        {
            "source": name,
            "asked_epochs": find_weight(config, name) if config.weights is None else None,
            "asked_share": float(asked_shares.get(name, 0)) if config.weights is not None else None,
            "documents": int(documents[i]),
            "tokens": int(tokens[i]),
            "epochs": quotas[i].epochs,
        }
        for i, name in enumerate(job.sources)
    ]


def _totals(paths: Paths, job: MixtureJob) -> tuple[I64, I64]:
    """Documents and tokens of train per source, (S,) each."""
    documents, tokens = np.zeros((2, len(job.sources)), np.int64)
    for part in _train(paths, job.sources):
        documents += np.bincount(part.source, minlength=len(documents))
        np.add.at(tokens, part.source, part.tokens)
    return documents, tokens


def _quotas(paths: Paths, job: MixtureJob, config: MixtureConfig, tokens: I64) -> tuple[Quota, ...]:
    if config.weights is None:
        return tuple(quota_of_epochs(find_weight(config, name) or 0.0) for name in job.sources)
    target_tokens = targets(config, dict(zip(job.sources, tokens.tolist(), strict=True)))
    target = np.array([target_tokens[name] for name in job.sources], np.int64)
    return fill_quotas(target, tokens, lambda: _train(paths, job.sources), job.seed)


def _train(paths: Paths, sources: tuple[str, ...]) -> Iterator[DocumentTokens]:
    for part, train in _kept(paths, sources):
        yield DocumentTokens(part.key_N2[train], part.source[train], part.tokens[train])


def _kept(paths: Paths, sources: tuple[str, ...]) -> Iterator[tuple[DocumentTokens, Mask]]:
    """The kept documents of documents.parquet, some rows at a time, in its order; which of them
    are in train."""
    names = pa.array(sources, pa.string())
    for path in paths:
        for batch in pq.read_table(path, columns=_COLUMNS).to_batches(_ROWS):
            documents = batch.filter(pc.equal(batch["state"], "kept"))
            source = pc.index_in(documents["source"], value_set=names)
            part = DocumentTokens(
                ids.keys_as_u64(documents["doc_key"]),
                source.to_numpy().astype(np.int64),
                documents["tokens"].to_numpy().astype(np.int64),
            )
            yield part, pc.equal(documents["split"], TRAIN).to_numpy(zero_copy_only=False)


def mixture_stage(
    config: MixtureConfig,
    seed: int,
    clean: views.CleanOutput,
    tokens: views.TokensOutput,
    documents: views.DocumentsOutput,
) -> Stage:
    """One task; the copies that it publishes are parallel to the tokens shards."""
    sources = tuple(sorted(source_documents(clean)))
    tables = documents.parts
    job = MixtureJob(tables, config.model_dump(), sources, tuple(tokens.documents), seed)
    task = Task("mixture", job, tables)
    return Stage(name="mixture", version=1, function=_mixture, tasks=(task,))


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
