"""Which of the near-duplicates stays: a selection no transitive chain can inflate.

Documents are visited in ascending rank. One is dropped if and only if a document already kept
shares a bucket with it and the pair is verified; its representative is the smallest such. So every
dropped document has a verified edge to the document that stands for it, and the answer does not
depend on the order of edges, bands or tasks. Without verification a whole component of candidates
collapses onto its smallest document, as SlimPajama does.

Legend: D documents (local index = rank), E memberships grouped by document, C channels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dedup.arrays import F64, I64, U8, U32, U64
from dedup.compiled import kernel
from dedup.presets import Verify

Signatures = npt.NDArray[np.unsignedinteger]

KEPT = -1
COMPARED = 256
"""Kept documents of one bucket that a later member is compared with. Only the bucket of one band
made by boilerplate, which holds more, is cut short; true duplicates meet in other bands too."""
DOUBTFUL_READS = 32
"""Pairs of one document that are read although their estimate is below the threshold: those with
the highest estimates. Only pages of one template have more such candidates; pairs estimated at the
threshold and above are always read."""
MARGIN_SIGMAS = 4.5
"""A pair is rejected unread when its estimate is this many standard deviations below threshold."""

NEW, OLD_KEPT, OLD_DROPPED = 0, 1, 2


class Memberships(NamedTuple):
    """Who is in which bucket: E entries grouped by document.

    starts (D + 1,) int64; bucket (E,) int64 numbered from 0 over all channels; channel (E,) uint8:
    the band, or a channel behind the bands.
    """

    starts: I64
    bucket: I64
    channel: U8


def bucket_count(memberships: Memberships) -> int:
    """How many bucket numbers there are."""
    return int(memberships.bucket.max(initial=-1)) + 1


@dataclass(frozen=True)
class Rules:
    """When an edge counts: `sure` is a bit mask of channels that need no verification at all,
    `same` of channels (equal normalised text) that need only equal signatures.
    """

    verify: Verify
    threshold: float
    permutations: int
    sure: int = 0
    same: int = 0

    @property
    def reject_below(self) -> float:
        """Estimates below this are rejected without reading text: threshold - 4.5 sigma, where
        sigma = sqrt(J (1 - J) / permutations) at the threshold."""
        t = self.threshold
        return float(t - MARGIN_SIGMAS * np.sqrt(t * (1 - t) / self.permutations))


@dataclass(frozen=True)
class Selection:
    """Per document (D): representative (index or -1), channels shared with it (bit mask), estimated
    and exact Jaccard (NaN where not computed); and counts of what was compared."""

    representative: I64
    channels: U64
    estimate: F64
    exact: F64
    counts: dict[str, int]


def group_memberships(member_E: U32, bucket_E: I64, channel_E: U8, documents: int) -> Memberships:
    """Memberships in any order, grouped by document (stable counting sort)."""
    order = np.argsort(member_E, kind="stable")
    counts = np.bincount(member_E, minlength=documents)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Memberships(starts, bucket_E[order], channel_E[order])


def select_representatives(
    memberships: Memberships,
    signatures_DP: Signatures,
    rules: Rules,
    exact: Callable[[int, int], float],
    origin_D: U8 | None = None,
) -> Selection:
    """Choose representatives by verified edges.

    signatures_DP (D, P) uint32 or uint64; `exact(d, k)` returns the exact Jaccard similarity of
    documents d and k and is asked only with verify "exact", for pairs the estimate cannot reject;
    origin_D (D,) uint8: 0 new, 1 kept by an earlier batch (stays whatever happens), 2 dropped by
    one (stands for nothing).
    """
    documents = len(signatures_DP)
    origin = np.zeros(documents, np.uint8) if origin_D is None else origin_D
    entries, buckets = len(memberships.bucket), bucket_count(memberships)
    lists = _Lists(
        np.full(buckets, -1, np.int64),
        np.full(buckets, -1, np.int64),
        np.full(entries, -1, np.int64),
        np.zeros(entries, np.int64),
    )
    state = _SearchState(
        np.full(documents, KEPT, np.int64),
        np.zeros(documents, np.uint64),
        np.full(documents, np.nan),
        np.full(documents, np.nan),
        np.full(documents, -1, np.int64),
        np.zeros(documents, np.uint64),
    )
    widest = int(np.diff(memberships.starts).max(initial=0))
    candidates, place = np.zeros(widest * COMPARED + 1, np.int64), np.zeros(_PLACES, np.int64)
    place[_COUNT] = -1
    limits = np.array([rules.threshold, rules.reject_below], np.float64)
    masks = np.array([rules.sure, rules.same], np.uint64)
    reading, answer = rules.verify == "exact", np.nan
    while _advance(
        memberships,
        origin,
        signatures_DP,
        reading,
        limits,
        masks,
        answer,
        lists,
        state,
        candidates,
        place,
    ):
        answer = exact(int(place[_DOCUMENT]), int(place[_ASKED]))
    counts = place[_COMPARED : _COMPARED + len(_COUNTS)].tolist()
    return Selection(*state[:4], dict(zip(_COUNTS, counts, strict=True)))


class _Lists(NamedTuple):
    """Kept documents of every bucket as linked lists of their memberships: first and last one of a
    bucket, the one that follows, and whose it is (-1: none)."""

    head: I64
    tail: I64
    following: I64
    owner: I64


class _SearchState(NamedTuple):
    """What is found per document, and, while candidates of d are collected, which of them were seen
    for d and the channels they share with it."""

    representative: I64
    channels: U64
    estimate: F64
    exact: F64
    seen: I64
    shared: U64


_DOCUMENT, _NEXT, _COUNT, _ASKED, _WAITING, _LEVEL, _QUOTA = range(7)
_COMPARED, _REJECTED, _READ, _READ_IN_VAIN, _CUT_SHORT, _PLACES = range(7, 13)
_COUNTS = ("compared", "rejected_by_estimate", "read", "rejected_by_reading", "cut_short")


@kernel
def _equal_cells(a_P: Signatures, b_P: Signatures) -> int:
    equal = 0
    for p in range(a_P.shape[0]):
        equal += 1 if a_P[p] == b_P[p] else 0
    return equal


@kernel
def _limit_reads(d: int, signatures: Signatures, limits: F64, candidates: I64, place: I64) -> None:
    """Which doubtful candidates of d are read: all that agree with it in more than place[_LEVEL]
    cells, and the first place[_QUOTA] of those that agree in just as many."""
    place[_LEVEL] = -1
    if place[_COUNT] <= DOUBTFUL_READS:
        return
    cells = signatures.shape[1]
    candidates_by_cells = np.zeros(cells + 1, np.int64)
    for k in candidates[: place[_COUNT]]:
        equal = _equal_cells(signatures[d], signatures[k])
        if limits[1] <= equal / cells < limits[0]:
            candidates_by_cells[equal] += 1
    place[_QUOTA] = DOUBTFUL_READS
    for level in range(cells, -1, -1):
        if candidates_by_cells[level] > place[_QUOTA]:
            place[_LEVEL] = level
            return
        place[_QUOTA] -= candidates_by_cells[level]


@kernel
def _collect(
    d: int,
    memberships: Memberships,
    lists: _Lists,
    state: _SearchState,
    candidates: I64,
    place: I64,
) -> int:
    """Kept documents that share a bucket with d, ascending, with the channels they share."""
    count = 0
    for e in range(memberships.starts[d], memberships.starts[d + 1]):
        bit = np.uint64(1) << np.uint64(memberships.channel[e])
        node = lists.head[memberships.bucket[e]]
        walked = 0
        while node >= 0 and walked < COMPARED:
            k = lists.owner[node]
            if state.seen[k] != d:
                state.seen[k] = d
                state.shared[k] = np.uint64(0)
                candidates[count] = k
                count += 1
            state.shared[k] |= bit
            node = lists.following[node]
            walked += 1
        if node >= 0:
            place[_CUT_SHORT] += 1
    candidates[:count].sort()
    return count


@kernel
def _keep(d: int, memberships: Memberships, lists: _Lists) -> None:
    """Append d to the lists of its buckets."""
    for e in range(memberships.starts[d], memberships.starts[d + 1]):
        bucket = memberships.bucket[e]
        lists.owner[e] = d
        if lists.head[bucket] < 0:
            lists.head[bucket] = e
        else:
            lists.following[lists.tail[bucket]] = e
        lists.tail[bucket] = e


@kernel
def _judge(
    d: int,
    signatures: Signatures,
    reading: bool,
    limits: F64,
    masks: U64,
    state: _SearchState,
    candidates: I64,
    place: I64,
) -> int:
    """The first candidate from place[_NEXT] on that is a duplicate of d; -1: none, -2: read it."""
    while place[_NEXT] < place[_COUNT]:
        k = candidates[place[_NEXT]]
        equal = _equal_cells(signatures[d], signatures[k])
        similarity = equal / signatures.shape[1]
        place[_COMPARED] += 1
        same = (state.shared[k] & masks[1]) != np.uint64(0) and similarity == 1.0
        if same:
            state.exact[d] = 1.0
        if same or (state.shared[k] & masks[0]) != np.uint64(0):
            return int(k)
        if similarity >= limits[0] and not reading:
            return int(k)
        if reading and similarity >= limits[1]:
            if similarity >= limits[0] or equal > place[_LEVEL]:
                return -2
            if equal == place[_LEVEL] and place[_QUOTA] > 0:
                place[_QUOTA] -= 1
                return -2
            place[_CUT_SHORT] += 1
        else:
            place[_REJECTED] += 1
        place[_NEXT] += 1
    return -1


@kernel
def _advance(
    memberships: Memberships,
    origin: U8,
    signatures: Signatures,
    reading: bool,
    limits: F64,
    masks: U64,
    answer: float,
    lists: _Lists,
    state: _SearchState,
    candidates: I64,
    place: I64,
) -> bool:
    """Resume; returns whether an exact similarity is needed, and not all documents are done.

    limits: threshold, and the estimate below which nothing is read; masks: channels that are sure,
    and channels of equal text. place: the document, its next candidate, their number (-1: not yet
    collected), the candidate asked about, whether its similarity is the `answer`, what
    `_limit_reads` set; then what is counted.
    """
    while place[_DOCUMENT] < len(origin):
        d = place[_DOCUMENT]
        chosen = -1
        if origin[d] == NEW and place[_WAITING] == 1:
            place[_WAITING] = 0
            place[_READ] += 1
            if answer >= limits[0]:
                chosen = place[_ASKED]
                state.exact[d] = answer
            else:
                place[_READ_IN_VAIN] += 1
                place[_NEXT] += 1
        elif origin[d] == NEW:
            place[_COUNT] = _collect(d, memberships, lists, state, candidates, place)
            place[_NEXT] = 0
            if reading:
                _limit_reads(d, signatures, limits, candidates, place)
        if origin[d] == NEW and chosen < 0:
            chosen = _judge(d, signatures, reading, limits, masks, state, candidates, place)
        if chosen == -2:
            place[_ASKED] = candidates[place[_NEXT]]
            place[_WAITING] = 1
            return True
        if chosen >= 0:
            state.representative[d] = chosen
            state.channels[d] = state.shared[chosen]
            equal = _equal_cells(signatures[d], signatures[chosen])
            state.estimate[d] = equal / signatures.shape[1]
        elif origin[d] != OLD_DROPPED:
            _keep(d, memberships, lists)
        place[_DOCUMENT] += 1
    return False


def collapse(memberships: Memberships, component_D: I64, origin_D: U8 | None = None) -> Selection:
    """Without verification: every component keeps its smallest document.

    component_D (D,) int64: component number of each document, any numbering. Documents kept by an
    earlier batch stay, and the smallest of them stands for the component.
    """
    documents = len(component_D)
    origin = np.zeros(documents, np.uint8) if origin_D is None else origin_D
    eligible = np.flatnonzero(origin != OLD_DROPPED)
    components, first = np.unique(component_D[eligible], return_index=True)
    place = np.minimum(np.searchsorted(components, component_D), max(len(components) - 1, 0))
    chosen = eligible[first][place] if len(components) else np.zeros(documents, np.int64)
    standing = (origin == NEW) & (chosen != np.arange(documents))
    representative = np.where(standing, chosen, KEPT)
    channels = np.zeros(documents, np.uint64)
    holder = np.full(bucket_count(memberships), -1, np.int64)
    _shared_channels(memberships, representative, holder, channels)
    unknown = np.full(documents, np.nan)
    return Selection(representative, channels, unknown, unknown.copy(), {})


@kernel
def _shared_channels(
    memberships: Memberships, representative: I64, holder: I64, channels: U64
) -> None:
    """Channels in which a dropped document meets its representative directly (0: by a chain).

    Each bucket lies in one component, so it holds at most one representative.
    """
    starts, bucket, channel = memberships
    for d in range(len(representative)):
        k = representative[d]
        if k >= 0:
            for e in range(starts[k], starts[k + 1]):
                holder[bucket[e]] = k
    for d in range(len(representative)):
        if representative[d] >= 0:
            for e in range(starts[d], starts[d + 1]):
                if holder[bucket[e]] == representative[d]:
                    channels[d] |= np.uint64(1) << np.uint64(channel[e])
