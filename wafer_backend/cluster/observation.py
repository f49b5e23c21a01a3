"""Makes an engine tell a timeline what it does, for as long as a block lasts.

The methods of its roles are replaced by ones that call them and note it; afterwards the objects are
as they were. So an engine that is not observed runs exactly the code of its files. Nothing here
touches a tensor's values: the bits are the same.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from wafer_backend.cluster.memoryx import MemoryX
from wafer_backend.cluster.timeline import (
    ACTIVATION_WORKER,
    COORDINATOR,
    MEMORYX,
    SWARMX,
    Kind,
    ModuleTimes,
    Span,
    Timeline,
    wafer_role,
)
from wafer_backend.cluster.wafer import Wafer

Method = Callable[..., Any]
_ABSENT = object()


class ObservedEngine(Protocol):
    """What is watched of a compiled module."""

    module: nn.Module
    memoryx: MemoryX
    transport: Any
    worker: Any
    wafers: list[Wafer]
    step: int
    _coordinator: Any


@contextlib.contextmanager
def observe(
    made: ObservedEngine, timeline: Timeline, modules: ModuleTimes | None
) -> Iterator[None]:
    """`timeline` learns what the roles of `made` do, `modules` how long its modules take."""
    with contextlib.ExitStack() as stack:
        watch = _MethodWatch(timeline, stack)
        _watch_coordinator(watch, made)
        _watch_memoryx(watch, made.memoryx)
        watch.timed(
            made.transport, "fetch_weight", _SpanOwner(SWARMX, "stream"), _by_name, down=True
        )
        serves = _SpanOwner(ACTIVATION_WORKER, "stream")
        watch.timed(made.worker, "leaf", serves, lambda batch, index: f"leaf {index}")
        watch.timed(made.worker, "put_aside", serves, _always("evict"))
        watch.timed(made.worker, "bring_back", serves, _always("bring back"))
        for wafer in made.wafers:
            _watch_wafer(watch, wafer, made.memoryx)
            if modules is not None:
                _watch_modules(watch, wafer, made.module, modules)
        stack.enter_context(_Optimizers(timeline, made.memoryx).watched())
        timeline.note_resident(MEMORYX, weights=made.memoryx.weight_bytes)
        yield


class _SpanOwner(NamedTuple):
    """Of a span: who, and what kind of thing."""

    role: str
    kind: Kind


class _MethodWatch:
    """Replaces methods of objects; `stack` puts them back."""

    def __init__(self, timeline: Timeline, stack: contextlib.ExitStack) -> None:
        self.timeline = timeline
        self._stack = stack

    def replace(self, target: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Give the object `make(attribute)` in the place of its method, or of a plain value."""
        own = vars(target).get(name, _ABSENT)
        setattr(target, name, make(getattr(target, name)))
        if own is _ABSENT:
            self._stack.callback(delattr, target, name)
        else:
            self._stack.callback(setattr, target, name, own)

    def timed(
        self,
        target: Any,
        name: str,
        owner: _SpanOwner,
        label: Callable[..., str],
        *,
        down: bool = False,
        up: bool = False,
    ) -> None:
        """A span around each call; `label` names it from the arguments.

        `down`: the result is a weight that passes the role. `up`: the last argument is a gradient.
        """

        def make(method: Method) -> Method:
            def call(*args: Any, **kwargs: Any) -> Any:
                if up:
                    self.timeline.count_moved(owner.role, up=args[-1].nbytes)
                with self.timeline.span(*owner, label(*args, **kwargs)):
                    result = method(*args, **kwargs)
                if down:
                    self.timeline.count_moved(owner.role, down=result.nbytes)
                return result

            return call

        self.replace(target, name, make)


def _by_name(name: str, *_: Any) -> str:
    return name


def _always(name: str) -> Callable[..., str]:
    return lambda *args, **kwargs: name


def _watch_coordinator(watch: _MethodWatch, made: ObservedEngine) -> None:
    """Steps; and what it spends waiting for leaves."""
    directs, step = made._coordinator, _SpanOwner(COORDINATOR, "step")
    watch.timed(directs, "train_step", step, lambda batch, *, step, **_: f"step {step}")
    watch.timed(directs, "evaluate", step, _always("evaluation"))
    watch.timed(made, "_loss", step, lambda batch: f"step {made.step}")
    watch.timed(directs, "forward", step, lambda batch, step, **_: f"step {step}, forward")
    watch.timed(directs, "replay", step, lambda batch, step, *_: f"step {step}, backward")
    waits = _SpanOwner(COORDINATOR, "stall")
    watch.timed(directs, "_run", waits, lambda batch, *_: f"{batch.leaves} leaves")


