"""The algorithms, Static, GMP, SET and RigL, and what they share.

`model.apply(algorithm)` gives parameters their first masks. `optimizer.apply(algorithm)`, or
`algorithm(optimizer)` for an optimizer of torch, keeps weights and optimizer state masked after
every step of the optimizer and changes masks at the steps of the update schedule.

Sources: GMP, Zhu and Gupta 2017 (arXiv:1710.01878); SET, Mocanu et al. 2018 (arXiv:1707.04780);
RigL, Evci et al. 2020 (arXiv:1911.11134), Algorithm 1. Names and defaults are those of the public
documentation of `cerebras.pytorch.sparse`.
"""

import inspect
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from wafer_backend.errors import BackendConfigError, StepError
from wafer_backend.sparse import masks
from wafer_backend.sparse.init import InitMethod, make_init_method
from wafer_backend.sparse.schedules import make_schedule, make_update_schedule
from wafer_backend.sparse.selection import (
    EXCLUDED,
    Balance,
    Named,
    check_some,
    everything,
    kept_count,
    pruned_count,
    select_parameters,
    uniform,
)


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
            self.sparsify(select_parameters(target, everything))

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
        packed = {
            name: masks.pack_mask(masks.require_mask(p)) for name, p in self.parameters.items()
        }
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
            masks.set_mask(parameter, masks.unpack_mask(state["masks"][name], parameter.shape))
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
        if frame.f_code is nn.Module.apply.__code__ and frame.f_locals.get("fn") is fn:
            root = frame.f_locals["self"]
        frame = frame.f_back
    return root


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


class Static(SparsityAlgorithm):
    """The first masks stay. `sparsity`: the fraction that is pruned."""


class _Dynamic(SparsityAlgorithm):
    """Masks change at the steps of `update`, see `make_update_schedule`."""

    def __init__(
        self,
        sparsity: Any,
        update: Any = None,
        init_method: str | InitMethod = "random",
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(sparsity, init_method, seed=seed)
        self.update = make_update_schedule(update)

    def is_update_step(self, step: int) -> bool:
        """Whether masks change after optimizer step `step`, counted from 1."""
        return self.update(step)


class GMP(_Dynamic):
    """Gradual magnitude pruning: as many weights stay as the schedule says, the largest.

    When the schedule falls, pruned weights come back as zeros, by position.
    """

    def new_mask(self, name: str, parameter: torch.Tensor, kept: int) -> torch.Tensor:
        """The `kept` largest weights."""
        return Balance().keep(active_magnitude(parameter), kept)


class _DropAndGrow(_Dynamic):
    """Drops a fraction of the smallest weights that are active and grows others in their place.

    What was just dropped may grow again, and then keeps its value, as in RigL's reference; other
    grown weights start at 0.
    """

    def __init__(
        self,
        sparsity: Any,
        update: Any = None,
        drop_fraction: Any = 0.3,
        init_method: str | InitMethod = "random",
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(sparsity, update, init_method, seed=seed)
        self.drop_fraction = make_schedule("drop_fraction", drop_fraction)
        self.balance = Balance()

    def new_mask(self, name: str, parameter: torch.Tensor, kept: int) -> torch.Tensor:
        """Active weights but the smallest, and the best of the rest up to `kept`."""
        magnitude = active_magnitude(parameter)
        active = int((magnitude > EXCLUDED).sum())
        fraction = min(max(self.drop_fraction(self.step, self.updates), 0.0), 1.0)
        survivors = min(active - pruned_count(fraction, active), kept)
        stays = self.balance.keep(magnitude, survivors) & (magnitude > EXCLUDED)
        score = self.growth_score(name, parameter)
        # Survivors stand above every score, so the best `kept` are they and the best of the rest.
        return self.balance.keep(score.masked_fill(stays, torch.inf), kept)

    def growth_score(self, name: str, parameter: torch.Tensor) -> torch.Tensor:
        """What makes a pruned weight worth growing: finite, of the parameter's shape."""
        raise NotImplementedError

    def _check(self, name: str, parameter: torch.Tensor) -> None:
        self.balance.check(name, parameter.shape)


class SET(_DropAndGrow):
    """Sparse evolutionary training: weights grow at random, by (seed, name, update number)."""

    def growth_score(self, name: str, parameter: torch.Tensor) -> torch.Tensor:
        """A random number per weight."""
        return uniform(parameter.shape, self.seed, name, self.updates).to(parameter.device)


class RigL(_DropAndGrow):
    """Rigging the lottery: weights grow where the dense gradient is largest in magnitude.

    `balance_in_groups`, `balance_out_groups`: the input or output channels fall into so many
    groups of which each keeps the same number of weights; one of them at most.
    """

    def __init__(
        self,
        sparsity: Any,
        update: Any = None,
        drop_fraction: Any = 0.3,
        balance_in_groups: int | None = None,
        balance_out_groups: int | None = None,
        init_method: str | InitMethod = "random",
        *,
        seed: int = 0,
    ) -> None:
        if balance_in_groups and balance_out_groups:
            raise BackendConfigError(
                f"balance_in_groups={balance_in_groups} and balance_out_groups="
                f"{balance_out_groups} cannot be used together; give one"
            )
        super().__init__(sparsity, update, drop_fraction, init_method, seed=seed)
        if balance_in_groups:
            self.balance = Balance(balance_in_groups, "in")
        else:
            self.balance = Balance(balance_out_groups or 1, "out")

    def wants_dense_gradient(self, step: int) -> bool:
        """At update steps."""
        return self.is_update_step(step)

    def new_mask(self, name: str, parameter: torch.Tensor, kept: int) -> torch.Tensor:
        """As `_DropAndGrow`; the old mask for a parameter that took no part in the step."""
        if masks.dense_gradient(parameter) is None and parameter.grad is None:
            return masks.require_mask(parameter)
        return super().new_mask(name, parameter, kept)

    def growth_score(self, name: str, parameter: torch.Tensor) -> torch.Tensor:
        """The magnitude of the dense gradient; 0 where it is not finite."""
        gradient = masks.dense_gradient(parameter)
        if gradient is None:
            raise StepError(
                f"RigL needs the dense gradient of {name!r} at step {self.step}, and none was "
                "delivered; run backward between two steps of the optimizer"
            )
        return torch.nan_to_num(gradient.abs().float(), nan=0.0, posinf=0.0)


def active_magnitude(parameter: torch.Tensor) -> torch.Tensor:
    """|w| in fp32, EXCLUDED where the parameter is pruned."""
    mask = masks.require_mask(parameter)
    return parameter.detach().abs().float().masked_fill(~mask, EXCLUDED)
