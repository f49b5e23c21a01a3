"""Mixtures: how often every document of the training split is repeated, by its source.

Copy c of a document (0, 1, ...) is there when c + u < e, with e the epochs of its source and u in
[0, 1) a function of (seed, document, c) alone. So a document keeps its copies whatever other
documents come or go, and more epochs only ever add copies.

With `epochs`, e is what was asked for. With `weights`, e follows from the tokens there are: a
source gets the most documents, in the order of their draws, that stay within its part of the
total, so it misses that part by less than one document.

Shapes: N documents, S sources.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dedup.arrays import I64, U16, U64
from pipeline.core import rng
from pipeline.core.errors import ConfigError, InputError, escape_text
from pipeline.core.words import did_you_mean
from pipeline.mixture_config import MOST_EPOCHS, MixtureConfig

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


def copies_of(part: DocumentTokens, quotas: tuple[Quota, ...], seed: int) -> U16:
    """How often each document stands in the stream, (N,); `quotas` are those of the S sources."""
    whole = np.array([quota.copies for quota in quotas], np.int64)
    some = np.array([quota.bound > 0 for quota in quotas], np.bool_)
    last = np.array([max(quota.bound, 1) - 1 for quota in quotas], np.uint64)
    once_more = some[part.source] & (_next_draws(part, whole, seed) <= last[part.source])
    return (whole[part.source] + once_more).astype(np.uint16)


def check_sources(config: MixtureConfig, documents: Mapping[str, int]) -> None:
    """Raises ConfigError when a mixture names a source that is not there, or gives no weight to one
    that is; `documents` are the documents of every source that was read."""
    known = sorted(documents)
    for name in {**(config.epochs or {}), **(config.weights or {})}:
        if name not in documents:
            hint = did_you_mean(name, known)
            raise ConfigError(
                f"mixture: no document has the source {escape_text(name)!r}{hint}; sources: "
                f"{_listed(known)}"
            )
    bare = [name for name in known if documents[name] and weight_of(config, name) is None]
    if bare:
        raise ConfigError(
            f"mixture.weights: no weight for {_listed(bare)}; give each of them a weight (0 "
            "leaves it out), or set mixture.default for all others"
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(escape_text(name) for name in names[:_NAMED]) + more


def targets(config: MixtureConfig, tokens: Mapping[str, int]) -> dict[str, int]:
    """The tokens each source shall have, from those it has; for a config with weights.

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
    weights = {n: Fraction(weight_of(config, n) or 0) for n, count in tokens.items() if count}
    whole = sum(weights.values())
    return {name: weight / whole for name, weight in weights.items() if weight}


def weight_of(config: MixtureConfig, source: str) -> float | None:
    """The epochs or weight asked for a source; None when the config says nothing of it."""
    named = config.epochs if config.weights is None else config.weights
    value = (named or {}).get(source, config.default)
    return 1.0 if value is None and config.weights is None else value


def fill(
    target_S: I64, tokens_S: I64, parts: Callable[[], Iterator[DocumentTokens]], seed: int
) -> tuple[Quota, ...]:
    """The quotas that come closest to S targets of tokens from below.

    tokens_S: all tokens of each source; `parts` gives all documents, and is called twice. Memory
    does not grow with their number, but for the one in 4096 that are looked at closely.
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
    wanted = copies[part.source]
    for copy in np.unique(wanted).tolist():
        mine = wanted == copy
        drawn[mine] = draws(part.key_N2[mine], seed, copy)
    return drawn


def _bound(drawn: U64, tokens: I64, room: int) -> int:
    """The draw of the first document that no longer fits into `room` tokens; draws ascend."""
    beyond = np.flatnonzero(np.cumsum(tokens) > room)
    return int(drawn[beyond[0]]) if len(beyond) else ALL
