"""The older spelling beside the newer one, and the simulated speed-up."""

import copy

import pytest
import torch
from torch import nn

from wafer_backend import load, save, sparse
from wafer_backend.errors import BackendConfigError
from wafer_backend.sparse import (
    GMPSparsityOptimizer,
    RigLSparsityOptimizer,
    SETSparsityOptimizer,
    StaticSparsityOptimizer,
    configure_sparsity_optimizer,
    configure_sparsity_wrapper,
    simulated_speedup,
)

from .tiny import assert_masked, batches, sparse_masks, tiny, train

SCHEDULE = {"freq": 3, "stop": 12}
PAIRS = [
    (StaticSparsityOptimizer, {}, "static"),
    (GMPSparsityOptimizer, {"schedule": SCHEDULE}, "gmp"),
    (SETSparsityOptimizer, {"schedule": SCHEDULE, "drop_fraction": 0.5}, "set"),
    (RigLSparsityOptimizer, {"schedule": SCHEDULE}, "rigl"),
]


@pytest.mark.parametrize(("kind", "arguments", "name"), PAIRS)
def test_the_older_spelling_trains_the_same_weights(kind, arguments, name):
    model, other = tiny(), tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparsity = kind(model.named_parameters(), sparsity=0.7, **arguments)
    for batch in batches(15):
        sparsity.apply_sparsity()
        optimizer.zero_grad()
        sparsity.zero_grad()
        model(batch).backward()
        optimizer.step()
        sparsity.step()

    renamed = {("update" if key == "schedule" else key): v for key, v in arguments.items()}
    newer = sparse.configure({"algorithm": name, "sparsity": 0.7, **renamed})
    plain = torch.optim.SGD(other.parameters(), lr=0.1)
    other.apply(newer)
    newer(plain)
    train(other, plain, batches(15))
    for (key, ours), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs), key


def test_the_older_spelling_keeps_optimizer_state_masked_and_resumes():
    model = tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    sparsity = SETSparsityOptimizer(model.named_parameters(), 0.5, {"freq": 2})
    sparsity.manage_optimizer_state_sparsity(optimizer)
    given = list(batches(8))
    train(model, optimizer, iter(given[:3]), sparsity.step)
    assert_masked(model, optimizer)
    saved = copy.deepcopy((model.state_dict(), sparsity.state_dict(), optimizer.state_dict()))
    expected = train(model, optimizer, iter(given[3:]), sparsity.step)

    resumed = tiny(4)
    second = torch.optim.AdamW(resumed.parameters(), lr=0.02)
    again = SETSparsityOptimizer(resumed.named_parameters(), 0.5, {"freq": 2})
    again.manage_optimizer_state_sparsity(second)
    resumed.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    second.load_state_dict(saved[2])
    assert train(resumed, second, iter(given[3:]), again.step) == expected
    with pytest.raises(BackendConfigError, match="has 0 groups"):
        again.load_state_dict({})


def test_a_wrapper_steps_both_is_scheduled_and_resumes(tmp_path):
    """As the flow of R2.0 does it, next to two objects."""
    given = list(batches(8))
    model, other = tiny(), tiny()
    plain = torch.optim.AdamW(other.parameters(), lr=0.02)
    alone = SETSparsityOptimizer(other.named_parameters(), 0.5, {"freq": 2})
    alone.manage_optimizer_state_sparsity(plain)
    wrapped = configure_sparsity_wrapper(
        model, torch.optim.AdamW(model.parameters(), lr=0.02), "set", sparsity=0.5,
        schedule={"freq": 2},
    )  # fmt: skip
    assert isinstance(wrapped, torch.optim.Optimizer)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.8) for o in (wrapped, plain)]

    def both():
        alone.step()
        schedules[1].step()

    mine = train(model, wrapped, iter(given[:3]), schedules[0].step)
    assert mine == train(other, plain, iter(given[:3]), both)
    assert_masked(model, wrapped)
    assert wrapped.param_groups[0]["lr"] == plain.param_groups[0]["lr"] == 0.02 * 0.8 * 0.8 * 0.8
    save({"model": model.state_dict(), "optimizer": wrapped.state_dict()}, tmp_path / "3.mdl")

    resumed = tiny(4)
    again = configure_sparsity_wrapper(
        resumed, torch.optim.AdamW(resumed.parameters(), lr=0.02), "set", sparsity=0.5,
        schedule={"freq": 2},
    )  # fmt: skip
    state = load(tmp_path / "3.mdl")
    resumed.load_state_dict(state["model"])
    again.load_state_dict(state["optimizer"])
    assert_masked(resumed, again)
    rest = train(model, wrapped, iter(given[3:]), lambda: None)
    assert train(resumed, again, iter(given[3:]), lambda: None) == rest


