"""What a loader may ask about its place in the cluster, and a warning for one that shards itself.

A loader of the user runs as one task whose batch is the global batch, whatever num_csx is, so the
rank functions answer 0 of 1 everywhere, in worker processes too, and sharding by them does nothing.
Sharding by anything else makes each process see part of the data, which here means that the rest is
never read.
"""

import contextlib
import multiprocessing
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.data.distributed import DistributedSampler

from wafer_backend.backends.base import ClusterConfig
from wafer_backend.errors import BackendError

__all__ = [
    "WORKER_CACHE_ROOT",
    "ClusterConfig",
    "ClusterSpec",
    "DataLoaderCheckpoint",
    "ServiceResolver",
    "TaskSpec",
    "get_ordinal",
    "get_rank",
    "get_streaming_batch_size",
    "get_streaming_rank",
    "get_worker_state",
    "get_world_size",
    "hit_worker_cache_limit",
    "is_master_ordinal",
    "is_receiver",
    "is_streamer",
    "num_receivers",
    "num_streamers",
    "num_tasks",
    "service_resolver",
    "warn_if_sharded",
    "watch_batch_sizes",
    "worker_state",
]


@dataclass(frozen=True, kw_only=True)
class DataLoaderCheckpoint:
    """Where a loader stands, for its `state_dict` (through `get_worker_state`).

    `samples_streamed`: samples yielded since the loader was made or its state loaded.
    `appliance_step`, `worker_step`: batches, likewise. One loader feeds the whole cluster, so
    the other numbers are those of a single worker; they never depend on num_csx.
    """

    samples_streamed: int
    appliance_step: int
    worker_step: int
    local_worker_id: int = 0
    num_workers_per_csx: int = 1
    num_csx: int = 1
    wse_id: int = 0
    user_state_dict: Any = None


_worker_state: ContextVar[DataLoaderCheckpoint | None] = ContextVar("worker_state", default=None)
_asked_batch_sizes: ContextVar[list[int] | None] = ContextVar("asked_batch_sizes", default=None)


def get_worker_state() -> DataLoaderCheckpoint:
    """Where the loader stands. Raises BackendError outside a loader's `state_dict`."""
    state = _worker_state.get()
    if state is None:
        raise BackendError("get_worker_state() may be called in a loader's state_dict() only")
    return state


@contextlib.contextmanager
def worker_state(state: DataLoaderCheckpoint) -> Iterator[None]:
    """Make `get_worker_state` answer `state`."""
    token = _worker_state.set(state)
    try:
        yield
    finally:
        _worker_state.reset(token)


def get_streaming_batch_size(effective_batch_size: int, global_rank: int | None = None) -> int:
    """The batch size a loader should have: the global batch size, unchanged, for any rank."""
    sizes = _asked_batch_sizes.get()
    if sizes is not None:
        sizes.append(effective_batch_size)
    return effective_batch_size


@contextlib.contextmanager
def watch_batch_sizes() -> Iterator[list[int]]:
    """Collect what `get_streaming_batch_size` is asked within the block."""
    sizes: list[int] = []
    token = _asked_batch_sizes.set(sizes)
    try:
        yield sizes
    finally:
        _asked_batch_sizes.reset(token)


def num_tasks() -> int:
    """Tasks that share the data: 1."""
    return 1


def num_streamers() -> int:
    """Tasks that stream inputs: 1."""
    return 1


def num_receivers() -> int:
    """Tasks that receive outputs: 1."""
    return 1


def get_rank() -> int:
    """This process among those of torch.distributed: 0, as each sees the whole batch."""
    return 0


def get_world_size() -> int:
    """Processes of torch.distributed that share the data: 1."""
    return 1


@dataclass(frozen=True)
class TaskSpec:
    """A task that feeds systems: its rank, its rank among those of its system, the system."""

    rank: int
    local_rank: int = 0
    wse_id: int = 0
    node_name: str = "unknown"


@dataclass(frozen=True)
class ClusterSpec:
    """All tasks that feed systems, and which of them this process is."""

    tasks: list[TaskSpec]
    rank: int = 0
    num_csx: int = 1
    num_workers_per_csx: int = 1

    def task(self) -> TaskSpec:
        """The task of this process."""
        return self.tasks[self.rank]


@dataclass(frozen=True)
class ServiceResolver:
    """Where `service_resolver()` finds the tasks."""

    cluster_spec: ClusterSpec


def service_resolver() -> ServiceResolver:
    """The tasks that feed systems: one, whatever num_csx is."""
    return ServiceResolver(ClusterSpec([TaskSpec(0)]))


WORKER_CACHE_ROOT = os.path.join(tempfile.gettempdir(), "wafer_backend_worker_cache")
"""Where loaders may keep copies of data sets."""


def hit_worker_cache_limit(source: str, target: str) -> tuple[bool, int, int]:
    """Whether a copy of the folder `source` would not fit where `target` lies; bytes of the
    folder; bytes that are free there."""
    size = sum(path.stat().st_size for path in Path(source).rglob("*") if path.is_file())
    there = next(path for path in [Path(target), *Path(target).parents] if path.exists())
    free = shutil.disk_usage(there).free
    return size > free, size, free


def get_ordinal() -> int:
    """This task among all: 0."""
    return 0


def get_streaming_rank() -> int:
    """This task among the streamers: 0."""
    return 0


def is_streamer() -> bool:
    """Whether this process streams inputs: yes, every process that runs a loader."""
    return True


def is_receiver() -> bool:
    """Whether this process receives outputs: not in a worker process of a loader."""
    return multiprocessing.parent_process() is None


def is_master_ordinal(local: bool = False) -> bool:
    """Whether this is the main process (the one to download data in, say), of rank 0 if there are
    several ranks."""
    from wafer_backend import backends

    return multiprocessing.parent_process() is None and backends.is_writer()


_INSIDE = ("dataloader", "_loader", "loader", "batch_sampler", "sampler")


def warn_if_sharded(loader: Any) -> None:
    """Warn once for a loader (or whatever wraps one) whose sampler takes a share of the data."""
    sampler = _distributed_sampler(loader)
    if sampler is not None and sampler.num_replicas > 1:
        warnings.warn(
            f"the DistributedSampler of the loader reads share {sampler.rank} of "
            f"{sampler.num_replicas}: the batch of a loader is the global batch here, so the "
            "other shares are never read; remove the sampler",
            stacklevel=3,
        )
    elif int(os.environ.get("WORLD_SIZE", "1") or 1) > 1 and sampler is not None:
        warnings.warn(
            "WORLD_SIZE > 1 and the loader has a DistributedSampler: the batch of a loader is the "
            "global batch here; do not shard the data",
            stacklevel=3,
        )


def _distributed_sampler(loader: Any, depth: int = 4) -> "DistributedSampler[Any] | None":
    """The torch DistributedSampler somewhere inside `loader`, if any."""
    if isinstance(loader, DistributedSampler):
        return loader
    if depth == 0 or not hasattr(loader, "__dict__"):
        return None
    for name in _INSIDE:
        sampler = _distributed_sampler(vars(loader).get(name), depth - 1)
        if sampler is not None:
            return sampler
    return None
