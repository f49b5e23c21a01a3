"""MemoryX: weight servers, reduced gradients, formats."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.wafer_backend.modules import GPT2, compiled
from wafer_backend.cluster.memoryx import MemoryX, assign_servers
from wafer_backend.cluster.tree import Partial
from wafer_backend.compiled import BackendConfig
from wafer_backend.errors import BackendConfigError

SIZES = st.lists(st.integers(0, 10**6), max_size=60)


@given(SIZES, st.integers(1, 12))
def test_whole_tensors_are_spread_evenly(sizes: list[int], servers: int):
    chosen = assign_servers(sizes, servers)
    assert len(chosen) == len(sizes)
    assert set(chosen) <= set(range(servers))
    loads = [sum(s for s, c in zip(sizes, chosen, strict=True) if c == k) for k in range(servers)]
    assert max(loads) - min(loads) <= max(sizes, default=0)
    assert max(loads) <= sum(sizes) / servers + max(sizes, default=0)


@given(SIZES, st.integers(0, 10**6), st.integers(1, 12))
def test_a_tensor_more_moves_no_other(sizes: list[int], more: int, servers: int):
    assert assign_servers([*sizes, more], servers)[:-1] == assign_servers(sizes, servers)


def test_servers_of_a_model():
    made = compiled(GPT2, BackendConfig(target="CSX", micro_batch_size=1, max_wgt_servers=3))
    memoryx = made.memoryx
    assert sum(memoryx.server_bytes) == memoryx.weight_bytes
    assert memoryx.servers.keys() == memoryx.parameters.keys()
    largest = max(p.nbytes for p in memoryx.parameters.values())
    assert max(memoryx.server_bytes) - min(memoryx.server_bytes) <= largest
    assert compiled(GPT2, BackendConfig(target="CSX", micro_batch_size=1)).memoryx.server_bytes == [
        memoryx.weight_bytes
    ]


def test_no_server_is_refused():
    with pytest.raises(BackendConfigError, match="max_wgt_servers = 0"):
        assign_servers([1], 0)


def test_delivery_divides_once_and_multiplies_by_a_factor():
    memoryx = MemoryX(nn.Linear(3, 2))
    gradient = torch.randn(2, 3)
    total = Partial({"weight": gradient})
    assert torch.equal(memoryx.delivered(total, 7.0)["weight"], gradient / 7)
    assert torch.equal(memoryx.delivered(total, 7.0, 3.0)["weight"], gradient / 7 * 3)
    assert memoryx.delivered(total, 1.0)["weight"] is gradient
    memoryx.deliver(total, 7.0, memoryx.parameters)
    assert memoryx.parameters["bias"].grad is None


def test_masters_in_half_or_double_keep_their_format():
    for dtype in (torch.bfloat16, torch.float64):
        module = nn.Linear(3, 2).to(dtype)
        memoryx = MemoryX(module, "float16")
        assert memoryx.weight("weight").dtype == dtype
        total = Partial({"weight": torch.ones(2, 3)})
        assert memoryx.delivered(total, 2.0)["weight"].dtype == dtype
