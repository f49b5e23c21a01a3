"""The wafer: runs forward and at once backward of one leaf at a time.

A streaming wafer holds no weights of its own: `streaming.WeightStream` brings each one while it
is used and sends its gradient away. A resident wafer (CPU and GPU targets) computes on the
module's own parameters; leaves, tree and bits are the same.
"""

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from wafer_backend.errors import StepError
from wafer_backend.streaming import WeightStream, attached, owner_names
from wafer_backend.transport import Transport


class Wafer:
    """One CS-2: system index, the module's code, and its link to the other roles."""

    def __init__(
        self, system: int, module: nn.Module, transport: Transport, *, seed: int, streams: bool
    ) -> None:
        self.system = system
        self.stream: WeightStream | None = None
        self._module = module
        self._transport = transport
        self._seed = seed
        self._leaf = -1
        if streams:
            trainable = {name: p.requires_grad for name, p in module.named_parameters()}
            self.stream = WeightStream(transport.fetch_weight, self._send, trainable)

    @contextlib.contextmanager
    def loaded(self) -> Iterator[None]:
        """The module runs on this wafer inside the block; weights come home after it."""
        with torch.random.fork_rng(devices=[]):
            if self.stream is None:
                yield
            else:
                with attached(self._module, self.stream):
                    yield

    def train_leaf(self, step: int, leaf: int, batch: Any) -> None:
        """Forward and backward of one leaf; gradients and loss leave through the transport."""
        self._leaf = leaf
        torch.manual_seed(leaf_seed(self._seed, step, leaf))
        with self._leaf_scope():
            loss_sum, n_counted = loss_pair(self._module(batch), step)
            loss_sum.backward()  # type: ignore[no-untyped-call]
            loss = float(loss_sum.detach())
        if self.stream is None:
            self._send_resident()
        self._transport.finish_leaf(self.system, leaf, loss, n_counted)

    def evaluate_leaf(self, leaf: int, batch: Any) -> None:
        """Forward of one leaf without a graph; only the loss pair leaves."""
        with torch.no_grad(), self._leaf_scope():
            loss_sum, n_counted = loss_pair(self._module(batch), None)
            loss = float(loss_sum)
        self._transport.finish_leaf(self.system, leaf, loss, n_counted)

    def _leaf_scope(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self.stream is None else self.stream.leaf()

    def _send(self, name: str, gradient: torch.Tensor) -> None:
        self._transport.send_gradient(self._leaf, name, gradient)

    def _send_resident(self) -> None:
        names = owner_names(self._module)
        for parameter in self._module.parameters():
            if parameter.grad is not None:
                self._send(names[id(parameter)], parameter.grad)
                parameter.grad = None


def leaf_seed(seed: int, step: int, leaf: int) -> int:
    """The 63-bit seed of one leaf's random numbers: a function of (seed, step, leaf) alone.

    >>> leaf_seed(0, 1, 2) == leaf_seed(0, 1, 2) != leaf_seed(0, 2, 1)
    True
    """
    digest = hashlib.blake2b(f"leaf {seed} {step} {leaf}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def loss_pair(output: Any, step: int | None) -> tuple[torch.Tensor, int]:
    """Check the loss contract: (loss_sum 0-d float tensor in nats, n_counted integer >= 0).

    Raises StepError that names the step.
    """
    where = "evaluation" if step is None else f"step {step}"
    if not (isinstance(output, tuple) and len(output) == 2):
        raise StepError(
            f"{where}: the module must return (loss_sum, n_counted), got {type(output)}"
        )
    loss_sum, n_counted = output
    if not isinstance(loss_sum, torch.Tensor) or loss_sum.ndim != 0:
        raise StepError(f"{where}: loss_sum must be a 0-d tensor")
    counted = float(n_counted)
    if not (counted >= 0 and counted.is_integer()):
        raise StepError(f"{where}: n_counted must be a whole number of labels, got {counted}")
    return loss_sum, int(counted)
