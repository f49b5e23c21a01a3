"""Half copies that a device copies weights from, and the optimizer that updates their masters."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.wafer_backend.modules import GPT2, compiled, tokens
from wafer_backend.cluster.memoryx import MemoryX
from wafer_backend.compiled import BackendConfig

CONFIG = BackendConfig(target="CSX", micro_batch_size=1, seed=3)


def test_a_half_copy_is_cast_once_per_pass(monkeypatch: pytest.MonkeyPatch):
    copied: list[torch.Tensor] = []
    original = torch.Tensor.copy_

    def counted(self: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        copied.append(self)
        return original(self, *arguments, **options)

    monkeypatch.setattr(torch.Tensor, "copy_", counted)
    made = compiled(GPT2, CONFIG, prefetch_bytes=4000, precision="bfloat16", num_csx=2)
    for step in (1, 2):
        made.train_step(tokens(step, 4), step=step, learning_rate=0.1)
    matrices = {name for name, p in made.memoryx.parameters.items() if p.ndim >= 2}
    staging = made.memoryx.staging
    assert staging is not None
    copies = Counter(map(id, copied))
    cast = {name: copies[id(half)] for name, half in staging._halves.items()}
    assert cast == dict.fromkeys(matrices, 2)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_staged_weight_has_the_bits_of_a_fresh_cast(precision: Any):
    staged, plain = (MemoryX(GPT2(), precision) for _ in range(2))
    staged.stage(pinned=False)
    with torch.no_grad():
        for name, parameter in staged.parameters.items():
            parameter.copy_(plain.parameters[name])
    for name in staged.parameters:
        found, expected = staged.weight(name), plain.weight(name)
        assert torch.equal(found, expected)
        assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())
        assert not found.requires_grad


@pytest.fixture
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_one_thread")
def test_fused_adamw_on_a_cpu_agrees_to_rounding():
    """Its bits differ from those of the plain one, so a run says which it uses."""

    def run(*, fused: bool) -> torch.Tensor:
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(64, 65))
        optimizer = torch.optim.AdamW([weight], lr=3e-3, weight_decay=0.1, fused=fused)
        for _ in range(20):
            weight.grad = torch.randn_like(weight)
            optimizer.step()
        return weight.detach()

    torch.testing.assert_close(run(fused=True), run(fused=False), rtol=1e-5, atol=1e-6)
