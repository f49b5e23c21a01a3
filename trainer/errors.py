"""What ends a run before its last step: errors of training, those of the backend as errors a user
meets, and SIGTERM and SIGINT, at which a run finishes its leaf and stops in an orderly way."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from pipeline.core.errors import ConfigError, PrepError, ResourceError
from wafer_backend.errors import BackendConfigError, StepError, TransportError
from wafer_backend.transports.ranks import LOST


class TrainingError(PrepError):
    """A step failed (loss or gradient not finite, nothing to learn from), or a callback did;
    checkpoints are kept."""


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
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(w in str(error) for w in _NO_MEMORY):
            raise
        raise ResourceError(
            "not enough memory for this model and batch; a smaller micro_batch_size, batch_size "
            "or model needs less (`train plan --params FILE` says how much)"
        ) from error


_NO_MEMORY = ("can't allocate memory", "out of memory")
"""What torch says, of the CPU and of a GPU."""


_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignal(Exception):
    """A signal arrived; `exit_code` is 128 + its number (143 SIGTERM, 130 SIGINT)."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def interruption_by(code: int) -> BaseException:
    """What a function raises that a signal stopped, from the exit code of the command."""
    return KeyboardInterrupt() if code == 128 + signal.SIGINT else SystemExit(code)


class StopRequest:
    """Remembers a signal until somebody is ready for it."""

    def __init__(self) -> None:
        self._number: int | None = None

    @property
    def number(self) -> int:
        """The signal that arrived, 0 for none."""
        return self._number or 0

    def check(self) -> None:
        """Raise StopSignal if a signal arrived."""
        self.raise_for(self.number)

    def raise_for(self, number: int) -> None:
        """Raise StopSignal for this signal, unless it is 0."""
        if number:
            raise StopSignal(number)

    def remember(self, number: int, frame: FrameType | None) -> None:
        """Signal handler; a second signal of the same kind acts at once."""
        self._number = number
        signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def catch_signals() -> Iterator[StopRequest]:
    """Catch the signals inside the block; the previous handlers come back after it. Signals reach
    the main thread only: in another one there is nothing to catch."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    previous = {number: signal.signal(number, request.remember) for number in _SIGNALS}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
