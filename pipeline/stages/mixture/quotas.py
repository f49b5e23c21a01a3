"""The arithmetic of a mixture: the epochs of every group of documents, and which documents a
fraction of an epoch takes.

Copy c of a document (0, 1, ...) is there when c + u < e, with e the epochs of its group and u in
[0, 1) a function of (seed, document, c) alone: other documents never change its copies, and more
epochs only add some. A group is the documents of one source whose clusters are of one class of
sizes; without cluster weights there is one class. With `epochs`, e is what was asked for; with
`weights`, a group gets most documents, in the order of their draws, that stay within its part of
the tokens. N documents, S sources, C classes, G = S * C groups.

Where the config has `groups`, the one that a document is in (`pipeline.stages.mixture.groups`)
stands for its source.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dedup.arrays import I64, U8, U16, U64
from pipeline.config.sections import MOST_EPOCHS, MixtureConfig
from pipeline.core import rng
from pipeline.core.errors import ConfigError, InputError, escape_text
from pipeline.core.words import did_you_mean
from pipeline.runs.references import shorten_list

ALL = 1 << 64
"""The bound of draws that every draw is below."""
_BINS_BITS = 12
_SHIFT = np.uint64(64 - _BINS_BITS)
_NAMED = 50
_NONE = np.zeros(0, np.int64)

Totals = Mapping[str, Sequence[tuple[int, int]]]
"""Source -> documents and tokens of train, of each class of sizes; for all sources by name, or for
all groups of the config in order."""


@dataclass(frozen=True)
class Quota:
    """What one group gets: every document `copies` times, and once more each document whose draw
    for that copy is below `bound` (0 to 2^64)."""

    copies: int
    bound: int

    @property
    def epochs(self) -> float:
        """The epochs these numbers stand for."""
        return self.copies + self.bound / ALL


@dataclass(frozen=True)
class DocumentTokens:
    """Some documents: keys (N, 2), indices of their groups, tokens; all (N,)."""

    key_N2: U64  # noqa: N815 - shape suffix
    group: I64
    tokens: I64


@dataclass(frozen=True)
class SizeClasses:
    """Kept documents by the size of their cluster, itself included: class c has those of at least
    `least[c]` documents, which count `weights[c]`. `least` ascends from 1."""

    least: tuple[int, ...] = (1,)
    weights: tuple[float, ...] = (1.0,)

    def find(self, size_N: I64) -> U8:
        """The class of each document, (N,).

        >>> SizeClasses((1, 2, 5), (1.0, 2.0, 3.0)).find(np.array([1, 2, 4, 5, 900])).tolist()
        [0, 1, 1, 2, 2]
        """
        return (np.searchsorted(self.least, size_N, side="right") - 1).astype(np.uint8)

    @property
    def labels(self) -> tuple[str, ...]:
        """The sizes of each class in words.

        >>> SizeClasses((1, 2, 5), (1.0, 2.0, 3.0)).labels
        ('1', '2 to 4', '5 or more')
        """
        ends = (*self.least[1:], None)
        return tuple(map(_name_sizes, self.least, ends))


def _name_sizes(low: int, end: int | None) -> str:
    if end is None:
        return f"{low} or more"
    return str(low) if end == low + 1 else f"{low} to {end - 1}"


def size_classes(config: MixtureConfig) -> SizeClasses:
    """Those that a config asks for: clusters below the smallest size it names count 1.

    >>> size_classes(MixtureConfig(cluster_weights={5: 3.0, 2: 2.0}))
    SizeClasses(least=(1, 2, 5), weights=(1.0, 2.0, 3.0))
    """
    weights = {1: 1.0, **(config.cluster_weights or {})}
    return SizeClasses(tuple(sorted(weights)), tuple(weights[size] for size in sorted(weights)))


def is_asked(config: MixtureConfig) -> bool:
    """Whether a config asks for a mixture at all."""
    return config != MixtureConfig()


def quota_of_epochs(epochs: float | Fraction) -> Quota:
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
    """How often each document is in the stream, (N,); `quotas` are those of the G groups."""
    whole = np.array([quota.copies for quota in quotas], np.int64)
    some = np.array([quota.bound > 0 for quota in quotas], np.bool_)
    last = np.array([max(quota.bound, 1) - 1 for quota in quotas], np.uint64)
    once_more = some[part.group] & (_next_draws(part, whole, seed) <= last[part.group])
    return (whole[part.group] + once_more).astype(np.uint16)


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


def targets(config: MixtureConfig, tokens: Mapping[str, int | Fraction]) -> dict[str, int]:
    """The tokens each source is to have, from those of one epoch of it; for a config with weights.

    Raises InputError for a source that is to have tokens but has none, and for one that would be
    repeated more often than `max_epochs`.
    """
    for name, weight in (config.weights or {}).items():
        if weight and not tokens.get(name):
            raise InputError(
                f"mixture.weights: {config.of} {escape_text(name)!r} has no document left in train "
                "that could be repeated; give it weight 0"
            )
    share = shares(config, tokens)
    if not share:
        raise InputError(
            f"mixture.weights: no document is left in train from any {config.of} with a weight "
            "above 0"
        )
    most = Fraction(config.max_epochs or (MOST_EPOCHS if config.tokens else 1))
    largest = min(most * tokens[name] / share[name] for name in share)
    total = largest if config.tokens is None else Fraction(config.tokens)
    if total > largest:
        name = min(share, key=lambda name: tokens[name] / share[name])
        epochs = float(total * share[name] / tokens[name])
        raise InputError(
            f"mixture.tokens: {config.tokens:,} tokens need {epochs:,.2f} epochs of {config.of} "
            f"{escape_text(name)!r}, more than {float(most):g}; ask for {int(largest):,} at most"
        )
    return {name: int(total * share.get(name, Fraction(0))) for name in tokens}


def weigh_tokens(totals: Totals, classes: SizeClasses) -> dict[str, Fraction]:
    """The tokens of one epoch of each source: every document counts as its cluster weight says."""
    weights = [Fraction(weight) for weight in classes.weights]
    return {
        name: sum((w * tokens for w, (_, tokens) in zip(weights, of, strict=True)), Fraction(0))
        for name, of in totals.items()
    }


def group_targets(config: MixtureConfig, totals: Totals, classes: SizeClasses) -> list[int]:
    """The tokens each group is to have, (G,): those of its source, divided as one epoch of it is.
    Raises InputError as `targets`."""
    weighted = weigh_tokens(totals, classes)
    of_source = targets(config, weighted)
    return [
        int(of_source[name] * tokens * Fraction(weight) / weighted[name]) if weighted[name] else 0
        for name, of in totals.items()
        for weight, (_, tokens) in zip(classes.weights, of, strict=True)
    ]


def group_quotas(
    config: MixtureConfig, sources: Sequence[str], classes: SizeClasses
) -> tuple[Quota, ...]:
    """The quotas of a mixture by epochs, (G,): the epochs of the source times the cluster weight of
    the class."""
    return tuple(
        quota_of_epochs(Fraction(find_weight(config, name) or 0) * Fraction(weight))
        for name in sources
        for weight in classes.weights
    )


def shares(config: MixtureConfig, tokens: Mapping[str, int | Fraction]) -> dict[str, Fraction]:
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
    target_G: I64, tokens_G: I64, parts: Callable[[], Iterator[DocumentTokens]], seed: int
) -> tuple[Quota, ...]:
    """The quotas that come closest to G targets of tokens from below.

    tokens_G: all tokens of each group; `parts` gives all documents, and is called twice. Memory
    does not grow with their number, except for one in 4096, which is looked at closely.
    """
    copies = np.where(tokens_G > 0, target_G // np.maximum(tokens_G, 1), 0)
    rest = target_G - copies * tokens_G
    histogram = np.zeros((len(rest), 1 << _BINS_BITS), np.int64)
    for part in parts():
        drawn = _next_draws(part, copies, seed)
        np.add.at(histogram, (part.group, (drawn >> _SHIFT).astype(np.int64)), part.tokens)
    before = np.cumsum(histogram, axis=1)
    edge = (before <= rest[:, None]).sum(axis=1)
    near: list[tuple[I64, U64, I64]] = [(_NONE, _NONE.astype(np.uint64), _NONE)]
    for part in parts():
        drawn = _next_draws(part, copies, seed)
        inside = (drawn >> _SHIFT).astype(np.int64) == edge[part.group]
        near.append((part.group[inside], drawn[inside], part.tokens[inside]))
    group, drawn, tokens = (np.concatenate(column) for column in zip(*near, strict=True))
    order = np.lexsort((drawn, group))
    starts = np.searchsorted(group[order], np.arange(len(rest) + 1))
    quotas = []
    for index in range(len(rest)):
        mine = order[starts[index] : starts[index + 1]]
        room = int(rest[index]) - (int(before[index, edge[index] - 1]) if edge[index] else 0)
        bound = _bound(drawn[mine], tokens[mine], room) if rest[index] else 0
        quotas.append(Quota(int(copies[index]), bound))
    return tuple(quotas)


def _next_draws(part: DocumentTokens, copies: I64, seed: int) -> U64:
    """Each document's draw for the first copy that not all documents of its group get."""
    drawn = np.empty(len(part.group), np.uint64)
    next_copy = copies[part.group]
    for copy in np.unique(next_copy).tolist():
        mine = next_copy == copy
        drawn[mine] = draws(part.key_N2[mine], seed, copy)
    return drawn


def _bound(drawn: U64, tokens: I64, room: int) -> int:
    """The draw of the first document that no longer fits into `room` tokens; draws ascend."""
    beyond = np.flatnonzero(np.cumsum(tokens) > room)
    return int(drawn[beyond[0]]) if len(beyond) else ALL
