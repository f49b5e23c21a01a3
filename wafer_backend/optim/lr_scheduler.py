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
from wafer_backend.optim.scheduler import (
    ChainedScheduler as _Chained,
)
from wafer_backend.optim.scheduler import (
    ClosedFormScheduler,
    LambdaScheduler,
    ScalePerParamScheduler,
    Scheduler,
    SequentialScheduler,
    Tags,
)


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


class _FormLR(ClosedFormScheduler, LRScheduler):
    pass


class ConstantLR(_FormLR, form=forms.constant):
    """A learning rate that stays."""


class PolynomialLR(_FormLR, form=forms.polynomial):
    """From an initial to an end learning rate along a power of the remaining share."""


class LinearLR(_FormLR, form=forms.linear):
    """From an initial to an end learning rate on a line."""


class ExponentialLR(_FormLR, form=forms.exponential):
    """Decay by `decay_rate` every `total_iters` steps."""


class InverseExponentialTimeDecayLR(_FormLR, form=forms.inverse_exponential_time_decay):
    """Decay by the inverse of a power of the step."""


class InverseSquareRootDecayLR(_FormLR, form=forms.inverse_square_root_decay):
    """Decay by the inverse square root of the step, constant during the warm-up."""


class CosineDecayLR(_FormLR, form=forms.cosine_decay):
    """From an initial to an end learning rate along half a cosine."""


class PiecewiseConstantLR(_FormLR, form=forms.piecewise_constant):
    """A learning rate for each stretch between milestones."""


class MultiStepLR(_FormLR, form=forms.multi_step):
    """Times gamma at every milestone."""


class StepLR(_FormLR, form=forms.step_decay):
    """Times gamma every `step_size` steps."""


class CosineAnnealingLR(_FormLR, form=forms.cosine_annealing):
    """A cosine between an initial and the least learning rate, without end."""


class CosineAnnealingWarmRestarts(_FormLR, form=forms.cosine_annealing_warm_restarts):
    """Half a cosine down, again and again, each `T_mult` times as long."""


class MultiplicativeLR(_FormLR, form=forms.multiplicative):
    """Times a coefficient every step."""


class CyclicLR(_FormLR, form=forms.cyclic):
    """A triangle wave between two learning rates."""


class OneCycleLR(_FormLR, form=forms.one_cycle):
    """Up to a maximum once, then down far below the initial learning rate."""


class LambdaLR(LambdaScheduler, LRScheduler):
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


class SequentialLR(SequentialScheduler, LRScheduler):
    """Schedulers one after another; `milestones` are the steps at which the next begins."""


class ChainedLR(_Chained, LRScheduler):
    """The product of schedulers: the first one's rate times the relative change of the others."""


ChainedScheduler = ChainedLR


class ScalePerParamLR(ScalePerParamScheduler, LRScheduler):
    """A scheduler's rate times each group's `adjust_learning_rate`, as muP needs it."""
