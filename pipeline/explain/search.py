"""`prep search`: the documents of a run that hold some words, word for word or nearly.

Every text that the run has is read: of kept documents, of duplicates and of those that a rule or a
filter dropped, in documents/; of quarantined ones in quarantine/, which are named and not shown. A
shard is memory-mapped and searched by one thread (`text_scan`), a few shards at a time. With an
index of its words (`word_index`) only the texts that can hold the query are read, and the answer is
the same.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64
from pipeline.core.errors import InputError
from pipeline.core.manifest import read_manifest
from pipeline.core.words import format_bytes, pluralise
from pipeline.engine.arrow_shard import ArrowShard
from pipeline.engine.progress import Progress
from pipeline.explain.text_scan import Query, RowPlaces, TextPlace, find_matching_rows, make_query
from pipeline.explain.word_index.lookup import (
    StaleIndex,
    WordIndex,
    list_texts,
    open_word_index,
)
from pipeline.lineage.exposure import Exposure, ForwardTrace, TracedDocument, trace_documents
from pipeline.lineage.generations import count_documents_before, join_exposures
from pipeline.lineage.sample import RowName, rows_of_words, steps_of_rows
from pipeline.lineage.training import read_training
from pipeline.runs import layout
from pipeline.runs.generations import list_generations
from pipeline.runs.held_texts import (
    TextCounts,
    count_texts,
    quarantine_path,
    read_held_shard,
)
from pipeline.runs.origin import texts_home
from pipeline.runs.records import DocumentTable, map_arrow
from pipeline.runs.run_directory import require_run
from pipeline.runs.views import CleanOutput
from pipeline.screening.fingerprints.find import compile_fingerprint_kernels

_READERS = 4
_MOST_TOKENIZED = 200
"""Documents, the first ones, of which the rows that hold the words are found."""
_MAKE_INDEX = "all texts are read; `prep search RUN --index` makes it again"
_CONTEXT = 90
"""Bytes of text shown before a place and after it."""


@dataclass(frozen=True, kw_only=True)
class Snippet:
    """A place in a document's cleaned text, bytes [start, stop), with what is around it; `changed`:
    of the words looked for, how many differ there. All three texts are empty in quarantine."""

    start: int
    stop: int
    changed: int
    before: str
    match: str
    after: str


@dataclass(frozen=True, kw_only=True)
class FoundText:
    """A document, by key, that holds what was looked for: places where it does word for word,
    others, the first of them, whether they begin or end within a word, and whether its text is in
    quarantine."""

    key: bytes
    exact: int
    near: int
    places: tuple[Snippet, ...]
    by_characters: bool
    in_quarantine: bool

    @property
    def rank(self) -> tuple[int, bool]:
        """What comes first: the fewest words that differ, then whole words."""
        return self.changed, self.by_characters

    @property
    def changed(self) -> int:
        """The fewest words that differ at one place."""
        return min(place.changed for place in self.places)


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


@dataclass(frozen=True)
class FoundDocument:
    """A document that holds the words, and where it went.

    rows: of HDF5 shards, as `prep trace` names them, that hold one of `text.places`; where the text
    is not there any more, and after the first 200 documents, all rows of the document (`of_words`
    is False). steps: those that read
    one of these rows, ascending.
    """

    traced: TracedDocument
    text: FoundText
    rows: tuple[str, ...]
    of_words: bool
    steps: tuple[int, ...]


@dataclass(frozen=True)
class SearchAnswer:
    """Documents that hold the words, of `total`: fewest changes first, then whole words."""

    documents: tuple[FoundDocument, ...]
    total: int
    searched: SearchScope
    exposure: Exposure | None


def search_run(
    directory: Path,
    text: str,
    model_dir: Path | None = None,
    most: int | None = None,
    progress: Progress | None = None,
) -> SearchAnswer:
    """The documents of a finished run that hold `text`, `most` of them; and what the training run
    in `model_dir` read of those.

    Raises InputError for an empty text, a run without texts, and as `trace_documents`.
    """
    generations, reporter = list_generations(directory), progress or Progress(quiet=True)
    answers = [_search_in(g.directory, text, model_dir, most, reporter) for g in generations]
    if len(answers) == 1:
        return answers[0]
    before = count_documents_before(generations)
    documents = [
        replace(document, traced=replace(document.traced, doc=document.traced.doc + first))
        for answer, first in zip(answers, before, strict=True)
        for document in answer.documents
    ]
    documents.sort(key=lambda found: (*found.text.rank, found.traced.state != "kept"))
    exposures = [answer.exposure for answer in answers if answer.exposure is not None]
    return SearchAnswer(
        tuple(documents[:most]),
        sum(answer.total for answer in answers),
        _join_scopes([answer.searched for answer in answers]),
        join_exposures(exposures, read_training(model_dir)) if model_dir is not None else None,
    )


def _join_scopes(scopes: Sequence[SearchScope]) -> SearchScope:
    names = ("documents", "quarantined", "text_bytes", "without_text", "never_documents")
    sums = {name: sum(getattr(scope, name) for scope in scopes) for name in names}
    return replace(scopes[0], **sums)


def _search_in(
    directory: Path, text: str, model_dir: Path | None, most: int | None, progress: Progress
) -> SearchAnswer:
    hits, searched = scan_run(directory, text, progress)
    table = DocumentTable(directory)
    by_key = {hit.key: hit for hit in hits}
    rows = table.rows_of_keys(list(by_key))
    about = table.take(rows, ["doc_key", "state"])
    keys, states = about["doc_key"].to_pylist(), about["state"].to_pylist()
    order = sorted(
        range(len(rows)), key=lambda at: (*by_key[keys[at]].rank, states[at] != "kept", at)
    )[:most]
    traced = trace_documents(directory, rows[order], model_dir)
    documents = _add_rows(directory, searched.home, model_dir, traced, by_key)
    return SearchAnswer(documents, len(rows), searched, traced.exposure)


def _add_rows(
    directory: Path,
    home: Path,
    model_dir: Path | None,
    traced: ForwardTrace,
    by_key: Mapping[bytes, FoundText],
) -> tuple[FoundDocument, ...]:
    """The traced documents with the rows of the words, and the steps that read those."""
    keys = {d.doc: bytes.fromhex(d.document) for d in traced.documents}
    all_rows: dict[bytes, list[RowName]] = {}
    columns = (traced.places[name].to_pylist() for name in ("doc", "file", "row"))
    for doc, *row in zip(*columns, strict=True):
        all_rows.setdefault(keys[doc], []).append((row[0], row[1]))
    spans = {
        key: [(place.start, place.stop) for place in by_key[key].places]
        for key in list(all_rows)[:_MOST_TOKENIZED]
    }
    of_words = rows_of_words(directory, home, spans, traced.places)
    chosen = {key: of_words.get(key, rows) for key, rows in all_rows.items()}
    every = [row for rows in chosen.values() for row in rows if row[1] is not None]
    steps = steps_of_rows(directory, model_dir, every) if model_dir else {}
    return tuple(
        FoundDocument(
            d,
            by_key[key],
            tuple(f if row is None else f"{f}[{row}]" for f, row in chosen.get(key, ())),
            key in of_words,
            tuple(sorted({step for row in chosen.get(key, ()) for step in steps.get(row, ())}))
            if not d.taken_down
            else (),
        )
        for d, key in zip(traced.documents, keys.values(), strict=True)
    )


def scan_run(
    directory: Path,
    text: str,
    progress: Progress,
    index: WordIndex | None = None,
    most_bytes: int | None = None,
) -> tuple[list[FoundText], SearchScope]:
    """The documents whose texts hold `text`, and what was looked at; with an index that is open
    already, or the one of the run. Raises InputError as `search_run`, and where more than about
    `most_bytes` of texts would have to be read."""
    if not text.strip():
        raise InputError("expected WORDS to look for, or --index to make an index; got none")
    home = find_readable_home(directory)
    compile_fingerprint_kernels(progress.note)
    # The text as it is given, and as the run cleaned its documents.
    both = map(make_query, (clean_query(home, text), text))
    queries = list({query.tokens: query for query in both if query.tokens}.values())
    index = index or open_index(home, progress)
    rows = _find_candidates(index, queries) if index else None
    if most_bytes is not None:
        _check_amount(home, index, rows, most_bytes)
    if index is None or rows is None:
        hits, counts = _scan_all(home, queries, progress)
    else:
        hits, counts = _scan_rows(home, index, queries, rows), index.counts
    documents = counts.rows - counts.emptied
    records = len(DocumentTable(home)) if (home / layout.DOCUMENTS).exists() else 0
    return hits, SearchScope(
        words=len(queries[0].words),
        edits=queries[0].edits,
        documents=documents,
        quarantined=counts.quarantined,
        text_bytes=counts.text_bytes,
        without_text=counts.emptied - counts.quarantined,
        never_documents=max(0, records - counts.rows),
        home=home,
    )


def open_index(home: Path, progress: Progress) -> WordIndex | None:
    """The index of words of a run; None where there is none of these very texts."""
    index = open_word_index(home)
    if not isinstance(index, StaleIndex):
        return index
    progress.note(f"{home / layout.WORD_INDEX}: not used: {index.why}; {_MAKE_INDEX}")
    return None


def _check_amount(home: Path, index: WordIndex | None, rows: I64 | None, most: int) -> None:
    """Raises InputError where the texts that are to be read have more bytes."""
    if index is None:
        size = sum(path.stat().st_size for path in (home / "documents").glob("*.arrow"))
        hint = "an index leaves few of them: `prep search RUN --index` makes one"
    else:
        share = 1.0 if rows is None else len(rows) / max(index.counts.rows, 1)
        size = int(index.counts.text_bytes * share)
        hint = "these words are too common: give more of them, or rarer ones"
    if size > most:
        raise InputError(f"about {format_bytes(size)} of texts would have to be read; {hint}")


def _find_candidates(index: WordIndex, queries: Sequence[Query]) -> I64 | None:
    """The rows of the texts that can hold one of these queries; None: any can."""
    every = [np.zeros(0, np.int64)]
    for query in queries:
        rows = index.find_candidates(query)
        if rows is None:
            return None
        every.append(rows.astype(np.int64))
    return np.unique(np.concatenate(every))


def _scan_all(
    home: Path, queries: Sequence[Query], progress: Progress
) -> tuple[list[FoundText], TextCounts]:
    shards = sorted((home / "documents").glob("*.arrow"))
    totals = np.zeros(len(TextCounts._fields), np.int64)
    all_hits: list[FoundText] = []
    works = [path.stat().st_size for path in shards]
    with (
        progress.stage("search", works, 0) as stage,
        ThreadPoolExecutor(min(_READERS, os.cpu_count() or 1)) as pool,
    ):
        scanned = pool.map(partial(_scan_shard, home, queries), shards)
        for position, (hits, counts) in enumerate(scanned):
            all_hits += hits
            totals += counts
            stage.done(position, {"documents": counts.rows - counts.emptied})
    return all_hits, TextCounts(*totals.tolist())


def _scan_rows(
    home: Path, index: WordIndex, queries: Sequence[Query], rows: I64
) -> list[FoundText]:
    """The documents of these rows that hold a query, in the order of `_scan_all`."""
    paths = [home / path for path, _, _ in list_texts(home)]
    hits: list[FoundText] = []
    number_N = np.searchsorted(index.starts, rows, "right") - 1
    for number in np.unique(number_N).tolist():
        path = paths[number]
        here = rows[number_N == number] - index.starts[number]
        some = ArrowShard(map_arrow(path)).take(["doc_key", "text"], here)
        held = read_held_shard(home / quarantine_path(path.name)).select(["doc_key", "text"])
        held = held.filter(pc.is_in(held["doc_key"], some["doc_key"].combine_chunks()))
        hits += _search_table(some, queries, False)
        hits += _search_table(held, queries, True)
    return hits


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
) -> tuple[list[FoundText], TextCounts]:
    """Documents of a shard that hold a query, and what was looked at."""
    table = map_arrow(path)
    quarantine = read_held_shard(home / quarantine_path(path.name))
    hits = [*_search_table(table, queries, False), *_search_table(quarantine, queries, True)]
    return hits, count_texts(table, quarantine)


def _search_table(table: pa.Table, queries: Sequence[Query], is_held: bool) -> Iterator[FoundText]:
    """The documents of a table with `doc_key` and `text`; of several queries the one counts that
    differs least."""
    best: dict[int, RowPlaces] = {}
    for query in queries:
        for match in find_matching_rows(table["text"], query):
            best_row = best.get(match.row, match)
            best[match.row] = min(best_row, match, key=lambda row: row.places[0].edits)
    for row, match in sorted(best.items()):
        text = b"" if is_held else table["text"][row].as_buffer().to_pybytes()
        snippets = tuple(_cut_snippet(place, text) for place in match.places)
        yield FoundText(
            key=table["doc_key"][row].as_py(),
            exact=match.exact,
            near=match.near,
            places=snippets,
            by_characters=match.by_characters,
            in_quarantine=is_held,
        )


def _cut_snippet(place: TextPlace, text: bytes) -> Snippet:
    """The place with whole words around it; white space is one blank."""
    start, stop = place.start, place.stop
    before, match, after = (
        " ".join(part.decode(errors="ignore").split())
        for part in (
            text[max(0, start - _CONTEXT) : start],
            text[start:stop],
            text[stop : stop + _CONTEXT],
        )
    )
    left = " " if text[start - 1 : start].isspace() else ""
    right = " " if text[stop : stop + 1].isspace() else ""
    return Snippet(
        start=start,
        stop=stop,
        changed=place.edits,
        before=before + left,
        match=match,
        after=right + after,
    )
