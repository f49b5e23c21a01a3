"""`SummaryReader`: what a `SummaryWriter` wrote, of several directories at once."""

import datetime
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from wafer_backend import storage
from wafer_backend.errors import BackendConfigError
from wafer_backend.state_tree import dataset_name
from wafer_backend.utils.tensorboard.writer import TENSORS

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
        by_step = {scalar.step: scalar for found, scalar in self._scalars() if found in tags}
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
    found = storage.read(path)
    at = datetime.datetime.fromisoformat(found["utctime"])
    return TensorDescriptor(found["step"], at, found["tensor"].materialize())
