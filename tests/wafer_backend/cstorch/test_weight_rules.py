"""Rules on weights: elements that do not learn, next to a step that is written out, and the same
bits for any number of systems."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import wafer_backend as cstorch
from wafer_backend.cstorch.weight_rules import Compression, SelectiveGrad, outlier


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def every_other(parameter: nn.Parameter) -> torch.Tensor:
    return torch.arange(parameter.numel()).reshape(parameter.shape) % 2 == 0


def test_an_outlier_is_far_from_the_spread_of_its_input() -> None:
    weight = torch.tensor([[1.0, 1.0], [1.0, 1.1], [1.0, 1.2], [9.0, 1.3]])
    deviation = [float(torch.tensor(column).std()) for column in weight.T.tolist()]
    expected = [[value >= 2.25 * deviation[at] for at, value in enumerate(row)] for row in weight]
    assert outlier(nn.Parameter(weight)).tolist() == expected
    assert outlier(nn.Parameter(weight))[:, 0].tolist() == [False, False, False, True]


def step_by_hand(weight: torch.Tensor, gradients: list[torch.Tensor]) -> torch.Tensor:
    """AdamW of torch over the elements that learn alone."""
    learns = every_other(nn.Parameter(weight))
    alone = nn.Parameter(weight[learns].clone())
    optimizer = torch.optim.AdamW([alone], lr=0.1, weight_decay=0.2, foreach=False)
    for gradient in gradients:
        alone.grad = gradient[learns]
        optimizer.step()
    after = weight.clone()
    after[learns] = alone.detach()
    return after


def test_a_step_is_that_of_the_elements_that_learn_alone() -> None:
    model = make_model()
    model.apply(SelectiveGrad("0.weight", every_other))
    before = model[0].weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.2, foreach=False)
    gradients = []
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 5)).sin().sum().backward()
        assert not model[0].weight.grad[~every_other(model[0].weight)].any()
        assert model[2].weight.grad.all()
        gradients.append(model[0].weight.grad.clone())
        optimizer.step()
    assert torch.equal(model[0].weight.detach(), step_by_hand(before, gradients))
    assert model.state_dict()["0.weight_requires_grad"].tolist() == every_other(before).tolist()


def train(num_csx: int, folder: Path) -> dict[str, torch.Tensor]:
    cstorch.reset()
    config = cstorch.distributed.ClusterConfig(num_csx=num_csx)
    cstorch.backend("CSX", cluster_config=config)
    model = make_model()
    compiled = cstorch.compile(model)
    compiled.apply(SelectiveGrad(["*.weight"], every_other))
    optimizer = cstorch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.2)
    draw = torch.Generator().manual_seed(1)

    @cstorch.trace
    def step(batch: torch.Tensor) -> Any:
        loss = compiled(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    for _ in range(3):
        step(torch.randn(12, 5, generator=draw))
    cstorch.save(model.state_dict(), folder / f"{num_csx}.mdl")
    return dict(cstorch.load(folder / f"{num_csx}.mdl"))


def test_bits_and_masks_do_not_depend_on_the_number_of_systems(tmp_path: Path) -> None:
    one, three = train(1, tmp_path), train(3, tmp_path)
    before = make_model().state_dict()
    assert one.keys() == three.keys() > before.keys()
    assert all(torch.equal(one[name], three[name]) for name in one)
    for name in ("0.weight", "2.weight"):
        learns = one[f"{name}_requires_grad"]
        assert torch.equal(one[name][~learns], before[name][~learns])
        assert (one[name][learns] != before[name][learns]).all()
    assert not torch.equal(one["0.bias"], before["0.bias"])


def test_what_selective_gradients_refuse() -> None:
    with pytest.raises(cstorch.BackendConfigError, match="unknown init_method 'outlir'"):
        SelectiveGrad("*", "outlir")
    with pytest.raises(cstorch.BackendConfigError, match="matches no parameter"):
        make_model().apply(SelectiveGrad("decoder.*"))
    wrong = SelectiveGrad("0.weight", lambda parameter: parameter[0] > 0)
    with pytest.raises(cstorch.BackendConfigError, match=r"expected bool \(6, 5\)"):
        make_model().apply(wrong)


def test_compression_is_accepted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    model = make_model()
    before = model(torch.ones(1, 5))
    with caplog.at_level(logging.INFO):
        model.apply(Compression("mx10-e2m7", ["0.*"]))
        cstorch.Compression("mx10-e2m7", "2.weight").apply(model)
    assert [record.getMessage() for record in caplog.records] == [
        "accepted without effect on an emulated cluster: compression of weights to mx10-e2m7"
    ]
    assert torch.equal(model(torch.ones(1, 5)), before)
    with pytest.raises(cstorch.BackendConfigError, match="unknown format 'mx7'"):
        Compression("mx7", "*")
    with pytest.raises(cstorch.BackendConfigError, match="matches no parameter"):
        model.apply(Compression("mx8", "decoder.*"))
