"""Errors of the backend; it is usable alone, so it has a tree of its own.

BackendError
 +-- BackendConfigError   the cluster, leaf size or module cannot work as asked; nothing ran
 +-- StepError            one global step failed; the weights are those before the step
 |    +-- StrictError     strict mode: the wafer would refuse this
 +-- TransportError       a role or a message of the cluster was lost; resume from a checkpoint
 +-- LoaderError          a user's loader or one of its worker processes failed
 +-- CheckpointError      a checkpoint cannot be written, or is damaged, partial or foreign
"""


class BackendError(Exception):
    """Base class: one clear line."""


class BackendConfigError(BackendError, ValueError):
    """The cluster, leaf size or module cannot work as asked; nothing ran."""


class StepError(BackendError):
    """A global step failed; the master weights are those before the step."""


class TransportError(BackendError):
    """A role or a message of the cluster was lost; resume from the last checkpoint."""


class LoaderError(BackendError):
    """A user's loader, or a worker process that runs it, failed."""


class CheckpointError(BackendError):
    """A checkpoint cannot be written as asked, or is damaged, partial or of another format."""


class StrictError(StepError):
    """Strict mode: the wafer would refuse this. `rule`: the name of the rule that it breaks."""

    def __init__(self, message: str, rule: str) -> None:
        super().__init__(message)
        self.rule = rule


class ApplianceClientException(BackendError):
    """Base class of what scripts catch or raise for an appliance; never raised by this package."""


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
