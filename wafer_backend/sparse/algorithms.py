"""The algorithms: Static, GMP, SET, RigL.

Sources: GMP, Zhu and Gupta 2017 (arXiv:1710.01878); SET, Mocanu et al. 2018 (arXiv:1707.04780);
RigL, Evci et al. 2020 (arXiv:1911.11134), Algorithm 1. Names and defaults are those of the public
documentation of `cerebras.pytorch.sparse`.
"""

from typing import Any

import torch

from wafer_backend.errors import BackendConfigError, StepError
from wafer_backend.sparse import masks
from wafer_backend.sparse.algorithm import SparsityAlgorithm
from wafer_backend.sparse.init import InitMethod
from wafer_backend.sparse.schedules import make_schedule, make_update_schedule
from wafer_backend.sparse.selection import EXCLUDED, Balance, pruned_count, uniform


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
        balance: Balance | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(sparsity, update, init_method, seed=seed)
        self.drop_fraction = make_schedule("drop_fraction", drop_fraction)
        self.balance = balance or Balance()

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

    def __init__(
        self,
        sparsity: Any,
        update: Any = None,
        drop_fraction: Any = 0.3,
        init_method: str | InitMethod = "random",
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(sparsity, update, drop_fraction, init_method, seed=seed)

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
        balance = (
            Balance(balance_in_groups, "in")
            if balance_in_groups
            else Balance(balance_out_groups or 1, "out")
        )
        super().__init__(sparsity, update, drop_fraction, init_method, balance=balance, seed=seed)

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
