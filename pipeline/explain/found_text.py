"""What a search shows of a document: the places of its text that hold the words, and what is around
them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core import ids
from pipeline.explain.text_scan import Query, RowPlaces, TextPlace, find_matching_rows

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


def find_in_texts(
    documents: pa.Table, held: pa.Table, queries: Sequence[Query]
) -> list[tuple[int, FoundText]]:
    """The rows of a table with `doc_key` and `text` that hold a query, ascending; `held` has texts
    of some of them in quarantine."""
    found = dict(_search_table(documents, queries, False))
    hits = [hit for _, hit in _search_table(held, queries, True)]
    keys = pa.array([hit.key for hit in hits], pa.binary(ids.KEY_BYTES))
    places = pc.index_in(keys, value_set=documents["doc_key"]) if hits else keys
    return sorted((found | dict(zip(places.to_pylist(), hits, strict=True))).items())


def _search_table(
    table: pa.Table, queries: Sequence[Query], is_held: bool
) -> Iterator[tuple[int, FoundText]]:
    """The rows of a table that hold a query; of several queries the one counts that differs
    least."""
    best: dict[int, RowPlaces] = {}
    for query in queries:
        for match in find_matching_rows(table["text"], query):
            best_row = best.get(match.row, match)
            best[match.row] = min(best_row, match, key=lambda row: row.places[0].edits)
    for row, match in sorted(best.items()):
        text = b"" if is_held else table["text"][row].as_buffer().to_pybytes()
        snippets = tuple(_cut_snippet(place, text) for place in match.places)
        yield (
            row,
            FoundText(
                key=table["doc_key"][row].as_py(),
                exact=match.exact,
                near=match.near,
                places=snippets,
                by_characters=match.by_characters,
                in_quarantine=is_held,
            ),
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
