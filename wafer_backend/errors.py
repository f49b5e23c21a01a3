"""Errors of the backend; it is usable alone, so it has a tree of its own.

BackendError
 +-- BackendConfigError   the cluster, leaf size or module cannot work as asked; nothing ran
 +-- StepError            one global step failed; the weights are those before the step
"""


class BackendError(Exception):
    """Base class: one clear line."""


class BackendConfigError(BackendError, ValueError):
    """The cluster, leaf size or module cannot work as asked; nothing ran."""


class StepError(BackendError):
    """A global step failed; the master weights are those before the step."""
