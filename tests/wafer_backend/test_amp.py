"""`amp`: the half dtype, GradScaler beside torch's, one-call steps beside a plain loop."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from wafer_backend import amp, backends, compile, reset
from wafer_backend.backends.base import ClusterConfig
from wafer_backend.cluster import precision
from wafer_backend.errors import BackendConfigError, StepError


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def batches(steps: int, overflow_at: tuple[int, ...] = ()) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    for step in range(steps):
        batch = torch.randn(5, 6, generator=generator)
        yield batch * float("inf") if step in overflow_at else batch


def weights(module: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_the_half_dtype() -> None:
    assert amp.get_half_dtype() is torch.float16
    assert not amp.mixed_precision()
    assert amp.set_half_dtype("bfloat16") is torch.bfloat16
    assert (amp.get_half_dtype_str(), amp.mixed_precision()) == ("bfloat16", True)
    amp.set_half_dtype(torch.float16)
    assert amp.get_half_dtype_str() == "float16"
    assert amp.use_bfloat16(True) is torch.bfloat16
    assert amp.use_bfloat16(False) is torch.float16
    amp.enable_mixed_precision(False)
    assert not amp.mixed_precision()


def test_other_half_dtypes_are_refused() -> None:
    with pytest.raises(BackendConfigError, match="expected one of float16"):
        amp.set_half_dtype("float64")


def test_bfloat16_stands_in_for_cbfloat16() -> None:
    with pytest.warns(UserWarning, match="computes in bfloat16.*'exact'"):
        assert amp.set_half_dtype("cbfloat16") is torch.bfloat16
    assert amp.get_half_dtype_str() == "bfloat16"
    assert amp.mixed_precision()


def test_cbfloat16_is_emulated_where_asked_for() -> None:
    backends.csx.emulation.cbfloat16 = "exact"
    assert amp.set_half_dtype("cbfloat16") is torch.float32
    assert amp.get_half_dtype_str() == "cbfloat16"
    with amp.autocast():
        assert model()(torch.ones(1, 6)).dtype is torch.bfloat16, "no emulation on the host"
    assert amp.GradScaler("dynamic")._scale.max_loss_scale == 2.0**31


def test_a_script_in_cbfloat16_gives_the_same_losses_on_any_cluster() -> None:
    losses = {}
    for num_csx in (1, 2, 4):
        reset()
        backends.csx.emulation.cbfloat16 = "exact"
        amp.set_half_dtype("cbfloat16")
        backends.backend("CSX", cluster_config=ClusterConfig(num_csx=num_csx))
        backends.csx.performance.micro_batch_size = 1
        module = model()
        compiled = compile(module)
        scaler, optimizer = amp.GradScaler("dynamic"), torch.optim.SGD(module.parameters(), lr=0.1)
        losses[num_csx] = []
        for batch in batches(4):
            loss = compiled(batch).square().mean()
            amp.optimizer_step(loss, optimizer, scaler)
            losses[num_csx].append(float(loss.detach()))
    assert losses[1] == losses[2] == losses[4]
    assert losses[1][-1] < losses[1][0]


def test_autocast_on_the_host_computes_in_bfloat16_only() -> None:
    with pytest.raises(ValueError, match="bfloat16 only"):
        amp.autocast()
    amp.set_half_dtype("bfloat16")
    with amp.autocast():
        assert model()(torch.ones(1, 6)).dtype is torch.bfloat16


def test_autocast_does_nothing_on_csx() -> None:
    backends.backend("CSX")
    with amp.autocast(torch.float16):
        assert model()(torch.ones(1, 6)).dtype is torch.float32


def run(module: nn.Module, scaler: Any, overflow_at: tuple[int, ...], steps: int) -> list[float]:
    """A loop in the words that torch's scaler and ours share; the scale of every step."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    scales = []
    for batch in batches(steps, overflow_at):
        scales.append(scaler.get_scale())
        optimizer.zero_grad()
        scaler.scale(module(batch).square().mean()).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    return scales


def test_a_loop_equals_that_of_torch() -> None:
    ours, theirs = model(), model()
    scaler = amp.GradScaler("dynamic", init_scale=1024, steps_per_increase=4)
    reference = torch.amp.GradScaler("cpu", init_scale=1024, growth_interval=4)
    overflow_at = (3, 11, 12)
    assert run(ours, scaler, overflow_at, 20) == run(theirs, reference, overflow_at, 20)
    assert same(weights(ours), weights(theirs))
    assert scaler.get_num_skipped_steps() == 3


def test_a_scaler_tells_of_overflows_at_its_smallest_scale() -> None:
    scaler = amp.GradScaler(
        "dynamic", init_scale=2.0, steps_per_increase=2, min_loss_scale=1.0, max_loss_scale=2.0
    )
    module, told = model(), []
    for overflow in (False, False, True, True, False):
        run(module, scaler, (0,) if overflow else (), 1)
        told.append((scaler.get_scale(), scaler.get_non_clamped_scale()))
    assert told == [(2.0, 2.0), (2.0, 4.0), (1.0, 1.0), (1.0, 0.5), (1.0, 1.0)]


@pytest.mark.parametrize("scale", [None, 2.0**-3, 2.0**12])
def test_scaling_changes_no_bit(scale: float | None) -> None:
    scaled, plain = model(), model()
    run(scaled, amp.GradScaler(scale), (), 10)
    run(plain, amp.GradScaler(None), (), 10)
    assert same(weights(scaled), weights(plain))


