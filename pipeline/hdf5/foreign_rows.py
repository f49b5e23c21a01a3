"""Whether rows of foreign files are what a language model can be trained on.

Only arrays here: a block of rows in, counts and the first wrong row of every kind out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import xxhash

from dedup.arrays import Array
from pipeline.hdf5.findings import FileFinding

Block = Mapping[str, Array]
"""Feature name -> (B, S) integers."""


@dataclass(frozen=True)
class Expectations:
    """What ids are held against; None where nobody said."""

    vocab_size: int | None = None
    eos_id: int | None = None


@dataclass
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
