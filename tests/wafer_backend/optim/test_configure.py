"""Optimizers and schedules from the sections of a params file."""

from typing import Any

import pytest
import torch
from torch import nn

from wafer_backend import BackendConfigError, optim
from wafer_backend.optim import configure_lr_scheduler, configure_optimizer


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(2, 2))]


EVERY = [
    *("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "ASGD", "Adamax", "Lamb", "Lion"),
    *("Muon", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
]


@pytest.mark.parametrize("name", EVERY)
def test_every_name_in_any_case(name: str) -> None:
    for spelling in (name, name.lower(), name.upper()):
        made = configure_optimizer(spelling, parameters(), lr=0.5)
        assert type(made) is getattr(optim, name)
        assert made.param_groups[0]["lr"] == 0.5


def test_older_spellings() -> None:
    made = configure_optimizer(
        *("adamw", parameters()),
        **{"learning_rate": 6e-4, "beta1": 0.8, "beta2": 0.95, "weight_decay_rate": 0.1},
    )
    assert {k: made.defaults[k] for k in ("lr", "betas", "weight_decay", "eps")} == {
        **{"lr": 6e-4, "betas": (0.8, 0.95), "weight_decay": 0.1, "eps": 1e-6}
    }
    assert configure_optimizer("Adam", parameters(), beta1=0.5).defaults["betas"] == (0.5, 0.999)
    assert configure_optimizer("Adam", parameters(), betas=[0.5, 0.6]).defaults["betas"] == (
        *(0.5, 0.6),
    )
    groups = [{"params": parameters(), "weight_decay": 0.0}, {"params": parameters()}]
    made = configure_optimizer("AdamW", groups, weight_decay=0.1)
    assert [group["weight_decay"] for group in made.param_groups] == [0.0, 0.1]


def test_a_schedule_as_learning_rate_waits_for_its_scheduler() -> None:
    schedule = [{"scheduler": "Constant", "learning_rate": 0.3}]
    made = configure_optimizer("SGD", parameters(), learning_rate=schedule)
    assert made.param_groups[0]["lr"] == 0.0
    configure_lr_scheduler(made, schedule)
    assert made.param_groups[0]["lr"] == 0.3


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("AdmW", {}, "optimizer_type 'AdmW' is unknown; did you mean 'AdamW'?"),
        ("LBFGS", {}, "optimizer_type 'LBFGS' is unknown; "),
        ("AdamW", {"wieght_decay": 0.1}, "no argument 'wieght_decay'; did you mean 'weight_decay'"),
        ("AdamW", {"qqq": 1}, "AdamW has no argument 'qqq'; expected one of lr, betas, eps"),
        ("SGD", {"momentum": 0.9}, r"SGD needs lr; got \['momentum'\]"),
        ("SGD", {"lr": 1.0, "beta1": 0.9}, "SGD has no argument 'beta1'"),
        ("Adam", {"betas": (0.9, 0.9), "beta1": 0.9}, "betas and beta1 or beta2 are both given"),
        ("Adam", {"lr": 0.1, "learning_rate": 0.1}, "lr is given twice, once as 'learning_rate'"),
        ("Adam", {"max_gradient_norm": 1.0}, "Adam has no argument 'max_gradient_norm'"),
    ],
)
def test_refused_optimizers(name: str, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(BackendConfigError, match=text):
        configure_optimizer(name, parameters(), **arguments)


PARTS: list[tuple[dict[str, Any], Any]] = [
    # a schedule as params files write it, and the scheduler it means
    (
        {
            "scheduler": "Linear",
            "initial_learning_rate": 0.0,
            "end_learning_rate": 0.5,
            "steps": 5,
        },
        lambda o: optim.LinearLR(o, 0.0, 0.5, 5),
    ),
    (
        {
            "scheduler": "cosinedecaylr",
            "initial_learning_rate": 0.5,
            "end_learning_rate": 0.1,
            "total_iters": 6,
        },
        lambda o: optim.CosineDecayLR(o, 0.5, 0.1, 6),
    ),
    ({"scheduler": "Constant", "val": 0.2, "decay_steps": 3}, lambda o: optim.ConstantLR(o, 0.2)),
    (
        {"scheduler": "Exponential", "learning_rate": 0.4, "decay_steps": 5, "decay_rate": 0.5},
        lambda o: optim.ExponentialLR(o, 0.4, 5, 0.5),
    ),
    (
        {"scheduler": "PiecewiseConstant", "values": [0.3, 0.1], "boundaries": [4]},
        lambda o: optim.PiecewiseConstantLR(o, [0.3, 0.1], [4]),
    ),
    (
        {
            "scheduler": "Polynomial",
            "learning_rate": 0.4,
            "end_learning_rate": 0.1,
            "decay_steps": 5,
            "power": 2.0,
        },
        lambda o: optim.PolynomialLR(o, 0.4, 0.1, 5, 2.0),
    ),
    (
        {"scheduler": "CosineAnnealingWarmRestarts", "initial_learning_rate": 0.4, "T_0": 3},
        lambda o: optim.CosineAnnealingWarmRestarts(o, 0.4, 3),
    ),
    (
        {"scheduler": "OneCycle", "initial_learning_rate": 0.1, "max_lr": 0.4, "total_steps": 9},
        lambda o: optim.OneCycleLR(o, 0.1, 0.4, 9),
    ),
]


@pytest.mark.parametrize(("part", "same"), PARTS)
def test_one_schedule(part: dict[str, Any], same: Any, rates: Any) -> None:
    expected = rates(same, 12)
    assert rates(lambda o: configure_lr_scheduler(o, part), 12) == expected
    assert rates(lambda o: configure_lr_scheduler(o, [part]), 12) == expected


def test_a_number(rates: Any) -> None:
    assert rates(lambda o: configure_lr_scheduler(o, 0.25), 3) == [0.25] * 3
    assert rates(lambda o: configure_lr_scheduler(o, 1), 3) == [1.0] * 3


def test_schedules_follow_one_another(rates: Any) -> None:
    parts = [PARTS[0][0], PARTS[1][0], {"scheduler": "Constant", "learning_rate": 0.05}]

    def by_hand(o: torch.optim.Optimizer) -> Any:
        made = [PARTS[0][1](o), PARTS[1][1](o), optim.ConstantLR(o, 0.05)]
        return optim.SequentialLR(o, made, [5, 11])

    assert rates(lambda o: configure_lr_scheduler(o, parts), 20) == rates(by_hand, 20)


def test_schedules_are_chained_when_asked(rates: Any) -> None:
    parts = [
        {"scheduler": "Step", "initial_learning_rate": 0.4, "step_size": 2, "gamma": 0.5},
        {"scheduler": "Multiplicative", "initial_learning_rate": 0.1, "coefficient": 0.9},
    ]
    parts[0]["main_scheduler"] = "Chained"
    got = rates(lambda o: configure_lr_scheduler(o, parts), 4)
    assert got == pytest.approx([0.4, 0.36, 0.2 * 0.81, 0.2 * 0.729])


def test_groups_are_scaled(optimizer: Any) -> None:
    mine = optimizer(a={"adjust_learning_rate": 0.5}, b={})
    configure_lr_scheduler(mine, 0.2)
    assert [group["lr"] for group in mine.param_groups] == [0.1, 0.2]
    asked = configure_lr_scheduler(optimizer(), 0.2, {"decoder_kernel": 0.5})
    assert isinstance(asked, optim.ScalePerParamLR)


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        ([], "learning_rate is an empty list"),
        ([{"total_iters": 3}], "has no key 'scheduler'"),
        ([{"scheduler": "Liner"}], "scheduler 'Liner' is unknown; did you mean 'Linear'?"),
        (
            {"scheduler": "Constant", "learning_rte": 0.1},
            "no argument 'learning_rte'; did you mean 'learning_rate'",
        ),
        ({"scheduler": "Constant"}, r"Constant needs learning_rate; got \[\]"),
        (
            [{"scheduler": "Constant", "learning_rate": 0.1}] * 2,
            r"schedule 0 \(ConstantLR\) has no end, so none can follow it; give it total_iters",
        ),
        (
            [{**PARTS[0][0], "main_scheduler": "chaned"}],
            "main_scheduler 'chaned' is unknown; did you mean 'chained'?",
        ),
        (
            [{**PARTS[0][0], "main_scheduler": kind} for kind in ("chained", "sequential")],
            "main_scheduler is",
        ),
        ({**PARTS[0][0], "total_iters": 4}, "total_iters is given twice"),
    ],
)
def test_refused_schedules(schedule: Any, text: str, optimizer: Any) -> None:
    with pytest.raises(BackendConfigError, match=text):
        configure_lr_scheduler(optimizer(), schedule)


def test_a_chain_cannot_be_scaled(optimizer: Any) -> None:
    parts = [{"scheduler": "Constant", "learning_rate": 0.1, "main_scheduler": "chained"}]
    with pytest.raises(BackendConfigError, match="do not work together"):
        configure_lr_scheduler(optimizer(), parts, {"x": 1})
