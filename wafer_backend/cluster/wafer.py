"""The wafer, which runs the forward and backward of one leaf at a time; and the activation worker,
which cuts global batches into leaves and keeps what wafers put aside.

A streaming wafer holds no weights of its own: `streaming.WeightStream` brings each one while it
is used and sends its gradient away. A resident wafer (CPU and GPU targets) computes on the
module's own parameters, or on copies cast once per leaf; leaves, tree and bits are the same.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from wafer_backend.cluster import tree
from wafer_backend.cluster.cbfloat16 import CbfloatCompute
from wafer_backend.cluster.implicit_loops import call_with_loops
from wafer_backend.cluster.outputs import (
    LeafLoss,
    LossReduction,
    OtherPath,
    leaf_loss,
    required_loss,
)
from wafer_backend.cluster.precision import Precision, use_precision
from wafer_backend.errors import BackendConfigError, StepError
from wafer_backend.sparse import masks
from wafer_backend.streaming.activations import (
    ActivationRule,
    Activations,
    StorageLedger,
    recompute_blocks,
)
from wafer_backend.streaming.attachment import attach_source
from wafer_backend.streaming.device_link import DeviceLink, LinkRule
from wafer_backend.streaming.weights import (
    Fetch,
    ResidentCasts,
    Transport,
    WeightStream,
    evict_saved,
    map_tensors,
    tensors_in,
)
from wafer_backend.strict import StrictWatch

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class GlobalBatch:
    """The arguments of one call of the module, which share their first dimension: the samples.

    `arguments`: (args, kwargs), nested as the caller likes; `tensors`: those in it. `versions`: of
    the tensors, which must not change while leaves may still be cut.
    """

    arguments: Arguments
    tensors: list[torch.Tensor]
    versions: tuple[int, ...]
    batch_size: int
    micro_batch_size: int

    @property
    def leaves(self) -> int:
        """K."""
        return tree.leaf_count(self.batch_size, self.micro_batch_size)

    def samples(self, leaf: int) -> range:
        """Samples of one leaf, as positions in the batch."""
        return tree.samples_of_leaf(leaf, self.batch_size, self.micro_batch_size)


class ActivationWorker:
    """Serves leaves to wafers on `device`, and holds their evicted activations in host memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.evicted = StorageLedger()

    def load(self, arguments: Arguments, micro_batch_size: int) -> GlobalBatch:
        """Take a global batch. Tensors of no dimension, and all else, go to every leaf unchanged.

        Raises BackendConfigError when tensors differ in their number of samples.
        """
        tensors = tensors_in(arguments)
        sizes = sorted({int(t.shape[0]) for t in tensors if t.ndim})
        if len(sizes) != 1:
            problem = (
                f"have different numbers of samples: {sizes}"
                if sizes
                else "have no first dimension to split"
            )
            raise BackendConfigError(
                f"tensors of one batch {problem}; the first dimension of every input must be the "
                "samples (put what all samples share into a buffer)"
            )
        if any(t.requires_grad for t in tensors):
            raise BackendConfigError(
                "an input requires grad, but gradients of a compiled module reach parameters only; "
                "detach() the input, or compute it inside the module"
            )
        return GlobalBatch(arguments, tensors, _versions(tensors), sizes[0], micro_batch_size)

    def leaf(self, batch: GlobalBatch, index: int) -> Arguments:
        """Leaf `index`: the same structure, copied to the wafer's device."""
        if _versions(batch.tensors) != batch.versions:
            raise StepError("an input was modified in place while its batch was still in use")
        samples = batch.samples(index)
        cut: Arguments = map_tensors(lambda t: self._cut(t, samples), batch.arguments)
        return cut

    def put_aside(self, activation: torch.Tensor) -> torch.Tensor:
        """Keep an evicted activation in host memory: itself on a CPU, otherwise a copy."""
        kept = activation.to("cpu")
        self.evicted.watch(kept)
        return kept

    def bring_back(self, kept: torch.Tensor, device: torch.device) -> torch.Tensor:
        """An evicted activation for the wafer again; the same bits."""
        return kept.to(device)

    def _cut(self, tensor: torch.Tensor, samples: range) -> torch.Tensor:
        part = tensor[samples.start : samples.stop] if tensor.ndim else tensor
        return part.to(self._device, copy=True)


