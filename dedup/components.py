"""Components of documents that buckets connect: union-find in one array of 4 bytes a document.

The smaller index becomes the parent, so the label of a component is its smallest document, and
labels do not depend on the order in which buckets come. Where most documents are in no bucket,
`CandidateComponents` has room for the others only.
"""

from collections.abc import Callable, Iterable

import numpy as np

from dedup.arrays import I64, U32, U64, Mask
from dedup.compiled import kernel
from dedup.join import keep_shared
from dedup.lsh import DIGIT, RADIX, band_digests, sort_by_digit, sort_entries

MAX_DOCUMENTS = 2**32 - 2
_NONE = np.uint32(2**32 - 1)
_WORD = 64


def new_parents(count: int) -> U32:
    """Every document its own component: (count,) uint32. ValueError above 2^32 - 2 documents."""
    if not 0 <= count <= MAX_DOCUMENTS:
        raise ValueError(f"{count} documents; one join takes at most {MAX_DOCUMENTS}")
    return np.arange(count, dtype=np.uint32)


def unite(parents: U32, members_M: U32, bucket_M: U32) -> None:
    """Join the members of each bucket, in place: neighbours of the same bucket number.

    parents (N,) of `new_parents`; members_M (M,) uint32 below N and bucket_M (M,) uint32, as
    `dedup.join.buckets` gives them. Call it once for each pair of arrays, in any order. ValueError
    when lengths differ or a member is no document.
    """
    if members_M.shape != bucket_M.shape:
        raise ValueError(f"{len(members_M)} members with {len(bucket_M)} bucket numbers")
    if {parents.dtype, members_M.dtype, bucket_M.dtype} != {np.dtype(np.uint32)}:
        raise ValueError(
            f"parents, members and buckets are {parents.dtype}, {members_M.dtype}, "
            f"{bucket_M.dtype}; give uint32"
        )
    _check_members(members_M, len(parents))
    _unite_neighbours(bucket_M, members_M, parents)


def _check_members(members_M: U32, documents: int) -> None:
    if len(members_M) and members_M.max() >= documents:
        raise ValueError(f"member {members_M.max()} of {documents} documents")


def flatten_labels(parents: U32) -> U32:
    """Turn parents into labels, in place: the smallest document of each one's component."""
    _finish(parents)
    return parents


def components(labels_N: U32) -> tuple[U32, I64]:
    """Members of the components of two and more documents.

    labels_N (N,) uint32 of `flatten_labels`. Returns (members (M,) uint32 in ascending order of
    (component, document); starts (C + 1,) int64: component c is members[starts[c]:starts[c + 1]]).
    Scratch is 4 bytes a document. ValueError when these are no labels.
    """
    places = np.zeros(len(labels_N), np.uint32)
    sizes = _component_sizes(labels_N, places)
    if sizes is None:
        raise ValueError("these are not labels yet: call finish(parents) before components")
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    members = np.empty(starts[-1], np.uint32)
    _place_members(labels_N, places, members)
    return members, starts


