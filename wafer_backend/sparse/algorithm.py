"""What all sparsity algorithms share: masks put on, kept on, changed on schedule, saved.

`model.apply(algorithm)` gives parameters their first masks. `optimizer.apply(algorithm)`, or
`algorithm(optimizer)` for an optimizer of torch, keeps weights and optimizer state masked after
every step of the optimizer and changes masks at the steps of the update schedule.
"""

import inspect
import weakref
from collections.abc import Mapping
from types import FrameType
from typing import Any

import torch
from torch import nn

from wafer_backend.errors import BackendConfigError
from wafer_backend.sparse import masks
from wafer_backend.sparse.filters import Named, check_some, everything, select
from wafer_backend.sparse.init import InitMethod, make_init_method
from wafer_backend.sparse.schedules import make_schedule
from wafer_backend.sparse.selection import kept_count


class SparsityAlgorithm:
    """Base class. `sparsity`: the fraction in [0, 1] that is pruned, a number or a schedule.

    `init_method`: how the first masks are made, see `init`. `seed`: of everything random.
    `step` counts optimizer steps, `updates` changes of masks; both resume from `state_dict`.
    """

    def __init__(
        self, sparsity: Any, init_method: str | InitMethod = "random", *, seed: int = 0
    ) -> None:
        self.sparsity = make_schedule("sparsity", sparsity)
        self.init_method = make_init_method(init_method)
        self.seed = seed
        self.step = 0
        self.updates = 0
        self.parameters: dict[str, nn.Parameter] = {}
        self._leader: weakref.ref[torch.optim.Optimizer] | None = None

    # Put on.

    def __call__(self, target: nn.Module | torch.optim.Optimizer) -> None:
        """Make the parameters of a module sparse, or an optimizer keep them so."""
        if isinstance(target, torch.optim.Optimizer):
            self.attach(target)
        elif target is root_of_apply(target, self):
            self.sparsify(select(target, everything))

    @property
    def num_sparse_params(self) -> int:
        """Parameters (tensors) that this algorithm has made sparse."""
        return len(self.parameters)

    def sparsify(self, named: Named) -> None:
        """Make the first masks of these parameters; those that have one from here keep it.

        Raises BackendConfigError for no parameter, or one that another algorithm has.
        """
        check_some(named, self)
        for name, parameter in named:
            if self.parameters.get(name) is parameter or parameter.is_meta:
                continue  # a parameter on meta has no weights: the module is only planned
            if name in self.parameters or masks.mask_of(parameter) is not None:
                raise BackendConfigError(
                    f"parameter {name!r} is already sparse; give every parameter only one "
                    "algorithm, and use a Group for several algorithms"
                )
            self._check(name, parameter)
            self.parameters[name] = parameter
            mask = self.init_method(name, parameter, self.sparsity_at(0, 0), self.seed)
            masks.set_mask(parameter, mask)
            masks.hook_gradient(parameter)
        self._prepare_step()

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep the optimizer's weights and state masked, and count its steps if it is the first.

        Raises BackendConfigError when no parameter of it is sparse yet.
        """
        if not any(masks.mask_of(p) is not None for p in _parameters(optimizer)):
            raise BackendConfigError(
                "no parameter of this optimizer is sparse; call model.apply(sparsity) first"
            )
        leads = self._leader is None
        if leads:
            self._leader = weakref.ref(optimizer)

        def after_step(stepped: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            if leads:
                self.advance()
            enforce_optimizer(stepped)

        optimizer.register_step_post_hook(after_step)
        enforce_optimizer(optimizer)

    # One step.

    def advance(self) -> None:
        """Count an optimizer step that was taken, and change the masks if it is time."""
        self.step += 1
        if self.is_update_step(self.step):
            self.updates += 1
            level = self.sparsity_at(self.step, self.updates)
            for name, parameter in self.parameters.items():
                mask = self.new_mask(name, parameter, kept_count(level, parameter.numel()))
                masks.set_mask(parameter, mask)
        self._prepare_step()

    def enforce(self) -> None:
        """Zero the pruned weights."""
        for parameter in self.parameters.values():
            masks.enforce(parameter)

    def sparsity_at(self, step: int, updates: int) -> float:
        """The level of the schedule, clamped to [0, 1]."""
        return min(max(self.sparsity(step, updates), 0.0), 1.0)

    def is_update_step(self, step: int) -> bool:
        """Whether masks change after optimizer step `step`, counted from 1."""
        return False

    def new_mask(self, name: str, parameter: torch.Tensor, kept: int) -> torch.Tensor:
        """The mask after an update, with `kept` elements true."""
        raise NotImplementedError

    def wants_dense_gradient(self, step: int) -> bool:
        """Whether an update after optimizer step `step` looks at gradients of pruned weights."""
        return False

    def _check(self, name: str, parameter: torch.Tensor) -> None:
        """Raises BackendConfigError for a parameter that the algorithm cannot have."""

    def _prepare_step(self) -> None:
        wanted = self.wants_dense_gradient(self.step + 1)
        for parameter in self.parameters.values():
            masks.want_dense(parameter, wanted)

    # State.

    def state_dict(self) -> dict[str, Any]:
        """Counters, and all masks as packed bits by parameter name."""
        packed = {name: masks.pack(masks.require_mask(p)) for name, p in self.parameters.items()}
        return {
            "algorithm": type(self).__name__,
            "step": self.step,
            "updates": self.updates,
            "masks": packed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`, after `model.apply`: masks are replaced, weights masked.

        Load the weights after `model.apply` too, or the first masks will have zeroed some of them.
        Raises BackendConfigError for another algorithm or other parameters.
        """
        if state["algorithm"] != type(self).__name__:
            raise BackendConfigError(
                f"the saved sparsity is {state['algorithm']}, this one {type(self).__name__}"
            )
        for name in sorted(state["masks"].keys() ^ self.parameters.keys()):
            where = "this model" if name in state["masks"] else "the saved state"
            raise BackendConfigError(f"parameter {name!r} is not sparse in {where}")
        self.step, self.updates = int(state["step"]), int(state["updates"])
        for name, parameter in self.parameters.items():
            masks.set_mask(parameter, masks.unpack(state["masks"][name], parameter.shape))
        self._prepare_step()


def enforce_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Zero pruned weights, and optimizer state of their shape that is not `requires_dense`."""
    for parameter in _parameters(optimizer):
        state = optimizer.state.get(parameter, {})
        tensors = [
            value
            for value in state.values()
            if isinstance(value, torch.Tensor)
            and value.shape == parameter.shape
            and not getattr(value, "requires_dense", False)
        ]
        masks.enforce_on(parameter, parameter, *tensors)


def root_of_apply(module: nn.Module, fn: object) -> nn.Module:
    """The module on which `.apply(fn)` was called, if `module` is visited by it; else `module`.

    `nn.Module.apply` calls fn on children before parents and does not say which is the root, but
    names and filters are relative to it. So the calls in progress are looked at.
    """
    root, frame = module, inspect.currentframe()
    while frame is not None:
        root = _applied_on(frame, fn) or root
        frame = frame.f_back
    return root


def _applied_on(frame: FrameType, fn: object) -> nn.Module | None:
    if frame.f_code is not nn.Module.apply.__code__ or frame.f_locals.get("fn") is not fn:
        return None
    module: nn.Module = frame.f_locals["self"]
    return module


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]
