"""compile_only and validate_only: a word instead of a step."""

import pytest
import torch
from torch import nn

import wafer_backend as cstorch
from wafer_backend import backends
from wafer_backend.backends.base import ClusterConfig
from wafer_backend.cstorch import compilation
from wafer_backend.errors import StepError


def loop(compiled, steps: int = 3) -> list:
    """A training loop; returns what its closures saw."""
    optimizer = torch.optim.SGD(compiled.parameters(), lr=1.0)
    seen = []
    log = cstorch.step_closure(seen.append)
    cstorch.checkpoint_closure(seen.append)("initial checkpoint")

    @cstorch.trace
    def step(batch):
        loss = compiled(batch).sum()
        loss.backward()
        optimizer.step()
        return loss

    executor = cstorch.utils.data.DataExecutor([torch.ones(8, 4)] * steps)
    for batch in executor:
        log(step(batch))
    return seen


def test_a_plan_and_no_step(capsys):
    backend = cstorch.backend("CSX", compile_only=True, cluster_config=ClusterConfig(num_csx=2))
    backends.csx.performance.micro_batch_size = 3
    with backend.device:
        model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2))
    assert loop(cstorch.compile(model)) == []
    said = capsys.readouterr().out
    assert said.count("model:") == 1, "one plan, not one for every step"
    assert "37 parameters, 148 bytes in MemoryX, largest weight 80 bytes" in said
    assert "global batch 8, 3 leaves of 3 samples, num_csx 2" in said
    assert "simulated step time" in said


def test_validation_updates_nothing(capsys):
    backend = cstorch.backend("CSX", validate_only=True)
    model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert loop(cstorch.compile(model, backend)) == []
    assert capsys.readouterr().out.count("gave (1, 2) torch.float32") == 1
    assert model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_outside_of_a_step_the_program_ends():
    compiled = cstorch.compile(nn.Linear(4, 2), cstorch.backend("CSX", validate_only=True))
    with pytest.raises(SystemExit) as ended:
        compiled(torch.ones(2, 4))
    assert ended.value.code == 0


def test_batch_size():
    nested = {"scale": torch.tensor(1.0), "x": [torch.zeros(5, 2)]}
    assert compilation.find_batch_size(nested) == 5
    assert compilation.first_samples(nested, 2)["x"][0].shape == (2, 2)
    with pytest.raises(StepError, match="without a tensor of samples"):
        compilation.find_batch_size({"scale": torch.tensor(1.0)})
