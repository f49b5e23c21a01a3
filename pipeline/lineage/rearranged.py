"""Which part of a document tokens are of, where fill-in-the-middle rearranged it.

Lineage counts the tokens of a document in the order that they are trained in. How its parts follow
one another there is in documents.parquet, so no text is read.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.lineage.shards import RowSpans
from pipeline.runs import layout
from pipeline.runs.parts import wrap_read_errors
from pipeline.runs.records import DocumentTable
from pipeline.tokenizers.arrangement import COLUMNS, list_document_parts


@dataclass(frozen=True, kw_only=True)
class SpanPart:
    """Tokens [token_start, token_end) of `input_ids`, which are those of one part of a rearranged
    document: `name` prefix, middle or suffix, the first of them being token part_token_start of it;
    or `marker`, special tokens. The part is bytes [byte_start, byte_end) of the document's text as
    it was tokenized."""

    name: str
    token_start: int
    token_end: int
    part_token_start: int
    byte_start: int
    byte_end: int


def cut_parts(parts: Iterable[SpanPart], first: int, stop: int) -> Iterator[SpanPart]:
    """What is of them in tokens [first, stop)."""
    for part in parts:
        begin, end = max(part.token_start, first), min(part.token_end, stop)
        if begin < end:
            before = part.part_token_start + begin - part.token_start
            yield replace(part, token_start=begin, token_end=end, part_token_start=before)


class RearrangedDocuments:
    """How fill-in-the-middle rearranged the documents of a run: what spans of lineage are of them.
    Of a run without, nothing."""

    def __init__(self, directory: Path, documents: DocumentTable) -> None:
        self._documents = documents
        self._columns = [name for name in COLUMNS.names if name in documents.column_names]
        self._has_bos = bool(self._columns) and _has_bos(directory)

    def of(self, spans: RowSpans) -> Iterator[tuple[SpanPart, ...]]:
        """The parts that the tokens of each span are of, in their order."""
        if not self._columns:
            yield from repeat((), len(spans))
            return
        docs = np.unique(spans.doc)
        rows = self._documents.take(docs, self._columns).to_pylist()
        parts = {
            doc: tuple(self._list(about)) for doc, about in zip(docs.tolist(), rows, strict=True)
        }
        columns = spans.doc, spans.token_start, spans.token_end, spans.doc_token_start
        for doc, start, end, first in zip(*(c.tolist() for c in columns), strict=True):
            moved = (
                replace(
                    p,
                    token_start=p.token_start + start - first,
                    token_end=p.token_end + start - first,
                )
                for p in parts[doc]
            )
            yield tuple(cut_parts(moved, start, end))

    def _list(self, about: Mapping[str, Any]) -> Iterator[SpanPart]:
        """The parts of a whole document, where its first token is token 0."""
        if about["fim_order"]:
            for part in list_document_parts(about, self._has_bos):
                yield SpanPart(**vars(part), part_token_start=0)


def _has_bos(directory: Path) -> bool:
    with wrap_read_errors(directory / layout.TOKENIZER_CONFIG) as path:
        return "bos_token" in json.loads(path.read_bytes())
