"""Learning-rate schedulers: the closed forms in absolute learning rates.

    optimizer = AdamW(model.parameters(), lr=6e-4)
    warm_up = LinearLR(optimizer, 0.0, 6e-4, total_iters=1525)
    decay = CosineDecayLR(optimizer, 6e-4, 6e-5, total_iters=7512)
    scheduler = SequentialLR(optimizer, [warm_up, decay], milestones=[1525])

The formula of each class is that of its form in `closed_forms`. A learning rate given to the
optimizer is overwritten. All are steps, never epochs, whatever `last_epoch` is called.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch

from wafer_backend.optim import closed_forms as forms
from wafer_backend.optim import scheduler as base
from wafer_backend.optim.scheduler import ClosedFormScheduler, Scheduler, Tags

__all__ = [
    "ChainedLR",
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CosineDecayLR",
    "CyclicLR",
    "ExponentialLR",
    "FormLR",
    "InverseExponentialTimeDecayLR",
    "InverseSquareRootDecayLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PiecewiseConstantLR",
    "PolynomialLR",
    "ScalePerParamLR",
    "SequentialLR",
    "StepLR",
]


class LRScheduler(Scheduler, torch.optim.lr_scheduler.LRScheduler):
    """Base of all learning-rate schedulers; also PyTorch's, so that its users take them."""

    param_group_key = "lr"
    spelling: ClassVar[dict[str, str]] = {
        "val": "learning_rate",
        "vals": "learning_rates",
        "initial_val": "initial_learning_rate",
        "end_val": "end_learning_rate",
        "base_val": "base_lr",
        "max_val": "max_lr",
    }

    def get_lr(self) -> list[float | torch.Tensor]:
        """The learning rate of the current step for every group this schedule sets."""
        return [*self.get()]

    def get_last_lr(self) -> list[float | torch.Tensor]:
        """The learning rate now in every parameter group."""
        return [*self.get_last_value()]


class FormLR(ClosedFormScheduler, LRScheduler):
    """A closed form of the learning rate, as `class MyLR(FormLR, form=my_form)`."""


class ConstantLR(FormLR, form=forms.constant):
    """A learning rate that stays."""


class PolynomialLR(FormLR, form=forms.polynomial):
    """From an initial to an end learning rate along a power of the remaining share."""


class LinearLR(FormLR, form=forms.linear):
    """From an initial to an end learning rate on a line."""


class ExponentialLR(FormLR, form=forms.exponential):
    """Learning rate times `decay_rate` every `total_iters` steps."""


class InverseExponentialTimeDecayLR(FormLR, form=forms.inverse_exponential_time_decay):
    """Learning rate over 1 + decay_rate * t ** step_exponent / total_iters."""


class InverseSquareRootDecayLR(FormLR, form=forms.inverse_square_root_decay):
    """Learning rate times scale / sqrt(max(t, warmup_steps))."""


class CosineDecayLR(FormLR, form=forms.cosine_decay):
    """From an initial to an end learning rate along half a cosine."""


class PiecewiseConstantLR(base.PiecewiseConstantScheduler, FormLR, form=forms.piecewise_constant):
    """A learning rate for each stretch between milestones."""


class MultiStepLR(FormLR, form=forms.multi_step):
    """Learning rate times `gamma` at every milestone."""


class StepLR(FormLR, form=forms.step_decay):
    """Learning rate times `gamma` every `step_size` steps."""


class CosineAnnealingLR(FormLR, form=forms.cosine_annealing):
    """Learning rate on a cosine with half a period of `T_max` steps, without end."""


class CosineAnnealingWarmRestarts(FormLR, form=forms.cosine_annealing_warm_restarts):
    """Half a cosine down, again and again, each `T_mult` times as long."""


class MultiplicativeLR(FormLR, form=forms.multiplicative):
    """Learning rate times `coefficient` every step."""


class CyclicLR(FormLR, form=forms.cyclic):
    """Learning rate on a triangle wave (arXiv 1506.01186)."""


class OneCycleLR(FormLR, form=forms.one_cycle):
    """Learning rate up to `max_lr` once, then far down (arXiv 1708.07120)."""


class LambdaLR(base.LambdaScheduler, LRScheduler):
    """The initial learning rate times functions of the step that `set_value_lambda` returns."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_learning_rate: float,
        param_group_tags: Tags = None,
        *,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(optimizer, initial_learning_rate, param_group_tags, last_epoch=last_epoch)

    def set_value_lambda(self) -> Callable[[int], float] | Sequence[Callable[[int], float]]:
        """A function of the step, or several; to override. Older code names it set_lr_lambda."""
        older = getattr(self, "set_lr_lambda", super().set_value_lambda)
        return older()


class SequentialLR(base.SequentialScheduler, LRScheduler):
    """Schedulers one after another; `milestones` are the steps at which the next begins."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedulers: list[LRScheduler],
        milestones: list[int],
        last_epoch: int = -1,
        param_group_tags: Tags = None,
    ) -> None:
        super().__init__(optimizer, schedulers, milestones, last_epoch, param_group_tags)


class ChainedLR(base.ChainedScheduler, LRScheduler):
    """The product of schedulers: the first one's rate times the relative change of the others."""

    def __init__(
        self, schedulers: list[LRScheduler], param_group_tags: Tags = None, *, last_epoch: int = -1
    ) -> None:
        super().__init__(schedulers, param_group_tags, last_epoch=last_epoch)


ChainedScheduler = ChainedLR


class ScalePerParamLR(base.ScalePerParamScheduler, LRScheduler):
    """A scheduler's rate times each group's `adjust_learning_rate`, as muP needs it."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        scheduler: LRScheduler,
        param_group_tags: Tags = None,
        *,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(optimizer, scheduler, param_group_tags, last_epoch=last_epoch)
