"""Whether a module can run on the cluster, and with how many samples in a leaf.

A module that cannot run is refused by name. The samples of a leaf are given, or they are the most
that fit, found by a probe of the first batch: forward and backward of the first 1 and 2 samples as
a streaming wafer would run them, whatever the target, with the bytes that the graph saves counted
(per sample, and a fixed part). Random numbers, buffers and modes of submodules are as before the
probe, and its gradients are thrown away. num_csx plays no part.
"""

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from wafer_backend.cluster import tree
from wafer_backend.cluster.implicit_loops import LoopError
from wafer_backend.cluster.memoryx import MemoryX
from wafer_backend.cluster.wafer import (
    ActivationWorker,
    Arguments,
    GlobalBatch,
    Leaf,
    Wafer,
    WaferRule,
)
from wafer_backend.errors import BackendConfigError, StrictError
from wafer_backend.streaming.attachment import Buffers
from wafer_backend.streaming.weights import tensors_in


@contextlib.contextmanager
def training_mode(module: nn.Module, *, training: bool) -> Iterator[None]:
    """Run in a mode; a module that is in it already keeps the modes of its submodules."""
    if module.training == training:
        yield
        return
    before = [(child, child.training) for child in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for child, mode in before:
            child.training = mode


_NAMED = 3
"""Modules that a warning names."""


def check_module(module: nn.Module, *, streams: bool) -> None:
    """Raise BackendConfigError for a module without parameters, with parameters that have no shape
    yet, or, where weights stream, with code that cannot ask for them."""
    if not any(True for _ in module.parameters()):
        raise BackendConfigError("the module has no parameters")
    for path, child in _named(module):
        if any(nn.parameter.is_lazy(p) for p in child._parameters.values() if p is not None):
            raise BackendConfigError(
                f"{path} has parameters without a shape; call the model on one sample before it "
                "is compiled, or give the sizes"
            )
        if streams and isinstance(child, torch.jit.ScriptModule):
            raise BackendConfigError(
                f"{path} is TorchScript (torch.jit.script or torch.jit.trace), whose code cannot "
                "ask MemoryX for weights; compile the Python module that it was made from"
            )


def warn_of_batch_statistics(module: nn.Module, batch: GlobalBatch) -> None:
    """Warn when modules normalise over samples, and leaves hold fewer than the global batch."""
    paths = [path for path, child in _named(module) if _normalises_over_samples(child)]
    if not paths or batch.micro_batch_size >= batch.batch_size:
        return
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    warnings.warn(
        f"{', '.join(paths[:_NAMED])}{more}: batch statistics are those of one leaf of "
        f"{batch.micro_batch_size} samples at a time, not of the global batch of "
        f"{batch.batch_size}, so losses differ from plain PyTorch; use LayerNorm or GroupNorm, or "
        "one leaf (micro_batch_size = None)",
        stacklevel=5,
    )


def _normalises_over_samples(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and (
        module.training or module.running_mean is None
    )


def _named(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module inside, with what to call it."""
    for path, child in module.named_modules():
        kind = type(child).__name__
        yield (f"module {path!r} ({kind})" if path else f"the module ({kind})"), child


@dataclass(frozen=True)
class ActivationNeed:
    """Bytes of saved activations: `fixed` whatever the samples, and those of one sample."""

    fixed: int
    per_sample: int


class LeafSize:
    """Cuts batches; the first batch that learns decides for the whole run.

    `chosen`: samples of a leaf, None until then. `wafer_memory`: bytes. `min_leaves`: that a batch
    is cut into. `probe` measures what activations need.
    """

    def __init__(
        self, chosen: int | None, wafer_memory: int, min_leaves: int, probe: "Probe"
    ) -> None:
        self.chosen = chosen
        self._wafer_memory = wafer_memory
        self._min_leaves = min_leaves
        self._probe = probe
        self._need: ActivationNeed | None = None

    def load(self, worker: ActivationWorker, arguments: Arguments, *, learns: bool) -> GlobalBatch:
        """A batch cut into leaves. Raises BackendConfigError when one sample does not fit."""
        batch = worker.load(arguments, self.chosen or 1)
        if self.chosen is not None:
            return batch
        size = self._largest(batch)
        if learns:
            self.chosen = size
        return replace(batch, micro_batch_size=size)

    def resume(self, chosen: int | None) -> None:
        """Take the size that a checkpoint was made with; raises BackendConfigError for another."""
        if self.chosen is not None and chosen not in (None, self.chosen):
            raise BackendConfigError(
                f"micro_batch_size is {self.chosen}, but was {chosen} where this run left off; "
                "another size gives other bits"
            )
        self.chosen = self.chosen or chosen

    def _largest(self, batch: GlobalBatch) -> int:
        if batch.batch_size == 1:
            return 1
        self._need = self._need or self._probe.need(batch)
        weights = self._probe.two_largest_weights
        free = self._wafer_memory - weights - self._need.fixed
        if free < self._need.per_sample:
            raise BackendConfigError(
                f"wafer_memory is {self._wafer_memory:,} bytes, but one sample needs "
                f"{self._need.per_sample:,} for activations, plus {self._need.fixed:,} for any "
                f"number of samples and {weights:,} for two weights; raise wafer_memory, or set "
                "activations to recompute or evict"
            )
        return tree.auto_micro_batch_size(
            batch.batch_size,
            min_leaves=self._min_leaves,
            bytes_per_sample=self._need.per_sample,
            wafer_memory=free,
        )


class Probe:
    """Measures what a module saves for backward."""

    def __init__(
        self, module: nn.Module, memoryx: MemoryX, buffers: Buffers, rule: WaferRule
    ) -> None:
        self._module = module
        self._memoryx = memoryx
        self._buffers = buffers
        self._rule = replace(rule, streams=True)

    @property
    def two_largest_weights(self) -> int:
        """Their bytes, as they travel."""
        return sum(sorted(map(self._memoryx.streamed_bytes, self._memoryx.parameters))[-2:])

    def need(self, batch: GlobalBatch) -> ActivationNeed:
        """Run the first sample, and the first two; a module that generates saves nothing."""
        try:
            one, two = (self._saved_bytes(replace(batch, micro_batch_size=n)) for n in (1, 2))
        except LoopError:
            return ActivationNeed(0, 0)
        per_sample = max(0, two - one)
        return ActivationNeed(max(0, one - per_sample), per_sample)

    def _saved_bytes(self, batch: GlobalBatch) -> int:
        worker = ActivationWorker(self._rule.device)
        wafer = Wafer(0, self._module, _DiscardingTransport(self._memoryx), worker, self._rule)
        leaf = Leaf(0, 0, batch.micro_batch_size, worker.leaf(batch, 0))
        before = self._buffers.snapshot()
        with (
            training_mode(self._module, training=True),
            self._buffers.swapped(before),
            wafer.loaded(),
        ):
            try:
                wafer.replay(leaf, _no_gradients)
            except (StrictError, LoopError):
                raise
            except Exception as error:
                raise BackendConfigError(
                    f"the module failed on the first {leaf.samples} of {batch.batch_size} samples, "
                    f"run to choose micro_batch_size: {type(error).__name__}: {error}; if it only "
                    "needs more samples at once, set micro_batch_size"
                ) from error
        return wafer.activations.peak_bytes


class _DiscardingTransport:
    """A transport of weights only."""

    def __init__(self, memoryx: MemoryX) -> None:
        self.fetch_weight = memoryx.weight

    def release_weight(self, name: str, copy: torch.Tensor, *, intact: bool) -> None:
        pass

    def send_gradient(self, leaf: int, name: str, gradient: torch.Tensor) -> None:
        pass

    def finish_leaf(self, system: int, leaf: int, loss_sum: float, n_counted: int) -> None:
        pass


def _no_gradients(output: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(t, torch.zeros_like(t)) for t in tensors_in(output) if t.requires_grad]
