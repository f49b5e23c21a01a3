"""`PyTorchH5Saver`: checkpoints by the tensor, as older tools read them."""

from pathlib import Path
from typing import Any, NoReturn

import torch

from wafer_backend.errors import CheckpointError
from wafer_backend.storage.checkpoint import read_checkpoint, write_checkpoint
from wafer_backend.storage.state_tree import flatten

__all__ = ["PyTorchH5Saver"]


class PyTorchH5Saver:
    """Reads `.mdl` files one tensor at a time and writes them as a whole.

    `max_store`: without effect; files are not limited.
    """

    def __init__(self, max_store: int | None = None) -> None:
        self._max_store = max_store

    @staticmethod
    def is_valid_checkpoint(path: str | Path) -> bool:
        """Whether `load` would read this file."""
        try:
            read_checkpoint(path)
        except CheckpointError:
            return False
        return True

    def tensor_names(self, path: str | Path) -> list[str]:
        """The dotted names of the tensors of a file. Raises CheckpointError."""
        return list(self.flatten_state_dict(read_checkpoint(path))[0])

    def load_tensor(self, path: str | Path, name: str) -> torch.Tensor:
        """One tensor of a file. Raises CheckpointError for a name it does not have."""
        tensors, _ = self.flatten_state_dict(read_checkpoint(path))
        if name not in tensors:
            raise CheckpointError(f"{path} has no tensor {name!r}")
        return tensors[name]

    @staticmethod
    def flatten_state_dict(state: Any) -> tuple[dict[str, torch.Tensor], Any]:
        """The tensors of nested state by dotted name, and what is around them."""
        spec, leaves = flatten(state)
        return {n: leaf for n, leaf in leaves.items() if isinstance(leaf, torch.Tensor)}, spec

    @staticmethod
    def save(path: str | Path, state: Any) -> None:
        """Write nested state as a whole."""
        write_checkpoint(state, path)

    def save_tensor(self, path: str | Path, name: str, tensor: torch.Tensor) -> NoReturn:
        """Raises CheckpointError: a file appears whole, or not at all."""
        raise CheckpointError(
            f"{path}: tensors cannot be added one by one; write the state as a whole with save"
        )

    save_spec = save_tensor
