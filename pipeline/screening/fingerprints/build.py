"""Building an index from the works of a registry, each a text or a sketch.

`boilerplate.arrow` holds what is in many books and part of none, as hashes of its words: the
Project Gutenberg licence in several wordings, and common licences of software and documents. To
make it again, with other texts if you like (plain UTF-8 files):

    python -m pipeline.screening.fingerprints.build FILES...
"""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from dedup.arrays import I64, U32, U64
from dedup.text import join_texts
from pipeline.core import storage
from pipeline.core.errors import InputError, escape_text
from pipeline.screening.evidence import make_table
from pipeline.screening.fingerprints import calibrate, index
from pipeline.screening.fingerprints.sketch import (
    EXCERPT_S,
    WHOLE_BOOK_S,
    Sketch,
    find_last_kept,
    make_key,
    salt_hashes,
    sketch_words,
)
from pipeline.screening.fingerprints.words import find_words

EXCERPT, WHOLE_BOOK = "excerpt", "whole_book"
TIERS = {EXCERPT: EXCERPT_S, WHOLE_BOOK: WHOLE_BOOK_S}
"""The s of the sketch of a text in each tier."""
PLACES = 8
"""Places of one gram in one work that are kept at most, the first ones."""
FILTER_BITS = 8
"""Bits of the filter for each posting at least, and less than twice as many."""

WorkTexts: TypeAlias = "Iterable[tuple[str, str, str | Sketch]]"


class _Entry(NamedTuple):
    """A work: `words` is None where only its sketch is known or its tier keeps no words."""

    work_id: str
    tier: str
    sketch: Sketch
    words: U64 | None


class _Grams(NamedTuple):
    """Sampled grams of all works, by hash and place. places: among the words of all works."""

    hashes: U64
    places: I64
    works: I64


def build_index(
    works: WorkTexts,
    *,
    k: int | None = None,
    boilerplate: Iterable[str] = (),
    s: int = EXCERPT_S,
) -> index.FingerprintIndex:
    """The index of works, each (work id, tier, text or sketch).

    The tier `excerpt` finds passages and keeps the words of texts to verify them; `whole_book`
    finds books, in a sixtieth of the room, and verifies nothing. k: words in a gram; that of the
    sketches if there are any, else by the number of works (`calibrate.choose_k`). boilerplate:
    texts whose grams shall never count, besides the licences that are shipped with this package. s:
    one gram in so many is sampled of texts of the tier `excerpt`; with 1 nothing is left to chance.
    All of the works' sampled grams must fit in memory, about 40 bytes each.

    Raises InputError for a work given twice, an unknown tier, or a sketch of another k.
    """
    listed_works = list(works)
    k = _choose_k(listed_works, k)
    sparseness = {**TIERS, EXCERPT: s}
    entries = [_make_entry(*work, k, sparseness) for work in listed_works]
    times = Counter(entry.work_id for entry in entries)
    twice = next((work_id for work_id, count in times.items() if count > 1), None)
    if twice is not None:
        raise InputError(f"work {escape_text(twice)}: given twice; give each work once")
    stop = np.union1d(_load_shipped_grams(k), _list_grams(map(_hash_words, boilerplate), k))
    grams, shared, background = _drop_shared(_collect_grams(entries, stop), entries)
    stored_stop = _select_boilerplate(stop, entries)
    return _assemble(
        entries, grams, shared, stored_stop, _measure_parameters(k, entries, background)
    )


@cache
def _load_shipped_grams(k: int) -> U64:
    return _list_grams(load_shipped_boilerplate(), k)


def _hash_words(text: str) -> U64:
    return find_words(join_texts([text])).hashes


def _list_grams(texts: Iterable[U64], k: int) -> U64:
    """Every gram of the texts with these words, sampled or not, ascending."""
    every = [sketch_words(words, 1, k).hashes for words in texts]
    return np.unique(np.concatenate([np.zeros(0, np.uint64), *every]))


def _choose_k(works: list[tuple[str, str, str | Sketch]], k: int | None) -> int:
    for work_id, _, content in works:
        if isinstance(content, Sketch):
            if k not in (None, content.k):
                raise InputError(
                    f"work {escape_text(work_id)}: its sketch has k = {content.k}, expected {k}; "
                    "all sketches of a registry must have the same k"
                )
            k = content.k
    return k if k is not None else calibrate.choose_k(len(works))


