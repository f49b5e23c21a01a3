"""Turn any PyTorch dataset of dicts into HDF5 files, and read them with plain h5py.

python examples/convert_dataset.py [DIRECTORY]
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import h5py
import torch
from torch.utils.data import Dataset

from pipeline.hdf5 import convert_dataset_to_HDF5


class Counting(Dataset[dict[str, Any]]):
    """Sample i counts on from i."""

    def __len__(self) -> int:
        return 5000

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = torch.arange(index, index + 65)
        return {"input_ids": tokens[:-1], "attention_mask": torch.ones(64), "labels": tokens[1:]}


def main(directory: Path) -> None:
    """Convert; the same call again would find everything done."""
    made = convert_dataset_to_HDF5(Counting(), directory, samples_per_file=2000, num_workers=2)
    with h5py.File(directory / made.files[-1]) as file:
        print(made.n_examples, "samples in", len(made.files), "files")
        print("last file:", file["data"].shape, file["data"].dtype, file["data"].compression)
        print("input_ids of its row 0 begin with", file["data"][0, 0, :4].tolist())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
