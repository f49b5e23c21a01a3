"""Synthetic samples: of the right shapes, and always the same."""

import pytest
import torch
from torch.utils.data import DataLoader

from wafer_backend.errors import BackendConfigError
from wafer_backend.utils.data import SampleSpec, SyntheticDataset

SPEC = {
    "input_ids": SampleSpec((16,), torch.int32, (0, 100)),
    "image": [SampleSpec((3, 4), torch.bfloat16), (SampleSpec((), torch.bool),)],
    "ones": torch.ones(2),
    "index": lambda index: torch.tensor(index),
}


def test_structure_and_range() -> None:
    sample = SyntheticDataset(SPEC, 5)[3]
    assert list(sample) == ["input_ids", "image", "ones", "index"]
    assert (sample["input_ids"].dtype, sample["input_ids"].shape) == (torch.int32, (16,))
    assert 0 <= int(sample["input_ids"].min()) <= int(sample["input_ids"].max()) < 100
    assert sample["image"][0].dtype == torch.bfloat16
    assert sample["image"][1][0].dtype == torch.bool
    assert sample["index"] == 3


def test_samples_repeat_and_differ() -> None:
    one, other = SyntheticDataset(SPEC, 5), SyntheticDataset(SPEC, 9)
    ids = [one[i]["input_ids"].tolist() for i in range(5)]
    assert ids == [other[i]["input_ids"].tolist() for i in range(5)]
    assert len({tuple(row) for row in ids}) == 5


def test_in_a_torch_loader() -> None:
    batch = next(iter(DataLoader(SyntheticDataset(SPEC, 5), batch_size=4)))
    assert batch["input_ids"].shape == (4, 16)
    with pytest.raises(IndexError):
        SyntheticDataset(SPEC, 5)[5]


def test_wrong_specs() -> None:
    with pytest.raises(BackendConfigError, match=r"3 in the spec is not a SampleSpec"):
        SyntheticDataset({"x": 3}, 5)
    with pytest.raises(BackendConfigError, match="num_samples = 0"):
        SyntheticDataset(SPEC, 0)
    with pytest.raises(BackendConfigError, match="expected low < high"):
        SampleSpec((2,), torch.int32, (3, 3))
