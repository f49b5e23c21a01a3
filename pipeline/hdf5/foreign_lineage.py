"""Lost and repeated tokens, as far as the lineage beside our shards tells.

Spans say which tokens of which document stand in which row (docs/formats.md). The rows of a stream
must all be there once, and the spans of a document must follow each other without a gap.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from dedup.arrays import I64
from pipeline.core.words import pluralise
from pipeline.hdf5.findings import FileFinding
from pipeline.hdf5.format import LINEAGE_SUFFIX, SHARD_SUFFIX


@dataclass(frozen=True)
class LineageSpans:
    """Lineage of one shard: which tokens of which documents, in file order."""

    doc: I64
    start: I64
    length: I64
    stream_row: I64

    @classmethod
    def joined(cls, parts: Sequence["LineageSpans"]) -> "LineageSpans":
        """Those of several shards."""
        columns = zip(*((s.doc, s.start, s.length, s.stream_row) for s in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))


def lineage_path(shard: Path) -> Path:
    """Where the lineage of a shard stands, if there is one."""
    return shard.with_name(shard.name.removesuffix(SHARD_SUFFIX) + LINEAGE_SUFFIX)


def read_spans(shard: Path, input_tokens: I64 | int) -> tuple[LineageSpans, list[FileFinding]]:
    """Spans of a shard; `input_tokens` are the counting inputs of every row, or of a corpus all its
    tokens. The finding says where spans do not cover exactly those."""
    table: Any = pq.read_table(lineage_path(shard))
    column = {name: table[name].to_numpy() for name in table.column_names}
    begin, end = column["token_start"].astype(np.int64), column["token_end"].astype(np.int64)
    row = column.get("row", np.zeros(len(begin), np.int64))
    first = np.r_[True, row[1:] != row[:-1]][: len(row)]
    fits = np.where(first, begin == 0, begin == np.r_[0, end[:-1]][: len(row)]) & (end > begin)
    per_row = np.atleast_1d(np.asarray(input_tokens, np.int64))
    covered = np.bincount(row, (end - begin), len(per_row)).astype(np.int64)
    wrong = np.unique(np.r_[row[~fits], np.flatnonzero(covered[: len(per_row)] != per_row)])
    findings = []
    if len(wrong):
        what = "spans of the lineage do not cover the tokens exactly"
        findings.append(FileFinding(shard.name, "lineage", what, int(wrong[0]), len(wrong)))
    rows = column["stream_row"][first] if "stream_row" in column else np.zeros(0)
    spans = LineageSpans(
        column["doc"].astype(np.int64), column["doc_token_start"].astype(np.int64), end - begin,
        rows.astype(np.int64),
    )  # fmt: skip
    return spans, findings


def find_lost_or_repeated(spans: LineageSpans) -> list[FileFinding]:
    """Findings about the directory from the spans of all its shards."""
    findings = []
    stored = np.sort(spans.stream_row)
    repeated = int((stored[1:] == stored[:-1]).sum())
    if repeated:
        findings.append(
            FileFinding("", "lost", f"{pluralise(repeated, 'row')} of the stream found twice")
        )
    lost = int(stored[-1] + 1 - len(np.unique(stored))) if len(stored) else 0
    if lost:
        findings.append(FileFinding("", "lost", f"{pluralise(lost, 'row')} of the stream missing"))
    gaps, twice = _gaps_and_repeats(spans)
    if gaps:
        findings.append(
            FileFinding("", "lost", f"{pluralise(gaps, 'time')} tokens of a document are missing")
        )
    if twice:
        findings.append(
            FileFinding("", "lost", f"{pluralise(twice, 'time')} tokens of a document are repeated")
        )
    return findings


def _gaps_and_repeats(spans: LineageSpans) -> tuple[int, int]:
    """Stretches of documents that are there less often, or more often, than their beginning is.

    A document may be there several times (a mixture repeats sources), but then as a whole. The
    very last token of a stream is never an input, so one copy may end one token early.
    """
    doc = np.concatenate([spans.doc, spans.doc])
    place = np.concatenate([spans.start, spans.start + spans.length])
    step = np.repeat([1, -1], len(spans.doc))
    order = np.lexsort((place, doc))
    doc, place, step = doc[order], place[order], step[order]
    new = np.r_[True, (doc[1:] != doc[:-1]) | (place[1:] != place[:-1])][: len(doc)]
    depth = np.cumsum(step)[np.r_[new[1:], True][: len(doc)]]
    doc, place = doc[new], place[new]
    first = np.r_[True, doc[1:] != doc[:-1]][: len(doc)]
    copies = depth[first][np.cumsum(first) - 1]
    last = np.r_[doc[1:] != doc[:-1], True][: len(doc)]
    last_token = np.zeros(len(doc), bool)
    last_token[:-1] = last[1:] & (np.diff(place) == 1) & (depth[:-1] == copies[:-1] - 1)
    fewer = (depth < copies) & ~last & ~last_token
    return int(fewer.sum() + (place[first] > 0).sum()), int((depth > copies).sum())
