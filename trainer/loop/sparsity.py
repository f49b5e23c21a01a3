"""Sparse weights of a run: masks put on, saved, restored and measured.

Masks are next to the parameters in MemoryX (`wafer_backend.sparse`), where checkpoints find them;
counts of steps and updates go with state.json.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from trainer.config import ModelConfig, Params, SparsityGroup
from trainer.config.model_parameters import shapes
from trainer.config.sparsity import StaticConfig
from trainer.config.sparsity_names import sparse_names
from wafer_backend.compiled import CompiledModule
from wafer_backend.sparse import Group, SimulatedSpeedup, configure, mask_of
from wafer_backend.sparse.schedules import make_schedule
from wafer_backend.sparse.selection import kept_count

STATE = "sparsity_state"
"""Key of state.json with the counters of every group."""


def put_masks(params: Params, compiled: CompiledModule) -> Group | None:
    """Give the weights that are there their first masks; None for a dense run."""
    if not params.sparsity:
        return None
    groups = []
    for group in params.sparsity:
        values = group.model_dump(exclude={"param_name_patterns"}, exclude_none=True)
        values["param_filter"] = list(group.param_filter or ())
        if "steps" in values.get("update", {}):
            values["update"] = {"steps": values["update"]["steps"]}
        groups.append({"seed": params.runconfig.seed, **values})
    masks = configure(groups)
    compiled.module.apply(masks)
    optimizer = compiled.memoryx.optimizer
    assert optimizer is not None, "build.compile_model sets it"
    masks(optimizer)
    return masks


def counters(masks: Group) -> list[dict[str, int]]:
    """Steps and updates of every group, for state.json."""
    return [{"step": a.step, "updates": a.updates} for _, a in masks.groups]


def restore_masks(
    masks: Group, saved: Mapping[str, torch.Tensor], counted: Sequence[Mapping[str, int]]
) -> None:
    """Go on with saved masks (packed bits by parameter name) and counters. Raises
    BackendConfigError for masks of other parameters."""
    for (_, algorithm), numbers in zip(masks.groups, counted, strict=True):
        own = {name: saved[name] for name in algorithm.parameters if name in saved}
        algorithm.load_state_dict(
            {"algorithm": type(algorithm).__name__, "masks": own, **numbers},
        )


def make_level_meter(masks: Group, compiled: CompiledModule) -> Callable[[], dict[str, float]]:
    """A function that measures the share of weights that are pruned now, by `POSITION.algorithm`
    of the groups. All ranks call it; each counts the parameters whose weight server it hosts."""
    ranks, rank = compiled.transport.processes, compiled.transport.rank
    servers = compiled.memoryx.servers

    def measured() -> dict[str, float]:
        counts_G2 = torch.zeros(len(masks.groups), 2, dtype=torch.float64)
        for row, (_, algorithm) in enumerate(masks.groups):
            for name, parameter in algorithm.parameters.items():
                mask = mask_of(parameter)
                if mask is not None and servers[name] % ranks == rank:
                    counts_G2[row] += torch.tensor([int((~mask).sum()), mask.numel()])
        whole_G2 = sum(compiled.transport.gather({rank: counts_G2}), torch.zeros_like(counts_G2))
        return {
            f"{row}.{type(algorithm).__name__.lower()}": float(pruned / elements)
            for row, ((_, algorithm), (pruned, elements)) in enumerate(
                zip(masks.groups, whole_G2, strict=True)
            )
        }

    return measured


def pruned_share(masks: Group) -> tuple[int, int]:
    """(pruned weights, weights) of all parameters that have a mask."""
    masks_of_all = [
        mask
        for _, algorithm in masks.groups
        for parameter in algorithm.parameters.values()
        if (mask := mask_of(parameter)) is not None
    ]
    return sum(int((~mask).sum()) for mask in masks_of_all), sum(
        mask.numel() for mask in masks_of_all
    )


def mask_bytes(params: Params) -> int:
    """Bytes of all masks in a checkpoint: an eighth of a byte an element."""
    every = shapes(params.model)
    names = [name for group in params.sparsity for name in sparse_names(group, params.model)]
    return sum(-(-math.prod(every[name]) // 8) for name in names)


def describe_sparsity(params: Params) -> list[str]:
    """What `--compile_only` prints of sparse weights, at their first masks; [] for a dense run."""
    lines = []
    for group in params.sparsity:
        names = sparse_names(group, params.model)
        lines.append(
            f"sparsity: {group.algorithm}, {first_level(group):.1%} of {len(names)} matrices at "
            f"step 0 ({', '.join(group.param_filter or ())}); FLOPs, memory and times are those of "
            "dense weights"
        )
    return [*lines, str(speedup(params.sparsity, params.model))] if lines else []


def first_level(group: SparsityGroup) -> float:
    """The share that the first masks prune, unless they are made from the zeros of the weights."""
    if isinstance(group, StaticConfig):
        return group.sparsity
    level = make_schedule("sparsity", group.sparsity.model_dump())
    return min(max(level(0, 0), 0.0), 1.0)


def speedup(groups: Sequence[SparsityGroup], model: ModelConfig) -> SimulatedSpeedup:
    """As `wafer_backend.sparse.simulated_speedup`, at the first masks, from shapes alone."""
    pruned_at = {n: first_level(group) for group in groups for n in sparse_names(group, model)}
    elements = kept = 0
    for name, shape in shapes(model).items():
        looked_up = "embedding" in name and not (
            name == "token_embedding.weight" and model.share_embedding_weights
        )
        if len(shape) >= 2 and not looked_up:
            size = math.prod(shape)
            elements += size
            kept += kept_count(pruned_at.get(name, 0.0), size)
    return SimulatedSpeedup(ratio=elements / max(kept, 1), density=kept / elements)