def _versions(tensors: list[torch.Tensor]) -> tuple[int, ...]:
    return tuple(0 if t.is_inference() else t._version for t in tensors)


OutputGradients = Callable[[Any], Sequence[tuple[torch.Tensor, torch.Tensor]]]


@dataclass(frozen=True, kw_only=True)
class WaferRule:
    """How wafers compute; the same for all of a cluster.

    `link`: how weights and gradients move between the host and `device`; None for by reference.
    `watch`: refuses in the forward of a leaf what a real wafer would; None for anything goes.
    """

    device: torch.device
    streams: bool
    seed: int
    precision: Precision
    activations: ActivationRule
    reduction: LossReduction
    link: LinkRule | None = None
    watch: StrictWatch | None = None


@dataclass(frozen=True)
class Leaf:
    """One leaf to run: its 1-based step, its index in the batch, its samples and its inputs."""

    step: int
    index: int
    samples: int
    arguments: Arguments


class Wafer:
    """One CS-2: system index, the module's code, and its link to the other roles."""

    def __init__(
        self,
        system: int,
        module: nn.Module,
        transport: Transport,
        worker: ActivationWorker,
        rule: WaferRule,
    ) -> None:
        self.system = system
        self.activations = Activations(worker if rule.activations == "evict" else None)
        self.stream: WeightStream | None = None
        self._casts: ResidentCasts | None = None
        self._module = module
        self._parameters = dict(module.named_parameters())
        self.link = None if rule.link is None else DeviceLink(transport, rule.link)
        self._transport = self.link or transport
        self._rule = rule
        self._leaf = -1
        self._emulation = CbfloatCompute() if rule.precision == "cbfloat16" else None
        masters = self._parameters
        fetch: Fetch = self._transport.fetch_weight
        if self._emulation is not None:
            fetch = self._emulation.weights(fetch)
        if rule.streams:
            release = self._transport.release_weight
            self.stream = WeightStream(fetch, self._send, masters, self.activations, release)
        elif rule.precision != "float32":
            self._casts = ResidentCasts(fetch, self._send, masters)

    @contextlib.contextmanager
    def loaded(self) -> Iterator[None]:
        """The module runs on this wafer inside the block; everything is put back after it."""
        source = self.stream or self._casts
        devices = [] if self._rule.device.type == "cpu" else [self._rule.device]
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=devices))
            stack.enter_context(_gradients_aside(self._parameters))
            stack.enter_context(masks.running_leaves())
            if source is not None:
                stack.enter_context(attach_source(self._module, source))
            if self._rule.activations == "recompute":
                call = _plainly if source is None else source.call
                stack.enter_context(recompute_blocks(self._module, call))
            if self.link is not None:
                stack.enter_context(self.link.opened())
            yield

    def train(self, leaf: Leaf, scale: float, *, strict: bool) -> LeafLoss:
        """Forward and at once backward, with output gradient `scale`; gradients leave on the way.
        What it returns has no graph.

        Raises OtherPath when the module returns something else, unless `strict`: then StepError.
        """
        with self._running(leaf):
            output = self._forward(leaf)
            loss = self._read_loss(output, leaf, strict)
            loss.backward(scale)
        self._send_resident()
        self._finish(leaf, loss)
        done: LeafLoss = replace(
            loss, value=self._home(loss.value.detach()), counted=self._home(loss.counted)
        )
        return done

    def evaluate(self, leaf: Leaf) -> None:
        """Forward without a graph; only the loss leaves."""
        with torch.no_grad(), self._running(leaf):
            loss = self._read_loss(self._forward(leaf), leaf, strict=True)
        self._finish(leaf, loss)

    def forward(self, leaf: Leaf) -> Any:
        """Forward without a graph; returns what the module returns, where its weights are."""
        with torch.no_grad(), self._running(leaf):
            return self._home(self._forward(leaf))

    def replay(self, leaf: Leaf, gradients: OutputGradients) -> None:
        """Forward again with a graph, then backward from the gradients of its outputs.

        `gradients` gives (output tensor, its gradient) for an output of the module.
        """
        with torch.enable_grad(), self._running(leaf):
            output = self._forward(leaf)
            pairs = [(t, g) for t, g in gradients(output) if t.requires_grad]
            if pairs:
                torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs])
        self._send_resident()
        self._transport.finish_leaf(self.system, leaf.index, 0.0, 0)

    @contextlib.contextmanager
    def _running(self, leaf: Leaf) -> Iterator[None]:
        self._leaf = leaf.index
        _seed(leaf_seed(self._rule.seed, leaf.step, leaf.index), self._rule.device)
        with contextlib.ExitStack() as stack:
            source = self.stream or self._casts
            if self.link is not None:
                stack.enter_context(self.link.leaf())
            if source is not None:
                stack.enter_context(source.leaf())
            if self.stream is None and self._rule.activations == "evict":
                stack.enter_context(evict_saved(self.activations, self._weight_test()))
            if self._emulation is not None:
                stack.enter_context(self._emulation)
            if self._rule.watch is not None:
                stack.enter_context(self._watched(self._rule.watch, leaf))
            yield
        if source is not None:
            self._check_all_streamed()

    def _watched(self, watch: StrictWatch, leaf: Leaf) -> contextlib.AbstractContextManager[None]:
        """Leaves of equal size that run in the same mode have one graph."""
        module = self._module
        key = (id(module), leaf.samples, module.training, torch.is_grad_enabled())
        name = f"the forward of {type(module).__name__}"
        return watch.leaf(name, key, leaf.arguments, on_top=self._emulation is not None)

    def _forward(self, leaf: Leaf) -> Any:
        args, kwargs = leaf.arguments
        with use_precision(self._rule.precision, self._rule.device):
            return call_with_loops(self._module, args, kwargs)

    def _home(self, output: Any) -> Any:
        """Tensors in the memory that the weights are in: the host's where they stream to a device,
        so that a program sees the same devices as without one."""
        return output if self.link is None else map_tensors(lambda t: t.cpu(), output)

    def _read_loss(self, output: Any, leaf: Leaf, strict: bool) -> LeafLoss:
        if strict:
            where = f"step {leaf.step}" if leaf.step else "evaluation"
            return required_loss(output, leaf.samples, self._rule.reduction, where)
        loss = leaf_loss(output, leaf.samples, self._rule.reduction)
        if loss is None:
            raise OtherPath
        return loss

    def _finish(self, leaf: Leaf, loss: LeafLoss) -> None:
        self._transport.finish_leaf(self.system, leaf.index, loss.loss_sum, loss.n_counted)

    def _send(self, name: str, gradient: torch.Tensor) -> None:
        if self._emulation is None:
            self._transport.send_gradient(self._leaf, name, gradient)
            return
        with self._emulation.on_host():
            self._transport.send_gradient(self._leaf, name, gradient)

    def _send_resident(self) -> None:
        """Send what backward left on the module's own parameters, in their order."""
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                self._send(name, parameter.grad)
                parameter.grad = None

    def _check_all_streamed(self) -> None:
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                raise StepError(
                    f"parameter {name!r} was used in a way that does not stream: its module keeps "
                    "it outside its attributes"
                )

    def _weight_test(self) -> Callable[[torch.Tensor], bool]:
        masters = {p.untyped_storage().data_ptr() for p in self._parameters.values()}
        casts = self._casts

        def is_weight(tensor: torch.Tensor) -> bool:
            return tensor.untyped_storage().data_ptr() in masters or (
                casts is not None and casts.holds(tensor)
            )

        return is_weight


def leaf_seed(seed: int, step: int, leaf: int) -> int:
    """The 63-bit seed of one leaf's random numbers: a function of (seed, step, leaf) alone.

    >>> leaf_seed(0, 1, 2) == leaf_seed(0, 1, 2) != leaf_seed(0, 2, 1)
    True
    """
    digest = hashlib.blake2b(f"leaf {seed} {step} {leaf}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _seed(seed: int, device: torch.device) -> None:
    """As torch.manual_seed, for what a leaf on this device draws from: that one notes down the
    stack for every kind of accelerator that is not there, half a millisecond a leaf."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)


@contextlib.contextmanager
def _gradients_aside(parameters: dict[str, nn.Parameter]) -> Iterator[None]:
    """Leaves see parameters without gradients; what the caller has accumulated comes back."""
    before = [(parameter, parameter.grad) for parameter in parameters.values()]
    for parameter, _ in before:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient


def _plainly(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)
