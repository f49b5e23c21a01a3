"""What stages hand on that compare documents: clusters, what these pass on, contained documents."""

from typing import Any

from pipeline.core.manifest import Shard
from pipeline.runs import layout
from pipeline.runs.views.stage_output import (
    Attribute,
    StageOutput,
    counter,
    optional_counter,
    parts_of,
    setting,
    shards_in,
)


class SignaturesOutput(StageOutput):
    """What documents are compared by; `of_runs`: documents of every shard of `runs`; `keyed`: those
    that have the key."""

    signatures = shards_in("signatures")
    runs = shards_in("runs")
    of_runs = counter(int, "documents")
    _counts = optional_counter(list[int](), "counts")
    keyed = counter(int, "keyed")
    preset = setting(dict[str, Any], "preset")
    key = setting(str, "key")

    @property
    def counts(self) -> list[int]:
        """Documents of every documents shard, of which a task of an earlier version had one."""
        pairs = zip(self._counts, self.of_runs, strict=True)
        return [count for counts, documents in pairs for count in counts or [documents]]


class BandsOutput(StageOutput):
    """Memberships in buckets of documents with an equal digest; how many buckets there are."""

    memberships = shards_in("bands")
    buckets = counter(int, "buckets")
    channels = counter(str, "channel")
    first_new = setting(int, "first_new")


class ComponentsOutput(StageOutput):
    """The component and the later task of every document."""

    components = shards_in("components")
    _tasks = counter(list[int], "tasks")

    @property
    def tasks(self) -> list[int]:
        """How many documents every task of `clusters` has."""
        return self._tasks[0]


class RoutesOutput(StageOutput):
    """Memberships sorted by later task."""

    routes = shards_in("routes")


class MembersOutput(StageOutput):
    """What tasks of `clusters` know of their documents, sorted likewise."""

    members = shards_in("members")
    documents = optional_counter(0, "documents")
    without = optional_counter(list[int](), "without")


class ClustersOutput(StageOutput):
    """Which document represents which; `cut_short`: comparisons that a limit ended."""

    choices = shards_in("clusters")
    duplicates = counter(int, "duplicates")
    cut_short = optional_counter(0, "cut_short")
    verify = setting(str, "verify")
    threshold = setting(float, "threshold")


class _DecidedOutput(StageOutput):
    """Decisions, one shard per task."""

    @property
    def decided(self) -> tuple[Shard, ...]:
        """The shards that have some."""
        return tuple(task.shards[0] for task in self.manifest.tasks if task.counters["decisions"])


class GiversOutput(_DecidedOutput):
    """What the policy decided of documents with candidates, sorted by later task."""


class SpreadOutput(_DecidedOutput):
    """Decisions taken over from other documents of a cluster."""


class StaysOutput(StageOutput):
    """Which documents dedup and the policy leave, before contained ones go."""

    states = shards_in("stays")


class SamplesOutput(StageOutput):
    """Sorted runs of sampled shingles; how many each document has."""

    runs = Attribute(
        lambda m: tuple(s for s in m.shards if not s.path.endswith(layout.SIZES_SHARD))
    )
    sizes = shards_in("samples", layout.SIZES_SHARD)
    counts = counter(int, "sampled")


class ContainersOutput(StageOutput):
    """Sampled shingles that documents share with longer ones, by range of digests."""

    pairs = shards_in("containers")


class ContainmentsOutput(StageOutput):
    """Documents and those that contain them, of each documents shard; `counts`: how many."""

    links = shards_in("containments")
    counts = counter(int, "links")


class ContainedOutput(StageOutput):
    """By which of these links documents go."""

    chosen = Attribute(lambda m: m.below("contained")[0])
    documents = counter(int, "documents")


class ClusterSizesOutput(StageOutput):
    """The size of every cluster of several documents, each shard by document."""

    sizes = shards_in("cluster_sizes")


class ClusterTableOutput(StageOutput):
    """The table of clusters."""

    parts = parts_of(layout.CLUSTERS)
