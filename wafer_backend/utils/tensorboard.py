"""Summaries for TensorBoard. Needs the extra `tensorboard` (tensorboardX).

`SummaryWriter` writes scalars as TensorBoard events, and tensors as `.mdl` files next to them;
`SummaryReader` reads both, of several directories at once.
"""

import datetime
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from wafer_backend import backends
from wafer_backend.errors import BackendConfigError, BackendError
from wafer_backend.storage import checkpoint
from wafer_backend.storage.state_tree import dataset_name
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
        checkpoint.write_checkpoint({"step": at, "utctime": now, "tensor": tensor.detach()}, path)

    @property
    def cs_events_dir(self) -> str:
        """The directory of the tensor files."""
        return str(self.log_dir / TENSORS)

    def _get_file_writer(self) -> SimpleNamespace:
        """The name of the file of events, where scripts look for it in torch's SummaryWriter."""
        writer = getattr(self._events._get_file_writer(), "event_writer", None)
        name = str(self.log_dir) if writer is None else writer._ev_writer._file_name
        return SimpleNamespace(event_writer=SimpleNamespace(_file_name=name))

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


@step_closure
def summarize_scalar(name: str, scalar: float | torch.Tensor) -> None:
    """Record a number with the writer of the running executor, at the end of the step."""
    _writer(name).add_scalar(name, scalar)


@step_closure
def summarize_tensor(name: str, tensor: torch.Tensor) -> None:
    """Record a tensor with the writer of the running executor, at the end of the step."""
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


_HEADER = struct.Struct("<QI")  # TFRecord: length, its masked crc32c; after the data, its own

_UNUSUAL = re.compile(r"[^-/\w.]")  # what tensorboardX replaces in names


@dataclass(frozen=True)
class Scalar:
    """One recorded number."""

    step: int
    utctime: datetime.datetime
    value: float


@dataclass(frozen=True)
class TensorDescriptor:
    """One recorded tensor."""

    step: int
    utctime: datetime.datetime
    tensor: torch.Tensor


class SummaryReader:
    """Reads the event and tensor files below `log_dirs`, one directory or several, in which a
    later record of the same step replaces an earlier one (a run that was resumed).
    """

    def __init__(self, log_dirs: str | Path | list[str | Path]) -> None:
        given = log_dirs if isinstance(log_dirs, list) else [log_dirs]
        self._log_dirs = [Path(directory) for directory in given]
        missing = [str(directory) for directory in self._log_dirs if not directory.is_dir()]
        if missing:
            raise BackendConfigError(f"SummaryReader: {missing[0]}: there is no such directory")

    def scalar_names(self) -> list[str]:
        """Names of recorded scalars, sorted."""
        return sorted({name for name, _ in self._scalars()})

    def tensor_names(self) -> list[str]:
        """Names of recorded tensors, sorted."""
        return sorted(
            path.name.replace("%2F", "/").replace("%25", "%") for path in self._glob(f"{TENSORS}/*")
        )

    def read_scalar(self, name: str) -> list[Scalar]:
        """The values of a scalar in order of step; empty when there are none."""
        tags = {name, _UNUSUAL.sub("_", name).lstrip("/")}
        by_step = {scalar.step: scalar for tag, scalar in self._scalars() if tag in tags}
        return [by_step[step] for step in sorted(by_step)]

    def read_tensor(self, name: str, latest_only: bool = True) -> Any:
        """The last TensorDescriptor (None when there is none), or all of them as a list."""
        pattern = f"{TENSORS}/{_literal(dataset_name((name,)))}/*.mdl"
        by_step = {path.name: path for path in self._glob(pattern)}
        paths = [by_step[key] for key in sorted(by_step)]
        if not latest_only:
            return [_tensor(path) for path in paths]
        return _tensor(paths[-1]) if paths else None

    def _glob(self, pattern: str) -> list[Path]:
        return [path for directory in self._log_dirs for path in sorted(directory.glob(pattern))]

    def _scalars(self) -> Iterator[tuple[str, Scalar]]:
        from tensorboardX.proto.event_pb2 import Event

        for path in self._glob("*tfevents*"):
            for record in _records(path):
                event = Event.FromString(record)
                at = datetime.datetime.fromtimestamp(event.wall_time, datetime.UTC)
                for value in event.summary.value:
                    if value.HasField("simple_value"):
                        yield value.tag, Scalar(event.step, at, value.simple_value)


def _records(path: Path) -> Iterator[bytes]:
    """The whole records of an event file; a last one that is still being written is left out."""
    data = path.read_bytes()
    start = 0
    while start + _HEADER.size <= len(data):
        length, _ = _HEADER.unpack_from(data, start)
        start += _HEADER.size
        if start + length + 4 > len(data):
            return
        yield data[start : start + length]
        start += length + 4


def _literal(name: str) -> str:
    """A name in which glob sees no pattern."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _tensor(path: Path) -> TensorDescriptor:
    saved = checkpoint.read_checkpoint(path)
    at = datetime.datetime.fromisoformat(saved["utctime"])
    return TensorDescriptor(saved["step"], at, saved["tensor"].materialize())
