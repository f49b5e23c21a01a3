"""`Backend.cluster`: the cluster as an object with a workflow, which here begins at once."""

import uuid
from collections.abc import Callable
from typing import Any


class Cluster:
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
