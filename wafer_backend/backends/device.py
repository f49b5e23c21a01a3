"""`Backend.device` and `Backend.cluster`, as scripts use them."""

import uuid
from collections.abc import Callable
from typing import Any

import torch


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
