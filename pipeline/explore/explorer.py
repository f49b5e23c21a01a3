"""A finished run, opened for the browser: its records, its table, and lists of its documents."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.core.errors import InputError
from pipeline.engine.progress import Progress
from pipeline.explain.found_text import FoundText, Snippet
from pipeline.explain.text_search import TextSearch, describe_scope, open_index
from pipeline.explore.compare import Comparison
from pipeline.explore.conditions import ListFilters
from pipeline.explore.lookup import IndexedRecords
from pipeline.explore.table import Count, Hits, RunTable
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
"""Bytes of text that a search without an index may read."""
_MOST_READ = 1 << 16
"""Texts that are read for a page of those that can hold some words: some seconds, if none does."""
_SEARCHES = 4
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
    """A page of the list: of `total` documents, or at most so many unless is_exact; `facets` by
    label. Rows between which to go on: None where there are no more."""

    documents: tuple[ListedDocument, ...]
    total: int
    is_exact: bool
    facets: dict[str, list[Count]]
    before: int | None
    after: int | None
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class FoundRows:
    """Documents that can hold some words: their rows, and the search that reads their texts."""

    hits: Hits
    search: TextSearch


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

    def warm_up(self) -> None:
        """Load what the first search by the index needs, about a second of work."""
        if self._index is not None:
            self._search("warm")

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
        search = TextSearch(self.home, words, quiet, self._index, MOST_SCANNED)
        rows = self.records.text_places.live[search.rows]
        return FoundRows(Hits(rows, len(self.records.table)), search)

    def list_documents(
        self, filters: ListFilters, column: str, after: int = -1, before: int | None = None
    ) -> DocumentList:
        """A page of the documents that the filters let pass, next to a histogram of this column.
        Raises ConfigError for filters that are none, InputError where texts are needed and gone."""
        found = self.search(filters.words) if filters.words.strip() else None
        filters = replace(filters, words="")
        if found is None:
            rows, more = self._list_page(filters, after, before)
            texts: dict[int, FoundText] = {}
        else:
            texts, more = self._read_hits(found, filters, after, before)
            rows = self.table.describe(sorted(texts))
        is_limited = any(limits.column == column for limits in filters.ranges)
        facets = self.table.count_facets(
            filters, found.hits if found else None, None if is_limited else column
        )
        first = rows[0]["row"] if rows else after + 1
        last = rows[-1]["row"] if rows else (before or 0) - 1
        return DocumentList(
            documents=self._describe(rows, texts),
            total=sum(count.documents for count in facets["state"]),
            is_exact=found is None or found.search.is_exact,
            facets=facets,
            before=more if before is not None else first if after >= 0 else None,
            after=more if before is None else last,
            notes=tuple(describe_scope(found.search.scope)) if found else (),
        )

    def _list_page(
        self, filters: ListFilters, after: int, before: int | None
    ) -> tuple[list[dict[str, Any]], int | None]:
        """The rows of a page, and the one from which to go on, None where there are no more."""
        rows = self.table.list_page(filters, PAGE, after, before)
        if len(rows) <= PAGE:
            return rows, None
        rows = rows[:PAGE] if before is None else rows[1:]
        return rows, rows[-1 if before is None else 0]["row"]

    def _read_hits(
        self, found: FoundRows, filters: ListFilters, after: int, before: int | None
    ) -> tuple[dict[int, FoundText], int | None]:
        """What the texts of a page of documents hold, by row, and the row from which to go on."""
        texts: dict[int, FoundText] = {}
        read = 0
        for rows in self.table.pass_hits(filters, found.hits, after, before):
            places = np.searchsorted(found.hits.rows, rows)
            for place, text in found.search.read(found.search.rows[places]):
                if len(texts) == PAGE:
                    return texts, list(texts)[-1]
                texts[int(self.records.text_places.live[place])] = text
            read += len(rows)
            if read >= _MOST_READ:
                return texts, int(rows[-1])
        return texts, None

    def _describe(
        self, rows: list[dict[str, Any]], found: Mapping[int, FoundText]
    ) -> tuple[ListedDocument, ...]:
        keys = [row["doc_key"] for row in rows]
        texts = self.records.texts_of_rows([row["row"] for row in rows], keys, BEGINNING)
        documents = []
        for row, key in zip(rows, keys, strict=True):
            text = found.get(row["row"])
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
