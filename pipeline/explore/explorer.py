"""A finished run, opened for the browser: its records, its table, and lists of its documents."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from dedup.arrays import I64
from pipeline.core.errors import InputError
from pipeline.engine.progress import Progress
from pipeline.explain.search import (
    FoundText,
    SearchScope,
    Snippet,
    describe_scope,
    open_index,
    scan_run,
)
from pipeline.explore.compare import Comparison
from pipeline.explore.conditions import ListFilters
from pipeline.explore.lookup import IndexedRecords
from pipeline.explore.table import Count, RunTable
from pipeline.lineage.sample import RunTokenizer
from pipeline.runs import layout
from pipeline.runs.held_texts import IN_QUARANTINE, QUARANTINED
from pipeline.runs.origin import texts_home
from pipeline.runs.run_directory import read_committed, read_finished

PAGE = 50
"""Documents on a page of the list."""
BEGINNING = 160
"""Bytes of a text that the list shows."""
MOST_SCANNED = 512 << 20
"""Bytes of text that a search may read."""
_SEARCHES = 8
_REPACKED = "repack"
"""The story of a run that has the tables of another one, which also has its texts."""
_LISTED = ("row", "source", "state", "reason", "decision", "split", "text_bytes", "tokens")


@dataclass(frozen=True, kw_only=True)
class ListedDocument:
    """A document in a list: `beginning` of its text, or why there is none; `place` where the words
    that were looked for are."""

    row: int
    key: str
    at: str
    source: str
    state: str
    reason: str
    decision: str
    split: str
    text_bytes: int
    tokens: int
    beginning: str
    place: Snippet | None


@dataclass(frozen=True, kw_only=True)
class DocumentList:
    """A page of the list: of `total` documents; `facets` by label. Rows between which to go on:
    None where there are no more."""

    documents: tuple[ListedDocument, ...]
    total: int
    facets: dict[str, list[Count]]
    before: int | None
    after: int | None
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class FoundRows:
    """Documents with some words: their rows, ascending, what was found by row, and what was looked
    at."""

    rows: I64
    texts: Mapping[int, FoundText]
    searched: SearchScope


class ChangedRunError(InputError):
    """The run is not the one that was opened."""


class Explorer:
    """A finished run, and another one that it is compared with. `by`: who looks at quarantined
    texts; empty: nobody may. Raises InputError for what is no finished run, IntegrityError for
    damage."""

    def __init__(
        self,
        directory: Path,
        by: str = "",
        progress: Progress | None = None,
        compare: Path | None = None,
    ) -> None:
        for run in filter(None, (directory, compare)):
            if read_committed(run).get("story") != _REPACKED:
                read_finished(run)
        progress = progress or Progress(quiet=True)
        self.directory, self.by = directory, by
        self.home = texts_home(directory)
        homes = {directory, self.home, *([compare] if compare else [])}
        self._states = {run: self._state(run) for run in homes}
        progress.note(f"{directory}: reading its tables")
        self.records = IndexedRecords(self.home)
        self.table = RunTable(self.home, self.records.table)
        self.comparison = Comparison(self.table, texts_home(compare)) if compare else None
        self.tokenizer = RunTokenizer(directory, self.home)
        self._index = open_index(self.home, progress)
        self.search = lru_cache(_SEARCHES)(self._search)

    def close(self) -> None:
        """Delete what was made to look at it."""
        self.table.close()

    @staticmethod
    def _state(run: Path) -> object:
        """What is another after every change: the commit of the run, and what takedowns wrote down,
        which they do before they take anything out."""
        try:
            status = (run / layout.MANIFEST).stat()
        except OSError:
            return None
        taken = sorted(path.name for path in (run / layout.TAKEDOWNS).glob("*"))
        return status.st_ino, status.st_size, status.st_mtime_ns, taken

    def check_unchanged(self) -> None:
        """Raises ChangedRunError when the run was run again, or something was taken down."""
        for run, state in self._states.items():
            if self._state(run) != state:
                raise ChangedRunError(
                    f"{run}: the run changed since it was opened; start `prep explore` again"
                )

    def _search(self, words: str) -> FoundRows:
        quiet = Progress(quiet=True)
        found, searched = scan_run(self.home, words, quiet, self._index, MOST_SCANNED)
        rows = self.records.rows_of_keys([text.key for text in found])
        texts = {rows[text.key]: text for text in found if text.key in rows}
        return FoundRows(np.array(sorted(texts), np.int64), texts, searched)

    def list_documents(
        self, filters: ListFilters, after: int = -1, before: int | None = None
    ) -> DocumentList:
        """A page of the documents that the filters let pass. Raises ConfigError for filters that
        are none, InputError where texts are needed and gone."""
        hits = self.search(filters.words) if filters.words.strip() else None
        filters = replace(filters, words="")
        hit_rows = hits.rows if hits else None
        rows = self.table.page(filters, hit_rows, PAGE, after, before)
        is_longer = len(rows) > PAGE
        rows = (rows[1:] if before is not None else rows[:PAGE]) if is_longer else rows
        facets = self.table.count_facets(filters, hit_rows)
        has_more = is_longer or before is not None
        has_earlier = is_longer if before is not None else after >= 0
        return DocumentList(
            documents=self._describe(rows, hits),
            total=sum(count.documents for count in facets["state"]),
            facets=facets,
            before=rows[0]["row"] if rows and has_earlier else None,
            after=rows[-1]["row"] if rows and has_more else None,
            notes=tuple(describe_scope(hits.searched)) if hits else (),
        )

    def _describe(
        self, rows: list[dict[str, Any]], hits: FoundRows | None
    ) -> tuple[ListedDocument, ...]:
        keys = [row["doc_key"] for row in rows]
        texts = self.records.texts_of_rows([row["row"] for row in rows], keys, BEGINNING)
        documents = []
        for row, key in zip(rows, keys, strict=True):
            text = hits.texts[row["row"]] if hits else None
            is_held = row["state"] == QUARANTINED and key not in texts
            documents.append(
                ListedDocument(
                    **{name: row[name] for name in _LISTED},
                    key=key.hex(),
                    at=f"{self.records.table.files[row['path_id']]}:"
                    f"{row['line'] or row['byte_offset']}",
                    beginning=IN_QUARANTINE if is_held else " ".join(texts.get(key, "").split()),
                    place=text.places[0] if text and not text.in_quarantine else None,
                )
            )
        return tuple(documents)
