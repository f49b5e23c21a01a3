"""Clients of a cluster's management, which an emulated cluster does not have."""

from collections.abc import Mapping
from typing import Any


class TelemetryClient:
    """Takes metrics and drops them: no server collects telemetry."""

    def __init__(
        self, mgmt_client: Any, max_buffer_size: int = 128, max_buffer_seconds: float = 150
    ) -> None:
        self._mgmt_client = mgmt_client

    def push(self, metrics: Mapping[str, Any], labels: Mapping[str, str] | None = None) -> None:
        """Drop metrics."""

    def flush(self) -> None:
        """Nothing is kept."""

    def __enter__(self) -> "TelemetryClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()
