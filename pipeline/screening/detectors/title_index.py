"""Which works of a registry a document may name: blocking by rare title words.

A word is rare when few titles of the registry hold it and it is not a common word of titles at
large. A work is a candidate when words that make up `_COVERAGE` of its title by idf are in the
metadata or the short first lines, and so is an author's surname, or two rare words. So it is filed
only under its rarest words, as many as make up more than the rest (prefix filtering, Chaudhuri et
al. 2006).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dedup.arrays import F32, I32, I64, U8, U64, Mask
from dedup.compiled import kernel
from dedup.text import Texts, join_texts
from pipeline.screening.detectors.sweep import Fields
from pipeline.screening.detectors.title_words import COMMON_WORDS, fold_table, hash_word, hash_words
from pipeline.screening.registry.names import (
    make_author_key,
    normalise_author,
    normalise_title,
    split_authors,
    split_title,
)

HEAD_BYTES = 400
"""Of a text that are looked at."""

_PRIOR_TITLES, _COMMON_TITLES = 10_000, 200
_RARE_SHARE = 1e-3
_FIELD_BYTES, _MOST_WORDS = 512, 256
_MOST_AUTHORED, _MOST_TITLED = 256, 64
"""Candidates for one document: with a surname of theirs, and without."""

_COVERAGE = 0.7
_LONGEST_LINE = 120
_NEWLINE, _RETURN = np.uint8(0x0A), np.uint8(0x0D)


class WeighedTitle(NamedTuple):
    """A title of N folded words, their idf, and which of them are rare."""

    text: str
    words: tuple[str, ...]
    idf: tuple[float, ...]
    rare: tuple[bool, ...]


class WorkName(NamedTuple):
    """What a work is called, folded: its proper and its full title, the words of both, and its
    authors as (surname, first names) in words."""

    work_id: str
    title: str
    titles: tuple[WeighedTitle, ...]
    title_words: frozenset[str]
    authors: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]


class TitleArrays(NamedTuple):
    """The V words of W works' proper titles and authors' surnames, for kernels.

    slots (S,): word by hash, -1 where empty, S a power of two; hashes, idf, rare (V,); filed (F,):
    works filed under word v [file_starts[v]: file_starts[v + 1]]; words (T,): title words of work w
    [title_starts[w]:…]; surnames (N,): last words of its authors' surnames [author_starts[w]:…].
    All are read-only, so that kernels are compiled once.
    """

    slots: I32
    hashes: U64
    idf: F32
    rare: Mask
    file_starts: I64
    filed: I32
    title_starts: I64
    words: I32
    author_starts: I64
    surnames: I32


ARRAYS = pa.schema([
    ("slots", pa.large_list(pa.int32())), ("hashes", pa.large_list(pa.uint64())),
    ("idf", pa.large_list(pa.float32())), ("rare", pa.large_list(pa.uint8())),
    ("file_starts", pa.large_list(pa.int64())), ("filed", pa.large_list(pa.int32())),
    ("title_starts", pa.large_list(pa.int64())), ("words", pa.large_list(pa.int32())),
    ("author_starts", pa.large_list(pa.int64())), ("surnames", pa.large_list(pa.int32())),
])  # fmt: skip
"""`TitleArrays` in one row, so that one file holds them and can be mapped."""
_NAMES = ["work_id", "title_raw", "subtitle", "authors"]


@dataclass(frozen=True)
class TitleIndex:
    """W works (`_NAMES` of WORKS) by the words of their titles and authors."""

    works: pa.Table
    arrays: TitleArrays

    @classmethod
    def of_tables(cls, works: pa.Table, arrays: pa.Table) -> "TitleIndex":
        """The index of a registry's works from what `make_title_arrays` made of them."""
        columns = {name: arrays[name].chunk(0).flatten().to_numpy() for name in ARRAYS.names}
        columns["rare"] = columns["rare"].view(np.bool_)
        return cls(works.select(_NAMES), TitleArrays(**columns))

    def __len__(self) -> int:
        return len(self.works)

    def describe_work(self, work: int) -> WorkName:
        """What a work is called."""
        (row,) = self.works.slice(work, 1).to_pylist()
        title, subtitle = row["title_raw"], row["subtitle"]
        if subtitle and not split_title(title).subtitle:
            title = f"{title}: {subtitle}"
        parts = split_title(title)
        readings = (parts.title, f"{parts.title} {parts.subtitle}")
        titles = dict.fromkeys(text for r in readings if (text := normalise_title(r)))
        names = row["authors"] or split_authors(parts.responsibility)
        weighed = tuple(map(self._weigh, titles))
        title_words = frozenset(word for one in weighed for word in one.words)
        return WorkName(row["work_id"], title, weighed, title_words, _split_names(names))

    def _weigh(self, text: str) -> WeighedTitle:
        """A word of subtitles only weighs as one of one title, or as a common one."""
        words = tuple(text.split())
        idf, rare = [], []
        for word in words:
            number = int(_find_word(np.uint64(hash_word(word)), self.arrays))
            is_common = word in COMMON_WORDS
            titles = (_PRIOR_TITLES + len(self)) / (_COMMON_TITLES if is_common else 1)
            idf.append(float(self.arrays.idf[number]) if number >= 0 else float(np.log(titles)))
            rare.append(bool(self.arrays.rare[number]) if number >= 0 else not is_common)
        return WeighedTitle(text, words, tuple(idf), tuple(rare))

    def find_candidates(self, fields: Fields, texts: Texts, first: int) -> I64:
        """(2, N) int64: rows and works, for a chunk of texts whose first row is `first`; by row."""
        out = np.empty((2, _MOST_AUTHORED), np.int64)
        columns = (fields.texts.data, fields.row, fields.start, fields.end)
        table = fold_table()
        candidates = _find_candidates(
            columns, texts.data, texts.offsets, first, table, self.arrays, out
        )
        return np.asarray(candidates)


