"""The optimizer over the parameters in MemoryX: its groups, how large its state is, and the
learning rate as a function of the step.

Schedulers follow one another. Each scheduler is at its own iteration t (0-based, t = 0 at its
first step), so the first step of a warm-up from 0 has learning rate 0. The last one continues as
its formula does; one that leads to an end stays there.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from trainer.config import ModelConfig, Optimizer, OptimizerConfig, Scheduler
from trainer.config.model_parameters import fan_in_multiplier, in_block
from wafer_backend.optim import configure_optimizer

Rates = float | Sequence[Scheduler]


def learning_rate(step: int, rates: Rates) -> float:
    """Learning rate of 1-based `step`.

    >>> from trainer.config import LinearScheduler as Linear
    >>> shape = {"initial_learning_rate": 0.0, "end_learning_rate": 1.0, "total_iters": 4}
    >>> [learning_rate(step, [Linear(scheduler="Linear", **shape)]) for step in (1, 2, 5, 9)]
    [0.0, 0.25, 1.0, 1.0]
    """
    if isinstance(rates, int | float):
        return float(rates)
    iteration = step - 1
    for scheduler in rates[:-1]:
        if scheduler.length is None or iteration < scheduler.length:
            return scheduler.compute_rate(iteration)
        iteration -= scheduler.length
    return rates[-1].compute_rate(iteration)


def find_peak_rate(rates: Rates) -> float:
    """The largest learning rate that the schedulers name, or that a decay begins with."""
    if isinstance(rates, int | float):
        return float(rates)
    return max(rate for scheduler in rates for rate in _peaks(scheduler))


def _peaks(scheduler: Scheduler) -> Iterable[float]:
    if scheduler.scheduler == "InverseSquareRootDecay":
        return [scheduler.compute_rate(0)]
    return scheduler.list_rates()


def build_optimizer(
    parameters: Mapping[str, nn.Parameter],
    config: Optimizer,
    model: ModelConfig,
    *,
    fused: bool = False,
) -> torch.optim.Optimizer:
    """The optimizer of a config, with weight decay on parameters of two or more dimensions, none on
    1-D ones.

    A parameter group learns at `adjust_learning_rate` times the learning rate, which is set before
    every step by whoever applies it; with muP, matrices inside blocks learn at less. `fused`, where
    `can_fuse`, is faster and gives other bits, so it is a property of a run.
    """
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    trained = [(name, p) for name, p in parameters.items() if p.requires_grad]
    for decays in (True, False):
        for name, parameter in trained:
            if (parameter.ndim >= 2) is decays:
                factor = learning_rate_factor(name, config, model) if decays else 1.0
                groups.setdefault((decays, factor), []).append(parameter)
    members = [_group(each, decays, factor, config) for (decays, factor), each in groups.items()]
    own = {key: value for key, value in config.own_settings().items() if key != "weight_decay"}
    if can_fuse(config):
        kind = getattr(torch.optim, config.optimizer_type)
        return kind(members, lr=0.0, fused=fused or None, **own)  # type: ignore[no-any-return]
    return configure_optimizer(config.optimizer_type, members, lr=0.0, **own)


def can_fuse(config: OptimizerConfig) -> bool:
    """Whether PyTorch has one kernel for all of its step."""
    return config.entry.kind.has_fused_kernel


def learning_rate_factor(name: str, config: OptimizerConfig, model: ModelConfig) -> float:
    """Factor on the learning rate of the matrix `name`.

    Inside blocks `adjust_learning_rate: {decoder_kernel: ...}`, by default 1 / m_width (P Table
    14), which is 1 without muP; elsewhere 1.
    """
    if not in_block(name):
        return 1.0
    given = config.adjust_learning_rate.get("decoder_kernel")
    if given is not None:
        return given
    return 1.0 / fan_in_multiplier(name, model)


def state_bytes(config: Optimizer, shapes: Mapping[str, Sequence[int]]) -> int:
    """Bytes of the state of all parameters after the first step, except counts of steps.

    `shapes`: of the parameters, by name.
    """
    parameters = [nn.Parameter(torch.empty(*shape, device="meta")) for shape in shapes.values()]
    optimizer = config.build(parameters)
    optimizer.preinitialize()
    tensors = (tensor for fields in optimizer.state.values() for tensor in fields.values())
    return sum(tensor.nbytes for tensor in tensors if tensor.ndim)


def adam_eps(config: OptimizerConfig) -> float:
    """The eps of an optimizer that divides by sqrt(v) + eps; 0 for others."""
    return float(config.own_settings()["eps"]) if config.entry.kind.divides_by_root else 0.0


def _group(
    members: list[nn.Parameter], decays: bool, factor: float, config: Optimizer
) -> dict[str, Any]:
    decay = getattr(config, "weight_decay", 0.0) if decays else 0.0
    return {"params": members, "weight_decay": decay, "adjust_learning_rate": factor}
