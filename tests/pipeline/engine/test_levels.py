"""Fan-in in levels: every range gets all rows of all shards in order, from few shards at a time."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.manifest import Shard, StageManifest, TaskRecord
from pipeline.engine import levels
from pipeline.engine.levels import Bundle, bundle_shards, count_merges, merge_in_levels
from pipeline.engine.shared import Shared

STAGES = ("one", "two", "three", "four", "five", "six")


def make_shard(kind: str, number: int, size: int) -> Shard:
    return Shard(path=f"{kind}/{number}", size=size, hash="", content_hash="")


class Merging:
    """Stands for stages that merge; knows which first shards are in each, and for which ranges."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self._contents: dict[str, list[str]] = {}
        self._ranges: dict[str, range] = {}

    def read(self, bundle: Bundle, kind: int, wanted: range) -> Iterator[str]:
        for shard in bundle.kinds[kind].value:
            whole = self._ranges.get(shard.path, range(bundle.ranges))
            assert whole.start <= wanted.start and wanted.stop <= whole.stop
            yield from self._contents.get(shard.path, [shard.path])

    def __call__(self, stage: str, bundles: tuple[Bundle, ...]) -> StageManifest:
        self.stages.append(stage)
        tasks = []
        for number, bundle in enumerate(bundles):
            shards = []
            for kind, shared in enumerate(bundle.kinds):
                assert len(shared.value) <= levels.MOST_SHARDS
                shard = make_shard(f"{stage} {kind}", number, max(1, bundle.work))
                ranges = range(bundle.first, bundle.stop)
                self._contents[shard.path] = list(self.read(bundle, kind, ranges))
                self._ranges[shard.path] = ranges
                shards.append(shard)
            tasks.append(TaskRecord("", tuple(shards)))
        return StageManifest(stage, "", {}, tuple(tasks))


@given(
    most=st.integers(2, 5),
    sizes=st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=40), min_size=1, max_size=3),
    ranges=st.integers(1, 30),
    kinds=st.integers(1, 2),
)
def test_every_range_of_every_shard(
    most: int, sizes: list[list[int]], ranges: int, kinds: int
) -> None:
    merging = Merging()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(levels, "MOST_SHARDS", most)
        bundles = []
        for name, of_name in enumerate(sizes):
            shards = [
                Shared(tuple(make_shard(f"{name} {kind}", *pair) for pair in enumerate(of_name)))
                for kind in range(kinds)
            ]
            bundles.append(bundle_shards(str(name), ranges, *shards, work=sum(of_name)))
        merged = merge_in_levels(bundles, STAGES, merging)
    deepest = max(count_merges(len(of_name), most) for of_name in sizes)
    assert merging.stages == list(STAGES[:deepest])
    for name, of_name in enumerate(sizes):
        mine = [bundle for bundle in merged if bundle.name == str(name)]
        assert [n for b in mine for n in range(b.first, b.stop)] == list(range(ranges))
        for bundle in mine:
            assert len(bundle.shards.value) <= most
            for kind in range(kinds):
                read = list(merging.read(bundle, kind, range(bundle.first, bundle.stop)))
                assert read == [f"{name} {kind}/{number}" for number in range(len(of_name))]


@pytest.mark.parametrize(("shards", "ranges"), [(512, 600), (16_000, 12_000), (250_000, 20_000)])
def test_slices_of_large_runs(shards: int, ranges: int) -> None:
    """64 MB a range: no task merges more than twice that, and no slice is below 64 kB."""
    size = ranges * (64 << 20) // shards
    merged: list[Bundle] = []

    def merge(stage: str, bundles: tuple[Bundle, ...]) -> StageManifest:
        merged.extend(bundles)
        tasks = [TaskRecord("", (make_shard(stage, n, b.work),)) for n, b in enumerate(bundles)]
        return StageManifest(stage, "", {}, tuple(tasks))

    every = Shared(tuple(make_shard("first", number, size) for number in range(shards)))
    whole = bundle_shards("train", ranges, every, work=shards * size)
    last = merge_in_levels([whole], STAGES, merge)
    assert bool(merged) == (shards > 512)
    for bundle in merged:
        assert bundle.work <= 128 << 20
        assert bundle.work / len(bundle.shards.value) >= 64_000
    for bundle in last:
        of_range = bundle.work / (bundle.stop - bundle.first)
        assert of_range / len(bundle.shards.value) >= 64_000
    assert len(merged) <= 2 * ranges