def build_title_index(works: pa.Table) -> TitleIndex:
    """An index of a registry's works: columns work_id, title_raw, subtitle and authors of WORKS.

    Where title_raw has no subtitle, the column's is added.
    """
    return TitleIndex.of_tables(works, make_title_arrays(works))


def make_title_arrays(works: pa.Table) -> pa.Table:
    """`ARRAYS` of a registry's works: what takes time in making the index."""
    parts = list(map(split_title, works["title_raw"].to_pylist()))
    titles = [normalise_title(part.title) for part in parts]
    names = [
        [make_author_key(name)[0] for name in authors or split_authors(part.responsibility)]
        for part, authors in zip(parts, works["authors"].to_pylist(), strict=True)
    ]
    surnames = [" ".join(name.split()[-1] for name in of_work if name) for of_work in names]
    works = len(titles)
    title_hashes, title_work = _drop_repeats(*_hash_texts(titles))
    name_hashes, name_work = _drop_repeats(*_hash_texts(surnames))
    hashes = np.unique(np.concatenate([title_hashes, name_hashes]))
    words = np.searchsorted(hashes, title_hashes).astype(np.int32)
    df = np.bincount(words, minlength=len(hashes)).astype(np.float64)
    common, _ = _hash_texts(sorted(COMMON_WORDS))
    prior = np.where(np.isin(hashes, common), _COMMON_TITLES, 0)
    titles_in_all = _PRIOR_TITLES + works
    idf = np.log(titles_in_all / np.maximum(df + prior, 1)).astype(np.float32)
    rare = df + prior <= max(2.0, _RARE_SHARE * titles_in_all)
    file_starts, filed = _file_works(words, title_work, idf, works)
    arrays = (
        _make_slots(hashes),
        hashes,
        idf,
        rare.view(np.uint8),
        file_starts,
        filed,
        _find_starts(title_work, works),
        words,
        _find_starts(name_work, works),
        np.searchsorted(hashes, name_hashes).astype(np.int32),
    )
    rows = [pa.LargeListArray.from_arrays([0, len(array)], pa.array(array)) for array in arrays]
    return pa.table(rows, schema=ARRAYS)


def _file_works(words: I32, work: I64, idf: F32, works: int) -> tuple[I64, I32]:
    """Works by word: each under its rarest words that weigh more than 1 - `_COVERAGE` together."""
    weight = idf[words].astype(np.float64)
    order = np.lexsort((words, -weight, work))
    ordered, owner = weight[order], work[order]
    before = np.cumsum(ordered) - ordered
    first = np.searchsorted(owner, np.arange(works))
    total = np.bincount(owner, ordered, minlength=works)
    before -= np.append(before, 0.0)[first][owner]
    heaviest = order[before <= (1 - _COVERAGE) * total[owner]]
    by_word = heaviest[np.lexsort((work[heaviest], words[heaviest]))]
    return _find_starts(words[by_word].astype(np.int64), len(idf)), work[by_word].astype(np.int32)


def _find_starts(numbers: I64, count: int) -> I64:
    """Where each number's run begins, (count + 1,), for numbers in ascending order."""
    return np.searchsorted(numbers, np.arange(count + 1)).astype(np.int64)


def _drop_repeats(hashes: U64, work: I64) -> tuple[U64, I64]:
    order = np.lexsort((hashes, work))
    hashes, work = hashes[order], work[order]
    first = np.ones(len(hashes), bool)
    first[1:] = (hashes[1:] != hashes[:-1]) | (work[1:] != work[:-1])
    return hashes[first], work[first]


def _hash_texts(texts: list[str]) -> tuple[U64, I64]:
    """Hashes of all words, and the text that each is in."""
    flat = join_texts(pa.array(texts, pa.large_string()))
    out = np.empty(flat.offsets[-1] - flat.offsets[0] + 1, np.uint64)
    work = np.empty(len(out), np.int64)
    count = _hash_all(flat.data, flat.offsets, fold_table(), out, work)
    return out[:count], work[:count]


