"""What a script holds after `backend(...)`: the kind of backend, its cluster, where it writes.

`Backend.device` and `Backend.cluster`, as scripts use them.
"""

import enum
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch.utils import _pytree

from pipeline.core.words import did_you_mean_or_all
from wafer_backend.errors import BackendConfigError
from wafer_backend.strict import StrictWatch
from wafer_backend.transports import TransportName


class EmulatedCluster:
    """Settings and workflow of the emulated cluster; there is nothing to reserve."""

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None]) -> None:
        self._read = read
        self._write = write
        self.workflow_id: str | None = None

    @property
    def config(self) -> Any:
        """The backend's `ClusterConfig`; may be replaced until the first step."""
        return self._read()

    @config.setter
    def config(self, config: Any) -> None:
        self._write(config)

    def start_workflow(self, lock_resources: bool = True) -> bool:
        """Give the workflow a number, if it has none; True. Nothing is reserved."""
        self.workflow_id = self.workflow_id or f"emulated-{uuid.uuid4()}"
        return True

    def stop_workflow(self) -> None:
        """Forget the workflow."""
        self.workflow_id = None

    def check_storage_connectivity(self) -> None:
        """Nothing to check: checkpoints are written by this process."""

    @property
    def client(self) -> None:
        """None: there is no management server to talk to."""
        return None


class Device(str):
    """The name of a torch device, which torch takes wherever it takes one, and a context in which
    new tensors are made on it: `with backend.device: model = Model()`."""

    __slots__ = ("_contexts", "config")

    def __new__(cls, name: str, config: Any) -> "Device":
        """`config`: the flags `backends.csx.debug`, which scripts also set as `device.config`."""
        device = super().__new__(cls, name)
        device.config = config
        device._contexts = []
        return device

    config: Any
    _contexts: list[torch.device]

    @property
    def type(self) -> str:
        """cpu, cuda or meta."""
        return torch.device(str(self)).type

    def __enter__(self) -> "Device":
        context = torch.device(str(self))
        context.__enter__()
        self._contexts.append(context)
        return self

    def __exit__(self, *error: Any) -> None:
        self._contexts.pop().__exit__(*error)

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


Target = Literal["CSX", "CPU", "GPU"]
DEFAULT_ARTIFACTS = "wafer_backend_artifacts"


class BackendType(enum.Enum):
    """The three kinds of backend."""

    CSX = "CSX"
    CPU = "CPU"
    GPU = "GPU"

    @classmethod
    def parse(cls, name: "str | BackendType") -> "BackendType":
        """The kind that a script names; the oldest scripts say WSE_WS for CSX."""
        if isinstance(name, BackendType):
            return name
        kinds = {"WSE_WS": cls.CSX} | {kind.value: kind for kind in cls}
        if not isinstance(name, str) or name.upper() not in kinds:
            raise BackendConfigError(f"backend {name!r}: expected one of CSX, CPU, GPU")
        return kinds[name.upper()]

    @classmethod
    def from_str(cls, name: str) -> "BackendType":
        """The same, as R2.4 calls it."""
        return cls.parse(name)

    @property
    def is_csx(self) -> bool:
        """Weights stream."""
        return self is BackendType.CSX

    @property
    def is_cpu(self) -> bool:
        """Weights stay, on the host."""
        return self is BackendType.CPU

    @property
    def is_gpu(self) -> bool:
        """Weights stay, on the first CUDA device."""
        return self is BackendType.GPU


class Backend:
    """The process-wide backend. Made by `backend(...)`, which documents its settings."""

    def __init__(
        self,
        backend_type: BackendType,
        *,
        artifact_dir: str | Path | None,
        cluster_config: "ClusterConfig",
        compile_only: bool,
        validate_only: bool,
        mixed_precision: bool | None,
        transport: TransportName,
        may_change_cluster: Callable[["ClusterConfig"], None],
        device_config: Any = None,
        watch: StrictWatch | None = None,
    ) -> None:
        self.backend_type = backend_type
        self.artifact_dir = Path.cwd() / DEFAULT_ARTIFACTS
        if artifact_dir is not None:
            self.artifact_dir = Path(artifact_dir)
        self.compile_only = compile_only
        self.validate_only = validate_only
        self.mixed_precision = mixed_precision
        self.transport = transport
        self.watch = watch
        self._cluster_config = cluster_config
        self._may_change_cluster = may_change_cluster
        self._device = Device(str(self.torch_device), device_config)
        self._meta = Device("meta", device_config)
        self.cluster = EmulatedCluster(
            lambda: self.cluster_config, lambda config: setattr(self, "cluster_config", config)
        )
        self.appliance = None

    @property
    def _impl(self) -> "Backend":
        """Itself, where scripts look for the implementation behind it."""
        return self

    @property
    def name(self) -> Target:
        """CSX, CPU or GPU."""
        return self.backend_type.value

    @property
    def cluster_config(self) -> "ClusterConfig":
        """The emulated cluster. May be replaced or changed until the first step."""
        return self._cluster_config

    @cluster_config.setter
    def cluster_config(self, cluster_config: "ClusterConfig") -> None:
        self._may_change_cluster(cluster_config)
        self._cluster_config = cluster_config

    @property
    def is_csx(self) -> bool:
        """Weights stream from MemoryX."""
        return self.backend_type.is_csx

    @property
    def is_cpu(self) -> bool:
        """Weights stay, on the host."""
        return self.backend_type.is_cpu

    @property
    def is_gpu(self) -> bool:
        """Weights stay, on the first CUDA device."""
        return self.backend_type.is_gpu

    @property
    def is_tracing(self) -> bool:
        """Always False: steps run eagerly, nothing is traced ahead of time."""
        return False

    @property
    def is_e2e_execution(self) -> bool:
        """Steps run, and not only a plan or a check."""
        return not (self.compile_only or self.validate_only)

    @property
    def torch_device(self) -> torch.device:
        """Where batches and parameters live between steps."""
        return torch.device("cuda" if self.is_gpu else "cpu")

    @property
    def device(self) -> Device:
        """The device to build a model on: `with backend.device: model = Model()`.

        With compile_only it is meta: a plan needs shapes only, so a model of any size is built
        in an instant. `device.config`: the flags `backends.csx.debug`.
        """
        return self._meta if self.compile_only else self._device

    def to_cpu(self, tensors: Any) -> Any:
        """The same nested structure with every tensor on the host."""
        return _pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("cpu"), tensors)

    def __repr__(self) -> str:
        return f"Backend({self.name}, num_csx={self.cluster_config.num_csx})"


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
    "num_workers_per_csx": _whole(0),
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
    config is frozen. None stands for the default, as scripts pass on what a params file lacks; 0
    workers for one. The fields of `WITHOUT_EFFECT` are accepted so that scripts run.

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
        "num_csx",
        "max_wgt_servers",
        "num_workers_per_csx",
        "job_labels",
        "job_priority",
    )

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
        if value is None:
            value = getattr(type(self), name)
        expected = None if value is None or name not in _CHECKS else _CHECKS[name](value)
        if expected is not None:
            raise BackendConfigError(f"{kind}.{name} = {value!r}: expected {expected}")
        object.__setattr__(self, name, value)

    def __hash__(self) -> int:
        """Of its settings: scripts keep backends in caches by them."""
        return hash(repr(self))

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
