"""Clients of a cluster's management: the names, so that scripts import."""

from typing import Any

from wafer_backend.errors import BackendConfigError


class TelemetryClient:
    """Raises BackendConfigError: there is no server that takes telemetry."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        raise BackendConfigError(
            "TelemetryClient is not supported: an emulated cluster has no server that takes "
            "telemetry; take TelemetryLogger out of the config"
        )
