"""Learning rate as a function of the step: schedulers that follow one another.

The closed forms are cstorch's (`wafer_backend.optim.closed_forms`): scheduler i at its own
iteration t (0-based, t = 0 at its first step) gives initial + (end - initial) * t / total_iters
(Linear) or end + (initial - end) * (1 + cos(pi * t / total_iters)) / 2 (CosineDecay), so the first
step of a warm-up from 0 has learning rate 0. After the last scheduler its end value stays.
"""

from collections.abc import Sequence

from trainer.config import Constant, Linear, Scheduler
from wafer_backend.optim import closed_forms

Rates = float | Sequence[Scheduler]


def learning_rate(step: int, rates: Rates) -> float:
    """Learning rate of 1-based `step`.

    >>> shape = {"initial_learning_rate": 0.0, "end_learning_rate": 1.0, "total_iters": 4}
    >>> [learning_rate(step, [Linear(scheduler="Linear", **shape)]) for step in (1, 2, 5, 9)]
    [0.0, 0.25, 1.0, 1.0]
    """
    if isinstance(rates, int | float):
        return float(rates)
    iteration = step - 1
    for scheduler in rates[:-1]:
        if iteration < scheduler.total_iters:
            return _value(scheduler, iteration)
        iteration -= scheduler.total_iters
    return _value(rates[-1], iteration)


def _value(scheduler: Scheduler, iteration: int) -> float:
    """Of one scheduler at its own iteration; past its end the end value."""
    if isinstance(scheduler, Constant):
        return scheduler.learning_rate
    form = closed_forms.linear if isinstance(scheduler, Linear) else closed_forms.cosine_decay
    first, last = scheduler.initial_learning_rate, scheduler.end_learning_rate
    return form(iteration, first, last, scheduler.total_iters)
