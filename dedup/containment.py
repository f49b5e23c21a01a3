"""Documents that are contained in longer ones: most of their shingles are shingles of the other.

Their Jaccard similarity can be as low as one likes, so bands of signatures do not find them. Here
each document gives a sample of its shingles, those whose hash begins with zeros (FracMinHash, Irber
et al. 2022, doi:10.1101/2022.01.11.475838): the share of a document's sample that is in another's
is an estimate of its containment that needs no estimate of sizes. Documents that share a sampled
shingle are counted for the longest ones that have it, and those with enough are compared exactly.

A document of n distinct shingles has none in the sample with a chance of (1 - 1 / ONE_OF)^n: 4 %
for 100 shingles, 0.2 % for 200. One that is contained in many documents is compared with the
longest of them.

Legend: N documents, S sampled shingles, M of them in more than one document, P pairs, L links.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dedup.arrays import F64, I64, U8, U32, U64, Mask
from dedup.compiled import kernel
from dedup.lsh import sort_run
from dedup.polynomial import fmix64
from dedup.presets import Preset
from dedup.similarity import PairJaccard
from dedup.stream import Shingler, Stream
from dedup.text import TextArray, Texts, view_texts

__all__ = [
    "MOST_CONTAINERS",
    "ONE_OF",
    "ShingleSample",
    "choose_containers",
    "compare_pairs",
    "count_shared",
    "sample_shingles",
]

ONE_OF = 32
"""One in so many shingles is in the sample: a power of two."""
MOST_CONTAINERS = 8
"""Longest documents with a sampled shingle that the others with it are counted for."""
_SHIFT = np.uint64(64 - (ONE_OF.bit_length() - 1))
_ZERO = np.uint64(0)
_SPARE = 1 << 10
_MOST_HELD = 4 << 20
"""Bytes of a text whose shingles are held in memory, at 24 times that."""


@dataclass(frozen=True)
class ShingleSample:
    """Sampled shingles of N documents, each once, ascending by digest, then by row: digest (S,)
    uint64, row (S,) uint32."""

    digest: U64
    row: U32

    def __len__(self) -> int:
        return len(self.digest)


def sample_shingles(texts: TextArray, preset: Preset) -> ShingleSample:
    """The sample of every text. Raises as `dedup.text.view_texts`."""
    shingler, stream = Shingler(preset), Stream(preset.size)
    digests, rows = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint32)]
    first = 0
    for part in view_texts(texts):
        for batch in stream.batches(part):
            windows_S3 = shingler.windows(batch)
            room = shingler.count // ONE_OF * 2 + _SPARE
            while True:
                digest, row = np.empty(room, np.uint64), np.empty(room, np.uint32)
                count = _take(shingler.hashes, windows_S3, _SHIFT, digest, row)
                if count <= room:
                    break
                room = count
            digests.append(digest[:count])
            rows.append(row[:count] + np.uint32(first))
        first += len(part)
    digest, row = sort_run(np.concatenate(digests), np.concatenate(rows))
    is_new = np.r_[True, (digest[1:] != digest[:-1]) | (row[1:] != row[:-1])][: len(digest)]
    return ShingleSample(digest[is_new], row[is_new])


@kernel
def _take(hashes: U64, windows_S3: I64, shift: np.uint64, digests: U64, rows: U32) -> int:
    """Fill two arrays of one length with sampled shingles and their rows; returns how many there
    are, though no more than the arrays hold are written."""
    count = 0
    for s in range(len(windows_S3)):
        for i in range(windows_S3[s, 1], windows_S3[s, 2]):
            if hashes[i] >> shift == _ZERO:
                if count < len(digests):
                    digests[count], rows[count] = fmix64(hashes[i]), windows_S3[s, 0]
                count += 1
    return count


def count_shared(
    group_M: U32, document_M: U32, bytes_M: U32, first_new: int
) -> tuple[I64, I64, I64]:
    """Of sampled shingles in more than one document: entries of a document, of a longer one, and
    how many shingles both have, (P,) each.

    group_M ascends and is equal for equal shingles; document_M numbers documents in the order of
    the inputs, and those before `first_new` are counted as the longer one alone. Of documents of
    one length the first counts as the longest. Only the MOST_CONTAINERS longest ones with a shingle
    are counted as the longer one for it.
    """
    order = np.lexsort((document_M, ~bytes_M, group_M))
    group = group_M[order]
    start = np.flatnonzero(np.r_[True, group[1:] != group[:-1]][: len(group)])
    first = np.repeat(start, np.diff(start, append=len(group)))
    place = np.where(document_M[order] >= first_new, np.arange(len(group)) - first, 0)
    found = [(np.flatnonzero(place > rank), rank) for rank in range(MOST_CONTAINERS)]
    shorter = order[np.concatenate([at for at, _ in found])]
    longer = order[np.concatenate([first[at] + rank for at, rank in found])]
    pair = document_M[shorter].astype(np.uint64) << np.uint64(32) | document_M[longer]
    _, one, counts = np.unique(pair, return_index=True, return_counts=True)
    return shorter[one], longer[one], counts


def compare_pairs(
    text: Callable[[int], U8], member_P: I64, container_P: I64, preset: Preset
) -> F64:
    """Of each pair the share of the first one's shingles that the second has, and their Jaccard
    similarity, (P, 2).

    text: the UTF-8 of a document. Shingles of a container are found once for all its pairs.
    """
    pair, found = PairJaccard(preset), np.zeros((len(member_P), 2))

    def distinct(data: U8) -> U64:
        every = pair.hashes(Texts.one(data, 0, len(data)))
        ordered, _ = sort_run(every, np.zeros(len(every), np.uint32))
        once: U64 = ordered[np.r_[True, ordered[1:] != ordered[:-1]][: len(ordered)]]
        return once

    held, of_held = -1, np.zeros(0, np.uint64)
    for number in np.argsort(container_P, kind="stable").tolist():
        part, whole = text(int(member_P[number])), text(int(container_P[number]))
        if max(len(part), len(whole)) > _MOST_HELD:
            found[number] = pair.containment(part, whole)
            continue
        if held != container_P[number]:
            held, of_held = int(container_P[number]), distinct(whole)
        own = distinct(part)
        if len(own) and len(of_held):
            at = np.minimum(np.searchsorted(of_held, own), len(of_held) - 1)
            both = int((of_held[at] == own).sum())
            found[number] = both / len(own), both / (len(own) + len(of_held) - both)
    return found


def choose_containers(
    member_L: U32, bytes_L: U32, container_L: U32, share_L: F64, first_new: int
) -> Mask:
    """The links by which documents go, one of each, (L,): to a container that stays itself.

    A link: a document, its bytes, a longer document that contains it, and how much of it. Longest
    documents are decided on first; of containers that stay those before `first_new` are preferred,
    then the one with the largest share, then the first.
    """
    order = np.lexsort((container_L, -share_L, container_L >= first_new, member_L, ~bytes_L))
    known, number = np.unique(np.concatenate([member_L, container_L]), return_inverse=True)
    is_gone, chosen = np.zeros(len(known), np.bool_), np.zeros(len(member_L), np.bool_)
    member, container = np.split(number.astype(np.int64), 2)
    _choose(order, member, container, is_gone, chosen)
    return chosen


@kernel
def _choose(order: I64, member: I64, container: I64, is_gone: Mask, chosen: Mask) -> None:
    for link in order:
        if not is_gone[member[link]] and not is_gone[container[link]]:
            is_gone[member[link]] = chosen[link] = True
