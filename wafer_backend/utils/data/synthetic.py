"""`SyntheticDataset`: samples of given shapes, each a function of its number."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils.data import Dataset

from wafer_backend.errors import BackendConfigError


@dataclass(frozen=True)
class SampleSpec:
    """One tensor of a sample. `shape`: without the batch. `range`: lowest value and the one
    above the highest; whole numbers in 0 … 1 and floats in 0 … 1 by default.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        low, high = self.bounds
        if not low < high:
            raise BackendConfigError(f"SampleSpec.range = {self.range}: expected low < high")

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest value and the one above the highest."""
        return self.range or ((0.0, 1.0) if self.dtype.is_floating_point else (0, 2))

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        """One tensor of this shape and dtype."""
        low, high = self.bounds
        if self.dtype.is_floating_point:
            unit = torch.rand(self.shape, generator=generator)
            return (low + (high - low) * unit).to(self.dtype)
        return torch.randint(int(low), int(high), self.shape, generator=generator).to(self.dtype)


class SyntheticDataset(Dataset[Any]):
    """`num_samples` samples shaped like `sample_spec`: nested dicts, lists and tuples of
    SampleSpec, of tensors (every sample is that tensor) or of functions from a sample's number.

    Sample i depends on i and its place in the structure alone.
    """

    def __init__(self, sample_spec: Any, num_samples: int) -> None:
        if type(num_samples) is not int or num_samples < 1:
            raise BackendConfigError(
                f"SyntheticDataset: num_samples = {num_samples!r}: expected a number, at least 1"
            )
        leaves, self._structure = _pytree.tree_flatten(sample_spec)
        for leaf in leaves:
            if not isinstance(leaf, SampleSpec | torch.Tensor | Callable):
                raise BackendConfigError(
                    f"SyntheticDataset: {leaf!r} in the spec is not a SampleSpec, tensor or "
                    "function"
                )
        self._leaves = leaves
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self._num_samples:
            raise IndexError(f"sample {index} of {self._num_samples}")
        drawn = [self._draw(leaf, place, index) for place, leaf in enumerate(self._leaves)]
        return _pytree.tree_unflatten(drawn, self._structure)

    def _draw(self, leaf: Any, place: int, index: int) -> Any:
        if isinstance(leaf, SampleSpec):
            seed = index * len(self._leaves) + place
            return leaf.draw(torch.Generator().manual_seed(seed))
        return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf(index)
