"""`prep search`: the documents of a run that hold some words, and where they went: files, states,
HDF5 rows and the steps that read those.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from pipeline.engine.progress import Progress
from pipeline.explain.found_text import FoundText
from pipeline.explain.text_search import SearchScope, TextSearch
from pipeline.lineage.exposure import Exposure, ForwardTrace, TracedDocument, trace_documents
from pipeline.lineage.generations import count_documents_before, join_exposures
from pipeline.lineage.sample import RowName, rows_of_words, steps_of_rows
from pipeline.lineage.training import read_training
from pipeline.runs.generations import list_generations
from pipeline.runs.records import DocumentTable

_MOST_TOKENIZED = 200
"""Documents, the first ones, of which the rows that hold the words are found."""


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
    """Documents that hold the words, of `total`: fewest changes first, then whole words; where an
    index left more texts than are read at once, in the order of the run. is_exact: so many do hold
    them; else so many at most."""

    documents: tuple[FoundDocument, ...]
    total: int
    is_exact: bool
    searched: SearchScope
    exposure: Exposure | None


@dataclass(frozen=True)
class _Hit:
    """A document that holds the words: its row in documents.parquet and its state."""

    row: int
    state: str
    text: FoundText


@dataclass(frozen=True)
class _Chosen:
    """The documents of a generation that are shown, of `total`; unless is_exact, of so many at
    most."""

    hits: list[_Hit]
    total: int
    is_exact: bool


_Searches = Sequence[tuple[Path, TextSearch]]
"""Of every generation, its directory and what was found."""


def search_run(
    directory: Path,
    text: str,
    model_dir: Path | None = None,
    most: int | None = None,
    progress: Progress | None = None,
    skip: int = 0,
) -> SearchAnswer:
    """The documents of a finished run that hold `text`, `most` of them behind the first `skip`; and
    what the training run in `model_dir` read of those.

    Raises InputError for an empty text, a run without texts, and as `trace_documents`.
    """
    generations, reporter = list_generations(directory), progress or Progress(quiet=True)
    searches = [(g.directory, TextSearch(g.directory, text, reporter)) for g in generations]
    are_complete = all(search.found is not None for _, search in searches)
    chosen = (_rank if are_complete else _pick)(searches, skip, most)
    answers = [
        _trace_hits(where, search.home, model_dir, some.hits)
        for (where, search), some in zip(searches, chosen, strict=True)
    ]
    before = count_documents_before(generations)
    documents = [
        replace(document, traced=replace(document.traced, doc=document.traced.doc + first))
        for (found, _), first in zip(answers, before, strict=True)
        for document in found
    ]
    if are_complete:
        documents.sort(key=lambda found: (*found.text.rank, found.traced.state != "kept"))
    return SearchAnswer(
        documents=tuple(documents),
        total=sum(some.total for some in chosen),
        is_exact=all(some.is_exact for some in chosen),
        searched=_join_scopes([search.scope for _, search in searches]),
        exposure=_join_exposures([exposure for _, exposure in answers], model_dir),
    )


def _rank(searches: _Searches, skip: int, most: int | None) -> list[_Chosen]:
    """Of all documents that were found the best ones."""
    hits = [
        (number, hit)
        for number, (directory, search) in enumerate(searches)
        for hit in _locate(directory, search, search.found or {})
    ]
    totals = Counter(number for number, _ in hits)
    hits.sort(key=lambda pair: (*pair[1].text.rank, pair[1].state != "kept"))
    shown = hits[skip:] if most is None else hits[skip : skip + most]
    return [
        _Chosen([hit for at, hit in shown if at == number], totals[number], True)
        for number in range(len(searches))
    ]


def _pick(searches: _Searches, skip: int, most: int | None) -> list[_Chosen]:
    """Of the texts that can hold the words the first ones that do, read as far as it takes."""
    chosen = []
    for directory, search in searches:
        if search.is_exact:
            passed = min(skip, len(search.rows))
            hits = search.read(search.rows[passed:])
        else:
            hits = search.read(search.rows)
            passed = sum(1 for _ in islice(hits, skip))
        found = dict(islice(hits, most))
        is_read = passed < skip or most is None or len(found) < most
        total = passed + len(found) if is_read and not search.is_exact else len(search.rows)
        located = _locate(directory, search, found)
        chosen.append(_Chosen(located, total, search.is_exact or is_read))
        skip, most = skip - passed, None if most is None else most - len(found)
    return chosen


def _locate(directory: Path, search: TextSearch, found: Mapping[int, FoundText]) -> list[_Hit]:
    """Documents that were found, by row, in the table of the run, in order."""
    table = DocumentTable(directory)
    ranges = search.record_ranges([*found]) if directory == search.home else None
    by_key = {hit.key: hit for hit in found.values()}
    rows = table.rows_of_keys([*by_key], ranges)
    about = table.take(rows, ["doc_key", "state"])
    columns = rows.tolist(), about["state"].to_pylist(), about["doc_key"].to_pylist()
    return [_Hit(row, state, by_key[key]) for row, state, key in zip(*columns, strict=True)]


def _trace_hits(
    directory: Path, home: Path, model_dir: Path | None, hits: Sequence[_Hit]
) -> tuple[tuple[FoundDocument, ...], Exposure | None]:
    traced = trace_documents(directory, [hit.row for hit in hits], model_dir)
    by_key = {hit.text.key: hit.text for hit in hits}
    return _add_rows(directory, home, model_dir, traced, by_key), traced.exposure


def _join_exposures(
    exposures: Sequence[Exposure | None], model_dir: Path | None
) -> Exposure | None:
    known = [exposure for exposure in exposures if exposure is not None]
    if model_dir is None or len(exposures) == 1:
        return exposures[0]
    return join_exposures(known, read_training(model_dir))


def _join_scopes(scopes: Sequence[SearchScope]) -> SearchScope:
    names = ("documents", "quarantined", "text_bytes", "without_text", "never_documents")
    sums = {name: sum(getattr(scope, name) for scope in scopes) for name in names}
    return replace(scopes[0], **sums)


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
