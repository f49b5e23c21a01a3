"""What is half is known by storage, and a new tensor may lie where a half one was."""

from typing import Any

import torch

from wafer_backend.cluster.cbfloat16 import CbfloatCompute, round_to_cbfloat16


class _AllStale(set[int]):
    """Every storage lies where a half tensor was, until somebody says otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.said: set[int] = set()

    def __contains__(self, storage: Any) -> bool:
        return storage not in self.said or super().__contains__(storage)

    def add(self, storage: int) -> None:
        self.said.add(storage)
        super().add(storage)

    def discard(self, storage: int) -> None:
        self.said.add(storage)
        super().discard(storage)


def test_a_new_scalar_and_what_the_host_makes_are_not_half() -> None:
    third = torch.full((3,), 1 / 3)
    compute = CbfloatCompute()
    with compute:
        compute._half = _AllStale()
        with compute.on_host():
            wide = third.clone()
        total = wide.sum()
        out = total.expand(3) * wide
    assert torch.equal(out, third.sum() * third)
    assert not torch.equal(out, round_to_cbfloat16(out))
