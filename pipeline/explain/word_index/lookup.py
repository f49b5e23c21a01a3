"""Which texts of a run can hold a query, by the index of its words.

The first pass of a search counts, in every text, the query's longest words, wherever they are and
whatever is around them. The index has the same counts: a text holds a word exactly if one of its
spellings does. Only the rarest words are counted, as many as it takes to leave few texts; these are
then searched as without an index. So an index leaves texts out and finds none by itself.

An index names the shards that it was made from by their hashes. One that was made from others is
not used.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from dedup.arrays import I64, U32
from pipeline.core.manifest import read_manifest
from pipeline.engine.runner import manifest_path
from pipeline.engine.stage import Inputs
from pipeline.explain.text_scan import Query
from pipeline.explain.word_index.spellings import UNICODE, count_words, is_one_spelling
from pipeline.runs import layout
from pipeline.runs.held_texts import TextCounts, quarantine_path
from pipeline.runs.run_directory import read_stage
from pipeline.runs.views.documents import CleanOutput, QuarantineOutput, WordRunsOutput, WordsOutput
from pipeline.screening.fingerprints.literals import find_literals

_MOST_ROWS = 1 << 23
"""Rows of texts that are read for one query beyond those that must be."""
_ROWS_PER_TEXT = 1 << 11
"""Rows that are counted in the time in which one text is read."""
_COUNTED = 1 << 22
"""Rows of texts that are in memory at a time, next to two bytes for each text."""


@dataclass(frozen=True)
class StaleIndex:
    """There is an index, but not of this run as it is: why."""

    why: str


@dataclass(frozen=True)
class WordRows:
    """A word of a query: the spellings that hold it, by shard, and how many rows they have."""

    spellings: tuple[I64, ...]
    rows: int


class WordIndex:
    """The index in a run directory; `starts` (D + 1,): the first row of every documents shard."""

    def __init__(self, home: Path, runs: WordRunsOutput, words: WordsOutput) -> None:
        inputs = Inputs(home / layout.WORD_INDEX)
        self._shards = [inputs.open(shard) for shard in words.words]
        counts = np.concatenate(
            [np.zeros((1, len(TextCounts._fields)), np.int64), *map(np.array, runs.texts)]
        )
        self.starts: I64 = np.cumsum(counts[:, 0])
        self.counts = TextCounts(*counts.sum(axis=0).tolist())

    @cached_property
    def _sizes(self) -> list[I64]:
        """How many rows each spelling has, by shard."""
        return [shard.lengths("rows") for shard in self._shards]

    def find_candidates(self, query: Query) -> U32:
        """The rows of the texts that can hold a query, ascending: all where it has no words that an
        index knows."""
        spared = len(query.anchors) - query.needed
        anchors = [a for a in query.anchors if all(map(is_one_spelling, a))]
        if not query.anchors or len(anchors) <= spared:
            return np.arange(self.counts.rows, dtype=np.uint32)
        words = sorted(self._find_words(anchors), key=lambda word: word.rows)
        chosen, budget = words[: spared + 1], _MOST_ROWS
        most = sum(word.rows for word in chosen)
        for word in words[spared + 1 :]:
            budget -= word.rows
            if budget < 0 or word.rows > _ROWS_PER_TEXT * most:
                break
            chosen.append(word)
        return self._count(chosen, len(chosen) - spared)

    def _find_words(self, anchors: Sequence[tuple[str, ...]]) -> list[WordRows]:
        """For each word, given in all its cases, the spellings that hold it."""
        needles = [spelling for every in anchors for spelling in every]
        of_needle = np.repeat(np.arange(len(anchors)), [*map(len, anchors)])
        by_anchor: list[list[I64]] = [[] for _ in anchors]
        for shard in self._shards:
            hits = find_literals(shard.read(["spelling"])["spelling"], needles, places=1)
            anchor = of_needle[hits.needle]
            for number, found in enumerate(by_anchor):
                found.append(np.unique(hits.text[anchor == number]))
        return [
            WordRows(
                tuple(found),
                sum(int(s[rows].sum()) for s, rows in zip(self._sizes, found, strict=True)),
            )
            for found in by_anchor
        ]

    def _count(self, words: Sequence[WordRows], least: int) -> U32:
        """The rows of the texts that hold so many of these words."""
        counts = np.zeros(self.counts.rows, np.uint8)
        stamps = np.zeros(self.counts.rows, np.uint8)
        for number, word in enumerate(words, 1):
            places = zip(self._shards, self._sizes, word.spellings, strict=True)
            for shard, sizes, spellings in places:
                ends = np.cumsum(sizes[spellings])
                cuts = np.flatnonzero(np.diff(ends // _COUNTED)) + 1
                for some in np.split(spellings, cuts) if len(spellings) else ():
                    for chunk in shard.take(["rows"], some)["rows"].chunks:
                        count_words(chunk.flatten().to_numpy(), number, counts, stamps)
        return np.flatnonzero(counts >= least).astype(np.uint32)


def open_word_index(home: Path) -> WordIndex | StaleIndex | None:
    """The index of a finished run; None where nobody made one. Raises IntegrityError for damage."""
    directory = home / layout.WORD_INDEX
    if not directory.is_dir():
        return None
    runs = read_manifest(manifest_path(directory, layout.WORD_RUNS))
    words = read_manifest(manifest_path(directory, layout.WORDS))
    if runs is None or words is None or not (directory / layout.MANIFEST).exists():
        return StaleIndex("it is not finished")
    if runs.fields["software"] != {"unicode": UNICODE}:
        return StaleIndex(f"it was made with another version of Unicode than {UNICODE}")
    view = WordRunsOutput(runs)
    made_from = [shard for shards in view.shards for shard in shards]
    if made_from != list_texts(home):
        return StaleIndex("the texts of the run changed after it was made")
    return WordIndex(home, view, WordsOutput(words))


def list_texts(home: Path) -> list[list[str]]:
    """Path and hash of every documents shard of a run, and the hash of its shard of quarantine/."""
    quarantine = read_manifest(manifest_path(home, layout.QUARANTINE))
    held = {s.path: s.hash for s in QuarantineOutput(quarantine).texts} if quarantine else {}
    clean = CleanOutput(read_stage(home, "clean"))
    return [[s.path, s.hash, held.get(quarantine_path(s.path), "")] for s in clean.documents]
