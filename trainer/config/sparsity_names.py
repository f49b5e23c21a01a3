"""Which parameters the groups of section `sparsity` take.

A filter may say a parameter's name here or in Model Zoo, with or without its prefix `model.`. Q, K
and V are one matrix here and three there, so a filter takes all of them or none.
"""

import fnmatch
import re
from collections.abc import Callable, Sequence
from typing import Literal

import torch

from trainer.config.model import ModelConfig
from trainer.config.model_parameters import MODEL_ZOO, PREFIX, Shapes, shapes
from trainer.config.sparsity import RigLConfig, SparsityConfig, SparsityGroup
from wafer_backend.errors import BackendConfigError
from wafer_backend.sparse.selection import Balance, default_filter

Matches = Callable[[str], bool]
_BLOCK = re.compile(r"blocks\.(\d+)\.")


class FilterError(Exception):
    """`key`: below section `sparsity`, such as 0.param_filter; `reason`: what is wrong there."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason)
        self.key = key
        self.reason = reason


def resolve_groups(
    groups: Sequence[SparsityGroup], model: ModelConfig
) -> tuple[SparsityGroup, ...]:
    """The groups, each with a `param_filter` of names here. Raises FilterError for a filter that
    takes nothing, a part of QKV, or channels that do not fall into the groups."""
    resolved: list[SparsityGroup] = []
    all_shapes = shapes(model)
    rest = list(all_shapes)
    for index, group in enumerate(groups):
        taken = [name for name in _taken(group, index, all_shapes) if name in rest]
        if not taken:
            raise FilterError(_key(group, index), "groups before it have all parameters it takes")
        rest = [name for name in rest if name not in taken]
        _check_balance(group, index, {name: all_shapes[name] for name in taken})
        filters = _as_globs(taken, model.num_hidden_layers)
        update = {"param_filter": filters, "param_name_patterns": None}
        resolved.append(group.model_copy(update=update))
    return tuple(resolved)


def sparse_names(group: SparsityConfig, model: ModelConfig) -> list[str]:
    """The parameters of a resolved group, in the model's order."""
    globs = group.param_filter or ()
    return [name for name in shapes(model) if any(fnmatch.fnmatchcase(name, g) for g in globs)]


def model_zoo_names(name: str) -> list[str]:
    """What Model Zoo calls a parameter: one name, three for QKV, none for what it does not have.

    >>> model_zoo_names("blocks.3.attention.output.weight")
    ['transformer_decoder.layers.3.self_attn.proj_output_dense_layer.weight']
    """
    try:
        return MODEL_ZOO.all_names(name)
    except KeyError:
        return []


def _key(group: SparsityConfig, index: int) -> str:
    return f"{index}.{'param_name_patterns' if group.param_name_patterns else 'param_filter'}"


def _taken(group: SparsityConfig, index: int, all_shapes: Shapes) -> list[str]:
    patterns = group.param_name_patterns or group.param_filter
    if patterns is None:
        return [name for name, shape in all_shapes.items() if _by_default(name, shape)]
    names = list(all_shapes)
    matchers = [_match(pattern, group, index) for pattern in patterns]
    for pattern, matches in zip(patterns, matchers, strict=True):
        if not any(any(_hits(matches, name)) for name in names):
            raise FilterError(
                _key(group, index),
                f"{pattern!r} matches no parameter; names look like {names[0]}, or in Model Zoo "
                f"{model_zoo_names(names[0])[0]}",
            )
    taken = []
    for name in names:
        hits = _hits(lambda each: any(matches(each) for matches in matchers), name)
        if any(hits) and not all(hits):
            raise FilterError(
                _key(group, index),
                f"matches only a part of Q, K and V, which are one matrix here ({name}); match "
                "all three",
            )
        if all(hits):
            taken.append(name)
    return taken


def _hits(matches: Matches, name: str) -> list[bool]:
    """For every name that Model Zoo has for a parameter, whether it, or the name here, matches."""
    parts = model_zoo_names(name) or [name]
    own = matches(name)
    return [own or matches(part) or matches(PREFIX + part) for part in parts]


def _match(pattern: str, group: SparsityConfig, index: int) -> Matches:
    if group.param_name_patterns is None:
        return lambda name: fnmatch.fnmatchcase(name, pattern)
    try:
        expression = re.compile(pattern)
    except re.error as error:
        reason = f"{pattern!r} is not a valid regular expression: {error}"
        raise FilterError(_key(group, index), reason) from None
    return lambda name: expression.search(name) is not None


def _by_default(name: str, shape: tuple[int, ...]) -> bool:
    """Matrices that are no embedding and no read-out, by the backend's rule for their names."""
    like = torch.empty(shape, device="meta")
    return all(default_filter(each, like) for each in (name, *model_zoo_names(name)))


def _check_balance(group: SparsityConfig, index: int, taken: Shapes) -> None:
    if not isinstance(group, RigLConfig):
        return
    counts: dict[Literal["in", "out"], int | None] = {
        "in": group.balance_in_groups,
        "out": group.balance_out_groups,
    }
    for channels, count in counts.items():
        try:
            for name, shape in taken.items():
                Balance(count or 1, channels).check(name, torch.Size(shape))
        except BackendConfigError as error:
            raise FilterError(f"{index}.balance_{channels}_groups", str(error)) from None


def _as_globs(names: list[str], layers: int) -> tuple[str, ...]:
    """The names, those of all blocks as one.

    >>> _as_globs(["read_out.weight", "blocks.0.a.weight", "blocks.1.a.weight"], 2)
    ('read_out.weight', 'blocks.*.a.weight')
    """
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(_BLOCK.sub("blocks.*.", name), []).append(name)
    globs: list[str] = []
    for glob, members in alike.items():
        globs += [glob] if len(members) == layers else members
    return tuple(globs)
