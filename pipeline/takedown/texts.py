"""Documents that hold a text which a claim brings along: all of it, or passages of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64
from pipeline.core.ids import KEY_BYTES, text_key

LEAST_RUN_WORDS = 50
LEAST_FRACTION = 0.2
"""A document with a passage of fewer words in a row, or of which less is matched, is told but not
taken: it may quote. What the default policy quarantines has as much."""


@dataclass(frozen=True)
class TextPassage:
    """One document (row of the table that was searched) and what it holds of a text: words in a
    row, and the words that match as a share of the document and of the text."""

    row: int
    text: int
    longest_run_words: int
    document_fraction: float
    text_fraction: float

    @property
    def is_taken(self) -> bool:
        """Whether it is enough for a takedown."""
        return (
            self.longest_run_words >= LEAST_RUN_WORDS and self.document_fraction >= LEAST_FRACTION
        )


def same_text(table: pa.Table, text: str) -> I64:
    """Rows whose text is this one, as it is or cleaned as the pipeline cleans texts; `table` has
    `text_key`."""
    from pipeline.cleaning import clean_texts

    cleaned = clean_texts([text])[0].as_py()
    keys = {text_key(some.encode()) for some in (text, text.strip(), cleaned, cleaned.strip())}
    wanted = pa.array(sorted(keys), pa.binary(KEY_BYTES))
    return np.flatnonzero(pc.is_in(table["text_key"], wanted).to_numpy()).astype(np.int64)


class PassageFinder:
    """Looks for passages of some texts by their fingerprints."""

    def __init__(self, texts: Sequence[str]) -> None:
        from pipeline.provenance.fingerprints import build_index

        self._index = build_index([(str(i), "excerpt", text) for i, text in enumerate(texts)], s=1)

    def find(self, table: pa.Table) -> Iterator[TextPassage]:
        """The best passage of every pair of a document and a text; `table` has `text`."""
        from pipeline.provenance.fingerprints import find_passages

        best: dict[tuple[int, int], TextPassage] = {}
        columns = (
            "row", "work_id", "longest_run_words", "document_fraction", "work_fraction"
        )  # fmt: skip
        found = find_passages(table["text"], self._index).select(columns).to_pylist()
        for row, text, *measures in (found_row.values() for found_row in found):
            passage = TextPassage(row, int(text), *measures)
            place = passage.row, passage.text
            best[place] = max(best.get(place, passage), passage, key=lambda p: p.longest_run_words)
        yield from best.values()
