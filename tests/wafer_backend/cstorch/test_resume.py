"""A run that is saved and resumed on another cluster ends with the bits of an unbroken one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import wafer_backend as cstorch
from wafer_backend import backends, tracing
from wafer_backend.utils.data import DataExecutor, DataLoader, DistributedSampler, SyntheticDataset
from wafer_backend.utils.data.samples import SampleSpec

SPEC = {"x": SampleSpec((6,)), "y": SampleSpec((), torch.int64, (0, 4))}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    backends.reset_backend()
    tracing.reset_tracing()


class Resumable(torch.utils.data.DataLoader[Any]):
    """Resumes by the number of samples streamed."""

    previous = 0

    def state_dict(self) -> dict[str, int]:
        streamed = cstorch.distributed.get_worker_state().samples_streamed
        return {"samples": self.previous + streamed}

    def load_state_dict(self, state_dict: dict[str, int], strict: bool = True) -> None:
        self.previous = state_dict["samples"]
        self.batch_sampler.set_state(self.previous)  # type: ignore[union-attr]

    def aggregate_state_dict(self, worker_states: list[dict[str, int]]) -> dict[str, int]:
        return worker_states[0]

    def deaggregate_state_dict(
        self, aggregated_state_dict: dict[str, int], strict: bool = True
    ) -> dict[str, int]:
        return aggregated_state_dict


def input_fn() -> Resumable:
    data = SyntheticDataset(SPEC, 40)
    sampler = DistributedSampler(data, seed=1, batch_size=12)
    return Resumable(data, batch_sampler=sampler)


def run(num_csx: int, workers: int, steps: int, directory: Path, resume: Path | None) -> Any:
    backends.reset_backend()
    tracing.reset_tracing()
    backend = cstorch.backend(
        "CSX", cluster_config=cstorch.distributed.ClusterConfig(num_csx=num_csx)
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.2), nn.GELU(), nn.Linear(16, 4))
    compiled = cstorch.compile(model, backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(input_fn, num_workers=workers)
    if resume is not None:
        state = cstorch.load(resume)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["dataloader"])

    @cstorch.trace
    def training_step(batch: dict[str, torch.Tensor]) -> None:
        optimizer.zero_grad()
        F.cross_entropy(compiled(batch["x"]), batch["y"]).backward()
        optimizer.step()

    @cstorch.checkpoint_closure
    def save() -> None:
        parts = {"model": model, "optimizer": optimizer, "dataloader": loader}
        state = {name: part.state_dict() for name, part in parts.items()}
        cstorch.save(state, directory / "checkpoint.mdl")

    for batch in DataExecutor(loader, num_steps=steps, checkpoint_steps=steps):
        training_step(batch)
        save()
    loader.close()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize(("num_csx", "workers"), [(1, 0), (3, 2)])
def test_resumed_on_another_cluster(tmp_path: Path, num_csx: int, workers: int) -> None:
    unbroken = run(2, 0, 7, tmp_path / "a", None)
    run(4, 1, 4, tmp_path / "b", None)
    resumed = run(num_csx, workers, 3, tmp_path / "c", tmp_path / "b" / "checkpoint.mdl")
    assert all(map(torch.equal, unbroken, resumed))
    assert len(unbroken) == 4
