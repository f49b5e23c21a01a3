"""Errors of training, and those of the backend as errors a user meets."""

import contextlib
from collections.abc import Iterator

from pipeline.core.errors import ConfigError, PrepError
from wafer_backend.errors import BackendConfigError, StepError, TransportError
from wafer_backend.transports.ranks import LOST


class TrainingError(PrepError):
    """A step failed (loss or gradient not finite, nothing to learn from); checkpoints are kept."""


class LostRankError(PrepError):
    """A role or a rank of the cluster was lost; the same command goes on from the checkpoint."""

    exit_code = LOST


@contextlib.contextmanager
def as_prep_errors() -> Iterator[None]:
    """The backend has errors of its own; a user meets one family with exit codes."""
    try:
        yield
    except BackendConfigError as error:
        raise ConfigError(str(error)) from error
    except StepError as error:
        raise TrainingError(str(error)) from error
    except TransportError as error:
        raise LostRankError(str(error)) from error
