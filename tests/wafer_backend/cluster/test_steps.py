"""Global steps: what makes one fail, and that a failed or abandoned one leaves no trace."""

import pytest
import torch
from torch import nn

from tests.wafer_backend.modules import GPT2, Classifier, Mixed, compiled, points, same, tokens
from wafer_backend.compiled import BackendConfig, CompiledModule
from wafer_backend.errors import StepError

CONFIG = BackendConfig(target="CSX", micro_batch_size=2, num_csx=2)


def mixed() -> CompiledModule:
    return compiled(Mixed, CONFIG)


def test_a_batch_in_which_nothing_counts_names_the_step():
    empty = tokens(1, 8)
    empty["mask"] = torch.zeros_like(empty["mask"])
    with pytest.raises(StepError, match=r"step 57: .*D = 0"):
        mixed().train_step(empty, step=57, learning_rate=1e-3)
    with pytest.raises(StepError, match=r"step 1: .*D = 0"):
        mixed()(empty)


def test_a_loss_that_is_not_finite_names_the_step_and_changes_nothing():
    made = mixed()
    before = {name: p.detach().clone() for name, p in made.memoryx.parameters.items()}
    bad = tokens(1, 8)
    bad["mask"] = bad["mask"] * 0.5
    with pytest.raises(StepError, match="step 4: n_counted must be a whole number"):
        made.train_step(bad, step=4, learning_rate=1e-3)
    with torch.no_grad():
        made.memoryx.parameters["gain"].fill_(float("nan"))
        before["gain"].fill_(float("nan"))
    with pytest.raises(StepError, match="step 5: the loss is nan; weights are those after step 4"):
        made.train_step(tokens(1, 8), step=5, learning_rate=1e-3)
    for name, parameter in made.memoryx.parameters.items():
        assert torch.equal(parameter.nan_to_num(), before[name].nan_to_num())
        assert parameter.grad is None


def test_outputs_instead_of_a_loss_are_described():
    made = compiled(Classifier, CONFIG)
    with pytest.raises(StepError, match=r"step 1: .* got a tensor of shape \(2, 10\)"):
        made.train_step(points(1, 8)[0], step=1, learning_rate=1e-3)


def test_an_abandoned_step_leaves_no_trace():
    def stop_at(leaf: int):
        seen = []

        def check() -> None:
            seen.append(1)
            if len(seen) == leaf:
                raise KeyboardInterrupt

        return check

    clean, stopped = mixed(), mixed()
    with pytest.raises(KeyboardInterrupt):
        stopped.train_step(tokens(1, 8), step=1, learning_rate=1e-3, between_leaves=stop_at(3))
    for made in (clean, stopped):
        made.train_step(tokens(1, 8), step=1, learning_rate=1e-3)
    assert same(dict(clean.module.state_dict()), dict(stopped.module.state_dict()))


@pytest.mark.parametrize("activations", ["keep", "recompute"])
def test_the_global_random_state_is_left_alone(activations: str):
    made = compiled(GPT2, CONFIG, activations=activations)
    torch.manual_seed(11)
    before = torch.get_rng_state()
    made.train_step(tokens(1, 8), step=1, learning_rate=1e-3)
    made(tokens(1, 8))[0].backward()
    assert torch.equal(torch.get_rng_state(), before)


def test_threads_are_those_of_the_configuration():
    seen = []

    class Looks(nn.Linear):
        def forward(self, x_BF: torch.Tensor) -> torch.Tensor:
            seen.append(torch.get_num_threads())
            return super().forward(x_BF)

    try:
        made = compiled(lambda: Looks(3, 3), CONFIG, threads=2)
        torch.set_num_threads(1)
        output = made(torch.ones(4, 3))
        torch.set_num_threads(1)
        output.sum().backward()
    finally:
        torch.set_num_threads(1)
    assert seen == [2] * len(seen)


def test_modes_of_submodules_are_kept():
    made = compiled(Classifier, CONFIG)
    made.module.norm.eval()
    with pytest.raises(StepError):
        made.train_step(points(1, 8)[0], step=1, learning_rate=1e-3)
    assert made.module.training
    assert not made.module.norm.training
    made.module.eval()
    made.module.dropout.train()
    with pytest.raises(StepError):
        made.evaluate(points(1, 8)[0])
    assert not made.module.training
    assert made.module.dropout.training
