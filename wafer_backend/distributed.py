"""The emulated cluster's settings, and what a loader may ask about its place in the cluster.

A loader of the user runs as one task whose batch is the global batch, whatever num_csx is, so the
rank functions answer 0 of 1 everywhere, in worker processes too.
"""

import contextlib
import multiprocessing
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from pipeline.core.words import did_you_mean_or_all
from wafer_backend.errors import BackendConfigError, BackendError

Check = Callable[[Any], str | None]
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}=[A-Za-z0-9_.-]{0,63}")


def _whole(least: int) -> Check:
    def wrong(value: Any) -> str | None:
        good = type(value) is int and value >= least
        return None if good else f"a whole number, at least {least}"

    return wrong


def _texts(pattern: re.Pattern[str] | None, expected: str) -> Check:
    def wrong(value: Any) -> str | None:
        good = isinstance(value, list | tuple) and all(
            isinstance(item, str) and (pattern is None or pattern.fullmatch(item)) for item in value
        )
        return None if good else expected

    return wrong


def _address(value: Any) -> str | None:
    good = value is None or (isinstance(value, str) and re.fullmatch(r"[^:\s]+:\d{1,5}", value))
    return None if good else "HOST:PORT or None"


def _priority(value: Any) -> str | None:
    return None if value in ("p1", "p2", "p3") else "p1, p2 or p3"


_PATHS = "a list of paths"
_CHECKS: dict[str, Check] = {
    "num_csx": _whole(1),
    "max_wgt_servers": _whole(0),
    "max_act_per_csx": _whole(0),
    "num_workers_per_csx": _whole(1),
    "mgmt_address": _address,
    "job_labels": _texts(_LABEL, "a list of labels like ['team=nlp']"),
    "job_priority": _priority,
    "job_time_sec": lambda value: None if value is None else _whole(1)(value),
    "mount_dirs": _texts(None, _PATHS),
    "python_paths": _texts(None, _PATHS),
    "transfer_processes": lambda value: None if value is None else _whole(1)(value),
}


@dataclass(init=False)
class ClusterConfig:
    """Settings of the emulated cluster; keyword arguments, checked when set.

    `num_csx`: CS-2 systems. `max_wgt_servers`: MemoryX shards, 0 for auto.
    `num_workers_per_csx`: above 1, that many processes run the loader. `job_labels` ("KEY=VALUE")
    and `job_priority` (p1, p2, p3): of the job in `train jobs`. Once bound by the first step a
    config is frozen. The fields of `WITHOUT_EFFECT` are accepted so that scripts run.

    Raises BackendConfigError for a wrong value or an unknown name.
    """

    mgmt_address: str | None = None
    mgmt_namespace: str | None = None
    credentials_path: str | None = None
    num_csx: int = 1
    max_wgt_servers: int = 0
    max_act_per_csx: int = 0
    num_workers_per_csx: int = 1
    cbcore_image: str | None = None
    job_labels: list[str] | None = None
    job_priority: str = "p2"
    job_time_sec: int | None = None
    mount_dirs: list[str] | None = None
    python_paths: list[str] | None = None
    automount: bool = True
    mount_all: bool = True
    disable_mount_check: bool = True
    disable_version_check: bool = False
    workflow_id: str | None = None
    notifications: Any = None

    WITH_EFFECT: ClassVar[tuple[str, ...]] = (
        "num_csx", "max_wgt_servers", "num_workers_per_csx", "job_labels", "job_priority",
    )  # fmt: skip

    def __init__(self, **settings: Any) -> None:
        object.__setattr__(self, "_bound", False)
        for field in fields(self):
            object.__setattr__(self, field.name, field.default)
        for name, value in settings.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        kind = type(self).__name__
        names = [field.name for field in fields(self)]
        if name not in names:
            hint = did_you_mean_or_all(name, names)
            raise BackendConfigError(f"{kind} has no setting {name!r}{hint}")
        if self.bound:
            raise BackendConfigError(
                f"{kind}.{name} cannot change after the first step; start a new run for {value!r}"
            )
        optional = value is None and getattr(type(self), name, None) is None
        expected = None if optional or name not in _CHECKS else _CHECKS[name](value)
        if expected is not None:
            raise BackendConfigError(f"{kind}.{name} = {value!r}: expected {expected}")
        object.__setattr__(self, name, value)

    @property
    def bound(self) -> bool:
        """Whether a first step has frozen it."""
        return bool(self.__dict__.get("_bound", False))

    def bind(self) -> None:
        """Freeze it; the backend does so at the first step."""
        object.__setattr__(self, "_bound", True)

    @property
    def without_effect(self) -> list[str]:
        """The settings that differ from their default and change nothing here."""
        return [
            field.name
            for field in fields(self)
            if field.name not in self.WITH_EFFECT and getattr(self, field.name) != field.default
        ]


@dataclass(frozen=True)
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


def get_streaming_batch_size(effective_batch_size: int) -> int:
    """The batch size a loader should have: the global batch size, unchanged."""
    asked = _asked_batch_sizes.get()
    if asked is not None:
        asked.append(effective_batch_size)
    return effective_batch_size


@contextlib.contextmanager
def watch_batch_sizes() -> Iterator[list[int]]:
    """Collect what `get_streaming_batch_size` is asked within the block."""
    asked: list[int] = []
    token = _asked_batch_sizes.set(asked)
    try:
        yield asked
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