def _make_entry(
    work_id: str, tier: str, content: str | Sketch, k: int, sparseness: Mapping[str, int]
) -> _Entry:
    if tier not in sparseness:
        raise InputError(
            f"work {escape_text(work_id)}: its tier is {escape_text(tier)!r}, expected "
            f"{' or '.join(sparseness)}"
        )
    if isinstance(content, Sketch):
        if not content.salt and (content.hashes > np.uint64(find_last_kept(content.s))).any():
            raise InputError(
                f"work {escape_text(work_id)}: its sketch has hashes that are not in one with "
                f"s = {content.s}; it was salted, and the salt is missing"
            )
        return _Entry(work_id, tier, content, None)
    words = _hash_words(content)
    stored_words = words if tier == EXCERPT else None
    return _Entry(work_id, tier, sketch_words(words, sparseness[tier], k), stored_words)


def _collect_grams(entries: list[_Entry], stop: U64) -> _Grams:
    starts = _find_starts(entries)
    hashes, places = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    excluded = {b"": stop}
    for entry, start in zip(entries, starts[:-1].tolist(), strict=True):
        sketch = entry.sketch
        if sketch.salt not in excluded:
            excluded[sketch.salt] = np.sort(salt_hashes(stop, sketch.salt))
        is_kept = _find_among(excluded[sketch.salt], sketch.hashes) < 0
        hashes.append(sketch.hashes[is_kept])
        places.append(sketch.positions[is_kept].astype(np.int64) + start)
    every = np.concatenate(hashes)
    order = np.argsort(every, kind="stable")
    ordered = np.concatenate(places)[order]
    works = np.searchsorted(starts, ordered, "right") - 1
    return _Grams(every[order], ordered, works.astype(np.int64))


def _select_boilerplate(stop: U64, entries: list[_Entry]) -> U64:
    """The boilerplate in works whose words are stored: what verification may meet."""
    is_met = np.zeros(len(stop), bool)
    for entry in entries:
        if entry.words is not None and (_find_among(stop, entry.sketch.hashes) >= 0).any():
            place = _find_among(stop, sketch_words(entry.words, 1, entry.sketch.k).hashes)
            is_met[place[place >= 0]] = True
    return stop[is_met]


def _find_among(ascending: U64, hashes: U64) -> I64:
    """Where each hash is among the ascending ones, or -1. What takes as long as all of those, as
    `numpy.isin` does, would be a work's share of a registry of thousands."""
    place = np.searchsorted(ascending, hashes)
    is_there = place < len(ascending)
    is_there[is_there] = ascending[place[is_there]] == hashes[is_there]
    return np.where(is_there, place, -1)


def _find_starts(entries: list[_Entry]) -> I64:
    counts = [entry.sketch.words for entry in entries]
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _drop_shared(
    grams: _Grams, entries: list[_Entry]
) -> tuple[_Grams, tuple[U64, U32], calibrate.Background]:
    """The grams that one kinship holds, PLACES in a work at most; the others and how many works
    hold each; and the background that they are."""
    new = np.concatenate([[True], grams.hashes[1:] != grams.hashes[:-1]])[: len(grams.hashes)]
    gram_E = np.cumsum(new) - 1
    one_each = np.concatenate([[True], (np.diff(gram_E) != 0) | (np.diff(grams.works) != 0)])
    one_each = one_each[: len(gram_E)]
    kin_W = calibrate.find_kinship(gram_E[one_each], grams.works[one_each], len(entries))
    one_E = gram_E[one_each]
    df = np.bincount(one_E, minlength=int(new.sum()))
    pairs = np.unique(np.stack([one_E, kin_W[grams.works[one_each]]]), axis=1)
    kinships = np.bincount(pairs[0], minlength=len(df))
    two = (kinships == 2)[gram_E]
    places = grams.places - _find_starts(entries)[grams.works]
    words_W = np.array([entry.sketch.words for entry in entries], np.int64)
    background = calibrate.measure_background(
        places[two], gram_E[two], grams.works[two], kin_W, words_W
    )
    is_own = (kinships == 1)[gram_E] & (_rank(gram_E, grams.works) < PLACES)
    is_shared = kinships > 1
    return (
        _Grams(*(column[is_own] for column in grams)),
        (grams.hashes[new][is_shared], df[is_shared].astype(np.uint32)),
        background,
    )


