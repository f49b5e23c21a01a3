"""Fan-in in levels: no task reads slices of more than MOST_SHARDS shards.

The rows of many sorted shards are wanted in consecutive ranges of their key, one range a task.
Where there are too many shards, groups of them are merged first, each group into one shard for
several ranges: of 10,000 shards, 100 groups of 100, so that a range is a slice of 100 shards. Each
level is one pass more; two reach 262,144 shards. A merge keeps rows with equal keys in the order of
the shards, so the levels change nothing of what a range holds.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

from pipeline.core.manifest import StageManifest
from pipeline.engine.shared import Shared

MOST_SHARDS = 512
MOST_TOGETHER = 32
"""Neighbouring shards that one task takes at most, so that there are fewer of what it makes."""
FEW_SHARDS = 64
"""As many are never merged for short slices, and where they are, one level reaches 4,096."""
SHORT_SLICE = 1 << 14
"""Bytes that are written and read once more in the time that opening a shard takes."""

Shards = tuple[Any, ...]
"""Shards, or what has a size as they do."""


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """Ranges [first, stop) of the `ranges` of one key space, and the shards that hold rows of them:
    those of several kinds, each kind parallel to the others. `work`: bytes of these rows."""

    name: str
    first: int
    stop: int
    ranges: int
    kinds: tuple[Shared[Shards], ...]
    work: int

    @property
    def shards(self) -> Shared[Shards]:
        """Those of the first kind."""
        return self.kinds[0]

    def bounds(self, whole: int) -> tuple[int, int]:
        """[low, high) of the ranges where all of them part [0, whole) evenly."""
        return whole * self.first // self.ranges, whole * self.stop // self.ranges


def bundle_shards(name: str, ranges: int, *kinds: Shared[Shards], work: int) -> Bundle:
    """All ranges of a key space, and all shards with rows of it."""
    return Bundle(name=name, first=0, stop=ranges, ranges=ranges, kinds=kinds, work=work)


Merge = Callable[[str, tuple[Bundle, ...]], StageManifest]
"""Runs the stage of this name: one task per bundle, each with one shard of every kind."""


def merge_in_levels(
    bundles: Sequence[Bundle], stages: Sequence[str], merge: Merge, short: bool = False
) -> tuple[Bundle, ...]:
    """The same ranges as bundles that are not wide, in order: as they are, or merged by as many of
    these stages as that takes. A stage merges all bundles, so that nothing later reads what it
    read. `short`: also those are wide whose slices are so short that merging them costs less."""
    most = min(FEW_SHARDS, MOST_SHARDS) if short and _are_short(bundles) else MOST_SHARDS
    for stage in stages:
        if not any(len(bundle.shards.value) > most for bundle in bundles):
            break
        divided = [part for bundle in bundles for part in _divide(bundle, most)]
        records = iter(merge(stage, tuple(chain.from_iterable(divided))).tasks)
        bundles = [_join(part, [next(records).shards for _ in part]) for part in divided]
    return tuple(bundles)


def _are_short(bundles: Sequence[Bundle]) -> bool:
    """Whether slices have less than SHORT_SLICE bytes, on average over all ranges."""
    slices = sum(len(b.shards.value) * (b.stop - b.first) for b in bundles)
    return sum(bundle.work for bundle in bundles) < SHORT_SLICE * slices


def _join(groups: list[Bundle], merged: list[Shards]) -> Bundle:
    """What the groups of a range were merged into."""
    one = groups[0]
    return Bundle(
        name=one.name,
        first=one.first,
        stop=one.stop,
        ranges=one.ranges,
        kinds=tuple(Shared(kind) for kind in zip(*merged, strict=True)),
        work=sum(group.work for group in groups),
    )


def _divide(bundle: Bundle, most: int) -> list[list[Bundle]]:
    """Groups of shards by coarser ranges. What one group has of one of them is as much as all
    shards have of a range, so that a merge takes no more memory than what reads a range."""
    size = group_size(len(bundle.shards.value), most)
    starts = range(0, len(bundle.shards.value), size)
    groups = [tuple(Shared(k.value[i : i + size]) for k in bundle.kinds) for i in starts]
    sizes = [sum(s.size for kind in group for s in kind.value) for group in groups]
    whole, ranges = max(1, sum(sizes)), bundle.stop - bundle.first
    parts = max(1, min(ranges, -(-ranges * max(sizes) // whole)))
    cuts = [bundle.first + ranges * part // parts for part in range(parts + 1)]
    return [
        [
            Bundle(
                name=bundle.name,
                first=first,
                stop=stop,
                ranges=bundle.ranges,
                kinds=group,
                work=bundle.work * (stop - first) * size // max(1, ranges * whole),
            )
            for group, size in zip(groups, sizes, strict=True)
        ]
        for first, stop in pairwise(cuts)
    ]


def shards_together(shards: int) -> int:
    """How many neighbouring shards a task takes so that at most MOST_SHARDS tasks are needed. A
    power of two, which seldom changes as a run grows.

    >>> [shards_together(shards) for shards in (512, 513, 1_526, 16_000, 1_000_000)]
    [1, 2, 4, 32, 32]
    """
    together = 1
    while together < MOST_TOGETHER and together * MOST_SHARDS < shards:
        together *= 2
    return together


def count_merges(shards: int, most: int) -> int:
    """How often shards are merged before one task reads slices of at most `most`.

    >>> [count_merges(shards, 512) for shards in (512, 513, 512**2, 512**2 + 1)]
    [0, 1, 1, 2]
    """
    merges = 0
    while most ** (merges + 1) < shards:
        merges += 1
    return merges


def group_size(shards: int, most: int) -> int:
    """How many shards a task merges: about as many on each of the fewest levels, so that no slice
    is shorter than it must be.

    >>> [group_size(shards, 512) for shards in (600, 512**2, 512**2 + 1)]
    [25, 512, 65]
    """
    levels = count_merges(shards, most) + 1
    size = 1
    while size**levels < shards:
        size += 1
    return size


def single_ranges(bundles: Iterable[Bundle]) -> Iterator[tuple[int, Bundle]]:
    """Every range of the bundles with the bundle that it is in, in order."""
    for bundle in bundles:
        for number in range(bundle.first, bundle.stop):
            yield number, bundle
