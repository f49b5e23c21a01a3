"""A module compiled for a target, the entry point of the engine: `BackendConfig` and
`CompiledModule`."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import nn

from wafer_backend.cluster import precision as loss_scales
from wafer_backend.cluster.calls import LossCall, OutputCall, with_backward
from wafer_backend.cluster.coordinator import Coordinator, StepResult
from wafer_backend.cluster.memoryx import MemoryX
from wafer_backend.cluster.observation import observe
from wafer_backend.cluster.outputs import LossReduction, LossRule, OtherPath
from wafer_backend.cluster.precision import Precision
from wafer_backend.cluster.suitability import (
    LeafSize,
    Probe,
    check_module,
    training_mode,
    warn_of_batch_statistics,
)
from wafer_backend.cluster.timeline import ModuleTimes, Timeline
from wafer_backend.cluster.wafer import ActivationWorker, Arguments, GlobalBatch, Wafer, WaferRule
from wafer_backend.errors import BackendConfigError
from wafer_backend.streaming.activations import ActivationRule
from wafer_backend.streaming.attachment import Buffers
from wafer_backend.streaming.device_link import LinkRule
from wafer_backend.strict import StrictWatch
from wafer_backend.transports import TransportName, make_transport, server_count
from wafer_backend.transports.simulated import Simulation

Target = Literal["CSX", "CPU", "GPU"]
Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class BackendConfig:
    """How a module runs. Everything that changes bits is here except num_csx, which does not.

    `target`: CSX streams weights; CPU and GPU keep them resident. `micro_batch_size`: samples of
    one leaf; None chooses the most that fit. `num_csx`: emulated systems. `seed`: of per-leaf
    random numbers. `threads`: CPU threads, set over the environment. `loss`: what the gradient of a
    loss pair is divided by. `loss_reduction`: what a single loss that a module returns is, over its
    samples. `precision`: of matrices and of computing; masters are fp32. `activations`: where they
    wait for backward. `wafer_memory`: bytes, and `min_leaves`: leaves of a batch at least, both for
    a micro-batch that is chosen. `max_wgt_servers`: weight servers; 0 for one. `device`: what the
    wafers of target CSX compute on; weights stay on the host. `prefetch_bytes`: bytes of weights
    copied to it ahead of their use; None for two of the largest on cuda, and for none on a CPU,
    where setting it serves tests. `transport`: how roles talk; `simulation`: the faults and the
    seed of the simulated one; `liveness`: seconds of silence after which a rank of the distributed
    one is dead. `watch`: strict mode, refuses what a real wafer would; None for anything goes.
    """

    target: Target
    micro_batch_size: int | None
    num_csx: int = 1
    seed: int = 0
    threads: int = 1
    loss: LossRule = field(default_factory=LossRule)
    loss_reduction: LossReduction = "mean"
    precision: Precision = "float32"
    activations: ActivationRule = "keep"
    wafer_memory: int = 40 * 10**9
    min_leaves: int = 8
    max_wgt_servers: int = 0
    device: Device = "cpu"
    prefetch_bytes: int | None = None
    transport: TransportName = "inline"
    simulation: Simulation = field(default_factory=Simulation)
    liveness: float = 15.0
    watch: StrictWatch | None = None


def _continue() -> None:
    return None


class CompiledModule:
    """A module spread over MemoryX, SwarmX and its wafers; takes the module over.

    Call it as the module, on global batches; or give `memoryx.optimizer` and call `train_step`.
    `step` is the 1-based number of the next call that learns; random numbers of a leaf come from
    (seed, step, leaf). `loss_scale` scales the losses of `train_step` in fp16 and cbfloat16, else
    it is None.

    Raises BackendConfigError for a bad configuration, a GPU target without a GPU, or a module that
    has no parameters, has some without a shape, or is TorchScript.
    """

    def __init__(self, module: nn.Module, config: BackendConfig) -> None:
        _check(config)
        check_module(module, streams=config.target == "CSX" or config.micro_batch_size is None)
        self.device = device = wafer_device(config)
        _place(module, config, device)
        self.module = module
        self.config = config
        self.step = 1
        self.loss_scale = loss_scales.make_loss_scale(config.precision)
        self.memoryx = MemoryX(
            module, config.precision, server_count(config.transport, config.max_wgt_servers)
        )
        self.transport = make_transport(
            config.transport, self.memoryx, config.num_csx, config.simulation, config.liveness
        )
        self.worker = ActivationWorker(device)
        self.buffers = Buffers(module)
        rule = WaferRule(
            device=device,
            streams=config.target == "CSX",
            seed=config.seed,
            precision=config.precision,
            activations=config.activations,
            reduction=config.loss_reduction,
            link=_link_rule(config, device, self.memoryx),
            watch=config.watch,
        )
        self.wafers = [
            Wafer(system, module, self.transport, self.worker, rule)
            for system in range(config.num_csx)
        ]
        self._leaf_size = LeafSize(
            config.micro_batch_size,
            config.wafer_memory,
            config.min_leaves,
            Probe(module, self.memoryx, self.buffers, rule),
        )
        self._coordinator = Coordinator(
            memoryx=self.memoryx,
            transport=self.transport,
            wafers=self.wafers,
            worker=self.worker,
            buffers=self.buffers,
            rule=config.loss,
            reduction=config.loss_reduction,
            threads=config.threads,
        )
        self._returns_loss = True
        self._warned = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module on a global batch: what it would return for the whole batch, exactly.

        The arguments' tensors share their first dimension, the samples. In evaluation mode, and
        with gradients disabled, nothing runs backward and spare systems rest. Else backward through
        the result adds to `parameter.grad`, once:

        - one 0-d float: the mean over all samples (or their sum, by `loss_reduction`);
        - (loss_sum, n_counted): their sums, so `(loss_sum / n_counted).backward()` trains on the
          mean, as with the module itself; `config.loss` plays no part here;
        - anything else: see `outputs`; each leaf's forward then runs again in backward.

        Raises BackendConfigError for a batch that does not suit the cluster, StepError otherwise.
        """
        arguments = (args, kwargs)
        learns = torch.is_grad_enabled() and self.module.training
        if not learns:
            with _gradients(enabled=False):
                batch = self._load(arguments, learns=False)
                output = self._coordinator.forward(batch, self.step, learns=False).output
            return output.rebuilt(output.tensors)
        returned = self._learn(self._load(arguments, learns=True))
        self.step += 1
        return returned

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
        leaves no trace. Raises StepError naming the step for D = 0, a loss that is not finite, or,
        unless the loss is scaled, a gradient that is not; with a loss scale such a step is skipped.
        """
        with _gradients(enabled=True), training_mode(self.module, training=True):
            return self._coordinator.train_step(
                self._load(((batch,), {}), learns=True),
                step=step,
                learning_rate=learning_rate,
                max_gradient_norm=max_gradient_norm,
                between_leaves=between_leaves,
                scaler=self.loss_scale,
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
        arguments: Arguments = ((batch,), {})
        with _gradients(enabled=False), training_mode(self.module, training=False):
            if micro_batch_size is None:
                loaded = self._load(arguments, learns=False)
            else:
                loaded = self.worker.load(arguments, micro_batch_size)
            return self._coordinator.evaluate(loaded, between_leaves)

    def profile(
        self, timeline: Timeline, modules: ModuleTimes | None = None
    ) -> AbstractContextManager[None]:
        """Record what runs inside the block, and times of modules if asked for; same bits."""
        return observe(self, timeline, modules)

    def bring_home(self) -> None:
        """Have all weights, masks and optimizer state on rank 0, to save them; every rank calls it.

        The distributed transport leaves what `train_step` updates with the rank that owns it.
        """
        self.transport.bring_home()

    @property
    def micro_batch_size(self) -> int | None:
        """Samples of a training leaf; None until the first batch decides."""
        return self._leaf_size.chosen

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must save besides weights and optimizer, as JSON values."""
        scale = None if self.loss_scale is None else self.loss_scale.state_dict()
        return {"step": self.step, "micro_batch_size": self.micro_batch_size, "loss_scale": scale}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`. Raises BackendConfigError for another micro-batch."""
        self._leaf_size.resume(state["micro_batch_size"])
        self.step = int(state["step"])
        if self.loss_scale is not None and state["loss_scale"] is not None:
            self.loss_scale.load_state_dict(state["loss_scale"])

    def _load(self, arguments: Arguments, *, learns: bool) -> GlobalBatch:
        if self.config.watch is not None:
            self.config.watch.check_weights(self.module)
            self.config.watch.check_batch((id(self), learns), arguments)
        batch = self._leaf_size.load(self.worker, arguments, learns=learns)
        if learns and not self._warned:
            self._warned = True
            warn_of_batch_statistics(self.module, batch)
        return batch

    def _learn(self, batch: GlobalBatch) -> Any:
        """Take the path that the module took last time, and the other one if that is wrong."""
        try:
            return self._learn_along(batch, loss=self._returns_loss)
        except OtherPath:
            self._returns_loss = not self._returns_loss
        return self._learn_along(batch, loss=self._returns_loss)

    def _learn_along(self, batch: GlobalBatch, *, loss: bool) -> Any:
        with self.buffers.restored_on_error():
            return self._loss(batch) if loss else self._outputs(batch)

    def _loss(self, batch: GlobalBatch) -> Any:
        scale = loss_scales.current_loss_scale()
        with self._coordinator.reduced(batch, self.step, scale, _continue, strict=False) as reduced:
            total = self._coordinator.total()
        call = LossCall(self.memoryx, reduced, total, self.config.loss)
        (loss,) = with_backward(call, self.memoryx.parameters)
        like, n_counted = reduced.loss.like, reduced.loss.n_counted
        if like.kind != "pair":
            return loss
        if isinstance(like.counted, torch.Tensor):
            return loss, torch.full_like(like.counted, n_counted)
        return loss, n_counted

    def _outputs(self, batch: GlobalBatch) -> Any:
        call = OutputCall(self.memoryx, self._coordinator, batch, self.step)
        return call.done.output.rebuilt(with_backward(call, self.memoryx.parameters))


@contextlib.contextmanager
def _gradients(*, enabled: bool) -> Iterator[None]:
    """Gradients on or off, whatever the caller does; no tensors without versions (inference mode),
    by which streams tell copies that were written to, and which nobody could save for backward."""
    with torch.inference_mode(False), torch.set_grad_enabled(enabled):
        yield


def device_of(target: Target) -> torch.device:
    """The torch device a target computes on. Raises BackendConfigError without a CUDA device."""
    if target != "GPU":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise BackendConfigError(
            "target GPU: torch finds no CUDA device on this machine; use CSX or CPU"
        )
    return torch.device("cuda")


def wafer_device(config: BackendConfig) -> torch.device:
    """The torch device that wafers of this process compute on; ranks of one machine take its GPUs
    in turn. Raises BackendConfigError without a CUDA device."""
    if config.target != "CSX" or config.device == "cpu":
        return device_of(config.target)
    if not torch.cuda.is_available():
        raise BackendConfigError(
            "device is 'cuda', but torch finds no CUDA device on this machine; use 'cpu'"
        )
    if config.transport == "distributed" and "LOCAL_RANK" in os.environ:
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


def _place(module: nn.Module, config: BackendConfig, device: torch.device) -> None:
    """Parameters and buffers go to the device, except parameters that stream to it."""
    if config.device == "cpu":
        module.to(device)
        return
    module.cpu()
    for child in module.modules():
        for key, buffer in child._buffers.items():
            if buffer is not None:
                child._buffers[key] = buffer.to(device)


def _link_rule(config: BackendConfig, device: torch.device, memoryx: MemoryX) -> LinkRule | None:
    """Copies between host and device; None where wafers compute in host memory."""
    streams = config.device == "cuda" or config.prefetch_bytes is not None
    if config.target != "CSX" or not streams:
        return None
    memoryx.stage(pinned=device.type == "cuda")
    largest = sum(sorted(map(memoryx.streamed_bytes, memoryx.parameters))[-2:])
    ahead = largest if config.prefetch_bytes is None else config.prefetch_bytes
    beside = config.transport == "inline"
    return LinkRule(device, largest, ahead, beside, config.seed)


_LEAST_BYTES = {"wafer_memory": 1, "prefetch_bytes": 0}
_CHOICES: dict[str, Any] = {
    "target": Target,
    "device": Device,
    "loss_reduction": LossReduction,
    "precision": Precision,
    "transport": TransportName,
    "activations": ActivationRule,
}


def _check(config: BackendConfig) -> None:
    """Raise BackendConfigError for a value that cannot be meant."""
    for name, choice in _CHOICES.items():
        value, choices = getattr(config, name), get_args(choice)
        if value not in choices:
            raise BackendConfigError(f"{name} is {value!r}; expected one of {', '.join(choices)}")
    least = {"num_csx": 1, "micro_batch_size": 1, "threads": 1, "min_leaves": 1}
    for name, limit in {**least, **_LEAST_BYTES, "max_wgt_servers": 0}.items():
        value = getattr(config, name)
        if value is not None and value < limit:
            raise BackendConfigError(f"{name} is {value}; expected at least {limit}")
    if config.target != "CSX" and config.transport == "distributed":
        raise BackendConfigError(
            f"the distributed transport is for target CSX, not {config.target}, whose weights are "
            "resident"
        )
    if config.target != "CSX" and (config.device != "cpu" or config.prefetch_bytes is not None):
        raise BackendConfigError(
            f"device and prefetch_bytes are for target CSX, which streams weights; with target "
            f"{config.target} leave them out"
        )