def test_sparsity_of_another_model_is_refused():
    sparsity = configure_sparsity_optimizer("static", tiny().named_parameters(), sparsity=0.5)
    with pytest.raises(BackendConfigError, match="no sparse parameter of StaticSparsityOptimizer"):
        sparsity.hook_module(tiny())
    with pytest.raises(BackendConfigError, match=r"expected a torch\.nn\.Module"):
        configure_sparsity_wrapper(None, None, "static")


def test_parameter_groups_override():
    model = tiny()
    named = dict(model.named_parameters())
    groups = [
        {"params": [("fc1.weight", named["fc1.weight"])], "sparsity": 0.25},
        {"params": [("fc2.weight", named["fc2.weight"])]},
    ]
    StaticSparsityOptimizer(groups, sparsity=0.5)
    assert {n: int(m.sum()) for n, m in sparse_masks(model).items()} == {
        "fc1.weight": 144,
        "fc2.weight": 96,
    }


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (None, {"fc1.weight": 96, "fc2.weight": 96}),
        ("fc1.*", {"fc1.weight": 96, "fc1.bias": 8}),
        (
            {"fc1.weight": {"sparsity": 0.75}, "fc?.weight": {}},
            {"fc1.weight": 48, "fc2.weight": 96},
        ),
    ],
)
def test_configured_by_type_and_patterns(patterns, expected):
    model = tiny()
    optimizer = configure_sparsity_optimizer(
        "static", model.named_parameters(), patterns, sparsity=0.5
    )
    assert type(optimizer) is StaticSparsityOptimizer
    assert {n: int(m.sum()) for n, m in sparse_masks(model).items()} == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sparsity_type": "sideband"}, "unknown algorithm 'sideband'"),
        ({"param_name_patterns": ["fc7.*"]}, r"'fc7\.\*' matches no parameter"),
        ({"drop_fractoin": 0.1}, "did you mean 'drop_fraction'"),
    ],
)
def test_what_is_refused(arguments, message):
    arguments = {"sparsity_type": "set", "sparsity": 0.5} | arguments
    with pytest.raises(BackendConfigError, match=message):
        configure_sparsity_optimizer(named_parameters=tiny().named_parameters(), **arguments)


def test_gradients_are_cleared_either_way():
    model = tiny()
    sparsity = StaticSparsityOptimizer(model.named_parameters(), 0.5)
    for to_none in (True, False):
        model(next(batches(1))).backward()
        sparsity.zero_grad(set_to_none=to_none)
        gradient = model.fc1.weight.grad
        assert gradient is None if to_none else not gradient.any()
        assert model.fc1.bias.grad.any()


def test_the_speed_up_is_an_ideal_bound_and_says_so():
    model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8))
    assert simulated_speedup(model).ratio == 1.0
    model.apply(sparse.configure({"sparsity": 0.75, "param_filter": "1.weight"}))
    speedup = simulated_speedup(model)
    assert speedup.ratio == 128 / 80
    assert "simulated" in str(speedup)
    assert "at most 1.60 x" in str(speedup)
    tied = tiny()
    tied.apply(sparse.configure(0.5))
    assert simulated_speedup(tied).ratio == pytest.approx((2 * 192 + 132) / (192 + 132))
    with pytest.raises(BackendConfigError, match="no weight"):
        simulated_speedup(nn.LayerNorm(3))
