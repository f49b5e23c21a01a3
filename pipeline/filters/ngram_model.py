"""Perplexity of texts by an n-gram model of words, which `pipeline.filters.ngram_training` makes.

Words are what `dedup.words` makes of a text: runs of letters, digits and marks between white space,
in lower case, without punctuation. The model keeps no word, only 64-bit hashes: that of the n words
that end at word i is made of that of the n - 1 words that end at i - 1 and of word i. A document
begins with the word `BEGIN`, which is not predicted, and ends with the word `END`, which is. Its
perplexity is exp(-sum of log p / (words + 1)).

p(w | context) is that of the longest known n-gram, times the back-off weights of the contexts
that are too long for it (Katz's form of an interpolated model, as in ARPA files).

The file: one line of JSON, padded to `_HEAD` bytes, then a hash table with open addressing and
linear probing: in each slot the key (uint64, 0: empty), log p and the log of the back-off weight
(float32 each, natural logarithms). It is memory-mapped.
"""

import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dedup.arrays import F64, I64, U64
from dedup.compiled import kernel
from dedup.polynomial import fmix64
from dedup.text import TextArray, view_texts
from dedup.words import hash_text_words
from pipeline.core.errors import ConfigError
from pipeline.core.hashes import hash_file

BEGIN, END = np.uint64(1), np.uint64(2)
"""Words that no text has (but for one of 2^63)."""
MAGIC = "wafermill n-gram model 1"
MOST_ORDER = 5
_HEAD = 4096
_SLOT_BYTES = 16
_MAYBE, _TOGETHER = -2, 64
_NEVER, _ONE, _HALF = np.uint64(0), np.uint64(1), np.uint64(32)
_ORDER_STEP = np.uint64(0x9E3779B97F4A7C15)

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What a model says of itself: n-grams of up to `order` words, slots of its table and how many
    are filled, the natural log of the probability of an unknown word, and what it was trained on:
    `entries` and `discounts` by order, n-grams left out that occur less often than `min_count`."""

    order: int
    slots: int
    log_unknown: float
    entries: tuple[int, ...]
    discounts: tuple[tuple[float, ...], ...]
    min_count: int
    words: int
    documents: int


@dataclass(frozen=True)
class NgramModel:
    """A model: what it says of itself, and its table as keys and as numbers, (slots, 2) uint64 and
    (slots, 4) float32 of the same memory."""

    facts: ModelFacts
    keys: U64
    numbers: F32


@kernel
def extend(shorter: np.uint64, word: np.uint64) -> np.uint64:
    """The hash of an n-gram from that of its first n - 1 words (0 for none) and its last word."""
    value = fmix64(shorter * _ORDER_STEP + word)
    return value if value else _ORDER_STEP


@kernel
def first_slot(keys: U64, key: np.uint64) -> np.uint64:
    """The slot where a key is looked for first: key * slots / 2^64, fewer than 2^32 of them."""
    return ((key >> _HALF) * np.uint64(len(keys))) >> _HALF


@kernel
def find_slot(keys: U64, key: np.uint64) -> int:
    """The slot of a key, or the empty one where it would be; `keys`: (slots, 2). Of a damaged
    table, which has no empty slot, it may be that of another key."""
    slots = np.uint64(len(keys))
    place = first_slot(keys, key)
    has_turned = False
    while keys[place, 0] != key and keys[place, 0]:
        place += _ONE
        if place == slots:
            place = _NEVER
            if has_turned:
                break
            has_turned = True
    return int(place)


def read_ngram_model(path: Path) -> NgramModel:
    """A model, memory-mapped. Raises ConfigError unless the file is one."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
        facts = json.loads(head.decode())
        if facts.pop("format") != MAGIC:
            raise ValueError("another format")
        facts["entries"] = tuple(facts["entries"])
        facts["discounts"] = tuple(map(tuple, facts["discounts"]))
        model = ModelFacts(**facts)
        size = _HEAD + model.slots * _SLOT_BYTES
        if path.stat().st_size != size or not 0 < model.slots < 1 << 32:
            raise ValueError("cut short")
        if model.order not in range(1, MOST_ORDER + 1) or not isinstance(model.log_unknown, float):
            raise ValueError("not what training writes")
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the n-gram model ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path}: not an n-gram model, or damaged; expected a file of `prep ngram train`"
        ) from error
    return open_trained(model, np.asarray(np.memmap(path, np.uint64, "r", _HEAD, (model.slots, 2))))


