"""Learning rate as a function of the step: schedulers that follow one another.

The closed forms are cstorch's, those of the classes of `wafer_backend.optim.lr_scheduler`. Each
scheduler is at its own iteration t (0-based, t = 0 at its first step), so the first step of a
warm-up from 0 has learning rate 0. The last one goes on as its formula does; one that leads to an
end stays there.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from trainer.config import InverseSquareRootDecay, Scheduler
from trainer.config.schedules import RATES, Ending
from wafer_backend.optim import lr_scheduler

Rates = float | Sequence[Scheduler]


def learning_rate(step: int, rates: Rates) -> float:
    """Learning rate of 1-based `step`.

    >>> from trainer.config import Linear
    >>> shape = {"initial_learning_rate": 0.0, "end_learning_rate": 1.0, "total_iters": 4}
    >>> [learning_rate(step, [Linear(scheduler="Linear", **shape)]) for step in (1, 2, 5, 9)]
    [0.0, 0.25, 1.0, 1.0]
    """
    if isinstance(rates, int | float):
        return float(rates)
    iteration = step - 1
    for scheduler in rates[:-1]:
        if not isinstance(scheduler, Ending) or iteration < scheduler.total_iters:
            return _value(scheduler, iteration)
        iteration -= scheduler.total_iters
    return _value(rates[-1], iteration)


def peak(rates: Rates) -> float:
    """The largest learning rate that the schedulers name, or that a decay begins with."""
    if isinstance(rates, int | float):
        return float(rates)
    return max(rate for scheduler in rates for rate in _named(scheduler))


def _named(scheduler: Scheduler) -> Iterator[float]:
    if isinstance(scheduler, InverseSquareRootDecay):
        yield _value(scheduler, 0)
        return
    for key, value in scheduler:
        if key in RATES:
            yield from value if isinstance(value, tuple) else (value,)


def _value(scheduler: Scheduler, iteration: int) -> float:
    """Of one scheduler at its own iteration, by the formula of its class in the backend."""
    name = scheduler.scheduler
    of_backend: Any = getattr(lr_scheduler, f"{name}LR", None) or getattr(lr_scheduler, name)
    arguments = {argument: getattr(scheduler, key) for argument, key in of_backend.names.items()}
    return float(of_backend.form(iteration, **arguments))
