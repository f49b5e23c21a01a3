"""The base of all optimizers: state by parameter, visits, hooks, steps of one's own."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from wafer_backend import optim

EVERY = [
    *("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "ASGD", "Adamax", "Lamb", "Lion"),
    *("Muon", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
]


def model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 4, bias=False)


def build(name: str, parameters: Any) -> optim.Optimizer:
    arguments = {"SGD": {"lr": 0.1, "momentum": 0.9}, "RMSprop": {"momentum": 0.9}}
    optimizer: optim.Optimizer = getattr(optim, name)(parameters, **arguments.get(name, {}))
    return optimizer


@pytest.mark.parametrize("name", EVERY)
def test_state_of_every_optimizer_is_tensors_by_parameter(name: str) -> None:
    module = model()
    frozen = nn.Parameter(torch.zeros(2, 2), requires_grad=False)
    optimizer = build(name, [module.weight, frozen])
    assert isinstance(optimizer, optim.Optimizer)
    optimizer.preinitialize()
    fields = optimizer.state[module.weight]
    assert fields and all(isinstance(value, torch.Tensor) for value in fields.values())
    assert not any(value.requires_grad for value in fields.values())
    assert module.weight.grad is None
    if name != "Adagrad":  # its state is PyTorch's, made on construction for all parameters
        assert frozen not in optimizer.state


@pytest.mark.parametrize("name", EVERY)
def test_preinitialize_twice_changes_nothing(name: str) -> None:
    module = model()
    optimizer = build(name, module.parameters())
    module(torch.ones(2, 3)).sum().backward()
    gradient = module.weight.grad
    optimizer.preinitialize()
    assert module.weight.grad is gradient
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict())
    optimizer.preinitialize()
    torch.testing.assert_close(optimizer.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("name", EVERY)
def test_closure_gives_the_loss(name: str) -> None:
    module = model()
    optimizer = build(name, module.parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = (module(torch.ones(2, 3)) ** 2).sum()
        loss.backward()
        return loss

    first = optimizer.step(closure)
    assert first == (model()(torch.ones(2, 3)) ** 2).sum()


@pytest.mark.parametrize("name", EVERY)
def test_step_hooks_run_once(name: str) -> None:
    module, calls = model(), []
    build(name, model().parameters())  # PyTorch wraps step of a class when it is first used
    getattr(torch.optim, name, torch.optim.Adam)(model().parameters(), lr=0.1)
    optimizer = build(name, module.parameters())
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    module(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert calls == ["before", "after"]


def test_visit_state_replaces_what_is_returned() -> None:
    module = model()
    optimizer = optim.AdamW(module.parameters())
    optimizer.preinitialize()
    seen = []
    optimizer.visit_state(lambda value: seen.append(value.shape))
    assert sorted(map(len, seen)) == [0, 2, 2]
    optimizer.visit_state(lambda value: value + 1 if value.ndim else None)
    assert torch.equal(optimizer.state[module.weight]["exp_avg"], torch.ones(4, 3))
    assert optimizer.state[module.weight]["step"] == 0


def test_apply_gives_itself() -> None:
    optimizer = optim.Lion(model().parameters())
    assert optimizer.apply(lambda given: (given, "applied")) == (optimizer, "applied")


def test_zero_grad_hooks() -> None:
    module, calls = model(), []
    optimizer = optim.AdamW(module.parameters())

    def before(given: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        calls.append(("before", given is optimizer, module.weight.grad is None))
        return args, {**kwargs, "set_to_none": False}

    def after(given: Any, args: Any, kwargs: Any) -> None:
        calls.append(("after", kwargs))

    first = optimizer.register_zero_grad_pre_hook(before)
    optimizer.register_zero_grad_post_hook(after)
    module(torch.ones(2, 3)).sum().backward()
    optimizer.zero_grad()
    assert torch.equal(module.weight.grad, torch.zeros(4, 3))
    assert calls == [("before", True, False), ("after", {"set_to_none": False})]
    first.remove()
    optimizer.zero_grad()
    assert module.weight.grad is None
    assert calls[2:] == [("after", {})]


def test_a_copy_comes_without_hooks_and_with_state() -> None:
    optimizer = optim.AdamW(model().parameters())
    optimizer.preinitialize()
    optimizer.register_zero_grad_pre_hook(lambda *_: pytest.fail("the copy ran a hook"))
    copied = copy.deepcopy(optimizer)
    copied.zero_grad()
    assert len(copied.state) == 1


class Signs(optim.Optimizer):
    """A user's optimizer in the manner of cstorch."""

    def __init__(self, params: Any, lr: float, counts: bool) -> None:
        super().__init__(params, {"lr": lr}, enable_global_step=counts)

    def preinitialize(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["sum"] = torch.zeros_like(p)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                step = self.increment_global_step(p)
                p.sub_(p.grad.sign(), alpha=group["lr"] / step.item())


def test_an_optimizer_of_ones_own_counts_steps() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    optimizer = Signs([parameter], 0.5, counts=True)
    optimizer.preinitialize()
    for _ in range(2):
        parameter.grad = torch.ones(3)
        optimizer.step()
    assert torch.equal(parameter.detach(), torch.full((3,), -0.75))
    assert optimizer.state[parameter]["step"] == 2
    silent = Signs([parameter], 0.5, counts=False)
    with pytest.raises(RuntimeError, match="enable_global_step=True"):
        silent.step()


def test_an_optimizer_without_preinitialize_says_so() -> None:
    class Bare(optim.Optimizer):
        pass

    with pytest.raises(NotImplementedError, match="Bare must define preinitialize"):
        Bare([nn.Parameter(torch.zeros(1))], {}).preinitialize()
