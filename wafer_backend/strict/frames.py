"""Whose line an operation is on: the script's, or one of this package that stands for the cluster.

The innermost frame outside torch and the standard library decides; optimizers of this package,
whose methods are torch's, stand for the cluster. Frames of this package that only carry a call on
(a streamed module's `__call__`) are passed over; the forward of a leaf is a border, beyond which
everything is the script's.
"""

import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal, TypeVar

import torch

_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parents[1])
_WATCH = str(Path(__file__).parent)
_OPTIMIZERS = str(Path(torch.__file__).parent / "optim")
_STANDARD = sysconfig.get_paths()["stdlib"]
_PACKAGES = (sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"])

_CARRIERS = frozenset(
    {
        ("streaming/attachment.py", "call"),
        ("streaming/attachment.py", "get_attribute"),
        ("streaming/weights.py", "call"),
        ("streaming/activations.py", "run"),
        ("streaming/activations.py", "checkpointed"),
        ("cluster/cbfloat16_compute.py", "__torch_dispatch__"),
        ("utils/tensorboard.py", "add_scalar"),
        ("utils/tensorboard.py", "add_tensor"),
    }
)
_BORDERS = frozenset({("cluster/implicit_loops.py", "call_with_loops")})

_HOST_CODE: list[CodeType] = []
_HOST_IDS: set[int] = set()

Kind = Literal["torch", "optimizer", "ours", "script"]

Function = TypeVar("Function", bound=Callable[..., Any])


def on_host(function: Function) -> Function:
    """A decorator: what this function does stands for the host's part, such as a step closure."""
    _HOST_CODE.append(function.__code__)  # kept, or its id could become another's
    _HOST_IDS.add(id(function.__code__))
    return function


@dataclass(frozen=True)
class Line:
    """A line of a script: file, number, and the function it is in."""

    file: str
    number: int
    function: str

    def __str__(self) -> str:
        path, here = Path(self.file), Path.cwd()
        path = path.relative_to(here) if path.is_relative_to(here) else path
        return f"{path}:{self.number} in {self.function}"


NOWHERE = Line("<no script>", 0, "?")


@cache
def _kind(file: str) -> Kind:
    """Of a file. Like torch, the standard library and the watch itself are passed over."""
    if file.startswith(_OURS) and not file.startswith(_WATCH):
        return "ours"
    if file.startswith(_OPTIMIZERS):
        return "optimizer"
    standard = file.startswith((_STANDARD, "<frozen")) and not file.startswith(_PACKAGES)
    return "torch" if standard or file.startswith((_TORCH, _WATCH)) else "script"


def _is_of_ours(frame: FrameType) -> bool:
    """Whether it is a method that an optimizer or scheduler of this package has from torch."""
    return type(frame.f_locals.get("self")).__module__.startswith("wafer_backend.")


@cache
def _place(file: str, function: str) -> tuple[str, str]:
    return Path(file).relative_to(_OURS).as_posix(), function


def script_line() -> Line | None:
    """The line of the script that this operation is on; None where it is the cluster's own."""
    frame: FrameType | None = sys._getframe(1)
    inside = False
    while frame is not None:
        code = frame.f_code
        kind = _kind(code.co_filename)
        if id(code) in _HOST_IDS:
            return None
        if kind == "script":
            return Line(code.co_filename, frame.f_lineno, code.co_name)
        if kind == "optimizer" and not inside and _is_of_ours(frame):
            return None
        if kind == "ours" and not inside:
            place = _place(code.co_filename, code.co_name)
            inside = place in _BORDERS
            if not inside and place not in _CARRIERS:
                return None
        frame = frame.f_back
    return NOWHERE if inside else None


def calling_line() -> Line:
    """The nearest line of the script, whatever is called from it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if _kind(code.co_filename) == "script":
            return Line(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return NOWHERE


def called_through(part: str) -> bool:
    """Whether a file with `part` in its path is among the callers."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if part in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False