def _watch_memoryx(watch: _MethodWatch, memoryx: MemoryX) -> None:
    """Weights out, gradients in, nodes on to SwarmX, and what comes before the optimizer."""
    timeline = watch.timeline

    def finish(method: Method) -> Method:
        def call(system: int, leaf: int, loss_sum: float, n_counted: int, send: Method) -> None:
            with timeline.span(MEMORYX, "reduce", f"leaf {leaf}"):
                method(system, leaf, loss_sum, n_counted, _reducing(timeline, send))

        return call

    reduces = _SpanOwner(MEMORYX, "reduce")
    watch.timed(memoryx, "weight", _SpanOwner(MEMORYX, "stream"), _by_name, down=True)
    watch.timed(memoryx, "receive_gradient", reduces, lambda leaf, name, gradient: name, up=True)
    watch.replace(memoryx, "finish_leaf", finish)
    watch.timed(memoryx, "delivered", reduces, _always("divide"))
    watch.timed(memoryx, "gradient_norms", reduces, _always("norms"))
    watch.timed(memoryx, "scale_gradients", _SpanOwner(MEMORYX, "optimizer"), _always("clip"))


def _reducing(timeline: Timeline, send: Method) -> Method:
    """SwarmX takes a node, and adds it to its sibling when that is there."""

    def call(node: Any, partial: Any) -> None:
        size = sum(gradient.nbytes for gradient in partial.gradients.values())
        timeline.count_moved(SWARMX, up=size)
        with timeline.span(SWARMX, "reduce", f"node {node.level}.{node.index}"):
            send(node, partial)

    return call


def _watch_wafer(watch: _MethodWatch, wafer: Wafer, memoryx: MemoryX) -> None:
    """Leaves and their forward; waiting for weights; gradients sent."""
    timeline, role = watch.timeline, wafer_role(wafer.system)

    def run(method: Method) -> Method:
        def call(leaf: Any, *args: Any, **kwargs: Any) -> Any:
            with timeline.span(role, "compute", f"leaf {leaf.index}"):
                result = method(leaf, *args, **kwargs)
            timeline.note_resident(role, **_held(wafer, memoryx))
            return result

        return call

    for name in ("train", "evaluate", "forward", "replay"):
        watch.replace(wafer, name, run)
    watch.timed(wafer, "_forward", _SpanOwner(role, "compute"), _always("forward"))
    source, sends = wafer.stream or wafer._casts, _SpanOwner(role, "stream")
    if source is None:
        watch.timed(wafer, "_send", sends, _by_name, up=True)
        return
    if wafer.link is not None:  # spans of a role nest, so it does one thing at a time
        watch.replace(wafer.link, "beside", lambda _: False)
    # `_fetch` was bound before the transport was watched.
    watch.replace(source, "_fetch", lambda method: wafer._transport.fetch_weight)
    watch.timed(source, "_fetch", _SpanOwner(role, "stall"), _by_name, down=True)
    watch.timed(source, "deliver", sends, _by_name, up=True)


def _held(wafer: Wafer, memoryx: MemoryX) -> dict[str, int]:
    """Peak bytes on a wafer. One that keeps its weights counts activations only if it evicts."""
    if wafer.stream is None:
        return {"weights": memoryx.weight_bytes, "activations": wafer.activations.peak_bytes}
    weights = wafer.stream.peak_bytes
    if wafer.link is not None:
        weights = max(weights, wafer.link.peak_bytes)
    return {"weights": weights, "activations": wafer.activations.peak_bytes}


def _watch_modules(
    watch: _MethodWatch, wafer: Wafer, module: torch.nn.Module, modules: ModuleTimes
) -> None:
    """Leaves that learn; hooks would take evaluation off PyTorch's fused paths."""

    def run(method: Method) -> Method:
        def call(*args: Any, **kwargs: Any) -> Any:
            timed = modules.leaf(module) if module.training else contextlib.nullcontext()
            with timed:
                return method(*args, **kwargs)

        return call

    for name in ("train", "forward", "replay"):
        watch.replace(wafer, name, run)


class _Optimizers:
    """Steps of optimizers over MemoryX's parameters, whoever calls them."""

    def __init__(self, timeline: Timeline, memoryx: MemoryX) -> None:
        self._timeline = timeline
        self._parameters = set(map(id, memoryx.parameters.values()))
        self._starts: dict[int, int] = {}
        self._held: dict[int, int] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Hooks on every optimizer of the process, inside the block."""
        before = register_optimizer_step_pre_hook(self._before)
        after = register_optimizer_step_post_hook(self._after)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._starts[id(optimizer)] = self._timeline.now()

    def _after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        groups = optimizer.param_groups
        ours = [p for group in groups for p in group["params"] if id(p) in self._parameters]
        start = self._starts.pop(id(optimizer), None)
        if start is None or not ours:
            return
        name = type(optimizer).__name__
        self._timeline.add(Span(MEMORYX, "optimizer", name, start, self._timeline.now()))
        states = [optimizer.state.get(parameter, {}) for parameter in ours]
        values = [value for state in states for value in state.values()]
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        self._held[id(optimizer)] = sum(tensor.nbytes for tensor in tensors)
        self._timeline.note_resident(MEMORYX, optimizer_state=sum(self._held.values()))
