"""Compile a module for a target and step it: the entry point of the package."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from wafer_backend.activation_worker import ActivationWorker
from wafer_backend.coordinator import Coordinator, LossRule, StepResult
from wafer_backend.errors import BackendConfigError
from wafer_backend.memoryx import MemoryX
from wafer_backend.swarmx import SwarmX
from wafer_backend.transport import InlineTransport
from wafer_backend.wafer import Wafer

Target = Literal["CSX", "CPU", "GPU"]


@dataclass(frozen=True)
class BackendConfig:
    """How a module runs. Everything that changes bits is here except num_csx, which does not.

    `target`: CSX streams weights; CPU and GPU keep them resident. `num_csx`: emulated systems.
    `micro_batch_size`: samples of one leaf. `seed`: of per-leaf random numbers. `threads`: CPU
    threads, set over the environment. `loss`: what the gradient is divided by.
    """

    target: Target
    micro_batch_size: int
    num_csx: int = 1
    seed: int = 0
    threads: int = 1
    loss: LossRule = field(default_factory=LossRule)


def _continue() -> None:
    return None


class CompiledModule:
    """A module spread over MemoryX, SwarmX and its wafers."""

    def __init__(self, module: nn.Module, config: BackendConfig) -> None:
        self.module = module
        self.config = config
        self.memoryx = MemoryX(module)
        swarmx = SwarmX()
        self.transport = InlineTransport(self.memoryx, swarmx)
        self.wafers = [
            Wafer(j, module, self.transport, seed=config.seed, streams=config.target == "CSX")
            for j in range(config.num_csx)
        ]
        worker = ActivationWorker(device_of(config.target))
        self._coordinator = Coordinator(self.memoryx, swarmx, self.wafers, worker, config.loss)

    def train_step(
        self,
        batch: Any,
        *,
        step: int,
        learning_rate: float,
        max_gradient_norm: float | None = None,
        between_leaves: Callable[[], None] = _continue,
    ) -> StepResult:
        """One global step (1-based `step`): forward, backward, reduce, clip, optimizer.

        `between_leaves` is called after every leaf and may raise to abandon the step, which then
        leaves no trace. Raises StepError naming the step for D = 0 or a loss that is not finite.
        """
        with self._mode(training=True):
            return self._coordinator.train_step(
                batch,
                self.config.micro_batch_size,
                step=step,
                learning_rate=learning_rate,
                max_gradient_norm=max_gradient_norm,
                between_leaves=between_leaves,
            )

    def evaluate(
        self,
        batch: Any,
        *,
        micro_batch_size: int | None = None,
        between_leaves: Callable[[], None] = _continue,
    ) -> tuple[float, int]:
        """(loss sum in nats, counted labels) of one batch in evaluation mode.

        `micro_batch_size` is the training one unless given.
        """
        size = self.config.micro_batch_size if micro_batch_size is None else micro_batch_size
        with self._mode(training=False):
            return self._coordinator.evaluate(batch, size, between_leaves)

    @contextlib.contextmanager
    def _mode(self, *, training: bool) -> Iterator[None]:
        torch.set_num_threads(self.config.threads)
        before = self.module.training
        self.module.train(training)
        try:
            yield
        finally:
            self.module.train(before)


def compile(module: nn.Module, config: BackendConfig) -> CompiledModule:
    """Take over `module`. Set `compiled.memoryx.optimizer` before the first training step.

    Raises BackendConfigError for a bad cluster, a GPU target without a GPU, or a module that has
    no parameters.
    """
    if config.num_csx < 1 or config.micro_batch_size < 1 or config.threads < 1:
        raise BackendConfigError(
            f"num_csx {config.num_csx}, micro_batch_size {config.micro_batch_size} and "
            f"threads {config.threads} must be at least 1"
        )
    module.to(device_of(config.target))
    if not any(True for _ in module.parameters()):
        raise BackendConfigError("the module has no parameters")
    return CompiledModule(module, config)


def device_of(target: Target) -> torch.device:
    """The torch device a target computes on. Raises BackendConfigError without a CUDA device."""
    if target != "GPU":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise BackendConfigError(
            "target GPU: torch finds no CUDA device on this machine; use CSX or CPU"
        )
    return torch.device("cuda")
