"""Errors that scripts catch or raise. Those of an appliance are never raised by this package."""

from wafer_backend.errors import BackendError


class ApplianceClientException(BackendError):
    """Base class."""


class ApplianceNanError(ApplianceClientException):
    """Training met NaN or infinity and cannot continue; raised by scripts."""


class ApplianceDeadlockError(ApplianceClientException):
    """An appliance has stalled."""


class ApplianceUnknownError(ApplianceClientException):
    """An appliance failed for no known reason."""


class ApplianceCompilationError(ApplianceClientException):
    """A model did not compile."""


class ClusterJobCancelledByCsctl(ApplianceClientException):
    """A job was cancelled on the cluster."""
