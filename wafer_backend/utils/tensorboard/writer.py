"""`SummaryWriter`: scalars as TensorBoard events, tensors as `.mdl` files beside them."""

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from wafer_backend import backends, storage
from wafer_backend.errors import BackendConfigError, BackendError
from wafer_backend.state_tree import dataset_name
from wafer_backend.tracing import current_executor, step_closure

if TYPE_CHECKING:
    import tensorboardX

TENSORS = "tensors"


class SummaryWriter:
    """Writes below `log_dir`. The first step of an executor is `base_step`.

    Works inside and outside step closures: nothing is traced, so values are there at once. Text,
    histograms and the other summaries of tensorboardX are available under their names there.
    Of several ranks only the first writes. Raises BackendConfigError when tensorboardX is not
    installed.
    """

    def __init__(self, log_dir: str | Path, base_step: int = 1, **settings: Any) -> None:
        self.log_dir = Path(log_dir)
        self.base_step = base_step
        self._events = _events(self.log_dir, settings)

    def add_scalar(self, name: str, value: float | torch.Tensor, step: int | None = None) -> None:
        """Record one number at a step, by default the current one of the running executor."""
        number = value.item() if isinstance(value, torch.Tensor) else float(value)
        self._events.add_scalar(name, number, self._step(name, step))

    def add_tensor(self, name: str, tensor: torch.Tensor, step: int | None = None) -> None:
        """Record a whole tensor at a step; `SummaryReader.read_tensor` gives it back exactly."""
        at = self._step(name, step)
        if not backends.is_writer():
            return
        now = datetime.datetime.now(datetime.UTC).isoformat()
        path = self.log_dir / TENSORS / dataset_name((name,)) / f"{at:012d}.mdl"
        storage.write({"step": at, "utctime": now, "tensor": tensor.detach()}, path)

    def flush(self) -> None:
        """Bring all events to disk."""
        self._events.flush()

    def close(self) -> None:
        """Flush and close the file of events."""
        self._events.close()

    def __enter__(self) -> "SummaryWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._events, name)

    def _step(self, name: str, step: int | None) -> int:
        executor = current_executor()
        if step is None and executor is None:
            raise BackendError(
                f"summary {name!r}: no executor is running, so the step is not known; give `step`"
            )
        return self.base_step + executor.user_iteration - 1 if step is None else step


def summarize_scalar(name: str, scalar: float | torch.Tensor) -> None:
    """Record a number with the writer of the running executor, at the end of the step."""
    _record_scalar(name, scalar)


def summarize_tensor(name: str, tensor: torch.Tensor) -> None:
    """Record a tensor with the writer of the running executor, at the end of the step."""
    _record_tensor(name, tensor)


@step_closure
def _record_scalar(name: str, scalar: float | torch.Tensor) -> None:
    _writer(name).add_scalar(name, scalar)


@step_closure
def _record_tensor(name: str, tensor: torch.Tensor) -> None:
    _writer(name).add_tensor(name, tensor)


def _writer(name: str) -> SummaryWriter:
    writer = getattr(current_executor(), "writer", None)
    if not isinstance(writer, SummaryWriter):
        raise BackendError(
            f"summary {name!r}: the executor has no writer: DataExecutor(..., writer=...)"
        )
    return writer


def _events(log_dir: Path, settings: dict[str, Any]) -> "tensorboardX.SummaryWriter":
    try:
        import tensorboardX
    except ImportError as error:
        raise BackendConfigError(
            "SummaryWriter needs tensorboardX: pip install 'wafermill[tensorboard]'"
        ) from error
    return tensorboardX.SummaryWriter(
        logdir=str(log_dir), **{"write_to_disk": backends.is_writer(), **settings}
    )
