"""What the tests of schedulers share: optimizers with groups, and the values a schedule sets."""

from typing import Any

import pytest
import torch
from torch import nn


def _optimizer(**groups: Any) -> torch.optim.Optimizer:
    made = [{"params": [nn.Parameter(torch.zeros(1))], **options} for options in groups.values()]
    return torch.optim.AdamW(made or [nn.Parameter(torch.zeros(1))], lr=9.0, weight_decay=9.0)


def _rates(build: Any, steps: int, key: str = "lr") -> list[float]:
    mine = _optimizer()
    scheduler, values = build(mine), []
    for _ in range(steps):
        values.append(mine.param_groups[0][key])
        mine.step()
        scheduler.step()
    return values


@pytest.fixture(scope="session")
def optimizer() -> Any:
    """optimizer(a={...}, b={...}): one group for each keyword with these options, or one plain."""
    return _optimizer


@pytest.fixture(scope="session")
def rates() -> Any:
    """rates(build, steps, key): the value at steps 0, 1, ..., read from the optimizer's group."""
    return _rates


@pytest.fixture(scope="session")
def check_resume() -> Any:
    """check_resume(build, stop, more): loaded at step `stop`, the rates are the uninterrupted."""

    def check(build: Any, stop: int, more: int) -> None:
        whole = _rates(build, stop + more + 1)
        first, second = _optimizer(), _optimizer()
        interrupted = build(first)
        for _ in range(stop):
            interrupted.step()
        state = interrupted.state_dict()
        assert state == {"last_epoch": stop}
        resumed = build(second)
        resumed.load_state_dict(state)
        assert second.param_groups[0]["lr"] == whole[stop]
        for _ in range(more):
            resumed.step()
        assert second.param_groups[0]["lr"] == whole[-1]
        resumed.step(stop)
        assert second.param_groups[0]["lr"] == whole[stop]

    return check
