"""What devices copy weights from: the masters, and half copies cast once per pass over a batch.

For a CUDA device both are pinned, so that copies run beside the computation. Nobody writes to what
is handed out. The optimizer changes masters between passes, when no copy is under way.
"""

from collections.abc import Mapping

import torch
from torch import nn


class Staging:
    """Host tensors in the format that weights travel in.

    `formats`: by parameter name. `pinned` moves the masters to pinned memory; parameters stay the
    same objects. Pinned memory comes in powers of two: PyTorch's host allocator rounds up.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        formats: Mapping[str, torch.dtype],
        *,
        pinned: bool,
    ) -> None:
        self._parameters = parameters
        self._formats = formats
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
        if self._formats[name] == master.dtype:
            return master
        if name not in self._cast:
            with torch.inference_mode(False), torch.no_grad():
                self._half(name, master).copy_(master)
            self._cast.add(name)
        return self._halves[name]

    def _half(self, name: str, master: torch.Tensor) -> torch.Tensor:
        if name not in self._halves:
            self._halves[name] = torch.empty_like(
                master, dtype=self._formats[name], pin_memory=self._pinned
            )
        return self._halves[name]
