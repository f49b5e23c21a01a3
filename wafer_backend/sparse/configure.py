"""`configure`: an algorithm from a number, a dict or a list of dicts, as configs write it."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.core.words import did_you_mean_or_all
from wafer_backend.errors import BackendConfigError
from wafer_backend.sparse.algorithm import SparsityAlgorithm
from wafer_backend.sparse.algorithms import GMP, SET, RigL, Static
from wafer_backend.sparse.filters import default_filter
from wafer_backend.sparse.group import Filter, Group
from wafer_backend.sparse.keys import check_keys

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
