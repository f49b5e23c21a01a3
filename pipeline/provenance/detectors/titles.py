"""Titles and authors: documents whose metadata or first lines name a work of a registry.

Kinds: `title_author` (title and author agree) and `title` (the title alone, of two rare words or
more, where no author is named, or only a surname). Names are evidence for a review, never more.
"""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from dedup.text import texts_of
from pipeline.provenance.detectors.contract import Finding, attributes_json, findings_table
from pipeline.provenance.detectors.metadata import Fields, find_fields
from pipeline.provenance.detectors.title_index import HEAD_BYTES, TitleIndex, build_title_index
from pipeline.provenance.detectors.title_match import INITIAL, LEVELS, TitleMatch, best_match
from pipeline.provenance.detectors.title_sources import KEYS, sources_of

__all__ = ["detect_titles", "warm_up"]

_MOST_WORKS = 8
"""Works named for one document; the best stay."""


def detect_titles(batch: pa.Table, index: TitleIndex) -> pa.Table:
    """FINDINGS on the works that a batch's documents are named after; target: the work's title.

    score: 0 to 1, 0.7 of the title and 0.3 of the author. attributes: author (full, initial,
    surname, absent), rare_words, title_score, where (a key of the metadata, or text).
    """
    if not len(index):
        return findings_table([])
    fields = find_fields(batch["meta"], KEYS)
    findings = list[Finding]()
    first = 0
    for chunk in texts_of(batch["text"]):
        rows, works = index.candidates(fields, chunk, first)
        named = defaultdict[int, list[int]](list)
        for row, work in zip(rows.tolist(), works.tolist(), strict=True):
            named[row].append(work)
        for row, of_row in named.items():
            start, end = chunk.offsets[row - first : row - first + 2]
            head = chunk.data[start : min(end, start + HEAD_BYTES)].tobytes()
            findings += _findings(row, of_row, _values(fields, row), head, index)
        first += len(chunk)
    return findings_table(findings)


def warm_up() -> None:
    """Compile the kernels, so that workers find them cached."""
    work = {"work_id": ["w"], "title_raw": ["Warm"], "subtitle": [""], "authors": [["A Up"]]}
    batch = {"meta": pa.array(['{"title": "x"}']), "text": pa.array(["y"], pa.large_string())}
    detect_titles(pa.table(batch), build_title_index(pa.table(work)))


def _values(fields: Fields, row: int) -> list[tuple[str, str]]:
    first, last = np.searchsorted(fields.row, [row, row + 1])
    of_row = fields.where(np.arange(first, last))
    return [
        (KEYS[key], value)
        for key, value in zip(of_row.key, of_row.values().to_pylist(), strict=True)
    ]


def _findings(
    row: int, works: list[int], values: list[tuple[str, str]], head: bytes, index: TitleIndex
) -> Iterator[Finding]:
    sources = sources_of(values, head)
    found = []
    for work in works:
        name = index.name(work)
        match = best_match(name, sources)
        if match:
            found.append((match, name))
    found.sort(key=lambda pair: (-pair[0].score, pair[1].work_id))
    for match, name in found[:_MOST_WORKS]:
        yield _finding(row, match, name.work_id, name.title)


def _finding(row: int, match: TitleMatch, work_id: str, title: str) -> Finding:
    attributes = {
        "author": LEVELS[match.author],
        "rare_words": match.rare,
        "title_score": round(match.title, 4),
        "where": match.source.where,
    }
    kind = "title_author" if match.author >= INITIAL else "title"
    return Finding(
        row, kind, title[:200], match.source.seen, match.source.offset, match.source.length,
        work_id, match.score, attributes_json(attributes),
    )  # fmt: skip
