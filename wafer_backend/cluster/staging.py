"""What MemoryX hands out in the place of a new copy of a weight: one that a device copies from, or
one that came back.
"""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import nn

from wafer_backend.cluster.precision import (
    Precision,
    streamed_dtype,
    travelling_copy,
    travels_changed,
)

SPARE_BYTES = 64 << 20
"""Most bytes of copies that wait: all weights of a small model, whose leaves take no longer than
copying them does, and little memory next to a large one."""


class SpareCopies:
    """Copies of weights that came back in the pass under way, one of each at most."""

    def __init__(self) -> None:
        self._copies: dict[str, torch.Tensor] = {}
        self._bytes = 0
        self._open = False

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Copies are kept inside; none is left after it, as weights may change then."""
        self._open = True
        try:
            yield
        finally:
            self._open = False
            self._copies.clear()
            self._bytes = 0

    def add(self, name: str, copy: torch.Tensor) -> None:
        """Keep a copy, if there is room."""
        room = self._bytes + copy.nbytes <= SPARE_BYTES
        if self._open and room and name not in self._copies:
            self._copies[name] = copy
            self._bytes += copy.nbytes

    def take(self, name: str) -> torch.Tensor | None:
        """A copy that was kept, for whoever asks; None without one."""
        copy = self._copies.pop(name, None)
        if copy is not None:
            self._bytes -= copy.nbytes
        return copy


class Staging:
    """Host tensors in the format that weights travel in.

    `pinned` moves the masters to pinned memory; parameters stay the
    same objects. Pinned memory comes in powers of two: PyTorch's host allocator rounds up.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        precision: Precision,
        *,
        pinned: bool,
    ) -> None:
        self._parameters = parameters
        self._precision = precision
        self._pinned = pinned
        self._halves: dict[str, torch.Tensor] = {}
        self._cast: set[str] = set()
        if pinned:
            for parameter in parameters.values():
                parameter.data = parameter.data.pin_memory()

    def begin_pass(self) -> None:
        """Masters may have changed: cast again what is asked for."""
        self._cast.clear()

    def weight(self, name: str) -> torch.Tensor:
        """A weight as it travels, valid until the pass ends; not to be written to."""
        master = self._parameters[name].detach()
        if not travels_changed(master, self._precision):
            return master
        if name not in self._cast:
            with torch.inference_mode(False), torch.no_grad():
                if name not in self._halves:
                    dtype = streamed_dtype(master, self._precision)
                    self._halves[name] = torch.empty_like(
                        master, dtype=dtype, pin_memory=self._pinned
                    )
                self._halves[name].copy_(travelling_copy(master, self._precision))
            self._cast.add(name)
        return self._halves[name]