def open_trained(facts: ModelFacts, table: U64) -> NgramModel:
    """A model in memory, as `train_ngrams` returns it."""
    return NgramModel(facts, table, table.view(np.float32))


def encode_model(facts: ModelFacts, table: U64) -> tuple[bytes, memoryview]:
    """The pieces of the file."""
    head = json.dumps({"format": MAGIC, **asdict(facts)}, sort_keys=True).encode()
    assert len(head) < _HEAD, "the facts are few"
    return head.ljust(_HEAD - 1) + b"\n", table.data.cast("B")


@cache
def open_unchanged(path: str, file_hash: str) -> NgramModel:
    """The same, once for a process. Raises ConfigError when the file is no longer that with this
    hash."""
    if hash_file(Path(path)) != file_hash:
        raise ConfigError(
            f"{path}: changed while the run was under way; run the same command again"
        )
    return read_ngram_model(Path(path))


def measure_perplexity(texts: TextArray, model: NgramModel) -> F64:
    """The perplexity of every text, (N,) float64; NaN for a text without words."""
    words, starts = hash_text_words(view_texts(texts))
    counts = np.diff(starts)
    shape = (model.facts.order + 1, int(counts.max(initial=0)) + 2)
    own, slots = np.empty(shape, np.uint64), np.empty(shape, np.int64)
    logs, log_unknown = np.empty(len(counts)), model.facts.log_unknown
    _score(words, starts, model.keys, model.numbers, log_unknown, own, slots, logs)
    return np.where(counts > 0, np.exp(-logs / (counts + 1)), np.nan)


@kernel
def _score(
    words: U64,
    starts_N1: I64,
    keys: U64,
    numbers: F32,
    log_unknown: float,
    own: U64,
    slots: I64,
    logs_N: F64,
) -> None:
    """The log of the probability of every text. own, slots: (order + 1, words of the longest text +
    2), scratch; all n-grams of one order are looked up before those of the next."""
    order, touched = len(own) - 1, np.zeros(1, np.uint64)
    for text in range(len(logs_N)):
        first = starts_N1[text]
        count = starts_N1[text + 1] - first + 2
        for i in range(count):
            word = BEGIN if i == 0 else END if i == count - 1 else words[first + i - 1]
            own[1, i], slots[1, i] = extend(_NEVER, word), _MAYBE
        _look_up(keys, own[1, :count], slots[1, :count], touched)
        for n in range(2, order + 1):
            for i in range(n - 1, count):
                slots[n, i] = -1
                if slots[n - 1, i] >= 0 and slots[n - 1, i - 1] >= 0:
                    word = END if i == count - 1 else words[first + i - 1]
                    own[n, i], slots[n, i] = extend(own[n - 1, i - 1], word), _MAYBE
            _look_up(keys, own[n, n - 1 : count], slots[n, n - 1 : count], touched)
        total = 0.0
        for i in range(1, count):
            n = min(order, i + 1)
            while n and slots[n, i] < 0:
                if n > 1 and slots[n - 1, i - 1] >= 0:
                    total += numbers[slots[n - 1, i - 1], 3]
                n -= 1
            total += numbers[slots[n, i], 2] if n else log_unknown
        logs_N[text] = total


@kernel
def _look_up(keys: U64, own: U64, slots: I64, touched: U64) -> None:
    """Put the slots of these n-grams in place of `_MAYBE`, -1 where there is none. Those of a few
    are touched first: nothing waits for the answers, so memory is asked for all of them at once."""
    for start in range(0, len(own), _TOGETHER):
        stop, seen = min(start + _TOGETHER, len(own)), _NEVER
        for i in range(start, stop):
            if slots[i] == _MAYBE:
                seen ^= keys[first_slot(keys, own[i]), 0]
        touched[0] ^= seen
        for i in range(start, stop):
            if slots[i] == _MAYBE:
                slot = find_slot(keys, own[i])
                slots[i] = slot if keys[slot, 0] else -1
