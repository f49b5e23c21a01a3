"""The memory that tasks declare, and that workers have: what runs at the same time fits, and what
fits nowhere is an error before it begins. And the limit on addresses, which libraries do not
survive.
"""

import ctypes
import resource
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pipeline.core.errors import ResourceError

KILLED_AT = 0.95
"""Share of its limit at which Dask's nanny kills a worker."""
MEMORY = "wafermill-memory"
"""The resource of Dask that workers elsewhere have: bytes that tasks may use."""
_NO_LIMIT = 1 << 60
_ADDRESSES = 4 << 30
"""Bytes of addresses that a process needs; several times the memory that is used, because
allocators, threads and mapped libraries reserve them."""


KEPT_MEMORY = {"MALLOC_TRIM_THRESHOLD_": (-1, 256 << 20), "MALLOC_MMAP_THRESHOLD_": (-3, 32 << 20)}
"""glibc's name of a setting in the environment, its number for mallopt, and bytes. By default a
process gives freed memory back by the 64 KiB, and clears as much again for the next array: a tenth
of all CPU time. What a process may keep is far less than a task needs."""


def keep_freed_memory() -> None:
    """This process uses freed memory again; nothing where the C library is not glibc."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for number, size in KEPT_MEMORY.values():
            library.mallopt(number, size)


def worker_room(limit: int | None) -> int:
    """Bytes that the tasks of a worker with this limit may use; None and 0 are no limit."""
    return int(limit * KILLED_AT) if limit else _NO_LIMIT


class SizedJob(Protocol):
    """What a call is given: its name in messages, and the bytes of memory its process needs."""

    @property
    def label(self) -> str:
        """As messages name it."""
        ...

    @property
    def memory(self) -> int:
        """Bytes at the peak, those of the process included."""
        ...


class Memory(Protocol):
    """What the workers of a cluster have."""

    def share(self, jobs: Sequence[SizedJob]) -> None:
        """Prepare for these jobs. Raises ResourceError where one is too large."""
        ...

    def fits(self, sizes: Sequence[int]) -> bool:
        """Whether calls of these sizes can run at the same time."""
        ...

    def needs(self, job: SizedJob) -> dict[str, int]:
        """The resources of Dask that a worker must have left for the job."""
        ...

    def has_room(self, workers: Mapping[str, Any]) -> bool:
        """Whether one of these workers, as Dask describes them, can do the largest job."""
        ...


def machine_memory() -> int:
    """Bytes that this machine, or its control group, lets processes use."""
    from distributed.system import MEMORY_LIMIT

    return int(MEMORY_LIMIT)


class LocalMemory:
    """The memory of this machine, or of its control group, which the workers of a local cluster
    share: an equal part each, or as much as the largest task of a stage needs."""

    def __init__(self, cluster: Any, workers: int) -> None:
        self.total = machine_memory()
        self._cluster = cluster
        self._part = self.total // workers

    def share(self, jobs: Sequence[SizedJob]) -> None:
        """Set the limits of the workers for these jobs. Raises ResourceError where one is too
        large."""
        check_memory(jobs, self.total)
        largest = max((job.memory for job in jobs), default=0)
        limit = max(self._part, int(largest / KILLED_AT))
        self._cluster.new_spec["options"]["memory_limit"] = limit
        for nanny in list(self._cluster.workers.values()):
            nanny.memory_manager.memory_limit = limit

    def fits(self, sizes: Sequence[int]) -> bool:
        """See Memory."""
        return sum(sizes) <= self.total

    def needs(self, job: SizedJob) -> dict[str, int]:
        """See Memory."""
        return {}

    def has_room(self, workers: Mapping[str, Any]) -> bool:
        """See Memory."""
        return bool(workers)


class WorkersMemory:
    """The memory of workers elsewhere, each of which has a limit that it was started with. Where a
    task does not fit into every worker, however many it does at a time, Dask gives it to one that
    has room, by the resource that `clusters` declares."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._largest = 0
        self._is_scarce = False

    def share(self, jobs: Sequence[SizedJob]) -> None:
        """See Memory."""
        self._largest = max((job.memory for job in jobs), default=0)
        workers = self._client.scheduler_info()["workers"].values()
        rooms = [(worker_room(worker["memory_limit"]), worker["nthreads"]) for worker in workers]
        if rooms:
            check_memory(jobs, max(room for room, _ in rooms), "the largest worker has")
        self._is_scarce = any(self._largest * threads > room for room, threads in rooms)

    def fits(self, sizes: Sequence[int]) -> bool:
        """See Memory."""
        return True

    def needs(self, job: SizedJob) -> dict[str, int]:
        """See Memory."""
        return {MEMORY: job.memory} if self._is_scarce else {}

    def has_room(self, workers: Mapping[str, Any]) -> bool:
        """See Memory."""
        rooms = [worker_room(worker["memory_limit"]) for worker in workers.values()]
        return bool(rooms) and (not self._is_scarce or max(rooms) >= self._largest)


def check_memory(jobs: Sequence[SizedJob], total: int, there: str = "there are") -> None:
    """Raises ResourceError for a job that needs more than `total` bytes."""
    for job in jobs:
        if job.memory > total:
            raise ResourceError(
                f"{job.label}: needs {job.memory:,} bytes of memory, {there} {total:,}; lower "
                "read.task_bytes, hdf5.shard_bytes or dedup.memory, or give it more"
            )


def check_address_space() -> None:
    """Raise ResourceError where `ulimit -v` leaves too few addresses: libparquet ends the process
    with a segmentation fault then, and others with errors that do not say why."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _ADDRESSES:
        raise ResourceError(
            f"the address space is limited to {limit / 1e6:,.0f} MB (ulimit -v), less than the "
            f"{_ADDRESSES / 1e6:,.0f} MB that allocators and libraries reserve; run `ulimit -v "
            "unlimited`; to limit memory, use a control group instead"
        )
