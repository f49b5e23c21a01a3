"""What can be wrong with rows of foreign files, and why it matters; and, where our lineage is next
to the shards, which tokens are lost or repeated.

Only arrays here: a block of rows in, counts and the first wrong row of every kind out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import xxhash

from dedup.arrays import I64, Array
from pipeline.core.words import pluralise
from pipeline.hdf5.format import LINEAGE_SUFFIX, SHARD_SUFFIX

WHY = {
    "unreadable": "a loader stops at this file, or reads wrong tokens from it",
    "refused": "it reaches outside the file or needs code from elsewhere, so it is not read",
    "limits": "the file makes its reader crash or use up its limits: treat it as hostile",
    "no_files": "there is nothing to train on; loaders do not look into subdirectories",
    "params": "loaders read the names of the features from data_params.json; people read the rest",
    "differs": "loaders read all files of a directory as one array and stop at a file that differs",
    "layout": "Model Zoo reads int32 (N, 3, MSL), int32 (N, 5, MSL) or an unsigned 1-D corpus",
    "count": "Model Zoo's iterable loader reads the number of rows from this attribute",
    "ids": "an embedding has no row for such an id: training crashes or reads unrelated memory",
    "mask_values": "the mask multiplies the loss: only 0 and 1 make sense",
    "mask_holes": "padding belongs at the end; such a mask is only right for prompts with answers",
    "mask_empty": "the row takes up training time and teaches nothing",
    "labels": "the model is trained to predict something other than the next token",
    "segments": "attention then crosses documents, or positions are wrong",
    "no_eos": "documents run into each other and the model never learns to stop",
    "eos_overwrites": "tokens were replaced by EOS at the end of rows and documents run into each "
    "other (Model Zoo 2.4 and later without split_text_to_tokenize)",
    "no_bos": "the model never sees how a document begins, or sees it both ways; what it is asked "
    "later begins with that token",
    "windows": "the token between two rows is never a label: windows step MSL + 1 instead of MSL "
    "(Model Zoo 2.4 and later)",
    "copied": "the model memorises its rows; a file was copied or written twice: delete one",
    "repeated": "some text occurs twice, as licences often do; `prep dedup` finds such documents",
    "lineage": "the record of which document a token came from does not fit the tokens",
    "lost": "tokens of documents are missing or occur twice",
}
"""Code of a finding -> why it matters."""


@dataclass(frozen=True)
class FileFinding:
    """One thing that is wrong with a file, or with the directory (`file` is empty).

    `row` is the first row concerned, `count` how many rows are (0 where rows are not the matter).
    """

    file: str
    code: str
    what: str
    row: int | None = None
    count: int = 0

    @property
    def why(self) -> str:
        """Why it matters, in one sentence."""
        return WHY[self.code]


Block = Mapping[str, Array]
"""Feature name -> (B, S) integers."""


@dataclass(frozen=True)
class Expectations:
    """What ids are held against; None where nobody said."""

    vocab_size: int | None = None
    eos_id: int | None = None
    bos_id: int | None = None


@dataclass(kw_only=True)
class RowFacts:
    """What all rows of a file add up to, in tokens unless a name says rows; `hashes` are 8 bytes of
    xxh3 for the input ids of each row, of a corpus for all of it."""

    rows: int = 0
    tokens: int = 0
    labels: int = 0
    full_rows: int = 0
    padded_rows: int = 0
    eos_inside: int = 0
    eos_labels: int = 0
    rows_ending_with_eos: int = 0
    after_eos: int = 0
    bos_after_eos: int = 0
    neighbours: int = 0
    neighbours_that_overlap: int = 0
    hashes: bytearray = field(default_factory=bytearray)


class RowChecks:
    """Checks the blocks of one file in order."""

    def __init__(self, file: str, expectations: Expectations) -> None:
        self.facts = RowFacts()
        self._file = file
        self._expect = expectations
        self._wrong: dict[tuple[str, str], tuple[int, int]] = {}
        self._last_label: int | None = None

    def findings(self) -> list[FileFinding]:
        """One finding for every kind of error, with its first row and how many rows have it."""
        return [
            FileFinding(self._file, code, what, row, count)
            for (code, what), (row, count) in self._wrong.items()
        ]

    def add(self, block: Block) -> None:
        """The next rows of the file."""
        ids = block["input_ids"]
        labels = block.get("labels")
        mask = block.get("attention_mask", block.get("input_mask"))
        self._ids(block)
        counts = np.ones(ids.shape, bool) if mask is None else mask == 1
        if mask is not None:
            self._mask(mask)
        if labels is not None:
            self._labels(ids, labels, counts, block.get("position_ids"))
            self._eos(ids, labels, counts)
            self._overlap(ids, labels)
        if "attention_span" in block and "position_ids" in block:
            self._segments(block["attention_span"], block["position_ids"], counts)
        facts = self.facts
        facts.rows += len(ids)
        facts.tokens += ids.size
        facts.labels += int(counts.sum())
        facts.full_rows += int(counts.all(axis=1).sum())
        facts.padded_rows += int((~counts[:, -1]).sum())
        for row in np.ascontiguousarray(ids):
            facts.hashes += xxhash.xxh3_64_digest(row)

    def _note(self, code: str, what: str, wrong_B: Array | np.bool) -> None:
        rows = np.flatnonzero(wrong_B)
        if len(rows):
            here = self.facts.rows + int(rows[0])
            first, before = self._wrong.get((code, what), (here, 0))
            self._wrong[code, what] = first, before + len(rows)

    def _ids(self, block: Block) -> None:
        for name in ("input_ids", "labels"):
            values = block.get(name)
            if values is None:
                continue
            self._note("ids", f"{name} below 0", (values < 0).any(axis=1))
            size = self._expect.vocab_size
            if size is not None:
                what = f"{name} outside the vocabulary of {size:,}"
                self._note("ids", what, (values >= size).any(axis=1))

    def _mask(self, mask: Array) -> None:
        odd = (mask != 0) & (mask != 1)
        self._note("mask_values", "mask values other than 0 and 1", odd.any(axis=1))
        rises = (mask[:, 1:] == 1) & (mask[:, :-1] == 0)
        self._note("mask_holes", "the mask goes back to 1 after a 0", rises.any(axis=1))
        self._note("mask_empty", "the mask is 0 everywhere", ~(mask == 1).any(axis=1))

    def _labels(self, ids: Array, labels: Array, counts: Array, position: Array | None) -> None:
        apart = (ids[:, 1:] != labels[:, :-1]) & counts[:, 1:] & counts[:, :-1]
        if position is not None:
            apart &= position[:, 1:] != 0
        self._note("labels", "labels are not the next input ids", apart.any(axis=1))

    def _eos(self, ids: Array, labels: Array, counts: Array) -> None:
        eos = self._expect.eos_id
        if eos is None:
            return
        self.facts.eos_inside += int(((ids[:, 1:] == eos) & counts[:, 1:]).sum())
        self.facts.eos_labels += int(((labels == eos) & counts).sum())
        self.facts.rows_ending_with_eos += int(((labels[:, -1] == eos) & counts[:, -1]).sum())
        if self._expect.bos_id is not None:
            begins = (ids[:, :-1] == eos) & counts[:, :-1] & counts[:, 1:]
            self.facts.after_eos += int(begins.sum())
            self.facts.bos_after_eos += int((ids[:, 1:][begins] == self._expect.bos_id).sum())

    def _overlap(self, ids: Array, labels: Array) -> None:
        firsts = ids[:, 0]
        lasts = labels[:-1, -1]
        if self._last_label is None:
            firsts = firsts[1:]
        else:
            lasts = np.r_[self._last_label, lasts]
        self.facts.neighbours += len(firsts)
        self.facts.neighbours_that_overlap += int((lasts == firsts).sum())
        self._last_label = int(labels[-1, -1])

    def _segments(self, span: Array, position: Array, counts: Array) -> None:
        first = counts & (position == 0)
        ends = counts.copy()
        ends[:, :-1] &= first[:, 1:] | ~counts[:, 1:]
        goes_on = counts[:, 1:] & ~first[:, 1:]
        up, down = position[:, 1:] - position[:, :-1], span[:, 1:] - span[:, :-1]
        wrong = ((up != 1) & goes_on).any(axis=1) | (counts[:, 0] & (position[:, 0] != 0))
        self._note("segments", "position ids do not count up from 0 in every segment", wrong)
        wrong = ((down != -1) & goes_on).any(axis=1) | (ends & (span != 0)).any(axis=1)
        self._note("segments", "attention spans do not count down to 0 in every segment", wrong)
        wrong = (~counts & ((span != 0) | (position != 0))).any(axis=1)
        self._note("segments", "padding has an attention span or a position", wrong)


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


def foreign_lineage_path(shard: Path) -> Path:
    """Where the lineage of a shard stands, if there is one."""
    return shard.with_name(shard.name.removesuffix(SHARD_SUFFIX) + LINEAGE_SUFFIX)


def read_spans(shard: Path, input_tokens: I64 | int) -> tuple[LineageSpans, list[FileFinding]]:
    """Spans of a shard; `input_tokens` are the counting inputs of every row, or of a corpus all its
    tokens. The finding says where spans do not cover exactly those."""
    table: Any = pq.read_table(foreign_lineage_path(shard))
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
        column["doc"].astype(np.int64),
        column["doc_token_start"].astype(np.int64),
        end - begin,
        rows.astype(np.int64),
    )
    return spans, findings


def find_lost_or_repeated(spans: LineageSpans) -> list[FileFinding]:
    """Findings about the directory from the spans of all its shards."""
    stored = np.sort(spans.stream_row)
    repeated = int((stored[1:] == stored[:-1]).sum())
    lost = int(stored[-1] + 1 - len(np.unique(stored))) if len(stored) else 0
    gaps, twice = _gaps_and_repeats(spans)
    counted = (
        (repeated, "row", "of the stream found twice"),
        (lost, "row", "of the stream missing"),
        (gaps, "time", "tokens of a document are missing"),
        (twice, "time", "tokens of a document are repeated"),
    )
    return [
        FileFinding("", "lost", f"{pluralise(count, noun)} {what}")
        for count, noun, what in counted
        if count
    ]


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