def _split_names(names: Sequence[str]) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    split = []
    for name in names:
        surname = make_author_key(name)[0]
        first_names = normalise_author(name).removesuffix(surname).split()
        if surname:
            split.append((tuple(normalise_title(surname).split()), tuple(first_names)))
    return tuple(split)


def _make_slots(hashes: U64) -> I32:
    slots = np.full(1 << max(4, int(2 * len(hashes)).bit_length()), -1, np.int32)
    _fill_slots(hashes, slots)
    return slots


@kernel
def _hash_all(data: U8, offsets: I64, table: U64, out: U64, work: I64) -> int:
    filled = 0
    for text in range(len(offsets) - 1):
        before = filled
        filled = hash_words(data, offsets[text], offsets[text + 1], False, table, out, filled)
        for word in range(before, filled):
            work[word] = text
    return filled


@kernel
def _fill_slots(hashes: U64, slots: I32) -> None:
    mask = np.uint64(len(slots) - 1)
    for number in range(len(hashes)):
        place = hashes[number] & mask
        while slots[place] >= 0:
            place = (place + np.uint64(1)) & mask
        slots[place] = number


@kernel
def _find_word(value: np.uint64, index: TitleArrays) -> int:
    mask = np.uint64(len(index.slots) - 1)
    place = value & mask
    while index.slots[place] >= 0:
        if index.hashes[index.slots[place]] == value:
            return int(index.slots[place])
        place = (place + np.uint64(1)) & mask
    return -1


@kernel
def _find_candidates(
    fields: tuple[U8, I64, I64, I64],
    data: U8,
    offsets: I64,
    first: int,
    table: U64,
    index: TitleArrays,
    out: I64,
) -> I64:
    """fields: bytes of the metadata, and row, start and end of every value; out (2, any): grown as
    needed."""
    meta, field_row, field_start, field_end = fields
    hashes = np.empty(_MOST_WORDS, np.uint64)
    in_row = np.full(len(index.hashes), -1, np.int64)
    looked_at = np.full(len(index.title_starts) - 1, -1, np.int64)
    field = np.searchsorted(field_row, first)
    count = 0
    for text in range(len(offsets) - 1):
        row, size = first + text, 0
        while field < len(field_row) and field_row[field] == row:
            end = min(field_end[field], field_start[field] + _FIELD_BYTES)
            size = hash_words(meta, field_start[field], end, True, table, hashes, size)
            field += 1
        end = min(offsets[text + 1], offsets[text] + HEAD_BYTES)
        size = _hash_short_lines(data, offsets[text], end, table, hashes, size)
        for k in range(size):
            number = _find_word(hashes[k], index)
            if number >= 0:
                in_row[number] = row
        authored = titled = 0
        for k in range(size):
            number = _find_word(hashes[k], index)
            if number < 0:
                continue
            for place in range(index.file_starts[number], index.file_starts[number + 1]):
                work = index.filed[place]
                if looked_at[work] == row:
                    continue
                looked_at[work] = row
                rare_there = _count_rare_words(row, work, in_row, index)
                if rare_there < 0:
                    continue
                if _has_surname(row, work, in_row, index):
                    authored += 1
                    if authored > _MOST_AUTHORED:
                        continue
                else:
                    titled += rare_there >= 2
                    if rare_there < 2 or titled > _MOST_TITLED:
                        continue
                if count == out.shape[1]:
                    grown = np.empty((2, 2 * count), np.int64)
                    for k in range(count):
                        grown[0, k], grown[1, k] = out[0, k], out[1, k]
                    out = grown
                out[0, count], out[1, count] = row, work
                count += 1
    return out[:, :count]


@kernel
def _hash_short_lines(data: U8, start: int, end: int, table: U64, out: U64, filled: int) -> int:
    """`hash_words` of the lines that may be a title or a name."""
    line = start
    for i in range(start, end + 1):
        if i == end or data[i] == _NEWLINE or data[i] == _RETURN:
            if i - line <= _LONGEST_LINE:
                filled = hash_words(data, line, i, False, table, out, filled)
            line = i + 1
    return filled


@kernel
def _count_rare_words(row: int, work: int, in_row: I64, index: TitleArrays) -> int:
    """How many rare words of a title a row has; -1 if it has too little of the title."""
    there, total, rare_there = 0.0, 0.0, 0
    for place in range(index.title_starts[work], index.title_starts[work + 1]):
        word = index.words[place]
        total += index.idf[word]
        if in_row[word] == row:
            there += index.idf[word]
            rare_there += index.rare[word]
    return rare_there if there >= _COVERAGE * total else -1


@kernel
def _has_surname(row: int, work: int, in_row: I64, index: TitleArrays) -> bool:
    for place in range(index.author_starts[work], index.author_starts[work + 1]):
        if in_row[index.surnames[place]] == row:
            return True
    return False
