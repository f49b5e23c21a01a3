"""`configure`: an algorithm from a number, a dict or a list of dicts, as configs write it.

A list becomes a `Group`: several algorithms, each for the parameters of its filter.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from pipeline.core.words import did_you_mean_or_all
from wafer_backend.errors import BackendConfigError
from wafer_backend.sparse.algorithms import GMP, SET, RigL, SparsityAlgorithm, Static, root_of_apply
from wafer_backend.sparse.schedules import check_keys
from wafer_backend.sparse.selection import (
    ParameterFilter,
    check_some,
    default_filter,
    make_filter,
    select_parameters,
)

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
            chosen = select_parameters(module, make_filter(given))
            check_some(chosen, given)
            rest = [(name, p) for name, p in chosen if id(p) not in taken]
            taken.update(id(p) for _, p in rest)
            if rest:
                algorithm.sparsify(rest)


ALGORITHMS: dict[str, type[SparsityAlgorithm]] = {
    "static": Static,
    "gmp": GMP,
    "set": SET,
    "rigl": RigL,
}


def configure(config: float | Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Group:
    """A group of algorithms, to be applied to a model and an optimizer.

    A number is static sparsity. A dict has `algorithm` (static, gmp, set, rigl; older configs say
    `type`; default static), the arguments of that algorithm (schedules as numbers or dicts,
    `update` as {freq, start, stop} or {steps}), and `param_filter` (a glob or globs; by default
    parameters of two or more dimensions that are no embedding, norm, output head or bias). Of a
    list of dicts, a parameter takes the first whose filter matches.

    Raises BackendConfigError for unknown algorithms, keys and values, with a suggestion.

    >>> configure({"algorithm": "rigl", "sparsty": 0.9})
    Traceback (most recent call last):
    wafer_backend.errors.BackendConfigError: sparsity, rigl: unknown key 'sparsty'; did you mean \
'sparsity'?
    """
    if isinstance(config, int | float) and not isinstance(config, bool):
        config = {"sparsity": config}
    if isinstance(config, Mapping):
        config = [config]
    if not isinstance(config, list | tuple) or not config:
        raise BackendConfigError(
            f"sparsity is {config!r}: give a number, a dict or a list of dicts"
        )
    group = Group()
    for part in config:
        group.add(*_configure_one(part))
    return group


def _configure_one(part: Any) -> tuple[Filter, SparsityAlgorithm]:
    if not isinstance(part, Mapping):
        raise BackendConfigError(f"sparsity: {part!r} is not a dict")
    arguments = dict(part)
    if "type" in arguments and "algorithm" in arguments:
        raise BackendConfigError(
            "sparsity: `type` and `algorithm` are the same setting; give only one of them"
        )
    name = str(arguments.pop("type", arguments.pop("algorithm", "static"))).lower()
    chosen = arguments.pop("param_filter", None)
    algorithm = algorithm_class(name)
    check_keys(f"sparsity, {name}", arguments, algorithm)
    return (default_filter if chosen is None else chosen), algorithm(**arguments)


def algorithm_class(name: str) -> type[SparsityAlgorithm]:
    """The algorithm of this name, in lower case."""
    if name not in ALGORITHMS:
        raise BackendConfigError(
            f"sparsity: unknown algorithm {name!r}{did_you_mean_or_all(name, ALGORITHMS)}"
        )
    return ALGORITHMS[name]