@pytest.mark.parametrize("norm", [None, 0.25])
def test_one_call_is_the_loop(norm: float | None) -> None:
    called, looped = model(), model()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (called, looped)]
    scaler = amp.GradScaler("dynamic", init_scale=64.0)
    for batch in batches(8, overflow_at=(2,)):
        loss = called(batch).square().mean()
        amp.optimizer_step(loss, optimizers[0], scaler, max_gradient_norm=norm)
        looped(batch).square().mean().backward()
        if norm is not None:
            torch.nn.utils.clip_grad_norm_(looped.parameters(), norm)
        amp.update_if_finite(optimizers[1])
        optimizers[1].zero_grad()
        assert all(p.grad is None for p in called.parameters())
    assert same(weights(called), weights(looped))
    assert (scaler.get_num_skipped_steps(), scaler.get_scale()) == (1, 32.0)


def test_one_call_adds_to_earlier_micro_batches_and_clips_by_value() -> None:
    called, looped = model(), model()
    parts = list(batches(2))
    optimizer = torch.optim.SGD(called.parameters(), lr=1.0)
    called(parts[0]).sum().backward()
    amp.optimizer_step(called(parts[1]).sum(), optimizer, max_gradient_value=0.1)
    (looped(parts[0]).sum()).backward()
    (looped(parts[1]).sum()).backward()
    with torch.no_grad():
        for parameter in looped.parameters():
            assert parameter.grad is not None
            parameter -= parameter.grad.clamp(-0.1, 0.1)
    assert same(weights(called), weights(looped))


def test_a_scaler_clips_when_asked_to() -> None:
    module = model()
    before = weights(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    scaler = amp.GradScaler(4.0, max_gradient_norm=0.01)
    scaler.scale(module(next(batches(1))).sum()).backward()
    scaler.step(optimizer)
    moved = torch.cat([(a - b).flatten() for a, b in zip(weights(module), before, strict=True)])
    assert moved.norm().item() == pytest.approx(0.01, rel=1e-3)


def test_the_newest_scaler_is_current() -> None:
    scaler = amp.GradScaler(256.0)
    assert precision.current_loss_scale() == 256.0
    newer = amp.GradScaler("dynamic", init_scale=8.0)
    assert precision.current_loss_scale() == 8.0
    del scaler, newer
    assert precision.current_loss_scale() == 1.0


def test_the_largest_scale_follows_the_half_dtype() -> None:
    with pytest.raises(BackendConfigError, match="outside"):
        amp.GradScaler("dynamic", init_scale=2.0**20)
    amp.set_half_dtype("bfloat16")
    assert amp.GradScaler("dynamic", init_scale=2.0**20).get_scale() == 2.0**20


def test_a_state_continues_exactly() -> None:
    whole, first = model(), model()
    scaler = amp.GradScaler("dynamic", steps_per_increase=3)
    expected = run(whole, scaler, (4,), 5)
    run(first, stopped := amp.GradScaler("dynamic", steps_per_increase=3), (4,), 5)
    resumed = amp.GradScaler("dynamic", steps_per_increase=3)
    resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert resumed.state_dict() == scaler.state_dict()
    assert run(copy.deepcopy(first), resumed, (1,), 9) == run(first, stopped, (1,), 9)
    assert expected[0] == 2.0**15


def test_calls_out_of_order_are_named() -> None:
    module, scaler = model(), amp.GradScaler(2.0)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    with pytest.raises(StepError, match="no optimizer was stepped"):
        scaler.update()
    with pytest.raises(StepError, match="call unscale_"):
        scaler.step_if_finite(optimizer)
    scaler.unscale_(optimizer)
    with pytest.raises(StepError, match="already called"):
        scaler.unscale_(optimizer)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_gradient_norm": 1.0, "max_gradient_value": 1.0}, "cannot be used together"),
        ({"max_gradient_norm": -1.0}, "at least 0"),
    ],
)
def test_impossible_limits(limits: dict[str, float], message: str) -> None:
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    with pytest.raises(BackendConfigError, match=message):
        amp.optimizer_step(module(torch.ones(1, 6)).sum(), optimizer, **limits)


@pytest.mark.parametrize("value", ["static", 3.0])
def test_impossible_scales(value: Any) -> None:
    with pytest.raises(BackendConfigError):
        amp.GradScaler(value)


def test_isfinite() -> None:
    assert amp.isfinite([])
    assert amp.isfinite([torch.ones(2), torch.empty(0), torch.ones(1, dtype=torch.float16)])
    assert not amp.isfinite([torch.ones(2), torch.tensor([1.0, float("nan")])])
    assert not amp.isfinite(torch.tensor([1.0, -float("inf")]))


def test_nothing_is_cast_by_hand_where_everything_is_float32() -> None:
    """Models of Model Zoo cast rotary positions to `get_half_dtype()`, whatever computes."""
    amp.set_half_dtype("bfloat16")
    backends.csx.emulation.precision = "float32"
    assert amp.get_half_dtype() is amp.get_floating_point_dtype() is torch.float32
    backends.backend("CPU")
    with amp.autocast():
        assert nn.Linear(2, 2)(torch.zeros(1, 2)).dtype is torch.float32
