"""Modules that do not suit the cluster: refused by name, or warned about."""

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import wafer_backend as cstorch
from wafer_backend.errors import BackendConfigError

BATCH = torch.arange(32.0).view(8, 4).sin()


def loss_of(module: nn.Module, leaf: Any, backend: str = "CSX") -> torch.Tensor:
    cstorch.reset()
    cstorch.backend(backend)
    cstorch.backends.csx.performance.micro_batch_size = leaf
    loss: torch.Tensor = cstorch.compile(module)(BATCH).square().mean()
    loss.backward()
    return loss.detach()


def normalised(layers: int = 1, **settings: Any) -> nn.Sequential:
    torch.manual_seed(0)
    kinds = [nn.BatchNorm1d(4, **settings) for _ in range(layers)]
    return nn.Sequential(nn.Linear(4, 4), *kinds, nn.Linear(4, 2))


@pytest.mark.parametrize("backend", ["CSX", "CPU"])
def test_batch_statistics_are_warned_about_once(backend: str):
    module = normalised()
    cstorch.backend(backend)
    cstorch.backends.csx.performance.micro_batch_size = 2
    compiled = cstorch.compile(module)
    said = r"module '1' \(BatchNorm1d\): .* one leaf of 2 samples .* global batch of 8"
    with pytest.warns(UserWarning, match=said) as caught:
        compiled(BATCH).square().mean().backward()
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(BATCH).square().mean().backward()


def test_many_modules_are_counted():
    with pytest.warns(UserWarning, match=r"'1' .*'2' .*'3' \(BatchNorm1d\) and 2 more: "):
        loss_of(normalised(5), 4)


def test_statistics_that_are_not_of_the_batch_are_not_warned_about():
    module = normalised()
    module[1].eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss_of(module, 2)
        loss_of(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GroupNorm(2, 4)), 2)


def test_one_leaf_is_plain_torch_without_a_warning():
    module, plain = normalised(), normalised()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = loss_of(module, None)
    expected = plain(BATCH).square().mean()
    expected.backward()
    assert torch.equal(found, expected.detach())
    for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def scripted() -> nn.Module:
    return torch.jit.script(nn.Linear(4, 3))


def traced() -> nn.Module:
    return torch.jit.trace(nn.Linear(4, 3), BATCH)


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("leaf", [2, "auto"])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (scripted, r"the module \(RecursiveScriptModule\) is TorchScript"),
        (lambda: nn.Sequential(scripted()), r"module '0' \(.*\) is TorchScript"),
        (traced, r"is TorchScript \(torch.jit.script or torch.jit.trace\)"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), r"module '0' \(LazyLinear\) has parameters with"),
        (lambda: nn.LazyLinear(3), r"the module \(LazyLinear\) has parameters without a shape"),
    ],
)
def test_refused_by_name(make: Callable[[], nn.Module], message: str, leaf: Any):
    with pytest.raises(BackendConfigError, match=message):
        loss_of(make(), leaf)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_what_is_refused_works_where_nothing_streams_or_is_missing():
    assert loss_of(scripted(), 2, "CPU") > 0
    module = nn.Sequential(nn.LazyLinear(3))
    module(BATCH[:1])
    assert loss_of(module, "auto") > 0


@pytest.mark.parametrize(
    ("module", "error"),
    [
        (nn.Linear(5, 3), r"RuntimeError: mat1 and mat2 shapes cannot be multiplied \(1x4 and 5x3"),
        (normalised(), r"ValueError: Expected more than 1 value per channel.*; if it only needs"),
    ],
)
def test_a_module_that_fails_says_its_own_error(module: nn.Module, error: str):
    """The first sample is run to choose the leaf size; that is no reason to hide the cause."""
    message = f"the module failed on the first 1 of 8 samples, .*: {error}"
    with pytest.raises(BackendConfigError, match=message) as caught:
        loss_of(module, "auto")
    assert type(caught.value.__cause__).__name__ in error


def test_summary_writer_needs_no_further_import():
    """And is imported only when it is asked for."""
    program = """
import sys, wafer_backend as cstorch
assert "wafer_backend.utils.tensorboard" not in sys.modules
print(cstorch.utils.tensorboard.SummaryWriter.__name__)
try:
    cstorch.utils.tensorbord
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "SummaryWriter",
        "module 'wafer_backend.utils' has no attribute 'tensorbord'",
    ], done.stderr
