"""Parameter groups of a model, as trainers make them from section `optimizer` of a params file."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from wafer_backend.errors import BackendConfigError

_NORMS = (
    nn.LayerNorm,
    nn.RMSNorm,
    nn.GroupNorm,
    nn.modules.batchnorm._NormBase,
)


def configure_param_groups(
    model: nn.Module, optimizer_params: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Two groups of trained parameters: with `weight_decay` (`weight_decay_rate`), and, for biases
    and the weights of norms, without.

    Raises BackendConfigError for `adjust_learning_rate`: which parameters its keys stand for is
    not public.
    """
    if optimizer_params.get("adjust_learning_rate"):
        raise BackendConfigError(
            f"adjust_learning_rate {optimizer_params['adjust_learning_rate']!r}: which parameters "
            "its keys stand for is not public; give the optimizer groups with a key "
            "adjust_learning_rate"
        )
    decay = optimizer_params.get("weight_decay", optimizer_params.get("weight_decay_rate", 0.0))
    without = _find_undecayed(model)
    groups: list[dict[str, Any]] = [
        {"params": [], "weight_decay": decay or 0.0},
        {"params": [], "weight_decay": 0.0},
    ]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups["bias" in name or id(parameter) in without]["params"].append(parameter)
    return [group for group in groups if group["params"]]


def _find_undecayed(model: nn.Module) -> set[int]:
    """The parameters of norms."""
    norms = (module for module in model.modules() if isinstance(module, _NORMS))
    return {id(parameter) for norm in norms for parameter in norm.parameters()}


def configure_optimizer_params(optimizer_type: str, kwargs: Mapping[str, Any]) -> Any:
    """Check section `optimizer` of a params file, whose arguments may be under `optim_params`;
    returns the class of the optimizer and the arguments for it. Raises BackendConfigError."""
    from wafer_backend.optim.registry import configure_optimizer

    arguments = {name: value for name, value in kwargs.items() if name != "optim_params"}
    arguments.update(kwargs.get("optim_params") or {})
    placeholder = [torch.zeros(1, requires_grad=True)]
    optimizer = configure_optimizer(optimizer_type, placeholder, **arguments)
    return type(optimizer), arguments


def configure_scheduler_params(learning_rate: Mapping[str, Any]) -> Any:
    """Check one schedule of a params file; returns the class of the scheduler and the arguments
    for it. Raises BackendConfigError."""
    from wafer_backend.optim.registry import configure_lr_scheduler

    placeholder = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.0)
    scheduler = configure_lr_scheduler(placeholder, learning_rate)
    return type(scheduler), {k: v for k, v in learning_rate.items() if k != "scheduler"}
