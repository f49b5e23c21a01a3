"""MinHash signatures of many texts: normalise, hash shingles, permute, all in compiled kernels.

Every row is bit for bit the sketch of `datasketch.MinHash(num_perm, seed=seed, scheme=scheme,
hashfunc=...)` updated with `dedup.shingles(text)` under `dedup.shingle_hash`; `fss` is our own
(`dedup.fast_sketch`). Texts may be split into calls in any way.

Limits: with word shingles, a run of as many words as a shingle has costs 28 bytes a character,
which matters for text without any blanks; everything else runs in a few megabytes, whatever the
length of the documents.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dedup.arrays import I64, U32, U64
from dedup.base_hash import BaseHasher
from dedup.digest import digest_segments, keys, new_state
from dedup.fast_sketch import EMPTY, fast_sketch
from dedup.permutations import permutations
from dedup.permute import affine32, affine64, legacy
from dedup.presets import Preset, resolve
from dedup.shingler import Shingler
from dedup.stream import CAPACITY, ENDS, Batch, Stream
from dedup.text import TextArray, Texts, texts_of
from dedup.windows import count_shingles


@dataclass(frozen=True)
class Sketches:
    """What one pass over N texts gives.

    signatures (N, num_perm) uint32, or uint64 for scheme affine64; all ones for a text without a
    shingle. shingles (N,) uint32: number of shingles, repeated ones too; 0 = never clusters.
    text_digest (N,) uint64: a strong hash of the normalised text.
    """

    signatures: U32 | U64
    shingles: U32
    text_digest: U64

    def rows(self, start: int, stop: int) -> "Sketches":
        """A part of the texts; writing to it writes here."""
        own = slice(start, stop)
        return Sketches(self.signatures[own], self.shingles[own], self.text_digest[own])


_PERMUTE: dict[str, Callable[..., None]] = {
    "affine32": affine32,
    "affine64": affine64,
    "legacy": legacy,
}


def signatures(
    texts: TextArray,
    *,
    preset: str | Preset = "slimpajama",
    num_perm: int | None = None,
    scheme: str | None = None,
    hash: str | None = None,
    seed: int | None = None,
) -> U32 | U64:
    """MinHash signatures of a list of str or of a pyarrow array of strings.

    Returns (N, num_perm) uint32, for scheme affine64 uint64; a text without a shingle gets all
    ones, as datasketch's empty sketch. What is None comes from the preset; `slimpajama` means
    num_perm 128, scheme "affine32", hash "poly64", seed 1. ValueError for unknown or unfit names,
    nulls and text that is not UTF-8.
    """
    given = {"num_perm": num_perm, "scheme": scheme, "hash": hash, "seed": seed}
    values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    recipe = replace(resolve(preset), bands=0, **values)
    return _sketch(texts, recipe, with_digest=False).signatures


def sketch_documents(texts: TextArray, preset: str | Preset) -> Sketches:
    """Signatures, numbers of shingles and digests of texts, as `signatures` takes them."""
    return _sketch(texts, resolve(preset), with_digest=True)


def _sketch(
    texts: TextArray, recipe: Preset, *, with_digest: bool, capacity: int = CAPACITY
) -> Sketches:
    """`capacity`: code points in a batch, which changes nothing in the result."""
    chunks = texts_of(texts)
    count = sum(len(chunk) for chunk in chunks)
    cells: Any = np.uint64 if recipe.scheme == "affine64" else np.uint32
    sketches = Sketches(
        np.full((count, recipe.num_perm), np.iinfo(cells).max, cells),
        np.zeros(count, np.uint32),
        np.zeros(count, np.uint64),
    )
    sketcher = _Sketcher(recipe, with_digest, capacity)
    first = 0
    for chunk in chunks:
        sketcher.run(chunk, sketches.rows(first, first + len(chunk)))
        first += len(chunk)
    return sketches


class _Sketcher:
    """One pass over texts, batch by batch, with the scratch that all batches share."""

    def __init__(self, recipe: Preset, with_digest: bool, capacity: int) -> None:
        self._recipe = recipe
        self._with_digest = with_digest
        self._stream = Stream(recipe.size if recipe.unit == "char" else 1, capacity)
        self._shingler = Shingler(recipe)
        self._hasher = BaseHasher(recipe, self._shingler)

    def run(self, texts: Texts, sketches: Sketches) -> None:
        """Fill the rows of `sketches`, one for each text."""
        state = new_state()
        for batch in self._stream.batches(texts):
            windows_S3 = self._shingler.windows(batch)
            count_shingles(windows_S3, batch.continues, sketches.shingles)
            if self._recipe.scheme == "fss":
                self._fast_sketch(texts, batch, windows_S3, sketches.signatures)
            else:
                self._permute(batch, windows_S3, sketches.signatures)
            if self._with_digest:
                digest_segments(
                    batch.points, batch.segments, batch.continues, batch.fresh, keys(), state,
                    sketches.text_digest,
                )  # fmt: skip

    def _permute(self, batch: Batch, windows_S3: I64, signatures_NP: Any) -> None:
        recipe = self._recipe
        a, b = permutations(recipe.scheme, recipe.num_perm, recipe.seed)
        _PERMUTE[recipe.scheme](self._hasher.hashes(batch), windows_S3, a, b, signatures_NP)

    def _fast_sketch(self, texts: Texts, batch: Batch, windows_S3: I64, signatures_NP: Any) -> None:
        fast_sketch(
            self._shingler.hashes, windows_S3, batch.continues, batch.is_open, self._recipe.seed,
            signatures_NP,
        )  # fmt: skip
        if batch.continues and batch.segments[0, ENDS]:
            row = int(windows_S3[0, 0])
            if (signatures_NP[row] == EMPTY).any():
                self._sketch_distinct(texts, row, signatures_NP)

    def _sketch_distinct(self, texts: Texts, row: int, signatures_NP: Any) -> None:
        """All rounds for a text longer than a batch that has few different shingles."""
        shingler = Shingler(self._recipe)
        alone = replace(texts, offsets=texts.offsets[row : row + 2])
        distinct: U64 = np.empty(0, np.uint64)
        for batch in Stream(self._recipe.size).batches(alone):
            for _, start, stop in shingler.windows(batch).tolist():
                distinct = np.union1d(distinct, shingler.hashes[start:stop])
        windows_S3 = np.array([[row, 0, len(distinct)]], np.int64)
        fast_sketch(distinct, windows_S3, False, False, self._recipe.seed, signatures_NP)
