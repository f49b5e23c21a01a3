"""What a script holds after `backend(...)`: the kind of backend, its cluster, where it writes."""

import enum
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils import _pytree

from wafer_backend.errors import BackendConfigError
from wafer_backend.transports.choice import TransportName

if TYPE_CHECKING:
    from wafer_backend.distributed import ClusterConfig

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
        known = {"WSE_WS": cls.CSX} | {kind.value: kind for kind in cls}
        if not isinstance(name, str) or name.upper() not in known:
            raise BackendConfigError(f"backend {name!r}: expected one of CSX, CPU, GPU")
        return known[name.upper()]

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
    ) -> None:
        self.backend_type = backend_type
        self.artifact_dir = Path.cwd() / DEFAULT_ARTIFACTS
        if artifact_dir is not None:
            self.artifact_dir = Path(artifact_dir)
        self.compile_only = compile_only
        self.validate_only = validate_only
        self.mixed_precision = mixed_precision
        self.transport = transport
        self._cluster_config = cluster_config
        self._may_change_cluster = may_change_cluster

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
    def device(self) -> torch.device:
        """The device to build a model on: `with backend.device: model = Model()`.

        With compile_only it is meta: a plan needs shapes only, so a model of any size is built
        in an instant.
        """
        return torch.device("meta") if self.compile_only else self.torch_device

    @property
    def cluster(self) -> Any:
        """Raises: there is no appliance to talk to."""
        raise BackendConfigError(
            "Backend.cluster is not supported: there is no appliance; "
            "the settings of the emulated cluster are in Backend.cluster_config"
        )

    def to_cpu(self, tensors: Any) -> Any:
        """The same nested structure with every tensor on the host."""
        return _pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("cpu"), tensors)

    def __repr__(self) -> str:
        return f"Backend({self.name}, num_csx={self.cluster_config.num_csx})"
