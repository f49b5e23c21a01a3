"""Data sets to convert, and the files of a conversion: Model Zoo's with plain h5py, hashes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate

from pipeline.core.hashes import hash_file

NAME = "dataset-partition"


class Samples(Dataset[dict[str, Any]]):
    """Sample i as a function of i."""

    def __init__(self, count: int, shapes: dict[str, tuple[int, ...]]) -> None:
        self.count, self.shapes = count, shapes

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            name: torch.from_numpy(np.random.default_rng([index, k]).integers(0, 999, shape))
            for k, (name, shape) in enumerate(self.shapes.items())
        }


class Stream(IterableDataset[dict[str, Any]]):
    """The same, to be iterated; like most, it knows nothing of workers."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self.samples[i] for i in range(len(self.samples)))


LM = {"input_ids": (16,), "attention_mask": (16,), "labels": (16,)}
MIXED = {"input_ids": (8,), "image": (2, 3), "labels": (8,), "weights": (4,), "more": (2, 3)}


def model_zoo(dataset: Any, directory: Path, per_file: int, compression: Any = "gzip") -> None:
    """What Model Zoo's function does, without its loader: collate, group, stack, create_dataset."""
    directory.mkdir()
    samples = [default_collate([dataset[i]]) for i in range(len(dataset))]
    groups: dict[Any, list[str]] = {}
    for name, value in samples[0].items():
        groups.setdefault(tuple(value.shape[1:]), []).append(name)
    for number, first in enumerate(range(0, len(samples), per_file), 1):
        part = samples[first : first + per_file]
        with h5py.File(directory / f"{NAME}-{number}.h5", "w") as file:
            file.attrs["n_examples"] = len(part)
            for i, names in enumerate(groups.values()):
                data = np.stack([np.concatenate([s[n].numpy() for n in names]) for s in part])
                file.create_dataset(
                    "data" if len(groups) == 1 else f"data_{i}", data=data, dtype="i4",
                    chunks=(1, *data.shape[1:]), compression=compression,
                )  # fmt: skip
    params: dict[str, Any] = {"n_examples": len(samples)}
    if len(groups) == 1:
        ((shape, names),) = groups.items()
        params |= {"features": names, "features_len": len(names), "max_sequence_length": shape[0]}
    else:
        for i, (shape, names) in enumerate(groups.items()):
            params |= {
                f"data_{i}_features": names, f"data_{i}_features_len": len(names),
                f"data_{i}_max_sequence_length": shape[-1], f"data_{i}_shape": list(shape),
            }  # fmt: skip
    params |= {"output_dir": str(directory), "dtype": "i4", "compression": compression,
               "samples_per_file": per_file}  # fmt: skip
    with open(directory / "data_params.json", "w") as out:
        json.dump(params, out, indent=4)


def hashes(directory: Path) -> dict[str, str]:
    return {p.name: hash_file(p) for p in directory.iterdir() if p.suffix in (".h5", ".json")}
