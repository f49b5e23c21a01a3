"""The older spelling: sparsity as an optimizer beside the optimizer.

    sparsity = RigLSparsityOptimizer(model.named_parameters(), sparsity=0.9, schedule={"freq": 100})
    sparsity.apply_sparsity()          # before the forward pass
    ...                                # forward, backward, optimizer.step()
    sparsity.step()                    # changes masks when it is time

It is a thin face over the algorithms; gradients of pruned weights are zero without a call.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from wafer_backend.errors import BackendConfigError
from wafer_backend.sparse.algorithms import (
    GMP,
    SET,
    RigL,
    SparsityAlgorithm,
    Static,
    enforce_optimizer,
)
from wafer_backend.sparse.configure import algorithm_class
from wafer_backend.sparse.schedules import check_keys
from wafer_backend.sparse.selection import (
    Named,
    ParameterFilter,
    check_some,
    default_filter,
    make_filter,
)

Params = Iterable[tuple[str, nn.Parameter]] | Iterable[dict[str, Any]]


class SparsityOptimizer:
    """Base class. `params`: named parameters, or dicts {"params": named parameters, ...} whose
    other keys override the arguments. Of them, those that `sparse_param_filter` takes become
    sparse; by default those of two or more dimensions that are no embedding, norm, output head or
    bias. `schedule`: the steps of updates, {freq, start, stop} or {steps}.

    The other arguments are those of the algorithm of the same name.
    """

    algorithm: ClassVar[type[SparsityAlgorithm]]

    def __init__(
        self,
        params: Params,
        sparsity: Any = None,
        schedule: Any = None,
        *,
        sparse_param_filter: ParameterFilter = default_filter,
        **arguments: Any,
    ) -> None:
        arguments |= {"sparsity": sparsity, "schedule": schedule}
        self.algorithms: list[SparsityAlgorithm] = []
        listed: list[Any] = list(params)
        groups = listed if listed and isinstance(listed[0], dict) else [{"params": listed}]
        for group in groups:
            self._add(arguments | group, sparse_param_filter)

    def apply_sparsity(self) -> None:
        """Zero the pruned weights."""
        for algorithm in self.algorithms:
            algorithm.enforce()

    def step(self) -> None:
        """Count one step of the optimizer, change masks if it is time, zero the pruned weights."""
        for algorithm in self.algorithms:
            algorithm.advance()
            algorithm.enforce()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of the sparse parameters."""
        for parameter in (p for a in self.algorithms for p in a.parameters.values()):
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    def manage_optimizer_state_sparsity(self, optimizer: torch.optim.Optimizer) -> None:
        """Zero the optimizer's state of pruned weights now and after each of its steps."""

        def after_step(stepped: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            enforce_optimizer(stepped)

        optimizer.register_step_post_hook(after_step)
        enforce_optimizer(optimizer)

    def state_dict(self) -> dict[str, Any]:
        """The states of the algorithms by the position of their group."""
        return {str(i): algorithm.state_dict() for i, algorithm in enumerate(self.algorithms)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`."""
        if len(state) != len(self.algorithms):
            raise BackendConfigError(
                f"the saved sparsity has {len(state)} groups, this one {len(self.algorithms)}"
            )
        for i, algorithm in enumerate(self.algorithms):
            algorithm.load_state_dict(state[str(i)])

    def _add(self, arguments: dict[str, Any], chosen: ParameterFilter) -> None:
        named: Named = [(name, p) for name, p in arguments.pop("params") if chosen(name, p)]
        check_some(named, chosen)
        update = arguments.pop("schedule")
        if update is not None:
            arguments["update"] = update
        check_keys(type(self).__name__, arguments, self.algorithm)
        algorithm = self.algorithm(**arguments)
        algorithm.sparsify(named)
        self.algorithms.append(algorithm)


class StaticSparsityOptimizer(SparsityOptimizer):
    """Masks stay."""

    algorithm = Static


class GMPSparsityOptimizer(SparsityOptimizer):
    """Gradual magnitude pruning."""

    algorithm = GMP


class SETSparsityOptimizer(SparsityOptimizer):
    """Sparse evolutionary training."""

    algorithm = SET


class RigLSparsityOptimizer(SparsityOptimizer):
    """Rigging the lottery."""

    algorithm = RigL


_OPTIMIZERS: tuple[type[SparsityOptimizer], ...] = (
    StaticSparsityOptimizer,
    GMPSparsityOptimizer,
    SETSparsityOptimizer,
    RigLSparsityOptimizer,
)


def configure_sparsity_optimizer(
    sparsity_type: str,
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    param_name_patterns: str | Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None,
    sparse_param_filter: ParameterFilter | None = None,
    **arguments: Any,
) -> SparsityOptimizer:
    """The sparsity optimizer of a type (static, gmp, set, rigl).

    `param_name_patterns`: a glob, globs, or a dict from globs to arguments that override; a
    parameter takes the first that matches. Raises BackendConfigError for a glob without a match.
    """
    wanted = algorithm_class(sparsity_type.lower())
    kind = next(optimizer for optimizer in _OPTIMIZERS if optimizer.algorithm is wanted)
    if param_name_patterns is None:
        chosen = sparse_param_filter or default_filter
        return kind(named_parameters, sparse_param_filter=chosen, **arguments)
    if isinstance(param_name_patterns, str):
        param_name_patterns = [param_name_patterns]
    rest, groups = dict(named_parameters), []
    for glob in param_name_patterns:
        overrides = param_name_patterns[glob] if isinstance(param_name_patterns, Mapping) else {}
        matches = make_filter(glob)
        named = [(name, rest[name]) for name in list(rest) if matches(name, rest[name])]
        check_some(named, glob)
        groups.append({"params": [(name, rest.pop(name)) for name, _ in named], **overrides})
    return kind(groups, sparse_param_filter=lambda name, parameter: True, **arguments)