def _rank(gram_E: I64, works_E: I64) -> I64:
    """Which place of its gram in its work each one is, from 0."""
    change = (np.diff(gram_E) != 0) | (np.diff(works_E) != 0)
    first = np.concatenate([[True], change])[: len(gram_E)]
    starts = np.flatnonzero(first)
    return np.arange(len(gram_E)) - np.repeat(starts, np.diff(np.append(starts, len(gram_E))))


def _measure_parameters(
    k: int, entries: list[_Entry], background: calibrate.Background
) -> index.Parameters:
    sparseness = np.array([entry.sketch.s for entry in entries], np.int64)
    chance = calibrate.choose_chance(k, background)
    is_small = len(entries) <= calibrate.SMALL_REGISTRY
    expected = calibrate.TO_VERIFY if is_small else calibrate.TO_VERIFY_MANY
    m = calibrate.count_needed_grams(k, sparseness, chance, expected)
    m_sketch = calibrate.count_needed_grams(k, sparseness, chance, calibrate.UNVERIFIED)
    return index.Parameters(
        k=k,
        m=m,
        m_sketch=m_sketch,
        dense=calibrate.DENSE_PER_GRAM * m,
        pairs=background.pairs,
        pairs_hit=background.hit,
        chance=chance,
        expected=1e6 * calibrate.estimate_coincidences(k, sparseness, chance, m),
    )


def _assemble(
    entries: list[_Entry],
    grams: _Grams,
    shared: tuple[U64, U32],
    stop: U64,
    parameters: index.Parameters,
) -> index.FingerprintIndex:
    starts = _find_starts(entries)
    kind = np.uint32 if starts[-1] < 1 << 32 else np.uint64
    hashes = np.concatenate([shared[0], stop])
    df = np.concatenate([shared[1], np.zeros(len(stop), np.uint32)])
    order = np.argsort(hashes, kind="stable")
    size = 1
    while size * 64 < FILTER_BITS * len(grams.hashes):
        size *= 2
    texts = [index.pack_words(e.words) if e.words is not None else (b"", b"") for e in entries]
    tables = {
        "works": index.add_parameters(_make_works_table(entries, grams, starts), parameters),
        "postings": pa.table({"hash": grams.hashes, "position": grams.places.astype(kind)}),
        "filter": pa.table({"bits": index.build_filter(grams.hashes, size)}),
        "excluded": pa.table({"hash": hashes[order], "df": df[order]}),
        "texts": make_table(texts, index.TEXTS),
    }
    return index.FingerprintIndex(parameters, tables)


def _make_works_table(entries: list[_Entry], grams: _Grams, starts: I64) -> pa.Table:
    counts = np.bincount(grams.works, minlength=len(entries))
    rows = []
    for e, start, count in zip(entries, starts[:-1].tolist(), counts.tolist(), strict=True):
        key = make_key(e.sketch.salt) if e.sketch.salt else (None, None)
        sizes = (e.sketch.s, e.sketch.words, start, count)
        rows.append((e.work_id, e.tier, *sizes, e.words is not None, *key))
    return make_table(rows, index.WORKS)


FILE = "boilerplate.arrow"
_SCHEMA = pa.schema([("name", pa.string()), ("words", pa.uint32()), *index.TEXTS])


@cache
def load_shipped_boilerplate() -> tuple[U64, ...]:
    """The words of each text."""
    data = (resources.files(__package__ or "") / FILE).read_bytes()
    rows = pa.ipc.open_file(pa.BufferReader(data)).read_all().to_pylist()
    return tuple(
        index.unpack_words(row["vocabulary"], row["numbers"], row["words"]) for row in rows
    )


def pack_boilerplate(texts: Sequence[tuple[str, str]]) -> bytes:
    """An Arrow file of (name, text)."""
    words = [(name, _hash_words(text)) for name, text in texts]
    table = make_table([(name, len(own), *index.pack_words(own)) for name, own in words], _SCHEMA)
    return bytes(index.write_ipc(table))


if __name__ == "__main__":
    read = [(Path(file).name, Path(file).read_text(encoding="utf-8")) for file in sys.argv[1:]]
    storage.publish(Path(__file__).with_name(FILE), pack_boilerplate(read))
