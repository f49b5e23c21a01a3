"""Weight-decay schedulers: the closed forms of `closed_forms`, set as `weight_decay` of groups.

scheduler = CosineDecayWD(optimizer, initial_val=0.1, end_val=0.4, total_iters=10_000)
"""

import torch

from wafer_backend.optim import closed_forms as forms
from wafer_backend.optim import scheduler as base
from wafer_backend.optim.scheduler import ClosedFormScheduler, Scheduler, Tags

__all__ = [
    "ChainedWD",
    "ConstantWD",
    "CosineAnnealingWD",
    "CosineAnnealingWarmRestartsWD",
    "CosineDecayWD",
    "CyclicWD",
    "ExponentialWD",
    "InverseExponentialTimeDecayWD",
    "InverseSquareRootDecayWD",
    "LambdaWD",
    "LinearWD",
    "MultiStepWD",
    "MultiplicativeWD",
    "OneCycleWD",
    "PiecewiseConstantWD",
    "PolynomialWD",
    "ScalePerParamWD",
    "SequentialWD",
    "StepWD",
    "WDScheduler",
]


class WDScheduler(Scheduler):
    """Base of all weight-decay schedulers."""

    param_group_key = "weight_decay"


WeightDecayScheduler = WDScheduler
"""As the API calls it."""


class _FormWD(ClosedFormScheduler, WDScheduler):
    pass


class ConstantWD(_FormWD, form=forms.constant):
    """A weight decay that stays."""


class PolynomialWD(_FormWD, form=forms.polynomial):
    """From an initial to an end weight decay along a power of the remaining share."""


class LinearWD(_FormWD, form=forms.linear):
    """From an initial to an end weight decay on a line."""


class ExponentialWD(_FormWD, form=forms.exponential):
    """Decay by `decay_rate` every `total_iters` steps."""


class InverseExponentialTimeDecayWD(_FormWD, form=forms.inverse_exponential_time_decay):
    """Decay by the inverse of a power of the step."""


class InverseSquareRootDecayWD(_FormWD, form=forms.inverse_square_root_decay):
    """Decay by the inverse square root of the step, constant during the warm-up."""


class CosineDecayWD(_FormWD, form=forms.cosine_decay):
    """From an initial to an end weight decay along half a cosine."""


class PiecewiseConstantWD(base.PiecewiseConstantScheduler, _FormWD, form=forms.piecewise_constant):
    """A weight decay for each stretch between milestones."""


class MultiStepWD(_FormWD, form=forms.multi_step):
    """Times gamma at every milestone."""


class StepWD(_FormWD, form=forms.step_decay):
    """Times gamma every `step_size` steps."""


class CosineAnnealingWD(_FormWD, form=forms.cosine_annealing):
    """A cosine between an initial and the least weight decay, without end."""


class CosineAnnealingWarmRestartsWD(_FormWD, form=forms.cosine_annealing_warm_restarts):
    """Half a cosine down, again and again, each `T_mult` times as long."""


class MultiplicativeWD(_FormWD, form=forms.multiplicative):
    """Times a coefficient every step."""


class CyclicWD(_FormWD, form=forms.cyclic):
    """A triangle wave between two weight decays."""


class OneCycleWD(_FormWD, form=forms.one_cycle):
    """Up to a maximum once, then down far below the initial weight decay."""


class LambdaWD(base.LambdaScheduler, WDScheduler):
    """The initial weight decay times functions of the step that `set_value_lambda` returns."""


class SequentialWD(base.SequentialScheduler, WDScheduler):
    """Schedulers one after another; `milestones` are the steps at which the next begins."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedulers: list[WDScheduler],
        milestones: list[int],
        last_epoch: int = -1,
        param_group_tags: Tags = None,
    ) -> None:
        super().__init__(optimizer, schedulers, milestones, last_epoch, param_group_tags)


class ChainedWD(base.ChainedScheduler, WDScheduler):
    """The product of schedulers: the first one's value times the relative change of the others."""

    def __init__(
        self, schedulers: list[WDScheduler], param_group_tags: Tags = None, *, last_epoch: int = -1
    ) -> None:
        super().__init__(schedulers, param_group_tags, last_epoch=last_epoch)


class ScalePerParamWD(base.ScalePerParamScheduler, WDScheduler):
    """A scheduler's value times each group's `adjust_learning_rate` (or `adjust_val`)."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        scheduler: WDScheduler,
        param_group_tags: Tags = None,
        *,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(optimizer, scheduler, param_group_tags, last_epoch=last_epoch)