class CandidateComponents:
    """Components of the documents that are in a bucket, dealt out to groups.

    It takes 8 bytes for each of these documents, in an array that the caller provides (it can be a
    mapped file), and a bit and a half for every other one.
    """

    def __init__(
        self, documents: int, members: Iterable[U32], allocate: Callable[[int], U32]
    ) -> None:
        """`members`: those of every bucket, in any order and number of arrays; `allocate` gives
        zeros (2, M) for M documents. ValueError as `new_parents` and `unite` raise it."""
        if not 0 <= documents <= MAX_DOCUMENTS:
            raise ValueError(f"{documents} documents; one join takes at most {MAX_DOCUMENTS}")
        self._documents = documents
        self._bits = np.zeros(-(-documents // _WORD), np.uint64)
        for members_M in members:
            _check_members(members_M, documents)
            _mark(members_M, self._bits)
        self._before = np.empty(len(self._bits), np.uint32)
        self.count = int(_count_before(self._bits, self._before))
        """Documents that are in a bucket."""
        self._parents, self._numbers = allocate(self.count)
        self._parents[:] = np.arange(self.count, dtype=np.uint32)

    def unite(self, members_M: U32, bucket_M: U32) -> None:
        """As the function of this name, by number of the document."""
        _check_members(members_M, self._documents)
        numbers_M = np.empty(len(members_M), np.uint32)
        _renumber(members_M, self._bits, self._before, numbers_M)
        unite(self._parents, numbers_M, bucket_M)

    def deal(self, largest: int) -> tuple[int, int, I64]:
        """Number the components by their smallest document, and deal them out in this order to
        groups of `largest` documents, or of one larger component. Returns how many components there
        are, the size of the largest, and the sizes of the groups (G,). Call it once, at last."""
        flatten_labels(self._parents)
        sizes = np.zeros(2 * self.count // largest + 2, np.int64)  # two neighbours are above it
        components, most, groups = _deal(self._parents, self._numbers, largest, sizes)
        return components, most, sizes[:groups]

    def look_up(self, first: int, stop: int) -> tuple[U32, U32]:
        """For documents [first, stop): 1 + the group, 0 for those in no bucket, and the component.
        `first` is a multiple of 64. ValueError when it is not."""
        if first % _WORD:
            raise ValueError(f"documents from {first} on; give a multiple of {_WORD}")
        group_N, component_N = np.zeros((2, stop - first), np.uint32)
        _look_up(
            first, self._bits, self._before, self._parents, self._numbers, group_N, component_N
        )
        return group_N, component_N


def label_components(
    signatures_NP: U32 | U64, bands: int, rows: int, skip_N: Mask | None = None
) -> U32:
    """Labels (N,) uint32 of the components of candidates, in memory.

    signatures_NP (N, P) uint32 or uint64; skip_N (N,) bool marks documents that meet nobody, such
    as those without shingles. The label is the smallest document of the component. Needs
    8 * bands + 32 bytes a document, 8 more with a mask. ValueError as `band_digests` and
    `new_parents` raise it, and for a mask of another length.
    """
    parents = new_parents(len(signatures_NP))
    if skip_N is not None and skip_N.shape != parents.shape:
        raise ValueError(f"a mask of {len(skip_N)} for {len(parents)} documents")
    digests_BN = band_digests(signatures_NP, bands, rows)
    documents = parents.copy() if skip_N is None else np.flatnonzero(~skip_N).astype(np.uint32)
    scratch = np.empty((2, len(documents)), np.uint64)
    owners = np.empty((2, len(documents)), np.uint32)
    for digests in digests_BN:
        entries = digests if skip_N is None else digests[documents]
        _connect(entries, documents, parents, scratch, owners)
    return flatten_labels(parents)


@kernel
def _connect(digests: U64, documents: U32, parents: U32, scratch: U64, owners: U32) -> None:
    """One band: dealt out to windows that fit the cache, then as `dedup.join.buckets`.

    scratch and owners are (2, len(digests)).
    """
    places = np.empty(RADIX, np.int64)
    starts = np.array([0, len(digests)])
    zero, last, shift = np.uint64(0), np.uint64(2**64 - 1), 64 - DIGIT
    a, b, c, d = scratch[0], scratch[1], owners[0], owners[1]
    sort_by_digit(digests, documents, zero, np.uint64(shift), places, a, c)
    shared = keep_shared(a, c, starts, zero, last, shift, 0, b, d)
    ordered, members = sort_entries(
        b[:shared], d[:shared], a[:shared], c[:shared], b[:shared], d[:shared]
    )
    _unite_neighbours(ordered, members, parents)


@kernel
def _root(parents: U32, document: np.uint32) -> np.uint32:
    """The root, halving the path to it."""
    while parents[document] != document:
        parents[document] = parents[parents[document]]
        document = parents[document]
    return document


@kernel
def _unite_neighbours(keys: U32 | U64, members: U32, parents: U32) -> None:
    for i in range(1, len(keys)):
        if keys[i] != keys[i - 1]:
            continue
        one, other = _root(parents, members[i - 1]), _root(parents, members[i])
        if one < other:
            parents[other] = one
        else:
            parents[one] = other


@kernel
def _finish(parents: U32) -> None:
    """A parent is smaller than its child, so its own label is final already."""
    for document in range(len(parents)):
        parents[document] = parents[parents[document]]


@kernel
def _component_sizes(labels: U32, places: U32) -> I64 | None:
    """Sizes of components of two and more; places (zeros) gets the start of each at its label, and
    _NONE elsewhere. None when a label is above its document or is not its own label."""
    for document in range(len(labels)):
        label = labels[document]
        if label > document or labels[label] != label:
            return None
        places[label] += np.uint32(1)
    count = 0
    for document in range(len(labels)):
        count += 1 if places[document] > 1 else 0
    sizes = np.empty(count, np.int64)
    component, start = 0, 0
    for document in range(len(labels)):
        size = places[document]
        places[document] = _NONE
        if size > 1:
            places[document] = start
            sizes[component] = size
            start += size
            component += 1
    return sizes


@kernel
def _place_members(labels: U32, places: U32, members: U32) -> None:
    """Counting sort by label; stable, so that documents ascend."""
    for document in range(len(labels)):
        place = places[labels[document]]
        if place != _NONE:
            members[place] = document
            places[labels[document]] = place + np.uint32(1)


@kernel
def _mark(members: U32, bits: U64) -> None:
    for member in members:
        bits[member >> np.uint32(6)] |= np.uint64(1) << np.uint64(member & np.uint32(63))


@kernel
def _count_bits(word: np.uint64) -> np.uint32:
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    pairs = np.uint64(0x3333333333333333)
    word = (word & pairs) + ((word >> np.uint64(2)) & pairs)
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.uint32((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@kernel
def _count_before(bits: U64, before: U32) -> np.uint32:
    count = np.uint32(0)
    for i in range(len(bits)):
        before[i] = count
        count += _count_bits(bits[i])
    return count


@kernel
def _renumber(members: U32, bits: U64, before: U32, numbers: U32) -> None:
    """Of each member how many documents with a bit are before it."""
    for i in range(len(members)):
        place = members[i] >> np.uint32(6)
        below = (np.uint64(1) << np.uint64(members[i] & np.uint32(63))) - np.uint64(1)
        numbers[i] = before[place] + _count_bits(bits[place] & below)


@kernel
def _deal(labels: U32, numbers: U32, largest: int, sizes: I64) -> tuple[int, int, int]:
    """numbers (zeros) gets the component at its label, and _NONE elsewhere; labels the group at the
    label, and stay as they are elsewhere."""
    for document in range(len(labels)):
        numbers[labels[document]] += np.uint32(1)
    component, most, groups = 0, 0, 0
    for document in range(len(labels)):
        size = int(numbers[document])
        numbers[document] = _NONE
        if size == 0:
            continue
        if groups == 0 or sizes[groups - 1] + size > largest:
            groups += 1
        sizes[groups - 1] += size
        most = size if size > most else most
        labels[document] = groups - 1
        numbers[document] = component
        component += 1
    return component, most, groups


@kernel
def _look_up(
    first: int, bits: U64, before: U32, labels: U32, numbers: U32, group: U32, component: U32
) -> None:
    number = before[first >> 6] if len(group) else np.uint32(0)
    for i in range(len(group)):
        place = first + i
        if (bits[place >> 6] >> np.uint64(place & 63)) & np.uint64(1):
            at = number if numbers[number] != _NONE else labels[number]
            group[i] = labels[at] + np.uint32(1)
            component[i] = numbers[at]
            number += np.uint32(1)
