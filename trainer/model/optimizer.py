"""The optimizer over the parameters in MemoryX: its groups, how large its state is, and the
learning rate as a function of the step.

Schedulers follow one another. The closed forms are cstorch's, those of the classes of
`wafer_backend.optim.lr_scheduler`. Each scheduler is at its own iteration t (0-based, t = 0 at its
first step), so the first step of a warm-up from 0 has learning rate 0. The last one continues as
its formula does; one that leads to an end stays there.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from trainer.config import (
    AdamWConfig,
    InverseSquareRootDecayScheduler,
    ModelConfig,
    Optimizer,
    OptimizerConfig,
    Scheduler,
)
from trainer.config.optimizer import (
    AdafactorConfig,
    AdamConfig,
    LambConfig,
    NAdamConfig,
    RAdamConfig,
    RMSpropConfig,
    SGDConfig,
)
from trainer.config.schedules import RATES, Ending
from trainer.model.mup import fan_in_multiplier, in_block
from wafer_backend.optim import configure_optimizer, lr_scheduler

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
        if not isinstance(scheduler, Ending) or iteration < scheduler.total_iters:
            return _value(scheduler, iteration)
        iteration -= scheduler.total_iters
    return _value(rates[-1], iteration)


def find_peak_rate(rates: Rates) -> float:
    """The largest learning rate that the schedulers name, or that a decay begins with."""
    if isinstance(rates, int | float):
        return float(rates)
    return max(rate for scheduler in rates for rate in _named(scheduler))


def _named(scheduler: Scheduler) -> Iterator[float]:
    if isinstance(scheduler, InverseSquareRootDecayScheduler):
        yield _value(scheduler, 0)
        return
    for key, value in scheduler:
        if key in RATES:
            yield from value if isinstance(value, tuple) else (value,)


def _value(scheduler: Scheduler, iteration: int) -> float:
    """Of one scheduler at its own iteration, by the formula of its class in the backend."""
    name = scheduler.scheduler
    of_backend: Any = getattr(lr_scheduler, f"{name}LR", None) or getattr(lr_scheduler, name)
    arguments = {argument: getattr(scheduler, key) for argument, key in of_backend.names.items()}
    return float(of_backend.form(iteration, **arguments))


STATE_BYTES = 4
"""Bytes of an element of optimizer state, fp32."""

_TENSORS = {"Adagrad": 1, "ASGD": 1, "Lion": 1}


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
    if isinstance(config, AdamWConfig | AdamConfig):
        kind = torch.optim.AdamW if isinstance(config, AdamWConfig) else torch.optim.Adam
        return kind(members, lr=0.0, betas=config.betas, eps=config.eps, fused=fused or None)
    own = config.model_dump(exclude={*OptimizerConfig.model_fields, "weight_decay"})
    return configure_optimizer(config.optimizer_type, members, lr=0.0, **own)


def can_fuse(config: OptimizerConfig) -> bool:
    """Whether PyTorch has one kernel for all of its step."""
    return isinstance(config, AdamWConfig | AdamConfig)


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
    """Bytes of the state of all parameters after the first step, but for counts of steps.

    `shapes`: of the parameters, by name.
    """
    return STATE_BYTES * sum(_state_elements(config, shape) for shape in shapes.values())


def adam_eps(config: OptimizerConfig) -> float:
    """The eps of an optimizer that divides by sqrt(v) + eps; 0 for others."""
    if isinstance(config, AdamWConfig | AdamConfig | NAdamConfig | RAdamConfig | LambConfig):
        return config.eps
    return 0.0


def _state_elements(config: Optimizer, shape: Sequence[int]) -> int:
    if isinstance(config, AdafactorConfig) and len(shape) >= 2:
        *outer, rows, columns = shape
        return math.prod(outer) * (rows + columns)
    return math.prod(shape) * _state_tensors(config)


def _state_tensors(config: Optimizer) -> int:
    """Tensors of the shape of a parameter."""
    if isinstance(config, SGDConfig):
        return int(config.momentum > 0)
    if isinstance(config, RMSpropConfig):
        return 1 + int(config.momentum > 0) + int(config.centered)
    if isinstance(config, AdafactorConfig):
        return 1
    return _TENSORS.get(config.optimizer_type, 2)


def _group(
    members: list[nn.Parameter], decays: bool, factor: float, config: Optimizer
) -> dict[str, Any]:
    decay = getattr(config, "weight_decay", 0.0) if decays else 0.0
    return {"params": members, "weight_decay": decay, "adjust_learning_rate": factor}
