"""MemoryX: where the parameters, their gradients and the optimizer live.

It streams copies of weights out, cast if they travel in half precision, adds up leaf gradients in
fp32 like a binary counter (one lane per CS-2), hands maximal nodes to SwarmX, and applies the
reduced gradient with an ordinary PyTorch optimizer. Whole tensors are spread over weight servers.
A device that copies weights itself copies from `Staging`; nobody writes to what is handed out, and
masters change between passes only.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from wafer_backend.cluster.precision import Precision, streamed_dtype, travelling_copy, widen
from wafer_backend.cluster.staging import SpareCopies, Staging
from wafer_backend.cluster.tree import Combiner, Partial, TreeNode, merge_partials
from wafer_backend.errors import BackendConfigError, StepError
from wafer_backend.sparse import masks


def assign_servers(sizes: Sequence[int], servers: int) -> list[int]:
    """The server (0-based) of every tensor: whole tensors, in order, to the least loaded so far.

    `sizes` in bytes, in `named_parameters` order; a tie goes to the lowest server. The fullest
    server holds at most the mean plus one tensor.

    >>> assign_servers([5, 3, 1, 1, 4], 2)
    [0, 1, 1, 1, 0]
    """
    if servers < 1:
        raise BackendConfigError(f"max_wgt_servers = {servers}: expected at least 1")
    loads = [0] * servers
    chosen = []
    for size in sizes:
        server = loads.index(min(loads))
        loads[server] += size
        chosen.append(server)
    return chosen


SendPartial = Callable[[TreeNode, Partial], None]
MASK = "mask"
"""What the mask of a weight is called beside it."""


class MemoryX:
    """Master weights and optimizer state, by parameter name in `named_parameters` order."""

    def __init__(
        self, module: nn.Module, precision: Precision = "float32", servers: int = 1
    ) -> None:
        self.parameters: dict[str, nn.Parameter] = dict(module.named_parameters())
        self.optimizer: torch.optim.Optimizer | None = None
        self._precision = precision
        chosen = assign_servers([p.nbytes for p in self.parameters.values()], servers)
        self.servers: dict[str, int] = dict(zip(self.parameters, chosen, strict=True))
        self.server_count = servers
        self.staging: Staging | None = None
        self._spares = SpareCopies()
        self._served = frozenset(self.parameters)
        self._due: set[str] = set()
        self._lanes: list[Combiner[Partial]] = []
        self._leaf_gradients: dict[int, Partial] = {}

    # Weights out.

    def stage(self, *, pinned: bool) -> None:
        """Serve a device that copies weights itself: `weight` hands out what it copies from."""
        self.staging = Staging(self.parameters, self._precision, pinned=pinned)

    @contextlib.contextmanager
    def streaming(self) -> Iterator[None]:
        """A pass over a batch; weights do not change inside."""
        if self.staging is not None:
            self.staging.begin_pass()
        with self._spares.kept():
            yield

    def weight(self, name: str) -> torch.Tensor:
        """A copy of one master weight, storage of its own, in the format weights travel in: one
        that came back in this pass, or a new one.

        When staged: the master itself, or its half copy of this pass; not to be written to.
        """
        if self.staging is not None:
            return self.staging.weight(name)
        spare = self._spares.take(name)
        return travelling_copy(self.parameters[name], self._precision) if spare is None else spare

    def take_back(self, name: str, copy: torch.Tensor) -> None:
        """Take a copy that is as it was handed out, and that nobody else holds."""
        self._spares.add(name, copy)

    def streamed_bytes(self, name: str) -> int:
        """Bytes of one weight as it travels."""
        parameter = self.parameters[name]
        return parameter.numel() * streamed_dtype(parameter, self._precision).itemsize

    @property
    def weight_bytes(self) -> int:
        """Bytes of all master weights."""
        return sum(p.nbytes for p in self.parameters.values())

    @property
    def server_bytes(self) -> list[int]:
        """Bytes of master weights on every weight server."""
        loads = [0] * self.server_count
        for name, parameter in self.parameters.items():
            loads[self.servers[name]] += parameter.nbytes
        return loads

    # Gradients in.

    def begin_step(self, spans: list[range], leaves: int) -> None:
        """Prepare one lane per CS-2; `spans` are the leaves of each."""
        self._due.clear()
        self._lanes = [Combiner(leaves, span, merge_partials) for span in spans]
        self._leaf_gradients = {}

    def receive_gradient(self, leaf: int, name: str, gradient: torch.Tensor) -> None:
        """Take one gradient of one leaf; a weight used several times arrives several times.

        One in half precision is copied before this returns. Any other is kept by reference, and
        never written to, unless copies are staged: then what comes back is a copy too, given up.
        """
        wide = widen(gradient)
        given_up = self.staging is not None and gradient.layout is torch.strided
        if leaf not in self._leaf_gradients:
            self._leaf_gradients[leaf] = Partial()
        own = given_up or wide is not gradient
        self._leaf_gradients[leaf].take_in(name, wide, own=own)

    def finish_leaf(
        self, system: int, leaf: int, loss_sum: float, n_counted: int, send: SendPartial
    ) -> None:
        """Count a finished leaf into its lane; completed maximal nodes are sent to SwarmX."""
        partial = self._leaf_gradients.pop(leaf, Partial())
        partial = replace(partial, loss_sum=loss_sum, n_counted=n_counted)
        for node, value in self._lanes[system].push(TreeNode(0, leaf), partial):
            send(node, value)

    # The update.

    def delivered(
        self, total: Partial, divisor: float, factor: float = 1.0
    ) -> dict[str, torch.Tensor]:
        """The reduced gradients divided once by D, times `factor`, in the format of parameters."""
        delivered = {}
        for name, parameter in self.parameters.items():
            gradient = total.gradients.get(name)
            if gradient is None:
                continue
            gradient = gradient if divisor == 1 else torch.div(gradient, divisor)
            gradient = gradient if factor == 1 else torch.mul(gradient, factor)
            delivered[name] = gradient.to(parameter.dtype)
        return delivered

    def owned(self, server: int) -> list[str]:
        """Parameters of one weight server, by name, in parameter order."""
        return [name for name, owner in self.servers.items() if owner == server]

    def deliver(self, total: Partial, divisor: float, names: Iterable[str]) -> None:
        """Put the reduced gradients, divided once by D, into `parameter.grad`."""
        gradients = self.delivered(total, divisor)
        for name in names:
            parameter, gradient = self.parameters[name], gradients.get(name)
            parameter.grad = None if gradient is None else masks.mask_gradient(parameter, gradient)

    def gradient_norms(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """The 2-norm of every gradient that is there, 0-d fp32, by name."""
        return {
            name: torch.linalg.vector_norm(gradient, dtype=torch.float32)
            for name, gradient in self._gradients(names)
        }

    def scale_gradients(self, factor: torch.Tensor, names: Iterable[str]) -> None:
        """Multiply gradients by a 0-d factor, in place."""
        for _, gradient in self._gradients(names):
            gradient.mul_(factor)

    def serve(self, names: Iterable[str]) -> None:
        """Only these parameters are updated here; other processes update the rest."""
        self._served = frozenset(names)

    def apply(self, learning_rate: float, names: Iterable[str]) -> None:
        """These parameters are due for an update; when all served here are, the optimizer steps.

        So it steps once a global step, however many servers it works for: what counts steps (masks
        on a schedule) counts right. Gradients are gone after it. A parameter group that has
        `adjust_learning_rate` (muP) learns at that multiple of `learning_rate`.
        """
        if self.optimizer is None:
            raise StepError("MemoryX has no optimizer; set `memoryx.optimizer` before training")
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate * group.get("adjust_learning_rate", 1.0)
        self._due.update(names)
        if not self._due >= self._served:
            return
        self._due.clear()
        aside = [(p, p.grad) for name, p in self.parameters.items() if name not in self._served]
        for parameter, _ in aside:
            parameter.grad = None
        self.optimizer.step()
        for parameter, gradient in aside:
            parameter.grad = gradient
        self.drop_gradients(self._served)

    def drop_gradients(self, names: Iterable[str]) -> None:
        """Forget gradients, of a finished or an abandoned step."""
        for name in names:
            self.parameters[name].grad = None

    def end_step(self) -> None:
        """Forget what leaves have sent."""
        self._lanes, self._leaf_gradients = [], {}

    # State.

    def optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Optimizer state keyed by parameter name, then by the optimizer's own field names."""
        if self.optimizer is None:
            return {}
        states = self.optimizer.state
        return {name: dict(states[p]) for name, p in self.parameters.items() if p in states}

    def beside(self, name: str) -> dict[str, torch.Tensor]:
        """What lies beside one weight: optimizer state by its own field names, and `MASK`, packed
        bits, if it is sparse."""
        parameter = self.parameters[name]
        state = {} if self.optimizer is None else self.optimizer.state
        fields = dict(state[parameter]) if parameter in state else {}
        mask = masks.mask_of(parameter)
        return fields if mask is None else {**fields, MASK: masks.pack_mask(mask)}

    def put_beside(self, name: str, received: Mapping[str, torch.Tensor]) -> None:
        """Take over what lies beside a weight on another server."""
        parameter, fields = self.parameters[name], dict(received)
        packed = fields.pop(MASK, None)
        if packed is not None:
            masks.set_mask(parameter, masks.unpack_mask(packed, parameter.shape))
        if self.optimizer is not None and fields:
            self.optimizer.state[parameter] = fields

    def forget_state(self, names: Iterable[str]) -> None:
        """Let go of the optimizer state of weights that other processes update."""
        for name in names:
            if self.optimizer is not None:
                self.optimizer.state.pop(self.parameters[name], None)

    def load(
        self,
        weights: Mapping[str, torch.Tensor],
        optimizer_state: Mapping[str, Mapping[str, torch.Tensor]] | None = None,
    ) -> None:
        """Overwrite weights and, if given, optimizer state.

        Raises BackendConfigError naming a parameter that is missing, unknown or of another shape.
        """
        self._check_names(weights)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(weights[name])
        if optimizer_state is not None and self.optimizer is not None:
            self.optimizer.state.clear()
            for name, fields in optimizer_state.items():
                parameter = self.parameters[name]
                self.optimizer.state[parameter] = {
                    key: value if key == "step" else value.to(parameter.device)
                    for key, value in fields.items()
                }

    def _check_names(self, weights: Mapping[str, torch.Tensor]) -> None:
        for name in sorted(self.parameters.keys() ^ weights.keys()):
            missing = (
                "is not in the checkpoint" if name in self.parameters else "is not in the model"
            )
            raise BackendConfigError(f"parameter {name!r} {missing}")
        for name, parameter in self.parameters.items():
            if parameter.shape != weights[name].shape:
                raise BackendConfigError(
                    f"parameter {name!r}: the model has shape {tuple(parameter.shape)}, "
                    f"the checkpoint {tuple(weights[name].shape)}"
                )

    def _gradients(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        for name in names:
            gradient = self.parameters[name].grad
            if gradient is not None:
                yield name, gradient
