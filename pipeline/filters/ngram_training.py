"""Train an n-gram model of words: interpolated modified Kneser-Ney smoothing.

Source: Chen and Goodman, "An Empirical Study of Smoothing Techniques for Language Modeling" (1998),
section 4.1.6, with the counts and the unknown word of Heafield et al., "Scalable Modified
Kneser-Ney Language Model Estimation" (2013), section 3. Of an n-gram of the highest order, and of
one that begins with `BEGIN`, a is its count; of any other the number of different words in front of
it. With the discounts D(1), D(2), D(3 and more) of an order and t_k its n-grams of a = k,

    D(k) = k - (k + 1) Y t_(k+1) / t_k        Y = t_1 / (t_1 + 2 t_2)
    p(w | c) = (a(cw) - D(a(cw))) / sum_v a(cv)  +  g(c) p(w | c without its first word)

where g(c) is what the discounts left, and p of no word at all is 1 / (words known + 1), the 1 being
the unknown word. Where a t_k is 0 the discounts are 0.5, 1 and 1.5 (KenLM's fallback).

N-grams of three and more words that occur fewer than `min_count` times are not stored, and what
they had goes to g(c). All n-grams of an order are sorted by their hashes, so that equal words give
equal files. All is done in memory, so how much text is read bounds it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dedup.arrays import F64, I64, U64, Mask
from dedup.compiled import kernel
from dedup.text import TextArray, view_texts
from dedup.words import hash_text_words
from pipeline.filters.ngram_model import BEGIN, END, ModelFacts, extend, find_slot

_FALLBACK = (0.5, 1.0, 1.5)
_KEPT_ORDERS = 2
"""N-grams of so many words are stored however rare they are."""
_LOG_NEVER = -99.0 * float(np.log(10))
"""What ARPA files say of `BEGIN`, which is never predicted."""


@dataclass(frozen=True, kw_only=True)
class NgramSettings:
    """Words of the longest n-grams, and how often one of three or more must occur to be stored."""

    order: int = 3
    min_count: int = 2


def train_ngrams(texts: TextArray, settings: NgramSettings) -> tuple[ModelFacts, U64]:
    """The model of some texts: what it says of itself, and its table, (slots, 2) uint64.

    Raises ValueError where there is no word.
    """
    words, starts = hash_text_words(view_texts(texts))
    if not len(words):
        raise ValueError("no words to train on")
    stream, place = _pad(words, starts)
    orders = list(_estimate(stream, place, settings))
    entries = tuple(int(found.stored.sum()) for found in orders)
    facts = ModelFacts(
        order=settings.order,
        slots=3 * sum(entries) // 2 + 1,
        log_unknown=float(np.log(orders[0].unknown)),
        entries=entries,
        discounts=tuple(found.discounts for found in orders),
        min_count=settings.min_count,
        words=len(words),
        documents=len(starts) - 1,
    )
    return facts, _make_table(orders, facts.slots)


def _pad(words: U64, starts: I64) -> tuple[U64, I64]:
    """All texts that have words, each between `BEGIN` and `END`, one after the other; and the place
    of each word in its text, (M,)."""
    counts = np.diff(starts)
    lengths = counts[counts > 0] + 2
    ends = np.cumsum(lengths)
    stream = np.empty(int(ends[-1]), np.uint64)
    place = np.arange(len(stream)) - np.repeat(ends - lengths, lengths)
    inside = np.ones(len(stream), np.bool_)
    inside[ends - 1] = inside[ends - lengths] = False
    stream[inside], stream[ends - lengths], stream[ends - 1] = words, BEGIN, END
    return stream, place


@kernel
def _extend_all(shorter: U64, stream: U64, place: I64, least: int, longer: U64) -> None:
    """Hashes of the n-grams that end at each word, from those of n - 1 words; n = least + 1. All of
    one length."""
    for i in range(len(stream)):
        if place[i] >= least:
            longer[i] = extend(shorter[i - 1] if least else np.uint64(0), stream[i])


@dataclass(frozen=True)
class _Grams:
    """The different n-grams of one order, sorted by hash, (G,): the hash, where one of them ends in
    the stream, and how often it occurs."""

    key: U64
    end: I64
    count: I64


@dataclass(frozen=True, kw_only=True)
class _Estimate:
    """The probabilities of an order, (G,): of each n-gram its hash, whether it is stored, p, and
    the back-off weight as a context; with the discounts, and p of an unknown word."""

    key: U64
    stored: Mask
    probability: F64
    backoff: F64
    discounts: tuple[float, ...]
    unknown: float


def _estimate(stream: U64, place: I64, settings: NgramSettings) -> Iterator[_Estimate]:
    """The orders from one word up."""
    hashes = [np.zeros(len(stream), np.uint64)]
    grams: list[_Grams] = []
    for n in range(1, settings.order + 1):
        longer = np.zeros(len(stream), np.uint64)
        _extend_all(hashes[-1], stream, place, n - 1, longer)
        hashes.append(longer)
        grams.append(_count(longer, place, n))
    lower, unknown = None, 1.0
    weights = [_Weights.of(n, grams, hashes, place, settings) for n in range(1, settings.order + 1)]
    for n, (own, weight) in enumerate(zip(grams, weights, strict=True), 1):
        if lower is None:
            known = int((weight.adjusted > 0).sum())
            base = np.full(len(own.key), 1.0 / (known + 1))
            unknown = float(weight.left[0] / (known + 1))
        else:
            suffix = np.searchsorted(grams[n - 2].key, hashes[n - 1][own.end])
            base = lower[suffix]
        lower = weight.share + weight.left[weight.context] * base
        backoff = weights[n].left if n < settings.order else np.ones(len(own.key))
        yield _Estimate(
            key=own.key,
            stored=weight.stored,
            probability=np.where(weight.adjusted > 0, lower, 0.0),
            backoff=backoff,
            discounts=weight.discounts,
            unknown=unknown,
        )


def _count(hashes: U64, place: I64, n: int) -> _Grams:
    ends = np.flatnonzero(place >= n - 1)
    key, first, count = np.unique(hashes[ends], return_index=True, return_counts=True)
    return _Grams(key, ends[first], count)


@dataclass(frozen=True, kw_only=True)
class _Weights:
    """Of the n-grams of an order, (G,): the adjusted count, the context (among the n-grams of the
    order below; of single words there is one), their share of it without the discount, and whether
    they are stored; `left`: what each context has for what is shorter, 1 where nothing follows it.
    """

    adjusted: I64
    context: I64
    share: F64
    stored: Mask
    left: F64
    discounts: tuple[float, ...]

    @staticmethod
    def of(
        n: int, grams: list[_Grams], hashes: list[U64], place: I64, settings: NgramSettings
    ) -> "_Weights":
        """Those of order n."""
        own = grams[n - 1]
        adjusted = _adjust(n, grams, hashes, place)
        discounts = _choose_discounts(adjusted)
        of_each = np.array([0.0, *discounts])[np.minimum(adjusted, 3)]
        if n == 1:
            context, contexts = np.zeros(len(own.key), np.int64), 1
        else:
            context = np.searchsorted(grams[n - 2].key, hashes[n - 1][own.end - 1])
            contexts = len(grams[n - 2].key)
        total = np.bincount(context, adjusted, contexts)
        share = (adjusted - of_each) / np.maximum(total[context], 1)
        stored = (own.count >= settings.min_count) | (n <= _KEPT_ORDERS)
        lost = np.where(stored, of_each, adjusted)
        left = np.ones(contexts)
        np.divide(np.bincount(context, lost, contexts), total, out=left, where=total > 0)
        return _Weights(
            adjusted=adjusted,
            context=context,
            share=share,
            stored=stored,
            left=left,
            discounts=discounts,
        )


def _adjust(n: int, grams: list[_Grams], hashes: list[U64], place: I64) -> I64:
    """The adjusted counts of order n; 0 for `BEGIN` alone."""
    own = grams[n - 1]
    begins = place[own.end] == n - 1
    if n == len(grams):
        adjusted = own.count.copy()
    else:
        suffix = np.searchsorted(own.key, hashes[n][grams[n].end])
        adjusted = np.where(begins, own.count, np.bincount(suffix, minlength=len(own.key)))
    if n == 1:
        adjusted[begins] = 0
    return adjusted


def _choose_discounts(adjusted: I64) -> tuple[float, ...]:
    """D(1), D(2) and D(3 and more)."""
    t = np.bincount(np.minimum(adjusted, 5), minlength=6)[1:5].astype(np.float64)
    if not t.all():
        return _FALLBACK
    y = t[0] / (t[0] + 2 * t[1])
    found = tuple(float(k - (k + 1) * y * t[k] / t[k - 1]) for k in (1, 2, 3))
    fits = all(0 <= d <= k for k, d in enumerate(found, 1))
    return found if fits else _FALLBACK


def _make_table(orders: list[_Estimate], slots: int) -> U64:
    """The table of all stored n-grams, put in by order and hash."""
    table = np.zeros((slots, 2), np.uint64)
    for found in orders:
        numbers = np.empty((int(found.stored.sum()), 2), np.float32)
        with np.errstate(divide="ignore"):
            numbers[:, 0] = np.maximum(np.log(found.probability[found.stored]), _LOG_NEVER)
            numbers[:, 1] = np.log(found.backoff[found.stored])
        _insert(table, found.key[found.stored], numbers.view(np.uint64)[:, 0].copy())
    return table


@kernel
def _insert(table: U64, keys: U64, values: U64) -> None:
    """keys, values: of one length; table: (slots, 2) with room for them."""
    for i in range(len(keys)):
        slot = find_slot(table, keys[i])
        table[slot, 0] = keys[i]
        table[slot, 1] = values[i]
