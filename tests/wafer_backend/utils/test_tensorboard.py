"""What is written comes back, at the right steps, also for the TensorBoard format itself."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from wafer_backend import backends, tracing
from wafer_backend.errors import BackendConfigError, BackendError
from wafer_backend.utils.data import DataExecutor
from wafer_backend.utils.tensorboard import (
    SummaryReader,
    SummaryWriter,
    summarize_scalar,
    summarize_tensor,
)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    backends.reset_backend()
    tracing.reset_tracing()
    yield
    tracing.reset_tracing()


def test_scalars(tmp_path: Path) -> None:
    with SummaryWriter(tmp_path / "train") as writer:
        for step in range(1, 4):
            writer.add_scalar("loss", torch.tensor(1 / step), step)
            writer.add_scalar("lr/group 0", 0.5, step)
        writer.flush()
    reader = SummaryReader(tmp_path / "train")
    assert reader.scalar_names() == ["loss", "lr/group_0"]
    assert len(reader.read_scalar("lr/group 0")) == 3
    found = reader.read_scalar("loss")
    assert [scalar.step for scalar in found] == [1, 2, 3]
    assert [scalar.value for scalar in found] == pytest.approx([1, 1 / 2, 1 / 3])
    assert reader.read_scalar("nothing") == []


def test_steps_follow_the_executor(tmp_path: Path) -> None:
    writer = SummaryWriter(tmp_path, base_step=101)
    for batch in DataExecutor([torch.zeros(2)] * 3, writer=writer):
        summarize_scalar("inside", 1.0)
        summarize_tensor("batch", batch)
        writer.add_scalar("outside", 1.0)
    writer.close()
    reader = SummaryReader(tmp_path)
    for name in ("inside", "outside"):
        assert [scalar.step for scalar in reader.read_scalar(name)] == [101, 102, 103]
    assert [t.step for t in reader.read_tensor("batch", latest_only=False)] == [101, 102, 103]
    with pytest.raises(BackendError, match="'loss': no executor is running"):
        writer.add_scalar("loss", 1.0)


def test_tensors(tmp_path: Path) -> None:
    with SummaryWriter(tmp_path) as writer:
        for step in (1, 12):
            writer.add_tensor("layer/*.weight", torch.full((2,), step).bfloat16(), step)
    reader = SummaryReader(tmp_path)
    assert reader.tensor_names() == ["layer/*.weight"]
    latest = reader.read_tensor("layer/*.weight")
    assert (latest.step, latest.tensor.dtype) == (12, torch.bfloat16)
    assert latest.tensor.tolist() == [12, 12]
    assert latest.utctime.tzinfo is not None
    assert reader.read_tensor("nothing") is None


def test_a_resumed_run_replaces_what_it_repeats(tmp_path: Path) -> None:
    for start, value in ((1, 1.0), (3, 2.0)):
        with SummaryWriter(tmp_path / str(start)) as writer:
            for step in range(start, 5):
                writer.add_scalar("loss", value, step)
    reader = SummaryReader([tmp_path / "1", tmp_path / "3"])
    assert [s.value for s in reader.read_scalar("loss")] == [1, 1, 2, 2]


def test_a_record_that_is_still_being_written(tmp_path: Path) -> None:
    with SummaryWriter(tmp_path) as writer:
        for step in range(3):
            writer.add_scalar("loss", 1.0, step)
    (file,) = tmp_path.glob("*tfevents*")
    file.write_bytes(file.read_bytes()[:-5])
    assert len(SummaryReader(tmp_path).read_scalar("loss")) == 2


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(BackendConfigError, match=r"pip install 'wafermill\[tensorboard\]'"):
        SummaryWriter(tmp_path)
    with pytest.raises(BackendConfigError, match="there is no such directory"):
        SummaryReader(tmp_path / "none")


def test_other_summaries_are_those_of_the_library(tmp_path: Path) -> None:
    with SummaryWriter(tmp_path) as writer:
        writer.add_text("note", "hello", 1)
        with pytest.raises(AttributeError):
            writer.add_nothing()
