"""Algorithms for the parameters of a model, from what configs and scripts write.

`configure` takes a number, a dict or a list of dicts. A list becomes a `Group`: several algorithms,
each for the parameters of its filter. The older spelling is sparsity as an optimizer next to the
optimizer, a thin face over the same algorithms:

    sparsity = RigLSparsityOptimizer(model.named_parameters(), sparsity=0.9, schedule={"freq": 100})
    sparsity.apply_sparsity()          # before the forward pass
    ...                                # forward, backward, optimizer.step()
    sparsity.step()                    # changes masks when it is time

Gradients of pruned weights are zero without a call.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from pipeline.core.words import did_you_mean_or_all
from wafer_backend.errors import BackendConfigError
from wafer_backend.sparse.algorithms import (
    GMP,
    SET,
    RigL,
    SparsityAlgorithm,
    Static,
    enforce_optimizer,
    root_of_apply,
)
from wafer_backend.sparse.schedules import check_keys
from wafer_backend.sparse.selection import (
    Named,
    ParameterFilter,
    check_some,
    default_filter,
    make_filter,
    select_parameters,
)

Params = Iterable[tuple[str, nn.Parameter]] | Iterable[dict[str, Any]]
Filter = str | Sequence[str] | ParameterFilter


default_sparse_param_filter = default_filter
"""As the API calls it."""


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
        if any(algorithm is member for _, member in self.groups):
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
    algorithm = _find_algorithm(name)
    check_keys(f"sparsity, {name}", arguments, algorithm)
    return (default_filter if chosen is None else chosen), algorithm(**arguments)


def map_sparsity_algorithm(algorithm: str) -> type[SparsityAlgorithm]:
    """The class of an algorithm by name, in any case. Raises BackendConfigError."""
    return _find_algorithm(algorithm.lower())


def _find_algorithm(name: str) -> type[SparsityAlgorithm]:
    """The algorithm of this name, in lower case."""
    if name not in ALGORITHMS:
        raise BackendConfigError(
            f"sparsity: unknown algorithm {name!r}{did_you_mean_or_all(name, ALGORITHMS)}"
        )
    return ALGORITHMS[name]


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

    def hook_module(self, module: nn.Module) -> None:
        """Masks are on the parameters themselves; check that some are those of `module`.

        Raises BackendConfigError when none is.
        """
        mine = {id(p) for algorithm in self.algorithms for p in algorithm.parameters.values()}
        if mine and not any(id(parameter) in mine for parameter in module.parameters()):
            raise BackendConfigError(
                f"no sparse parameter of {type(self).__name__} is one of {type(module).__name__}"
            )

    def initialize_sparsity(self) -> None:
        """Zero the pruned weights, as after the weights of a checkpoint were loaded."""
        self.apply_sparsity()

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
    algorithm = _find_algorithm(sparsity_type.lower())
    kind = next(optimizer for optimizer in _OPTIMIZERS if optimizer.algorithm is algorithm)
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
