"""Several algorithms, each for the parameters of its filter."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from wafer_backend.errors import BackendConfigError
from wafer_backend.sparse.algorithm import SparsityAlgorithm, root_of_apply
from wafer_backend.sparse.filters import ParameterFilter, check_some, make_filter, select

Filter = str | Sequence[str] | ParameterFilter


class Group:
    """A parameter goes to the first algorithm whose filter takes it; others stay dense.

    Filters: a glob over parameter names, a list of globs, or a function (name, parameter) -> bool.
    """

    def __init__(self, groups: Mapping[str, SparsityAlgorithm] | None = None) -> None:
        self.groups: list[tuple[Filter, SparsityAlgorithm]] = []
        for glob, algorithm in (groups or {}).items():
            self.add(glob, algorithm)

    def add(self, filter: Filter, algorithm: SparsityAlgorithm) -> None:
        """Append an algorithm. Raises BackendConfigError when it is in the group already."""
        if any(algorithm is known for _, known in self.groups):
            raise BackendConfigError(
                f"this {type(algorithm).__name__} is in the group already; make one per filter, "
                "or give it a list of globs"
            )
        self.groups.append((filter, algorithm))

    def __call__(self, target: nn.Module | torch.optim.Optimizer) -> None:
        """Make the parameters of a module sparse, or an optimizer keep them so."""
        if isinstance(target, torch.optim.Optimizer):
            for _, algorithm in self.groups:
                algorithm.attach(target)
        elif target is root_of_apply(target, self):
            self._sparsify(target)

    @property
    def num_sparse_params(self) -> int:
        """Parameters (tensors) that are sparse."""
        return sum(algorithm.num_sparse_params for _, algorithm in self.groups)

    def state_dict(self) -> dict[str, Any]:
        """The states of the algorithms by their position in the group."""
        return {str(i): algorithm.state_dict() for i, (_, algorithm) in enumerate(self.groups)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()` of a group with the same algorithms in the same order."""
        expected = [str(i) for i in range(len(self.groups))]
        if sorted(state) != sorted(expected):
            raise BackendConfigError(
                f"the saved group has {len(state)} algorithms, this one {len(self.groups)}"
            )
        for i, (_, algorithm) in enumerate(self.groups):
            algorithm.load_state_dict(state[str(i)])

    def _sparsify(self, module: nn.Module) -> None:
        taken: set[int] = set()
        for given, algorithm in self.groups:
            chosen = select(module, make_filter(given))
            check_some(chosen, given)
            rest = [(name, p) for name, p in chosen if id(p) not in taken]
            taken.update(id(p) for _, p in rest)
            if rest:
                algorithm.sparsify(rest)
