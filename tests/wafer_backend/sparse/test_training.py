"""Training with masks through plain torch: they hold at every step, and resume exactly."""

import copy

import pytest
import torch
from torch import nn

from wafer_backend.errors import BackendConfigError
from wafer_backend.sparse import GMP, SET, Group, RigL, Static, init, mask_of, split_nan
from wafer_backend.sparse.configure import configure
from wafer_backend.sparse.selection import kept_count

from .tiny import assert_masked, batches, sparse_masks, tiny, train

LAYERS = ("fc1.weight", "fc2.weight")


def group() -> Group:
    found = Group()
    found.add(
        "fc1.weight",
        RigL(0.75, {"freq": 3, "stop": 15}, {"type": "linear", "init": 0.5, "slope": -0.02}),
    )
    found.add("fc2.weight", SET(0.5, {"steps": [2, 4, 9, 16]}))
    return found


MAKERS = {
    "static": lambda: configure({"sparsity": 0.6, "init_method": "topk"}),
    "gmp": lambda: configure(
        {
            "algorithm": "gmp",
            "sparsity": {"type": "exp", "init": 0.1, "gamma": -0.1, "final": 0.8},
            "update": {"freq": 4},
        }
    ),
    "group": group,
}


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_masks_hold_for_twenty_steps(maker, kind):
    model, sparsity = tiny(), maker()
    momentum = {"momentum": 0.9} if kind is torch.optim.SGD else {"weight_decay": 0.1}
    optimizer = kind(model.parameters(), lr=0.02, **momentum)
    model.apply(sparsity)
    sparsity(optimizer)
    assert_masked(model, optimizer)
    losses = train(model, optimizer, batches(20), lambda: assert_masked(model, optimizer))
    assert losses[-1] < losses[0]
    assert sparsity.num_sparse_params == 2
    assert sparse_masks(model).keys() == set(LAYERS)


def test_static_masks_are_those_of_a_loop_that_multiplies():
    model, plain = tiny(), tiny()
    model.apply(sparsity := configure(0.5))
    masks = sparse_masks(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    sparsity(optimizer)
    reference = torch.optim.AdamW(plain.parameters(), lr=0.02)
    for batch in batches(20):
        train(model, optimizer, iter([batch]))
        with torch.no_grad():
            for name, mask in masks.items():
                plain.get_parameter(name).mul_(mask)
        reference.zero_grad()
        plain(batch).backward()
        for name, mask in masks.items():
            plain.get_parameter(name).grad.mul_(mask)
        reference.step()
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs), name


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("stop", [1, 7])
def test_a_resumed_run_equals_an_unbroken_one(maker, stop):
    model, sparsity = tiny(), maker()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model.apply(sparsity)
    sparsity(optimizer)
    given = list(batches(20))
    train(model, optimizer, iter(given[:stop]))
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), sparsity.state_dict()))
    expected = train(model, optimizer, iter(given[stop:]))

    resumed, again = tiny(seed=5), maker()
    second = torch.optim.AdamW(resumed.parameters(), lr=0.02)
    resumed.apply(again)
    again(second)
    resumed.load_state_dict(saved[0])
    second.load_state_dict(saved[1])
    again.load_state_dict(saved[2])
    assert train(resumed, second, iter(given[stop:])) == expected
    for key, value in model.state_dict().items():
        assert torch.equal(resumed.state_dict()[key], value), key
    for name, mask in sparse_masks(model).items():
        assert torch.equal(sparse_masks(resumed)[name], mask)


def test_a_skipped_step_counts_nothing():
    model, sparsity = tiny(), RigL(0.5, {"freq": 2})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.fc1.apply(sparsity)
    sparsity(optimizer)
    batch = next(batches(1))
    train(model, optimizer, iter([batch]))
    for _ in range(2):  # an overflow: the optimizer is not stepped, dense gradients are not kept
        optimizer.zero_grad()
        (model(batch) * float("inf")).backward()
    assert sparsity.step == 1
    train(model, optimizer, iter([batch]))
    assert (sparsity.step, sparsity.updates) == (2, 1)
    assert_masked(model, optimizer)


def test_names_are_those_of_the_model_that_apply_was_called_on():
    model = nn.Sequential(tiny(), tiny())
    seen = []
    outer = Group()
    outer.add(lambda name, parameter: bool(seen.append(name)) or "fc" in name, Static(0.5))
    model.apply(outer)
    assert {name.split(".")[0] for name in seen} == {"0", "1"}
    algorithm = Static(0.5)
    nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 2))).apply(algorithm)
    assert list(algorithm.parameters) == ["0.weight", "0.bias", "1.0.weight", "1.0.bias"]


def test_an_algorithm_alone_takes_all_but_what_must_be_dense():
    model = tiny()
    model.norm.weight.requires_dense = True
    model.apply(sparsity := Static(0.3))
    assert set(dict(model.named_parameters())) - set(sparsity.parameters) == {"norm.weight"}
    for parameter in sparsity.parameters.values():
        assert int(mask_of(parameter).sum()) == kept_count(0.3, parameter.numel())


def test_state_that_must_be_dense_is_left_alone():
    model = tiny()
    model.fc1.apply(sparsity := Static(0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model.fc1.weight] = {"a": torch.ones(16, 12), "b": torch.ones(16, 12)}
    optimizer.state[model.fc1.weight]["b"].requires_dense = True
    optimizer.state[model.fc1.weight]["of rows"] = torch.ones(16)
    sparsity(optimizer)
    state = optimizer.state[model.fc1.weight]
    assert state["a"].sum() == 96
    assert state["b"].sum() == 192
    assert state["of rows"].sum() == 16


def test_weights_of_a_cs2_are_imported():
    saved = tiny(3).state_dict()
    saved["fc1.weight"][::2] = torch.nan
    saved["fc1.weight"][1, 1] = 0.0  # a weight that is kept and happens to be zero
    weights, masks = split_nan(saved)
    model = tiny()
    model.load_state_dict(weights)
    sparsity = Static(0.0, init.from_masks(masks))
    model.apply(sparsity)
    assert torch.equal(model.fc1.weight, weights["fc1.weight"])
    assert mask_of(model.fc1.weight).sum() == 96
    assert mask_of(model.fc2.weight).all()


def test_a_state_of_other_algorithms_or_parameters_is_refused():
    model, other = tiny(), tiny()
    model.fc1.apply(ours := GMP(0.5))
    other.fc2.apply(theirs := SET(0.5))
    with pytest.raises(BackendConfigError, match="the saved sparsity is SET"):
        ours.load_state_dict(theirs.state_dict())
    other.norm.apply(more := GMP(0.5, init_method="checkerboard"))
    more.parameters["extra"] = more.parameters["weight"]
    with pytest.raises(BackendConfigError, match="'extra' is not sparse in this model"):
        ours.load_state_dict(more.state_dict())
    with pytest.raises(BackendConfigError, match="has 0 algorithms"):
        configure(0.5).load_state_dict({})
