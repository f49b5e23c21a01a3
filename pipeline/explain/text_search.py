"""Words looked for in the texts of one run: which documents hold them, word for word or nearly.

Every text that the run has is looked at: of kept documents, of duplicates and of those that a rule
or a filter dropped, in documents/; of quarantined ones in quarantine/, which are named and not
shown. A shard is memory-mapped and searched by one thread (`text_scan`), a few shards at a time.

With an index of its words (`word_index`) only the texts that can hold the query are read. Where
these are few, all of them are read at once, and what is found is the same. Where they are many,
they are read in order as far as somebody asks, so that the first documents come at once.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import U32
from pipeline.core.errors import InputError
from pipeline.core.manifest import read_manifest
from pipeline.core.words import format_bytes, pluralise
from pipeline.engine.arrow_shard import ArrowShard
from pipeline.engine.progress import Progress
from pipeline.explain.found_text import FoundText, find_in_texts
from pipeline.explain.text_scan import Query, make_query
from pipeline.explain.word_index.lookup import (
    StaleIndex,
    WordIndex,
    list_texts,
    open_word_index,
)
from pipeline.runs import layout
from pipeline.runs.held_texts import (
    TextCounts,
    count_texts,
    quarantine_path,
    read_held_shard,
)
from pipeline.runs.origin import texts_home
from pipeline.runs.records import DocumentTable, map_arrow
from pipeline.runs.run_directory import read_stage, require_run
from pipeline.runs.views.documents import CleanOutput
from pipeline.screening.fingerprints.find import compile_fingerprint_kernels

_READERS = 4
_FEW = 1 << 10
"""Texts that can hold the words, up to which all are read at once: a tenth of a second."""
_FIRST_READ, _MOST_READ = 1 << 6, 1 << 12
"""Texts that are read at a time: few at first, for whoever asks for few."""
_MAKE_INDEX = "all texts are read; `prep search RUN --index` makes it again"


@dataclass(frozen=True, kw_only=True)
class SearchScope:
    """What was looked for and at: words, of which so many may be changed; texts in documents/ and
    in quarantine/ and their bytes; documents whose text was taken out (taken down, or purged);
    records that never became documents, of which no text is kept; `home`: the run whose texts they
    are."""

    words: int
    edits: int
    documents: int
    quarantined: int
    text_bytes: int
    without_text: int
    never_documents: int
    home: Path


class TextSearch:
    """The texts of one run that hold some words. Raises InputError for no words, for a run without
    texts, and where no index is there and all texts have more than `most_bytes`.

    rows (N,): numbers, over all of documents/, of the texts that can hold the words, ascending.
    found: all documents that do, by row, in order, and `rows` are theirs; None where not all were
    read. is_exact: whether each of `rows` holds the words. scope: what was looked for and at.
    """

    rows: U32
    found: dict[int, FoundText] | None
    is_exact: bool
    scope: SearchScope

    def __init__(
        self,
        directory: Path,
        text: str,
        progress: Progress,
        index: WordIndex | None = None,
        most_bytes: int | None = None,
    ) -> None:
        if not text.strip():
            raise InputError("expected WORDS to look for, or --index to make an index; got none")
        self.home = home = find_readable_home(directory)
        compile_fingerprint_kernels(progress.note)
        # The text as it is given, and as the run cleaned its documents.
        both = map(make_query, (clean_query(home, text), text))
        self._queries = list({query.tokens: query for query in both if query.tokens}.values())
        index = index or open_index(home, progress)
        if index is None:
            _check_amount(home, most_bytes)
            counts = self._scan_all(progress)
        else:
            counts = index.counts
            self._read_candidates(index)
        self.scope = self._describe(counts)

    def read(self, rows: U32) -> Iterator[tuple[int, FoundText]]:
        """Those of `rows`, which ascend or descend, that hold the words, in order, with what they
        hold; little more is read than is asked for."""
        if self.found is not None:
            yield from ((row, self.found[row]) for row in rows.tolist())
            return
        first, count = 0, _FIRST_READ
        while first < len(rows):
            yield from self._read_texts(rows[first : first + count])
            first, count = first + count, min(2 * count, _MOST_READ)

    def record_ranges(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        """Ranges [first, stop) of the records of the run among which the documents of these rows
        are: those of the tasks that read them."""
        records = np.cumsum([0, *CleanOutput(read_stage(self.home, "clean")).records])
        tasks = np.unique(np.searchsorted(self._starts, rows, "right") - 1).tolist()
        return [(int(records[task]), int(records[task + 1])) for task in tasks]

    def _read_candidates(self, index: WordIndex) -> None:
        self._starts = index.starts
        self._paths = [self.home / path for path, _, _ in list_texts(self.home)]
        rows = [index.find_candidates(query) for query in self._queries]
        self.rows = rows[0] if len(rows) == 1 else np.unique(np.concatenate(rows))
        self.found = None
        if len(self.rows) <= _FEW:
            self._keep(dict(self.read(self.rows)))
        else:
            self.is_exact = all(_is_plain_word(query) for query in self._queries)

    def _keep(self, found: dict[int, FoundText]) -> None:
        self.found, self.is_exact = found, True
        self.rows = np.array([*found], np.uint32)

    def _scan_all(self, progress: Progress) -> TextCounts:
        shards = sorted((self.home / "documents").glob("*.arrow"))
        found: dict[int, FoundText] = {}
        counts = [TextCounts(0, 0, 0, 0)]
        works = [path.stat().st_size for path in shards]
        with (
            progress.stage("search", works, 0) as stage,
            ThreadPoolExecutor(min(_READERS, os.cpu_count() or 1)) as pool,
        ):
            scanned = pool.map(partial(_scan_shard, self.home, self._queries), shards)
            for position, (hits, here) in enumerate(scanned):
                before = sum(shard.rows for shard in counts)
                found |= {before + row: hit for row, hit in hits}
                counts.append(here)
                stage.done(position, {"documents": here.rows - here.emptied})
        self._starts = np.cumsum([shard.rows for shard in counts])
        self._keep(found)
        return TextCounts(*np.sum(counts, axis=0).tolist())

    def _read_texts(self, rows: U32) -> Iterator[tuple[int, FoundText]]:
        number_N = np.searchsorted(self._starts, rows, "right") - 1
        documents, quarantine = [], []
        for number in dict.fromkeys(number_N.tolist()):
            path, here = self._paths[number], rows[number_N == number]
            shard = ArrowShard(map_arrow(path))
            some = shard.take(["doc_key", "text"], here - self._starts[number])
            held = read_held_shard(self.home / quarantine_path(path.name))
            held = held.select(["doc_key", "text"])
            documents.append(some)
            quarantine.append(held.filter(pc.is_in(held["doc_key"], some["doc_key"])))
        # At once: to search few texts costs as much as to search many.
        some, held = (pa.concat_tables(parts).combine_chunks() for parts in (documents, quarantine))
        for place, hit in find_in_texts(some, held, self._queries):
            yield int(rows[place]), hit

    def _describe(self, counts: TextCounts) -> SearchScope:
        documents = counts.rows - counts.emptied
        has_table = (self.home / layout.DOCUMENTS).exists()
        records = len(DocumentTable(self.home)) if has_table else 0
        return SearchScope(
            words=len(self._queries[0].words),
            edits=self._queries[0].edits,
            documents=documents,
            quarantined=counts.quarantined,
            text_bytes=counts.text_bytes,
            without_text=counts.emptied - counts.quarantined,
            never_documents=max(0, records - counts.rows),
            home=self.home,
        )


def scan_run(directory: Path, text: str, progress: Progress) -> tuple[list[FoundText], SearchScope]:
    """All documents whose texts hold `text`, in order, and what was looked at. Raises InputError as
    `TextSearch`."""
    search = TextSearch(directory, text, progress)
    return [hit for _, hit in search.read(search.rows)], search.scope


def _is_plain_word(query: Query) -> bool:
    """Whether a text holds the query exactly if it holds its only anchor, which an index knows."""
    is_one = query.anchors == (query.tokens,) and len(query.tokens) == 1
    return is_one and query.tokens[0].isascii() and query.tokens[0].isalnum()


def open_index(home: Path, progress: Progress) -> WordIndex | None:
    """The index of words of a run; None where there is none of these very texts."""
    index = open_word_index(home)
    if not isinstance(index, StaleIndex):
        return index
    progress.note(f"{home / layout.WORD_INDEX}: not used: {index.why}; {_MAKE_INDEX}")
    return None


def _check_amount(home: Path, most: int | None) -> None:
    """Raises InputError where all texts have more bytes."""
    size = sum(path.stat().st_size for path in (home / "documents").glob("*.arrow"))
    if most is not None and size > most:
        raise InputError(
            f"about {format_bytes(size)} of texts would have to be read; "
            "an index leaves few of them: `prep search RUN --index` makes one"
        )


def describe_scope(searched: SearchScope) -> list[str]:
    """What was looked for and at, and what was not, in sentences."""
    edits = pluralise(searched.edits, "word")
    near = f", or all of them except {edits}" if searched.edits else ""
    words = pluralise(searched.words, "word")
    what = f"{words} in a row" if searched.words else "these characters"
    in_quarantine = f" and {searched.quarantined:,} in quarantine" if searched.quarantined else ""
    lines = [
        f"looked for {what}{near}, in the texts of "
        f"{pluralise(searched.documents, 'document')}{in_quarantine} "
        f"({searched.text_bytes / 1e6:,.1f} MB)"
    ]
    if searched.without_text:
        without = pluralise(searched.without_text, "document")
        lines.append(f"not searched: {without} whose text was taken down")
    if searched.never_documents:
        never = pluralise(searched.never_documents, "record")
        lines.append(f"not searched: {never} dropped while reading, whose text is not kept")
    return lines


def find_readable_home(directory: Path) -> Path:
    """The run that has the texts of `directory`, as `texts_home`. Raises InputError also when its
    texts were deleted."""
    home = texts_home(directory)
    require_run(home)
    if not next((home / "documents").glob("*.arrow"), None):
        raise InputError(f"{home}: no documents/: the texts were deleted")
    return home


def clean_query(home: Path, text: str) -> str:
    """The text cleaned and masked as the documents of a run were; numbers of phones only with a
    country code."""
    manifest = read_manifest(home / "manifests" / "clean.json")
    clean = CleanOutput(manifest) if manifest else None
    texts = pa.array([text], pa.large_string())
    if clean is None or clean.fix_text:
        from pipeline.cleaning import clean_array

        texts = clean_array([text], clean.ftfy if clean else None)
    if clean and clean.mask:
        from pipeline.cleaning.mask import mask_texts

        texts, _ = mask_texts(texts, clean.mask)
    return str(texts[0].as_py())


def _scan_shard(
    home: Path, queries: Sequence[Query], path: Path
) -> tuple[list[tuple[int, FoundText]], TextCounts]:
    """Rows of a shard that hold a query, and what was looked at."""
    table, quarantine = map_arrow(path), read_held_shard(home / quarantine_path(path.name))
    return find_in_texts(table, quarantine, queries), count_texts(table, quarantine)
