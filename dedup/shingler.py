"""64-bit hashes of the shingles of one batch of normalised text after another."""

import numpy as np

from dedup.arrays import I64, U64
from dedup.polynomial import (
    BLOCK,
    INVERSE,
    char_hashes,
    powers,
    prefix_sums,
    word_hashes,
)
from dedup.presets import Preset
from dedup.shingle import BASE
from dedup.stream import SEGMENTS, Batch
from dedup.windows import char_windows, word_windows


class Shingler:
    """Finds and hashes the shingles of a batch.

    After `windows`: count shingle starts in the batch; hashes (count,) uint64, polynomials not yet
    mixed; starts, ends int64: where in the batch's points each word lies (word shingles only).
    """

    def __init__(self, recipe: Preset) -> None:
        self.size = recipe.size
        self.is_word = recipe.unit == "word"
        self.count = 0
        self.hashes: U64 = np.empty(0, np.uint64)
        self._windows = np.empty((SEGMENTS, 3), np.int64)

    def windows(self, batch: Batch) -> I64:
        """(segments, 3) int64: row, first shingle and end of the shingles of every segment.

        Sets what the batch keeps for the next one. The result is valid until the next call.
        """
        if len(self.hashes) < len(batch.points):
            self._make_room(len(batch.points))
        windows_S3 = self._windows[: len(batch.segments)]
        if self.is_word:
            words, keep_from = word_windows(
                batch.points, batch.segments, self.size, self.starts, self.ends, windows_S3
            )
            self.count, batch.keep_from = int(words), int(keep_from)
            prefix_sums(batch.points, batch.filled, powers(INVERSE), self._scratch)
            word_hashes(
                self._scratch, self.starts, self.ends, self.count, self.size, powers(BASE),
                self.hashes,
            )  # fmt: skip
        else:
            batch.keep_from = char_windows(batch.segments, self.size, windows_S3)
            self.count = batch.filled
            char_hashes(batch.points, self.count, self.size, self._scratch, self.hashes)
        return windows_S3

    def _make_room(self, points: int) -> None:
        self.hashes = np.empty(points, np.uint64)
        # A text of n code points has at most (n + 1) / 2 words.
        words = (points + SEGMENTS) // 2 + 2 if self.is_word else 0
        self.starts: I64 = np.empty(words, np.int64)
        self.ends: I64 = np.empty(words, np.int64)
        scratch = points + 1 if self.is_word else 2 * (BLOCK + self.size)
        self._scratch: U64 = np.empty(scratch, np.uint64)
